"""The pictures of a labels file, opened without a configuration, and what a file of pictures says of its origin."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.h5_images import open_h5
from linnaeus_jax.data.hdf5 import open_hdf5
from linnaeus_jax.data.image_checks import misaligned, stored_identifiers_digest
from linnaeus_jax.data.images import FolderImages, ImageFiles, ImageSource
from linnaeus_jax.data.labels import read_identifiers, read_identifiers_digest
from linnaeus_jax.data.labels_file import json_attribute
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.reading.paths import is_picture

PROVENANCE = "provenance"


@dataclass(frozen=True)
class RowIdentifiers:
    """The identifiers of a labels file, as an image source wants them: StringDType [N]."""

    identifiers: NDArray[Any]

    def __len__(self) -> int:
        return len(self.identifiers)


def default_extension(identifiers: NDArray[Any]) -> str:
    """What is added to the identifiers where nobody says it: nothing if all of them end like pictures, else ".jpg"."""
    return "" if all(is_picture(text) for text in identifiers) else ".jpg"


def open_pictures(
    path: Path, labels: Path, extension: str | None, *, side: int = 16, aligned: bool = True
) -> ImageSource:
    """The pictures of a labels file; encoded ones are delivered at `side`, raw ones as they are stored.

    Args:
      extension: of the files of a folder; None: see `default_extension`.
      aligned: False where pictures of other identifiers may be opened, too.

    Raises:
      UserError: they cannot be opened, or belong to other identifiers; the message names the file.
    """
    try:
        if path.is_dir():
            identifiers = read_identifiers(str(labels))
            extension = default_extension(identifiers) if extension is None else extension
            return FolderImages(ImageFiles(path, Preprocessing((side, side)), RowIdentifiers(identifiers), extension))
        source = open_h5(ImageFiles(path, Preprocessing((side, side))))
        problem = misalignment(path, labels) if aligned else ""
    except (OSError, ValueError, KeyError) as error:
        raise UserError(str(error.args[0] if isinstance(error, KeyError) else error)) from error
    if problem:
        raise UserError(problem)
    return source


def misalignment(images: Path, labels: Path) -> str:
    """What is wrong where a file of pictures says that it belongs to other identifiers than a labels file has.

    "" for nothing, and where it does not say.

    Raises:
      OSError, ValueError: one of them cannot be read.
    """
    with open_hdf5(images) as file:
        stored = stored_identifiers_digest(file)
    if stored:
        digest = read_identifiers_digest(str(labels))
    elif stored := provenance(images).get("identifiers_sha256", ""):  # of a file packed by an earlier version
        digest = identifiers_digest(read_identifiers(str(labels)))
    else:
        return ""
    return misaligned(images, stored, str(labels), digest)


def identifiers_digest(identifiers: NDArray[Any]) -> str:
    """SHA-256 of the identifiers StringDType [N], one per line."""
    digest = hashlib.sha256()
    for start in range(0, len(identifiers), 1024):
        digest.update("".join(f"{text}\n" for text in identifiers[start : start + 1024]).encode())
    return digest.hexdigest()


def provenance(images: Path) -> dict[str, Any]:
    """The attribute `provenance` of a file of pictures, JSON; {} without one."""
    with open_hdf5(images) as file:
        try:
            found = json_attribute(file, PROVENANCE)
        except ValueError:
            return {}
    return found if isinstance(found, dict) else {}
