"""What a debug event log says: progress, gradients, updates, data, and what to do about bad signs.

python -m linnaeus_jax.tools.analyze_debug_logs RUN/logs/debug [--json] [--strict] [--plot out.png]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from linnaeus_jax import tools
from linnaeus_jax.debugging.analysis import analyse, plot, report
from linnaeus_jax.debugging.event_reader import log_files
from linnaeus_jax.reporting.metrics_log import strict

_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan", "good": "green", "title": "bold", "": ""}


@tools.command(status=1)
def main(argv: Sequence[str]) -> int:
    """Command line. Exit status: 0; 1 where a log is missing; 2 with --strict where there are warnings or errors."""
    parser = tools.parser("analyze_debug_logs", __doc__)
    parser.add_argument("logs", nargs="+", type=Path, help="debug_log_*.jsonl files of one run, or their directory")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--strict", action="store_true", help="exit with 2 if there are warnings or errors")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the curves into this file")
    options = parser.parse_args(argv)
    files = log_files(options.logs)
    analysis = analyse(files)
    if options.json:
        print(json.dumps(strict(analysis), indent=1, allow_nan=False))
    else:
        console = Console(highlight=False, soft_wrap=True)
        for text, style in report(analysis):
            console.print(Text(text, _STYLES[style]))
    if options.plot:
        print(f"written: {plot(files, options.plot)}", file=sys.stderr)
    bad = any(sign["level"] in ("error", "warning") for sign in analysis["findings"])
    return 2 if options.strict and bad else 0


if __name__ == "__main__":
    sys.exit(main())
