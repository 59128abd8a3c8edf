"""Command line: `linnaeus train --config=configs/quickstart.py [--workdir=DIR] [--config.a.b=c ...]`."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

#: of `gc`: imports and tracing make millions of objects that stay, and looking through them took a tenth of a start
GARBAGE_THRESHOLDS = (100_000, 50, 100)


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the command line, trains, and returns the exit status."""
    from linnaeus_jax.config.errors import RESUME, TRAINING_MEMORY
    from linnaeus_jax.config.exit_status import USER_ERROR, as_program
    from linnaeus_jax.config.memory_limit import under_memory_limit

    if argv is not None:
        return _main(argv)
    advice = f"{TRAINING_MEMORY}, {RESUME}"
    return as_program(lambda: under_memory_limit(lambda: _main(sys.argv[1:]), advice, USER_ERROR))


def _main(argv: Sequence[str]) -> int:
    from linnaeus_jax.config.exit_status import exit_status

    status = exit_status(lambda: _run(list(argv)))
    if "linnaeus_jax.run.processes" in sys.modules:
        sys.modules["linnaeus_jax.run.processes"].exit_process(status)
    return status


def _run(argv: list[str]) -> None:
    from linnaeus_jax.config import load_config
    from linnaeus_jax.config.processes import find_processes, split_processes

    gc.set_threshold(*GARBAGE_THRESHOLDS)
    argv, given = split_processes(argv)
    config, workdir = load_config(argv)
    processes = find_processes(given, os.environ)
    # jax and everything that needs it is imported only once the command line is known to be right
    from linnaeus_jax.run.processes import join
    from linnaeus_jax.run.trainer import run

    gc.freeze()  # what is imported stays; nothing shall look through it again
    join(processes, keep_memory=config.env.keep_freed_memory)
    run(config, workdir)


if __name__ == "__main__":
    sys.exit(main())
