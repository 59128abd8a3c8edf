"""The Python blocks of one page, in one process: reads a block per line of standard input, answers each with a line.

A line is JSON, [page, line of the block, text]; the answer is JSON, the traceback or "", with the lines of the page.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until the input ends; what the blocks print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    names = {"__name__": "__main__"}
    for line in sys.stdin:
        page, number, text = json.loads(line)
        said = ""
        try:
            exec(compile("\n" * (number - 1) + text, page, "exec"), names)
        except BaseException:
            said = traceback.format_exc()
        sys.stdout.flush()
        print(json.dumps(said), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
