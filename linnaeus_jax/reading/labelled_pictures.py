"""The pictures of a labels file, opened without a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.alignment import misalignment
from linnaeus_jax.data.h5_images import open_h5
from linnaeus_jax.data.hdf5 import members
from linnaeus_jax.data.images import EncodedImages, FolderImages, ImageFiles, ImageSource
from linnaeus_jax.data.labels import read_identifiers, read_label_tables
from linnaeus_jax.data.labels_file import RANK_PLACE, open_labels
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.data.taxon_names import read_taxon_names
from linnaeus_jax.reading.paths import is_picture
from linnaeus_jax.taxonomy.ranks import is_task, task_level, task_name


@dataclass(frozen=True)
class RowIdentifiers:
    """The identifiers of a labels file, as an image source wants them: StringDType [N]."""

    identifiers: NDArray[Any]

    def __len__(self) -> int:
        return len(self.identifiers)


def read_row_taxa(labels: Path) -> tuple[list[str], list[tuple[str, ...]]]:
    """Ranks of a labels file, finest first, and the names of the taxa of each row there, ids without names, "" where
    there is none.

    Raises:
      UserError: the file cannot be read.
    """
    try:
        with open_labels(str(labels)) as file:
            ranks = {name: item for name, item in members(file).items() if is_task(name)}
            found = {name: item.attrs.get(RANK_PLACE, task_level(name)) for name, item in ranks.items()}
        tasks = sorted(found, key=lambda name: (found[name] is None, found[name] or 0, name))
        (table,), classes = read_label_tables([str(labels)], tasks, (), null_possible=True)
        names = read_taxon_names([str(labels)], classes)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(str(error.args[0] if isinstance(error, KeyError) else error)) from error
    columns = []
    for column, task in enumerate(tasks):
        known = [text or str(taxon or "") for text, taxon in zip(names.name[task].tolist(), classes[task].tolist())]
        columns.append([known[label] for label in table.label[:, column].tolist()])
    return [task_name(task) for task in tasks], list(zip(*columns)) if tasks else [()] * len(table)


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


def stored_picture(source: ImageSource, row: int) -> bytes | NDArray[np.uint8]:
    """The encoded picture of a row, or its pixels [h, w, 3] where these are what is stored."""
    if isinstance(source, EncodedImages):
        return bytes(source.encoded(row))
    pixels = np.empty((1, *source.image_shape), np.uint8)
    source.read(np.array([row]), pixels)
    return pixels[0]
