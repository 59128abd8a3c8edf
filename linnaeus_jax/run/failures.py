"""Infrastructure errors (storage, memory, data): one line for whoever started the run, and what to do."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator

from linnaeus_jax.config.errors import (
    OUT_OF_MEMORY,
    RESUME,
    TRAINING_MEMORY,
    TrainingError,
    described,
    is_out_of_memory,
)
from linnaeus_jax.data.images import ImageReadError
from linnaeus_jax.files import FILES_ONLY, DamagedFileError
from linnaeus_jax.system import write_error

log = logging.getLogger("linnaeus_jax")

#: in asyncio's messages of a task, a call in a thread or a group of them that failed when nobody waited for it any more
_NOBODY_WAITS = "exception was never retrieved"


class InfrastructureError(TrainingError):
    """Storage, memory or data failed while a run went on."""

    alert = "The run failed"


def as_infrastructure_error(error: Exception) -> InfrastructureError | None:
    """The InfrastructureError that an error of storage, memory or data is shown as; None of a fault of the program."""
    if isinstance(error, ImageReadError | DamagedFileError):
        return InfrastructureError(str(error))
    failed = write_error(error) or error  # libraries have errors of their own
    if isinstance(failed, OSError):
        return InfrastructureError(f"{described(failed)}; {RESUME}")
    if is_out_of_memory(error):
        text = " ".join(str(error).split())[:200]
        return InfrastructureError(f"{OUT_OF_MEMORY}{f' ({text})' if text else ''}: {TRAINING_MEMORY}, {RESUME}")
    return None


@contextlib.contextmanager
def background_errors() -> Iterator[None]:
    """Tracebacks that threads of libraries print go to the log files while the block runs.

    Orbax raises the same error again where the run waits for a save; of other infrastructure errors, as in the
    writer of TensorBoard, one line is shown. After a failed save, tensorstore's threads call the event loop that orbax
    has closed, and print a traceback for every array; asyncio logs arrays and files that fail right after the first
    one. Other errors of threads are shown as ever.
    """

    def shown(record: logging.LogRecord) -> bool:
        if record.name == "asyncio":
            told = _NOBODY_WAITS in record.getMessage()
        else:
            told = bool(record.exc_info)
        if told:
            log.error("%s", record.getMessage(), exc_info=record.exc_info, extra=FILES_ONLY)
        return not told

    def ended(args: threading.ExceptHookArgs) -> None:
        failure = as_infrastructure_error(args.exc_value) if isinstance(args.exc_value, Exception) else None
        if failure is None:
            before(args)
            return
        name = "a thread" if args.thread is None else args.thread.name
        log.warning("%s ended: %s", name, " ".join(str(args.exc_value).split()))
        log.error("its calls:", exc_info=args.exc_value, extra=FILES_ONLY)

    def ignored(args: sys.UnraisableHookArgs) -> None:
        if isinstance(args.exc_value, RuntimeError) and str(args.exc_value) == "Event loop is closed":
            log.error("a save that failed went on in the background:", exc_info=args.exc_value, extra=FILES_ONLY)
        else:
            before_ignored(args)

    before, before_ignored = threading.excepthook, sys.unraisablehook
    libraries = [logging.getLogger("absl"), logging.getLogger("asyncio")]
    threading.excepthook, sys.unraisablehook = ended, ignored
    for library in libraries:
        library.addFilter(shown)
    yield
    # not after an error: threads of a save that failed go on until the program ends
    for library in libraries:
        library.removeFilter(shown)
    threading.excepthook, sys.unraisablehook = before, before_ignored
