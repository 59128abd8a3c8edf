"""Contiguous HDF5 data sets whose length is known only when their last row is written."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np

#: where the only data set of a new file begins; `finish_file` checks it
DATA_OFFSET = 2048


class StreamedBytes:
    """A file of bytes behind room for an HDF5 header; `finish_file` makes it an HDF5 file.

    HDF5 cannot shrink a contiguous data set, and only contiguous ones are read without the HDF5 library and an index.
    Whether a picture can be read is known after it was decoded, so the header is written last, for as many rows as
    there are.

    Args:
      path: continued where it exists.
      written: bytes of data that an earlier process has accounted for; what lies behind them is cut off.

    Raises:
      ValueError: the file is shorter than `written` says.
    """

    def __init__(self, path: Path, written: int = 0) -> None:
        self._file = open(path, "r+b" if path.exists() else "x+b", buffering=0)  # noqa: SIM115 (closed by `close`)
        if os.fstat(self._file.fileno()).st_size < DATA_OFFSET + written and written:
            self._file.close()
            raise ValueError(f"{path} holds fewer than {written} bytes of data")
        self._file.truncate(DATA_OFFSET + written)
        self._file.seek(0, os.SEEK_END)
        self.written = written

    def write(self, data: bytes | memoryview) -> None:
        """Appends; returns when the operating system has all of it."""
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else memoryview(b"")  # no picture of a batch may be readable
        self.written += len(view)
        while view:
            view = view[self._file.write(view) :]

    def close(self) -> None:
        """Makes sure that the data are on the disk."""
        os.fsync(self._file.fileno())
        self._file.close()


def finish_file(path: Path, name: str, shape: tuple[int, ...]) -> None:
    """Turns a file of `StreamedBytes` into an HDF5 file with one contiguous uint8 data set.

    Raises:
      ValueError: the file does not hold exactly `shape` bytes, or this HDF5 library lays files out differently.
    """
    if path.stat().st_size != DATA_OFFSET + int(np.prod(shape)):
        raise ValueError(f"{path} does not hold the bytes of {shape}")
    empty = path.with_name(f"{path.name}.header")
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_layout(h5py.h5d.CONTIGUOUS)
    settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)  # nothing is written: the file is sparse
    settings.set_obj_track_times(False)  # the same pictures give the same bytes
    try:
        with h5py.File(empty, "w") as file:
            space = h5py.h5s.create_simple(shape)
            dataset = h5py.h5d.create(file.id, name.encode(), h5py.h5t.NATIVE_UINT8, space, settings)
            offset = dataset.get_offset()
        if int(np.prod(shape)) and (offset != DATA_OFFSET or empty.stat().st_size != path.stat().st_size):
            raise ValueError(f"{path}: HDF5 {h5py.version.hdf5_version} begins data at byte {offset}")
        with open(empty, "rb") as file, open(path, "r+b") as data:
            data.write(file.read(DATA_OFFSET))
    finally:
        empty.unlink(missing_ok=True)
