"""Writes the report of a run, or of several side by side.

python -m linnaeus_jax.tools.report RUN [RUN ...] [--out=FILE]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.reporting.metrics_log import RunError
from linnaeus_jax.reporting.report import write_report


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="linnaeus_jax.tools.report",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directories")
    parser.add_argument(
        "--out", type=Path, help="the HTML file; default: RUN/report.html, or comparison.html here for several runs"
    )
    options = parser.parse_args(argv)
    default = options.runs[0] / "report.html" if len(options.runs) == 1 else Path("comparison.html")
    try:
        print(write_report(options.runs, options.out or default))
    except (ConfigError, RunError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
