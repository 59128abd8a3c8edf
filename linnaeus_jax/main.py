"""Command line: `python -m linnaeus_jax.main --config=configs/quickstart.py [--workdir=DIR] [--config.a.b=c ...]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the command line, trains, and returns the exit status."""
    from linnaeus_jax.config import load_config
    from linnaeus_jax.config.errors import UserError
    from linnaeus_jax.registry import RegistrationError

    try:
        config, workdir = load_config(list(sys.argv[1:] if argv is None else argv))
        # jax and everything that needs it is imported only once the command line is known to be right
        from linnaeus_jax.run.trainer import run

        run(config, workdir)
    except (UserError, RegistrationError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
