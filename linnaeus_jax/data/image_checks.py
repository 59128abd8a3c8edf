"""A checksum of every picture in a file of pictures.

`image_crc32` uint32 [N], optional, is the CRC-32 of the pixels of each row, or of its bytes in a file of encoded
pictures. Pixels are compared where they are read for the first time; `alignment` compares both with a labels file.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.images import EncodedImages, ImageReadError, ImageSource, ResizedImages, input_dtype
from linnaeus_jax.data.labels_file import validated_dataset, values_of
from linnaeus_jax.mistakes import shortened

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
            raise DamagedPixelsError(
                f"{self._path}: the pixels of row {shortened(map(str, wrong), SHOWN)} are not those that were written: "
                f"the file is damaged, or was changed; copy or build it again (or, if you changed them, remove its "
                f"dataset {CHECKSUMS!r})"
            )
        self._seen[rows] = True


# ---- A sample of the pictures of a run, by which a run that goes on sees that they are still the same
#
# The sample is at most `ROWS` of the training rows, evenly spaced over them from the first to the last: a pure function
# of which rows there are. It costs that many pictures read once at the start, whatever the size of the data. Pictures
# are compared as they are stored, before any resizing: encoded ones by their bytes, whether in a folder or packed, raw
# ones by their pixels, however they are laid out.


ROWS = 256
_PIXELS, _ENCODED = "pixels", "encoded files"


def sampled_rows(rows: NDArray[np.int64], most: int = ROWS) -> NDArray[np.int64]:
    """int64 [at most `most`], ascending: evenly spaced ones of some rows int64 [n] in any order."""
    places = np.linspace(0, len(rows) - 1, min(len(rows), most)).round().astype(np.int64)
    return np.sort(rows)[places]


def picture_sample(images: ImageSource, rows: NDArray[np.int64]) -> dict[str, Any]:
    """What is kept of the pictures of some rows, as JSON types: how they are stored, the sampled rows and a digest of
    each of these pictures, "" for one that cannot be read now; and one of the checksums of all rows, "" without them.

    Raises:
      DamagedPixelsError: of raw pictures with checksums.
    """
    source = images.source if isinstance(images, ResizedImages) else images
    chosen = sampled_rows(rows)
    found: dict[str, Any] = {"stored": _ENCODED if isinstance(source, EncodedImages) else _PIXELS}
    if not isinstance(source, EncodedImages):
        found |= {"shape": list(source.image_shape), "dtype": str(input_dtype(source))}
    checksums = getattr(source, "checksums", None)
    found["checksums"] = "" if checksums is None else hashlib.sha256(checksums[np.sort(rows)].tobytes()).hexdigest()
    return found | {"rows": chosen.tolist(), "digests": [_digest(source, row) for row in chosen.tolist()]}


def _digest(source: ImageSource, row: int) -> str:
    try:
        if isinstance(source, EncodedImages):
            data = bytes(source.encoded(row))
        else:
            image = np.empty((1, *source.image_shape), input_dtype(source))
            data = image.tobytes() if source.read(np.array([row]), image).all() else b""
    except DamagedPixelsError:
        raise
    except (OSError, ImageReadError):  # may pass; whoever trains on it says more
        return ""
    return hashlib.blake2b(data, digest_size=8).hexdigest() if data else ""


def sample_differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    """One text for each way in which two samples differ; pictures that one of them could not read are left out."""
    if stored["stored"] != current["stored"]:
        yield f"{stored['stored']} when it was made and {current['stored']} now"
        return
    for key in ("shape", "dtype"):
        if stored.get(key) != current.get(key):
            yield f"their {key} was {stored.get(key)} and is {current.get(key)}"
            return
    if stored["rows"] != current["rows"]:  # other training rows, which is said elsewhere
        return
    rows = zip(stored["rows"], stored["digests"], current["digests"], strict=True)
    compared = [(row, old == new) for row, old, new in rows if old and new]
    other = [row for row, same in compared if not same]
    if other:
        yield (
            f"{len(other)} of {len(compared)} pictures that were compared are others than when it was made, or in "
            f"another order, the first in row {other[0]}"
        )
    elif stored.get("checksums") and current.get("checksums") and stored["checksums"] != current["checksums"]:
        yield f"other checksums than when it was made, though the {len(compared)} that were compared are the same"
