"""The pictures of a labels file, opened without a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.alignment import misalignment
from linnaeus_jax.data.h5_images import open_h5
from linnaeus_jax.data.images import FolderImages, ImageFiles, ImageSource
from linnaeus_jax.data.labels import read_identifiers
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.reading.paths import is_picture


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
      aligned: False where pictures of other identifiers or contents may be opened, too.

    Raises:
      UserError: they cannot be opened, or are those of other labels; the message names the file.
    """
    try:
        if path.is_dir():
            identifiers = read_identifiers(str(labels))
            extension = default_extension(identifiers) if extension is None else extension
            files = ImageFiles(path, Preprocessing((side, side)), RowIdentifiers(identifiers), extension)
            source: ImageSource = FolderImages(files)
        else:
            source = open_h5(ImageFiles(path, Preprocessing((side, side))))
        problem = misalignment(path, source, str(labels)) if aligned else ""
    except (OSError, ValueError, KeyError) as error:
        raise UserError(str(error.args[0] if isinstance(error, KeyError) else error)) from error
    if problem:
        raise UserError(problem)
    return source
