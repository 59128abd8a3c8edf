"""A checksum of every picture in a file of pictures.

`image_crc32` uint32 [N], optional, is the CRC-32 of the pixels of each row, or of its bytes in a file of encoded
pictures. Pixels are compared where they are read for the first time; `alignment` compares both with a labels file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.labels_file import validated_dataset, values_of

CHECKSUMS = "image_crc32"
SHOWN = 5


class DamagedPixelsError(OSError):
    """Pictures that are not those that were written; the message names file, rows and the fix."""


def checksum(image: NDArray[np.uint8]) -> int:
    """Of the pixels of one picture, contiguous in memory."""
    return zlib.crc32(image.data)


def write_checksums(file: h5py.File, checksums: Iterable[int]) -> None:
    """Into a file of pictures, one for each row."""
    file[CHECKSUMS] = np.fromiter(checksums, np.uint32)


def read_checksums(file: h5py.File, path: Path, rows: int) -> NDArray[np.uint32]:
    """uint32 [rows] of a file that has them; ValueError where they are damaged, or as many as other rows."""
    stored = validated_dataset(file, str(path), CHECKSUMS, rows, kinds="u", dims=(1,), like="images")
    return values_of(stored, str(path)).astype(np.uint32)


class RowChecks:
    """The checksums of a file of raw pictures; each row is compared once in a process.

    Args:
      path: the file, for messages.
      expected: uint32 [N].
    """

    def __init__(self, path: Path, expected: NDArray[np.uint32]) -> None:
        self._path, self.expected = path, expected
        self._seen = np.zeros(len(expected), bool)

    @classmethod
    def of(cls, path: Path, images: h5py.Dataset) -> RowChecks | None:
        """Those of the dataset of pictures of a file; None where it has none."""
        if CHECKSUMS not in images.file or images.name != "/images":
            return None
        return cls(path, read_checksums(images.file, path, len(images)))

    def compare(self, rows: NDArray[np.int64], out: NDArray[np.uint8], places: NDArray[np.int64] | range) -> None:
        """Compares the pictures out[places] of some rows, of those that were not compared before.

        Raises:
          DamagedPixelsError: they are others than were written.
        """
        new = np.flatnonzero(~self._seen[rows]).tolist()
        if not new:
            return
        wrong = sorted({int(rows[i]) for i in new if checksum(out[places[i]]) != self.expected[rows[i]]})
        if wrong:
            listed = ", ".join(map(str, wrong[:SHOWN])) + (f" and {len(wrong) - SHOWN} more" * (len(wrong) > SHOWN))
            raise DamagedPixelsError(
                f"{self._path}: the pixels of row {listed} are not those that were written: the file is damaged, or "
                f"was changed; copy or build it again (or, if you changed them, remove its dataset {CHECKSUMS!r})"
            )
        self._seen[rows] = True
