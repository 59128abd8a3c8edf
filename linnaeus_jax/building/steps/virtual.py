"""One images file over the files of several parts, without copying a pixel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.h5_images import IMAGE_BYTES, IMAGE_OFFSETS, IMAGES
from linnaeus_jax.data.hdf5 import open_hdf5
from linnaeus_jax.data.image_checks import CHECKSUMS, write_checksums


@dataclass(frozen=True)
class Part:
    """A file of a part, by its path relative to the folder of the whole, and which of its rows are used: bool [n]."""

    file: str
    used: NDArray[np.bool_]


def write_virtual_images(path: Path, parts: Sequence[Part]) -> None:
    """Writes an images file whose rows are the used rows of the parts, in order.

    Raises:
      OSError, KeyError: a part that cannot be read.
      ValueError: a part with another number of rows than `used`.
    """
    opened = [open_hdf5(path.parent / part.file) for part in parts]
    try:
        packed = IMAGE_BYTES in opened[0]
        name = IMAGE_BYTES if packed else IMAGES
        shape, sources, lengths = [0], [], []
        for part, file in zip(parts, opened, strict=True):
            stored = file[name]
            offsets = file[IMAGE_OFFSETS][:] if packed else np.arange(len(stored) + 1)
            if len(offsets) - 1 != len(part.used):
                raise ValueError(f"{part.file} holds {len(offsets) - 1} pictures, but {len(part.used)} were built")
            shape = [0, *stored.shape[1:]]
            lengths.append(np.diff(offsets)[part.used])
            source = h5py.VirtualSource(part.file, name, stored.shape)
            sources += [source[offsets[start] : offsets[stop]] for start, stop in _runs(part.used)]
        shape[0] = int(sum(int(length.sum()) for length in lengths))
        layout = h5py.VirtualLayout(tuple(shape), np.uint8)
        place = 0
        for source in sources:
            layout[place : place + source.shape[0]] = source
            place += source.shape[0]
        with h5py.File(path, "w") as file:
            file.create_virtual_dataset(name, layout)
            if all(CHECKSUMS in part for part in opened):
                write_checksums(
                    file,
                    np.concatenate([one[CHECKSUMS][:][part.used] for one, part in zip(opened, parts, strict=True)]),
                )
            if packed:
                file[IMAGE_OFFSETS] = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    finally:
        for file in opened:
            file.close()


def _runs(used: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """(start, stop) of each run of used rows."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], used, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
