"""A sample of the pictures of a run, by which a run that goes on sees that they are still the same.

The sample is at most `ROWS` of the training rows, evenly spaced over them from the first to the last: a pure function
of which rows there are. It costs that many pictures read once at the start, whatever the size of the data (or that many
chunks, where pictures are stored in compressed ones). Pictures are compared as they are stored, before any resizing:
encoded ones by their bytes, whether in a folder or packed, raw ones by their pixels, however they are laid out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.image_checks import DamagedPixelsError
from linnaeus_jax.data.images import EncodedImages, ImageReadError, ImageSource, ResizedImages, input_dtype

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
