"""The bytes of a file, read at any place by any thread."""

from __future__ import annotations

import errno
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax import system


class FileBytes:
    """A file that stays open, and is pickled as its path.

    Not a memory map: where a mapped file got shorter, or its storage fails, the system kills the process with SIGBUS,
    which Python cannot turn into an error.

    Raises:
      OSError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = _opened(path)
        self._reader = system.PositionedReader(descriptor)
        weakref.finalize(self, os.close, descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)

    def read(self, start: int, size: int) -> NDArray[np.uint8]:
        """uint8 [size], from byte `start` on; OSError as `read_into`."""
        out = np.empty(size, np.uint8)
        self.read_into(out, start)
        return out

    def read_into(self, out: NDArray[np.uint8], start: int) -> None:
        """Fills a contiguous uint8 array with the bytes from `start` on.

        Raises:
          OSError: naming the file, which ends before that or cannot be read.
        """
        try:
            done = self._reader.read_into(out.data, start)
            while done < out.nbytes:  # the system reads no more than 2 GiB at once
                more = self._reader.read_into(out.reshape(-1)[done:].data, start + done)
                if not more:
                    raise OSError(
                        f"{self.path}: the file ends after {start + done} bytes, where the pictures go on: it was cut "
                        "after it was opened; put it back whole"
                    )
                done += more
        except OSError as error:
            if error.errno is None:
                raise
            raise OSError(error.errno, error.strerror, str(self.path)) from error


def _opened(path: Path) -> int:
    """A descriptor; where the process may have no more of them, as many are allowed as the system lets it have."""
    try:
        return os.open(path, system.READ)
    except OSError as error:
        allowed, most = system.open_file_limits()
        if error.errno != errno.EMFILE or allowed == most:
            raise
        system.allow_open_files(most)
        return os.open(path, system.READ)
