"""How every program of this package ends: one line for each fault of the user, and a file for those of the program."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable

from linnaeus_jax.config.errors import (
    OUT_OF_MEMORY,
    STANDARD_OUTPUT,
    UserError,
    described,
    is_out_of_memory,
    text_of,
)
from linnaeus_jax.config.redaction import print_readably, sanitize
from linnaeus_jax.interrupts import STATUS as INTERRUPTED
from linnaeus_jax.interrupts import interrupted, one_line_for_interrupts
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.system import write_error

USER_ERROR = 2
#: of an error that nobody foresaw (EX_SOFTWARE of sysexits.h)
INTERNAL_ERROR = 70
MEMORY_ADVICE = "use smaller batches, fewer threads or a machine with more memory"
#: characters of a line that is printed
LONGEST_LINE = 1500


def exit_status(call: Callable[[], int | None], *errors: type[Exception], status: int = USER_ERROR) -> int:
    """What `call` returns, by default 0; what it raises is printed to stderr without a traceback.

    Args:
      errors: further kinds of errors that are the user's, besides `UserError`, `InputError` and `OSError`.
      status: of the user's errors. Any other error is one of this program: its status is `INTERNAL_ERROR`, and the
        traceback is written to a file, which the message names.
    """
    print_readably()
    caught: tuple[type[Exception], ...] = (UserError, InputError, OSError, *errors)
    try:
        return _flushed(call) or 0
    except BrokenPipeError:  # who reads the output has seen enough
        _discard_output()
        return 0
    except caught as error:
        text = described(error) if isinstance(error, OSError) else str(error)
        print("\n".join(sanitize(_clipped(line)) for line in text.splitlines()), file=sys.stderr)
        return status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if (failed := write_error(error)) is not None:
            print(sanitize(described(failed)), file=sys.stderr)
            return status
        if is_out_of_memory(error):
            print(f"{OUT_OF_MEMORY}; {MEMORY_ADVICE}", file=sys.stderr)
            return status
        text = sanitize(text_of(error))
        print(
            f"internal error of linnaeus_jax: {type(error).__name__}: {text}\n"
            f"please report it with {_written(sanitize(traceback.format_exc()))}",
            file=sys.stderr,
        )
        return INTERNAL_ERROR


def as_program(call: Callable[[], int]) -> int:
    """What `call` returns. Ctrl-C ends the process in one line from here on, also while Python itself ends."""
    one_line_for_interrupts()
    status = call()
    if status == INTERRUPTED:  # what threads still do is not waited for
        interrupted(said=True)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda *_: interrupted())
    return status


def _flushed(call: Callable[[], int | None]) -> int | None:
    """What `call` returns, once what it printed is where it should be."""
    try:
        status = call()
    except SystemExit:  # of argparse
        _flush()
        raise
    _flush()
    return status


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_output()
        raise OSError(error.errno, error.strerror, STANDARD_OUTPUT) from error


def _discard_output() -> None:
    """Python would else try to write it once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _clipped(line: str) -> str:
    """A line that a person reads, also where a name in it has 10⁵ characters."""
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 4 :]}"


def _written(text: str) -> str:
    """Where a traceback was written; the traceback itself where nothing can be."""
    try:
        descriptor, path = tempfile.mkstemp(prefix="linnaeus_jax_", suffix=".traceback.txt")
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return f"this:\n{text}"
    return path
