"""What a debug event log says: progress, gradients, updates, data, and what to do about bad signs.

linnaeus debug events RUN/logs/debug [--json] [--strict] [--plot out.png]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from linnaeus_jax import tools
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.redaction import sanitize
from linnaeus_jax.debugging.analysis import analyse, plot, report
from linnaeus_jax.debugging.event_reader import log_files
from linnaeus_jax.reporting.metrics_log import strict

_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan", "good": "green", "title": "bold", "": ""}


@tools.command()
def main(argv: Sequence[str]) -> int:
    """Command line. Exit status: 0; 1 where there is no log; 2 with --strict where there are warnings or errors."""
    parser = tools.parser("analyze_debug_logs", __doc__)
    parser.add_argument("logs", nargs="+", type=Path, help="debug_log_*.jsonl files of one run, or their directory")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--strict", action="store_true", help="exit with 2 if there are warnings or errors")
    parser.add_argument("--plot", type=tools.picture, metavar="PNG", help="draw the curves into this file")
    options = parser.parse_args(argv)
    try:
        files = log_files(options.logs)
    except FileNotFoundError as error:
        print(sanitize(str(error)), file=sys.stderr)
        return 1
    analysis = analyse(files)
    if not analysis["total_events"] and analysis["malformed_lines"]:
        raise UserError(
            f"{', '.join(map(str, files))}: none of {analysis['malformed_lines']} lines is an event; debug logs lie in "
            "<run directory>/logs/debug"
        )
    if options.json:
        print(json.dumps(strict(analysis), indent=1, allow_nan=False))
    else:
        console = Console(highlight=False, soft_wrap=True)
        for text, style in report(analysis):
            console.print(Text(sanitize(text), _STYLES[style]))
    if options.plot:
        print(f"written: {plot(files, options.plot)}", file=sys.stderr)
    bad = any(sign["level"] in ("error", "warning") for sign in analysis["findings"])
    return 2 if options.strict and bad else 0


if __name__ == "__main__":
    sys.exit(main())
