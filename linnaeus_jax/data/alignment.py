"""Whether the rows of a file or folder of images are those of a labels file: by their identifiers and their contents.

The attribute `sha256_of_identifiers` of a file of images is the `TextDigest` of the identifiers of its labels file.

The group `metadata/image_crc32` of a labels file has CRC-32 of its images, uint32 [N] each: `pixels` of raw ones,
`files` of the encoded files that it was built from, `stored` of what was encoded anew. A file of images has its own,
see `image_checks`; those of earlier versions and of other programs, and of a folder, are computed for `SAMPLE` rows.
What only one side has is not compared.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.hdf5 import open_hdf5
from linnaeus_jax.data.images import EncodedImages, ImageReadError, ImageSource
from linnaeus_jax.data.labels import read_identifiers_digest
from linnaeus_jax.data.labels_file import attribute, json_attribute, open_labels, text_of, validated_dataset, values_of
from linnaeus_jax.mistakes import InputError

IDENTIFIERS_DIGEST, PROVENANCE = "sha256_of_identifiers", "provenance"
LABEL_CHECKSUMS, PIXELS, FILES, STORED = "metadata/image_crc32", "pixels", "files", "stored"
#: rows that are read where a source has no checksums
SAMPLE = 64

log = logging.getLogger("linnaeus_jax.data")


class MisalignedError(UserError, InputError):
    """Images of other identifiers or contents than those of the labels file."""


def label_checksums(labels: str) -> dict[str, NDArray[np.uint32]]:
    """{kind: uint32 [N]} of a labels file, {} of one without.

    Raises:
      FileNotFoundError, ValueError: no labels file, or a damaged one.
    """
    with open_labels(labels) as file:
        group = file.get(LABEL_CHECKSUMS)
        names = [name for name in (PIXELS, FILES, STORED) if isinstance(group, h5py.Group) and name in group]
        rows = len(validated_dataset(file, labels, "img_identifiers", None, kinds="OS", dims=(1,))) if names else 0
        paths = {name: f"{LABEL_CHECKSUMS}/{name}" for name in names}
        stored = {k: validated_dataset(file, labels, path, rows, kinds="u", dims=(1,)) for k, path in paths.items()}
        return {name: values_of(dataset, labels).astype(np.uint32) for name, dataset in stored.items()}


def others(
    expected: Mapping[str, NDArray[np.uint32]], rows: NDArray[np.int64], checksums: NDArray[np.uint32], *, encoded: bool
) -> NDArray[np.int64] | None:
    """Those of some rows int64 [n] whose CRC-32 uint32 [n] is not that of the labels file; None where it has none.

    Args:
      expected: of `label_checksums`.
      encoded: whether they are of encoded images.
    """
    there = checksums != 0  # of no bytes: a row without an image
    rows, checksums = rows[there], checksums[there]
    known = [values[rows] for kind, values in expected.items() if (kind != PIXELS) == encoded]
    return rows[~np.any([checksums == values for values in known], axis=0)] if known else None


def misalignment(path: Path, source: ImageSource, labels: str) -> str:
    """What is wrong where images are not those of the rows of a labels file; "" for nothing, or where nobody knows.

    Args:
      path: of the images.
      source: opened from it, as it stores them.

    Raises:
      OSError, ValueError: one of the files cannot be read.
    """
    if path.is_file() and not _has_identifiers_of(path, labels):
        return (
            f"{path} belongs to other identifiers, or another order of them, than those of {labels}, so that its "
            "pictures are not those of the labels; give the file that was built or packed with these labels, or pack "
            f"the pictures again (or, if you only renamed them, remove its attribute {IDENTIFIERS_DIGEST!r})"
        )
    expected = label_checksums(labels)
    if not expected or len(next(iter(expected.values()))) != len(source):
        log.info("%s: that its images are those of %s is checked by their identifiers alone", path, labels)
        return ""
    rows, checksums = _checksums(source)
    other = others(expected, rows, checksums, encoded=isinstance(source, EncodedImages))
    if other is None:
        log.info("%s: %s was built with images of another form, so that they are not compared", path, labels)
        return ""
    return other_contents(path, labels, other, len(rows)) if len(other) else ""


def other_contents(path: Path, labels: str | Path, other: NDArray[np.int64], compared: int) -> str:
    """What is said of rows, at least one, whose images are others than those that a labels file was built with."""
    return (
        f"{path}: {len(other)} of {compared} images that were compared are not those that {labels} was built with, the "
        f"first in row {other[0]}: they have the names of its rows, but other contents; give the images that belong to "
        f"it, or build it again (or, if you changed them on purpose, remove its group {LABEL_CHECKSUMS!r})"
    )


def _has_identifiers_of(path: Path, labels: str) -> bool:
    """Whether a file of images is of the identifiers of a labels file, or does not say."""
    with open_hdf5(path) as file:
        stored = text_of(attribute(file, IDENTIFIERS_DIGEST, ""))
    if stored:
        return stored == read_identifiers_digest(labels)
    log.info("%s: no digest of identifiers: that its rows are those of %s is not checked", path, labels)
    return True


def _checksums(source: ImageSource) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Rows int64 [n] and the CRC-32 uint32 [n] of their images: what a source has, or of a sample what is read."""
    stored = getattr(source, "checksums", None)
    if stored is not None:
        return np.arange(len(stored)), stored
    places = np.linspace(0, len(source) - 1, min(len(source), SAMPLE)).round().astype(np.int64)
    found = {row: zlib.crc32(data) for row in places.tolist() if (data := _stored_bytes(source, row))}
    return np.array(list(found), np.int64), np.array(list(found.values()), np.uint32)


def _stored_bytes(source: ImageSource, row: int) -> bytes:
    """What a source stores of a row; empty where it cannot be read, which is said by whoever needs it."""
    try:
        if isinstance(source, EncodedImages):
            return bytes(source.encoded(row))
        image = np.empty((1, *source.image_shape), np.uint8)
        source.read(np.array([row]), image)
        return image.tobytes()
    except (OSError, ImageReadError):
        return b""


def provenance(images: Path) -> dict[str, Any]:
    """The attribute `provenance` of a file of images, JSON; {} without one."""
    with open_hdf5(images) as file:
        try:
            found = json_attribute(file, PROVENANCE)
        except ValueError:
            return {}
    return found if isinstance(found, dict) else {}
