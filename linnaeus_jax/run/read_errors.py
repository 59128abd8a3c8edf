"""Errors of reading a checkpoint: those of the storage, which may pass, and those of damaged files, which do not."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: waits before the next try, in seconds
WAITS = (0.5, 2.0)
#: errors of the system that a damaged checkpoint leads to: files that are missing, or are no files
_OF_DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL}
#: what libraries that do not pass the error's number on write of the others
_TEXTS = (
    "input/output error",
    "permission denied",
    "operation not permitted",
    "stale file handle",
    "connection timed out",
    "resource temporarily unavailable",
    "too many open files",
    "cannot allocate memory",
    "device or resource busy",
    "transport endpoint",
    "resource_exhausted",
    "unavailable:",
)


def is_storage_error(error: BaseException) -> bool:
    """Whether reading failed because of the storage or the system, so that the files may be as they should be."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno not in _OF_DAMAGE
    if any(text in str(error).lower() for text in _TEXTS):
        return True
    return error.__cause__ is not None and is_storage_error(error.__cause__)


def with_retry(read: Callable[[], T]) -> T:
    """What `read` returns; errors of the storage are tried again after `WAITS`, all others are raised at once."""
    for wait in WAITS:
        try:
            return read()
        except Exception as error:
            if not is_storage_error(error):
                raise
            time.sleep(wait)
    return read()
