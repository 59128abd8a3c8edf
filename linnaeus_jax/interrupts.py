"""Ctrl-C ends a program in one line with status 130, whatever it does: importing, computing, or ending."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Any, NoReturn

STATUS = 130


def interrupted(*, said: bool = False) -> NoReturn:
    """Ends the process now; `said`: the line is printed already."""
    if not said:
        os.write(2, b"interrupted\n")
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            break
    os._exit(STATUS)


def one_line_for_interrupts() -> None:
    """From here on KeyboardInterrupt, where nothing catches it, ends the process without a traceback."""
    shown, unraisable = sys.excepthook, sys.unraisablehook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            interrupted()
        shown(kind, error, trace)

    def unraisablehook(args: Any) -> None:
        if issubclass(args.exc_type, KeyboardInterrupt):  # it came while an object was removed, or at the end
            interrupted()
        unraisable(args)

    sys.excepthook, sys.unraisablehook = excepthook, unraisablehook
