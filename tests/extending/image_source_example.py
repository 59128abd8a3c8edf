"""Pictures in a zip archive, named by the identifiers of the labels file.

Set `data.h5.images_path = "pictures.zip"`, or the paths of the training and the validation images.
"""

from __future__ import annotations

import os
import zipfile
from typing import Any

from linnaeus_jax.data.images import EncodedImages, ImageFiles
from linnaeus_jax.registry import IMAGE_SOURCES


@IMAGE_SOURCES.register("zip")
class ZipImages(EncodedImages):
    """`folder` is the path of the pictures within the archive."""

    def __init__(self, files: ImageFiles, *, folder: str = "") -> None:
        super().__init__(files)
        self.members = [os.path.join(folder, name) for name in files.identifiers]
        missing = set(self.members) - set(zipfile.ZipFile(files.path).namelist())
        if missing:
            raise ValueError(f"{files.path} lacks {min(missing)!r}; set data.image_sources.zip.folder to its folder")
        self.archive: tuple[int, zipfile.ZipFile] | None = None

    def __len__(self) -> int:
        return len(self.members)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"archive": None}

    def describe(self, row: int) -> str:
        return f"{self.name}:{self.members[row]}"

    def encoded(self, row: int) -> bytes:
        if self.archive is None or self.archive[0] != os.getpid():  # a worker process opens the file anew
            self.archive = os.getpid(), zipfile.ZipFile(self.name)
        return self.archive[1].read(self.members[row])
