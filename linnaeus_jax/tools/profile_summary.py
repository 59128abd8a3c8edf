"""Where the time of profiled updates goes: top operations, idle share, computing against waiting for input.

linnaeus debug profile RUN/assets/profiler [--top 15] [--json]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from linnaeus_jax import tools
from linnaeus_jax.debugging.profile_summary import find_traces, summarise
from linnaeus_jax.files import json_text
from linnaeus_jax.reporting.logs import PlainConsole
from linnaeus_jax.reporting.tables import table


def show(summary: dict[str, Any], console: Console) -> None:
    """Prints one summary."""
    steps = summary["steps"]
    span = f"steps {steps[0]} to {steps[-1]}, {summary['ms_per_step']:.2f} ms per step" if steps else "no steps marked"
    console.print(f"{summary['run']}: {span}, {summary['window_ms']:.2f} ms in all")
    if not summary["devices"]:
        console.print(
            "no operation is recorded: the schedule began after the last update, or the run was killed; trace again"
        )
        return
    keys = ("computing", "waiting_for_input", "other_idle", "idle")
    devices = [
        [device, *("not marked" if row[key] is None else f"{100 * row[key]:.1f} %" for key in keys)]
        for device, row in summary["devices"].items()
    ]
    columns = ["device", "computing", "waiting for input", "other idle", "idle in all"]
    console.print(table("share of the time", columns, devices))
    operations = [
        [row["name"], f"{row['ms']:.3f}", row["calls"], f"{100 * row['share']:.1f} %"] for row in summary["operations"]
    ]
    columns = ["operation", "ms", "calls", "share"]
    console.print(table("top operations, self time over all devices", columns, operations))


@tools.command()
def main(argv: Sequence[str]) -> None:
    """Command line. Exit status: 0; 2 where there is no trace."""
    parser = tools.parser("profile_summary", __doc__)
    parser.add_argument("directory", type=Path, metavar="DIR", help="debug.profiler.output_dir, one run, or a file")
    parser.add_argument("--top", type=int, default=15, help="operations to show")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(argv)
    summaries = [summarise(path, options.top) for path in find_traces(options.directory)]
    if options.json:
        print(json_text(summaries, indent=1))
    else:
        for summary in summaries:
            show(summary, PlainConsole())


if __name__ == "__main__":
    sys.exit(main())
