"""Where pixels come from: one protocol, and the sources that decode. Those in HDF5 files are in `h5_images`.

Every source delivers uint8 RGB in NHWC order and is safe to use from several threads.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import threading
from collections.abc import Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import TrainingError, UserError
from linnaeus_jax.data.cache import ImageCache
from linnaeus_jax.data.labels import LabelTable
from linnaeus_jax.data.labels_file import sanitize_line
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.registry import IMAGE_SOURCES

logger = logging.getLogger("linnaeus_jax.data")
_SOURCE_NUMBERS = itertools.count()


class ImageReadError(TrainingError):
    """An image that cannot be read; the message names the row and the file."""


class ImageSource(Protocol):
    """Random access to images by row.

    What is stored of them for training, such as features, is read in the same way: a source may have a `dtype` and a
    shape of its own, and several `views` of each row, see `input_dtype` and `rows_of_views`. A source whose reading is
    a mere copy may say so by `copies_only = True`: it is then read by one thread at a time.
    """

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(H, W, 3) of what `read` delivers."""
        ...

    def __len__(self) -> int: ...

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Writes the images of rows (int64[n]) into out (uint8[n, H, W, 3] or [n, *image_shape], contiguous).

        Returns:
          bool[n], False where a zero image stands for one that could not be read.

        Raises:
          IndexError: a row outside the source.
          ImageReadError: an unreadable image, where the source does not allow placeholders.
        """
        ...


def input_dtype(source: ImageSource) -> np.dtype[Any]:
    """Dtype of what a source delivers: uint8 unless it says otherwise."""
    return np.dtype(getattr(source, "dtype", np.uint8))


def rows_of_views(source: ImageSource, rows: NDArray[np.int64], epoch: int | None) -> NDArray[np.int64]:
    """What to read of a source for these rows in an epoch: of one with n `views`, `row * n + view` is a view of a row,
    and each epoch takes the next one; None: the first, which is the row as it is."""
    views: int = getattr(source, "views", 1)
    return rows if views == 1 else rows * views + (0 if epoch is None else (rows + epoch) % views)


@dataclass(frozen=True)
class ImageFiles:
    """What an image source is opened from."""

    path: Path  # file or directory
    preprocessing: Preprocessing  # of encoded pictures; a source may deliver another size, which is then resized
    table: Sized = ()  # rows of the labels file, with which the images are aligned
    extension: str = ""  # data.hybrid.file_extension
    cache: ImageCache | None = None  # for sources that decode
    allow_missing: bool = False  # data.hybrid.allow_missing_images

    @property
    def img_size(self) -> int:
        """`data.img_size`."""
        return self.preprocessing.size[0]

    @property
    def resize_mode(self) -> str:
        """`data.resize_mode`."""
        return self.preprocessing.resize_mode

    @property
    def reduced_decode(self) -> bool:
        """`data.reduced_decode`."""
        return self.preprocessing.reduced_decode

    @property
    def identifiers(self) -> NDArray[Any]:
        """StringDType [N]: file name or relative path of the image of each row."""
        return cast(LabelTable, self.table).identifiers


def check_rows(rows: np.ndarray, count: int, name: object) -> None:
    """Raises IndexError for rows int64 [n] outside of a source of `count` images."""
    if len(rows) and not (rows.min() >= 0 and rows.max() < count):
        raise IndexError(f"{name}: rows {rows.min()}..{rows.max()} asked for, but it holds {count} images")


class ResizedImages:
    """Another source, `source`, resized."""

    def __init__(self, source: ImageSource, preprocessing: Preprocessing) -> None:
        self.source, self._preprocessing = source, preprocessing
        self.image_shape = (*preprocessing.size, 3)

    def __len__(self) -> int:
        return len(self.source)

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        stored = np.empty((len(rows), *self.source.image_shape), np.uint8)
        ok = self.source.read(rows, stored)
        for image, target in zip(stored, out, strict=True):
            self._preprocessing.resize(image, target)
        return ok


class EncodedImages:
    """Base of the sources that decode: caching, placeholders for unreadable images, and their accounting.

    Decoded images are looked up and kept in `files.cache`. With `files.allow_missing`, unreadable images become zero
    images with ok False (counted; the first 10 and each 100th are logged) instead of raising ImageReadError.
    """

    def __init__(self, files: ImageFiles) -> None:
        self.name, self.cache, self.allow_missing = str(files.path), files.cache, files.allow_missing
        self.image_shape = (*files.preprocessing.size, 3)
        self._preprocessing = files.preprocessing
        self.placeholders = 0
        self._cache_key = next(_SOURCE_NUMBERS)  # two sources may read one folder under different row numbers
        self._lock = threading.Lock()

    def __len__(self) -> int:
        raise NotImplementedError

    def describe(self, row: int) -> str:
        """Where the image of `row` is stored."""
        raise NotImplementedError

    def encoded(self, row: int) -> bytes | np.ndarray:
        """The encoded bytes of one image; OSError where there are none."""
        raise NotImplementedError

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        """As of `ImageSource`: from the cache, or decoded from what `encoded` gives."""
        check_rows(rows, len(self), self.name)
        ok = np.ones(len(rows), bool)
        for i, row in enumerate(rows.tolist()):
            if self.cache is not None and self.cache.get((self._cache_key, row), out[i]):
                continue
            try:
                self._preprocessing.decode(self.encoded(row), out[i])
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                self._placeholder(f"row {row}: {self.describe(row)}: {reason}", error)
                out[i], ok[i] = 0, False
                continue
            if self.cache is not None:
                self.cache.put((self._cache_key, row), out[i])
        return ok

    def _placeholder(self, message: str, error: Exception) -> None:
        if not self.allow_missing:
            raise ImageReadError(
                f"{message}; restore the file, or set data.hybrid.allow_missing_images to train on without it "
                "(data.hybrid.verify_images looks for missing files before the start)"
            ) from error
        with self._lock:
            self.placeholders += 1
            number = self.placeholders
        if number <= 10 or number % 100 == 0:
            logger.warning("%s; a zero image of weight 0 stands in (number %d)", message, number)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())


#: "/...", "C:/...", or ".." between slashes of either kind
_LEADS_OUT = re.compile(r"^[\\/]|^[A-Za-z]:[\\/]|(^|[\\/])\.\.([\\/]|$)")


def image_path(directory: str | Path, identifier: str, extension: str) -> str:
    """Path of an image file; the extension (leading dot optional) is added to identifiers that do not end with it.

    A backslash is a letter of a name where there is such a file, and else stands between folders, as on Windows.
    """
    extension = extension if not extension or extension.startswith(".") else f".{extension}"
    if not identifier.lower().endswith(extension.lower()):
        identifier += extension
    path = os.path.join(directory, identifier)
    if "\\" not in identifier or os.path.exists(path):
        return path
    return os.path.join(directory, identifier.replace("\\", "/"))


@IMAGE_SOURCES.register("folder")
class FolderImages(EncodedImages):
    """Image files in a directory, named by the identifiers of the labels file; see `image_path`.

    Raises:
      FileNotFoundError: no such directory.
      UserError: identifiers that lead out of it. Symbolic links are the user's own and are followed.
    """

    def __init__(self, files: ImageFiles) -> None:
        super().__init__(files)
        check_directory(files.path)
        self._identifiers, self._extension = files.identifiers, files.extension
        check_below(self._identifiers)

    def __len__(self) -> int:
        return len(self._identifiers)

    def describe(self, row: int) -> str:
        return image_path(self.name, self._identifiers[row], self._extension)

    def encoded(self, row: int) -> bytes:
        with open(self.describe(row), "rb") as file:
            return file.read()


def check_below(identifiers: NDArray[Any]) -> None:
    """Checks that identifiers, StringDType [N], name files below the folder that they are looked for in.

    Raises:
      UserError: one is absolute, or goes up by "..".
    """
    suspicious = np.strings.find(identifiers, "..") >= 0
    for start in ("/", "\\"):
        suspicious |= np.strings.startswith(identifiers, start)
    suspicious |= np.strings.find(identifiers, ":") == 1  # "C:\\..."
    for row in np.flatnonzero(suspicious).tolist():
        if _LEADS_OUT.search(identifiers[row]):
            raise UserError(
                f"row {row} of the labels file names the picture {sanitize_line(identifiers[row])!r}, outside of the "
                "folder data.hybrid.images_dir; write its path below that folder"
            )


def check_directory(directory: str | Path) -> None:
    if not Path(directory).is_dir():
        raise FileNotFoundError(f"{directory}: no such image directory; check data.hybrid.images_dir")
