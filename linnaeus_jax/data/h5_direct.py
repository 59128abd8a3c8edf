"""Images of HDF5 files, read in parallel without the HDF5 library, at the offsets of their chunks.

The lock of h5py also covers decompression. So the chunk index is read once, and chunks are read and inflated by many
threads. Readers are pickled as the arguments that they were opened with.
"""

from __future__ import annotations

import itertools
import math
import threading
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.file_bytes import FileBytes
from linnaeus_jax.data.image_checks import RowChecks
from linnaeus_jax.data.images import check_rows

#: filters that change no byte of one-byte values, or that are undone here
_SHUFFLE, _DEFLATE = h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE
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


@dataclass(frozen=True)
class ChunkTable:
    """Where the chunks of a dataset lie, as arrays over the grid of chunks.

    Attributes:
      shape: of a chunk.
      offset: int64, of its first byte; -1 where it was never written.
      size: int64, bytes in the file.
      packed: bool, whether it is deflated; HDF5 stores it plain where that would be longer.
      fill: value of what was never written.
    """

    shape: tuple[int, ...]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    packed: NDArray[np.bool_]
    fill: int

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> ChunkTable | None:
        """The table of a chunked dataset; None where its chunks went through another filter than gzip and shuffle."""
        plist = dataset.id.get_create_plist()
        filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
        if any(one not in (_SHUFFLE, _DEFLATE) for one in filters) or filters.count(_DEFLATE) > 1:
            return None
        deflate = 1 << filters.index(_DEFLATE) if _DEFLATE in filters else 0
        shape = tuple(dataset.chunks)
        grid = tuple(-(-whole // side) for whole, side in zip(dataset.shape, shape, strict=True))
        found = array("q")  # of numbers, since there may be millions of chunks

        def note(chunk: Any) -> None:
            found.extend((*chunk.chunk_offset, chunk.byte_offset, chunk.size, chunk.filter_mask))

        dataset.id.chunk_iter(note)
        chunks = np.frombuffer(found, np.int64).reshape(-1, len(shape) + 3)
        at = tuple((chunks[:, : len(shape)] // shape).T)
        offset, size, packed = np.full(grid, -1, np.int64), np.zeros(grid, np.int64), np.zeros(grid, bool)
        offset[at], size[at] = chunks[:, -3], chunks[:, -2]
        packed[at] = (deflate > 0) & (chunks[:, -1] & deflate == 0)  # the mask says which filters were left out
        return cls(shape, offset, size, packed, int(dataset.fillvalue))

    @property
    def end(self) -> int:
        """The first byte of the file behind all chunks."""
        return int((self.offset + self.size).max(initial=0))


class ChunkedImages(StoredImages):
    """A chunked dataset, deflated or not, whose chunks have any shape; `where`: its `ChunkTable`.

    zlib works without the GIL. Each chunk is unpacked once per call, and the last one of a thread is kept, so that rows
    which share chunks should be read together; `neighbours` says which do.
    """

    def __init__(self, path: Path, table: ChunkTable, shape: tuple[int, int, int, int]) -> None:
        super().__init__(path, table, shape)
        self._table, self._bytes = table, FileBytes(path)
        self.copies_only = not table.packed.any()
        self._last = threading.local()

    @property
    def images_per_chunk(self) -> int:
        return self._table.shape[0]

    def neighbours(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [n]: a number that rows int64 [n] have in common where they lie in the same chunks."""
        return rows // self._table.shape[0]

    def _scatter(self, rows: NDArray[np.int64], out: np.ndarray, places: Places) -> None:
        targets, layer = np.asarray(places, np.int64), self.neighbours(rows)
        order = np.argsort(layer, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(layer[order])) + 1) if len(rows) else ():
            first = int(layer[group[0]])
            pairs = list(zip(targets[group].tolist(), (rows[group] - first * self._table.shape[0]).tolist()))
            for tile in itertools.product(*map(range, self._table.offset.shape[1:])):
                self._copy_tile((first, *tile), pairs, out)

    def _copy_tile(self, at: tuple[int, ...], pairs: Sequence[tuple[int, int]], out: np.ndarray) -> None:
        """Copies one chunk's part of images, given as (place in `out`, row within the chunk)."""
        sides = self._table.shape[1:]
        where = tuple(slice(i * side, (i + 1) * side) for i, side in zip(at[1:], sides, strict=True))
        kept = tuple(slice(whole - i * side) for i, side, whole in zip(at[1:], sides, self.image_shape, strict=True))
        chunk = self._chunk(at)
        for place, row in pairs:
            out[place][where] = chunk[row][kept]  # a chunk at the border reaches beyond the image

    def _chunk(self, at: tuple[int, ...]) -> NDArray[np.uint8]:
        if getattr(self._last, "at", None) == at:
            last: NDArray[np.uint8] = self._last.chunk
            return last
        table, size = self._table, math.prod(self._table.shape)
        start = int(table.offset[at])
        if start < 0:
            return np.full(table.shape, table.fill, np.uint8)
        data = self._bytes.read(start, int(table.size[at]))
        if table.packed[at]:
            try:
                data = np.frombuffer(zlib.decompress(data.data, bufsize=size), np.uint8)
            except zlib.error as error:
                first = at[0] * table.shape[0]
                raise OSError(
                    f"{self.path}: the chunk of images {first}..{first + table.shape[0] - 1} is damaged ({error}); "
                    "copy or build the file again"
                ) from error
        if data.size != size:
            raise OSError(f"{self.path}: a chunk of {data.size} bytes instead of {size}; copy or build the file again")
        self._last.at, self._last.chunk = at, data.reshape(table.shape)
        return data.reshape(table.shape)
