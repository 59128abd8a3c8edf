"""Exceptions whose message is all that the user sees."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from linnaeus_jax import system

#: error of the system -> what to do
_ADVICE = {
    errno.ENOSPC: "free space there, or choose another place",
    errno.EDQUOT: "free space within the quota, or choose another place",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f), or choose another place",
    errno.EROFS: "choose a place that can be written, or make it so",
    errno.EACCES: "restore the permission, or choose another place",
    errno.EPERM: "restore the permission, or choose another place",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files of this system",
    errno.ENOENT: "restore it, or name another",
    errno.EIO: "see to the storage",
    errno.ESTALE: "see to the storage",
}


#: in place of a file
STANDARD_OUTPUT = "the standard output"
OUT_OF_MEMORY = "out of memory"
#: what to do then, in training, and after whatever ended it
TRAINING_MEMORY = (
    "lower data.batch_size, data.prefetch.max_processed_batches or data.prefetch.mem_cache_size, or take a machine "
    "with more memory"
)
RESUME = "then rerun the command to resume from the newest checkpoint"
#: in messages of JAX, of Python where a thread has no room for its stack, and of the loader of libraries
_NO_MEMORY = ("RESOURCE_EXHAUSTED", "can't start new thread", "failed to map segment", "Cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says, in whatever form, that there is no memory."""
    if isinstance(error, ImportError) and system.memory_limit() is not None:
        return True  # libraries say it in words of their own
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | ImportError) and any(text in str(error) for text in _NO_MEMORY)
    )


def described(error: OSError) -> str:
    """An error of the system in one line: the file, what is wrong, what is free of a full disk, and what to do."""
    error = system.write_error(error) or error
    text = " ".join(str(error).split())
    if error.errno is None:  # the message is one of this program
        return text
    if error.filename is not None:
        text = f"{error.filename}: {error.strerror}{_room(error)}"
    return f"{text}; {_ADVICE[error.errno]}" if error.errno in _ADVICE else text


def _room(error: OSError) -> str:
    """How much is free where a file did not fit; empty where that is no question, or cannot be told."""
    if error.errno != errno.ENOSPC or error.filename == STANDARD_OUTPUT:
        return ""
    place = Path(os.fsdecode(error.filename)).absolute()
    try:
        usage = shutil.disk_usage(next(parent for parent in (place, *place.parents) if parent.is_dir()))
    except OSError:
        return ""
    return f" (it takes more than the {usage.free / 2**20:.1f} MiB that are free)"


def text_of(error: BaseException) -> str:
    """What an exception of the user's own code says, as one line that is not endless."""
    try:
        text = " ".join(str(error).split())
    except Exception as nested:  # it is the user's class
        text = f"(its text cannot be had: {type(nested).__name__})"
    return text if len(text) <= 500 else f"{text[:500]}..."


class UserError(Exception):
    """Something outside the program is wrong; the message says what, where and how to mend it."""


class ConfigError(UserError):
    """All problems of a configuration at once; `main` prints it without a traceback.

    Attributes:
      messages: one line per problem, each naming the key or file, the value and the fix.
    """

    def __init__(self, messages: str | Iterable[str]) -> None:
        self.messages = [messages] if isinstance(messages, str) else list(messages)
        super().__init__(self.messages)

    def __str__(self) -> str:
        if len(self.messages) == 1:
            return self.messages[0]
        return "\n".join(f"{number}. {message}" for number, message in enumerate(self.messages, 1))


class TrainingError(UserError):
    """Ends training; the message says what, where and how to mend it.

    Attributes:
      alert: title under which a person is told wherever a sink can reach one; empty: nobody is.
    """

    alert = ""
