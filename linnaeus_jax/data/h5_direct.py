"""Uncompressed images of HDF5 files, read in parallel without the HDF5 library, which reads under one lock.

Readers are pickled as the arguments that they were opened with.
"""

from __future__ import annotations

import itertools
import math
from array import array
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.file_bytes import FileBytes
from linnaeus_jax.data.image_checks import RowChecks
from linnaeus_jax.data.images import check_rows

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
