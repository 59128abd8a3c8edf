"""Uncompressed images of HDF5 files, read in parallel without the HDF5 library, which reads under one lock.

Readers are pickled as the arguments that they were opened with.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import weakref
from array import array
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax import system
from linnaeus_jax.data.image_checks import RowChecks
from linnaeus_jax.data.images import check_rows

# ---- The bytes of a file, read at any place by any thread


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


# ----------------------------------------------------------------------------------------------------------------------


Places = NDArray[np.int64] | range


class StoredImages:
    """An HDF5 dataset uint8 [N, H, W, 3].

    Attributes:
      checks: that every picture is compared with where it is read first; None: of a file without checksums.
    """

    checks: RowChecks | None = None
    #: whether reading is nothing but copying, which one thread does as fast as the memory allows
    copies_only = False

    def __init__(self, path: Path, where: Any, shape: tuple[int, int, int, int]) -> None:
        self.path, self._where, self._shape = path, where, shape
        self.image_shape: tuple[int, int, int] = shape[1:]

    def __len__(self) -> int:
        return self._shape[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self._where, self._shape), {"checks": self.checks}

    @property
    def checksums(self) -> NDArray[np.uint32] | None:
        """CRC-32 of the pixels of each row, uint32 [N], of a file that has them."""
        return None if self.checks is None else self.checks.expected

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        check_rows(rows, len(self), self.path)
        self._read(rows, out)
        if self.checks is not None:
            self.checks.compare(rows, out, range(len(rows)))
        return np.ones(len(rows), bool)

    def scatter(self, rows: NDArray[np.int64], out: np.ndarray, places: Places) -> None:
        """Writes the images of rows int64 [n], which all exist, to out[places]."""
        self._scatter(rows, out, places)
        if self.checks is not None:
            self.checks.compare(rows, out, places)

    def _read(self, rows: NDArray[np.int64], out: np.ndarray) -> None:
        self._scatter(rows, out, range(len(rows)))

    def _scatter(self, rows: NDArray[np.int64], out: np.ndarray, places: Places) -> None:
        raise NotImplementedError


class ContiguousImages(StoredImages):
    """A contiguous dataset at its file offset."""

    copies_only = True

    def __init__(self, path: Path, offset: int, shape: tuple[int, int, int, int]) -> None:
        super().__init__(path, offset, shape)
        self._bytes = FileBytes(path)

    def _read(self, rows: NDArray[np.int64], out: np.ndarray) -> None:
        size = math.prod(self.image_shape)
        ends = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
        for start, stop in itertools.pairwise(ends):  # of consecutive rows
            if start < stop:
                self._bytes.read_into(out[start:stop], self._where + int(rows[start]) * size)

    def _scatter(self, rows: NDArray[np.int64], out: np.ndarray, places: Places) -> None:
        size = math.prod(self.image_shape)
        for place, row in zip(places, rows.tolist(), strict=True):
            self._bytes.read_into(out[place], self._where + row * size)


class WholeChunkImages(StoredImages):
    """An uncompressed dataset with one image per chunk; `where`: int64 [N], the file offset of each."""

    copies_only = True

    def __init__(self, path: Path, offsets: NDArray[np.int64], shape: tuple[int, int, int, int]) -> None:
        super().__init__(path, offsets, shape)
        self._bytes = FileBytes(path)

    def _scatter(self, rows: NDArray[np.int64], out: np.ndarray, places: Places) -> None:
        for place, offset in zip(places, self._where[rows].tolist(), strict=True):
            self._bytes.read_into(out[place], offset)


def chunk_offsets(dataset: h5py.Dataset) -> NDArray[np.int64] | None:
    """int64 [N]: where each image lies in the file, for `WholeChunkImages`; None: the dataset has another layout."""
    if dataset.chunks != (1, *dataset.shape[1:]) or dataset.id.get_create_plist().get_nfilters():
        return None
    found = array("q")  # of numbers, since there may be millions of chunks
    dataset.id.chunk_iter(lambda chunk: found.extend((chunk.chunk_offset[0], chunk.byte_offset)))
    row, at = np.frombuffer(found, np.int64).reshape(-1, 2).T
    offsets = np.full(len(dataset), -1, np.int64)  # of chunks that were never written
    offsets[row] = at
    return offsets if offsets.min(initial=0) >= 0 else None
