"""Writes the report of a run, or of several side by side.

linnaeus report RUN [RUN ...] [--out=FILE]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from linnaeus_jax import tools
from linnaeus_jax.reporting.report import write_report


@tools.command(ValueError)
def main(argv: Sequence[str]) -> None:
    """Command line; returns the exit status."""
    parser = tools.parser("report", __doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directories")
    parser.add_argument(
        "--out", type=Path, help="the HTML file; default: RUN/report.html, or comparison.html here for several runs"
    )
    options = parser.parse_args(argv)
    jax.config.update("jax_platforms", "cpu")  # schedules are evaluated, no accelerator is needed
    default = options.runs[0] / "report.html" if len(options.runs) == 1 else Path("comparison.html")
    print(write_report(options.runs, options.out or default))


if __name__ == "__main__":
    sys.exit(main())
