"""What a file of pictures says of itself: a checksum of every raw picture, and whose identifiers its rows belong to.

`image_crc32` uint32 [N] beside `images` is the CRC-32 of the pixels of each row; a picture is compared where it is read
for the first time. The attribute `sha256_of_identifiers` of the file is the `TextDigest` of the identifiers of the
labels file, in order. Both may be absent.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.labels_file import attribute, text_of, validated_dataset, values_of
from linnaeus_jax.mistakes import InputError

CHECKSUMS, IDENTIFIERS_DIGEST = "image_crc32", "sha256_of_identifiers"
SHOWN = 5

log = logging.getLogger("linnaeus_jax.data")


class MisalignedError(UserError, InputError):
    """Pictures of other identifiers than those of the labels file."""


class DamagedPixelsError(OSError):
    """Pictures that are not those that were written; the message names file, rows and the fix."""


def checksum(image: NDArray[np.uint8]) -> int:
    """Of the pixels of one picture, contiguous in memory."""
    return zlib.crc32(image.data)


def write_checksums(file: h5py.File, checksums: Iterable[int]) -> None:
    """Into a file of raw pictures, one for each row."""
    file[CHECKSUMS] = np.fromiter(checksums, np.uint32)


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
        stored = validated_dataset(images.file, str(path), CHECKSUMS, len(images), kinds="u", dims=(1,), like="images")
        return cls(path, values_of(stored, str(path)).astype(np.uint32))

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


def stored_identifiers_digest(file: h5py.File) -> str:
    """The digest of the identifiers that the rows of a file of pictures belong to; "" where it does not say."""
    return text_of(attribute(file, IDENTIFIERS_DIGEST, ""))


def misaligned(path: Path, stored: str, labels: str, digest: str) -> str:
    """What is wrong where a file of pictures belongs to other identifiers than a labels file has; "" for nothing.

    Args:
      stored: digest that the file of pictures holds, "" for none.
      digest: that of the labels file.
    """
    if stored in ("", digest):
        return ""
    return (
        f"{path} belongs to other identifiers, or another order of them, than those of {labels}, so that its pictures "
        "are not those of the labels; give the file that was built or packed with these labels, or pack the pictures "
        f"again (or, if you only renamed them, remove its attribute {IDENTIFIERS_DIGEST!r})"
    )
