"""Picks the lines of chosen debug flags out of a run's text logs.

linnaeus debug logs RUN/logs -o null_masking_logs.txt -f DEBUG.LOSS.NULL_MASKING -t debug -r 0

A record is kept or dropped as a whole, with its continuation lines. A flag stands for its prefix and those that extend
it: DEBUG.LOSS.NULL_MASKING for [DEBUG_NULL_MASKING] and [DEBUG_NULL_MASKING_SUMMARY] alike.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from linnaeus_jax import tools
from linnaeus_jax.debugging.log_filter import filter_logs


@tools.command()
def main(argv: Sequence[str]) -> None:
    """Command line. Exit status: 0; 2 where there is nothing to filter or a flag is unknown."""
    parser = tools.parser("filter_logs", __doc__)
    parser.add_argument("directory", type=Path, metavar="LOG_DIR", help="the logs directory of a run")
    parser.add_argument("-o", "--output", default="filtered_log.txt", help="file to write, inside LOG_DIR")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("-f", "--flags", nargs="+", default=(), metavar="FLAG", help="keep only lines of these flags")
    choice.add_argument("-b", "--blocked", nargs="+", default=(), metavar="FLAG", help="drop lines of these flags")
    parser.add_argument("-r", "--rank", type=int, default=-1, help="process; -1: all")
    parser.add_argument(
        "-t",
        "--type",
        dest="kind",
        choices=("debug", "info", "both"),
        default="both",
        help="info: only records of INFO and above",
    )
    options = parser.parse_args(argv)
    path, count = filter_logs(**vars(options))
    hint = "" if count or not options.flags else "; was its flag on (debug.* in config.json of the run)?"
    print(f"{count} records written to {path}{hint}")


if __name__ == "__main__":
    sys.exit(main())
