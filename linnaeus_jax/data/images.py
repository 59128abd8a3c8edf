"""Where pixels come from: HDF5 layouts, packed encoded images and folders of files behind one protocol.

Every source delivers uint8 RGB in NHWC order and is safe to use from several threads; the fast ones copy straight
from a memory map.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
from collections.abc import Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.cache import ImageCache
from linnaeus_jax.data.decoding import decode_image, resize_image
from linnaeus_jax.data.labels import LabelTable
from linnaeus_jax.registry import IMAGE_SOURCES

logger = logging.getLogger("linnaeus_jax.data")
_SOURCE_NUMBERS = itertools.count()


class ImageReadError(RuntimeError):
    """An image that cannot be read; the message names the row and the file."""


class ImageSource(Protocol):
    """Random access to images by row."""

    image_shape: tuple[int, int, int]  # (H, W, 3) of what `read` delivers

    def __len__(self) -> int: ...

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Writes the images of rows (int64[n]) into out (uint8[n, H, W, 3], contiguous).

        Returns:
          bool[n], False where a zero image stands for one that could not be read.

        Raises:
          IndexError: a row outside the source.
          ImageReadError: an unreadable image, where the source does not allow placeholders.
        """
        ...


@dataclass(frozen=True)
class ImageFiles:
    """What an image source is opened from."""

    path: Path  # file or directory
    img_size: int  # side of the square images; a source may deliver another size, which is then resized
    table: Sized = ()  # rows of the labels file, with which the images are aligned
    extension: str = ""  # data.hybrid.file_extension
    cache: ImageCache | None = None  # for sources that decode
    allow_missing: bool = False  # data.hybrid.allow_missing_images

    @property
    def identifiers(self) -> NDArray[Any]:
        """StringDType [N]: file name or relative path of the image of each row."""
        return cast(LabelTable, self.table).identifiers


def _check_rows(rows: np.ndarray, count: int, name: object) -> None:
    if len(rows) and not (rows.min() >= 0 and rows.max() < count):
        raise IndexError(f"{name}: rows {rows.min()}..{rows.max()} asked for, but it holds {count} images")


# --- HDF5 arrays ------------------------------------------------------------------------------------------------------


class _StoredImages:
    """An HDF5 dataset, pickled as the arguments that it was opened with."""

    def __init__(self, path: Path, where: Any, shape: tuple[int, int, int, int]) -> None:
        self._path, self._where, self._shape = path, where, shape
        self.image_shape = shape[1:]

    def __len__(self) -> int:
        return self._shape[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._path, self._where, self._shape)


class MappedImages(_StoredImages):
    """A contiguous HDF5 dataset read through a memory map at its file offset."""

    def __init__(self, path: Path, offset: int, shape: tuple[int, int, int, int]) -> None:
        super().__init__(path, offset, shape)
        self._map: np.ndarray = np.memmap(path, np.uint8, "r", offset, shape)

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        _check_rows(rows, len(self), self._path)
        np.take(self._map, rows, axis=0, out=out, mode="clip")  # "raise" would go through a temporary
        return np.ones(len(rows), bool)


class ChunkMappedImages(_StoredImages):
    """An uncompressed HDF5 dataset with one image per chunk, read through a memory map and a table of chunk offsets."""

    def __init__(self, path: Path, offsets: np.ndarray, shape: tuple[int, int, int, int]) -> None:
        super().__init__(path, offsets, shape)
        self._map: np.ndarray = np.memmap(path, np.uint8, "r")

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        _check_rows(rows, len(self), self._path)
        size = math.prod(self.image_shape)
        for i, offset in enumerate(self._where[rows].tolist()):
            out[i] = self._map[offset : offset + size].reshape(self.image_shape)
        return np.ones(len(rows), bool)


class H5Images(_StoredImages):
    """Any other HDF5 layout, read through h5py: one handle per process, opened at the first read."""

    def __init__(self, path: Path, dataset: str, shape: tuple[int, int, int, int]) -> None:
        super().__init__(path, dataset, shape)
        self._lock = threading.Lock()
        self._opened: tuple[int, h5py.File, h5py.Dataset] | None = None

    def _dataset(self) -> h5py.Dataset:
        # A handle inherited over a fork shares its file position with the parent: never use or close it here.
        if self._opened is None or self._opened[0] != os.getpid():
            file = h5py.File(self._path, "r")
            self._opened = (os.getpid(), file, file[self._where])
        return self._opened[2]

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        _check_rows(rows, len(self), self._path)
        with self._lock:  # one thread opens the file; h5py lets only one read anyway
            dataset = self._dataset()
            for i in np.argsort(rows, kind="stable").tolist():  # neighbours share chunks
                out[i] = dataset[int(rows[i])]
        return np.ones(len(rows), bool)


class ResizedImages:
    """Another source, resized to a square with area interpolation."""

    def __init__(self, source: ImageSource, img_size: int) -> None:
        self._source = source
        self.image_shape = (img_size, img_size, 3)

    def __len__(self) -> int:
        return len(self._source)

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        stored = np.empty((len(rows), *self._source.image_shape), np.uint8)
        ok = self._source.read(rows, stored)
        for image, target in zip(stored, out, strict=True):
            resize_image(image, target)
        return ok


def _open_h5(path: Path) -> h5py.File:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such images file; check data.h5.*images_path")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise OSError(f"{path}: not a complete HDF5 file ({error}); copy or build it again") from error


def _chunk_offsets(dataset: h5py.Dataset) -> np.ndarray | None:
    """File offset of each one-image chunk, or None where some image was never written."""
    offsets = np.full(dataset.shape[0], -1, np.int64)

    def note(chunk: Any) -> None:
        offsets[chunk.chunk_offset[0]] = chunk.byte_offset

    dataset.id.chunk_iter(note)
    return None if len(offsets) == 0 or offsets.min() < 0 else offsets


def _fast_source(path: Path, dataset: h5py.Dataset) -> ImageSource | None:
    """A memory-mapped reader of `dataset`, where its layout has one and gives the same first and last image."""
    shape = dataset.shape
    source: ImageSource | None = None
    if len(dataset) == 0 or dataset.is_virtual:
        return None
    if dataset.chunks is None and not dataset.external and dataset.id.get_offset() is not None:
        if dataset.id.get_offset() + dataset.nbytes > path.stat().st_size:
            raise OSError(f"{path}: dataset {dataset.name!r} ends beyond the end of the file; copy or build it again")
        source = MappedImages(path, dataset.id.get_offset(), shape)
    elif dataset.chunks == (1, *shape[1:]) and dataset.id.get_create_plist().get_nfilters() == 0:
        offsets = _chunk_offsets(dataset)
        source = None if offsets is None else ChunkMappedImages(path, offsets, shape)
    if source is None:
        return None
    ends = np.array([0, len(dataset) - 1])
    probe = np.empty((2, *shape[1:]), np.uint8)
    source.read(ends, probe)
    # A user block or an unusual address base would shift the map.
    return source if all(np.array_equal(probe[i], dataset[int(row)]) for i, row in enumerate(ends)) else None


@IMAGE_SOURCES.register("h5")
def open_h5(files: ImageFiles) -> ImageSource:
    """Opens an HDF5 file of images with the fastest reader that its layout allows.

    Two layouts: `images` uint8 [N, H, W, 3] RGB, or encoded images as `image_bytes` uint8 [total] with
    `image_offsets` int64 [N + 1] (see `PackedImages`).

    Raises:
      FileNotFoundError: no such file.
      OSError: a truncated or damaged file.
      KeyError: the file lacks the dataset.
      ValueError: wrong dtype or shape.
    """
    path = files.path
    with _open_h5(path) as file:
        if "images" not in file and "image_bytes" in file:
            return PackedImages(files)
        if "images" not in file:
            raise KeyError(f"{path}: no dataset 'images' (found {sorted(file)})")
        stored = file["images"]
        good = isinstance(stored, h5py.Dataset) and stored.dtype == np.uint8
        if not good or stored.ndim != 4 or stored.shape[-1] != 3 or min(stored.shape[1:3]) < 1:
            given = f"{stored.dtype} {stored.shape}" if isinstance(stored, h5py.Dataset) else "a group"
            raise ValueError(f"{path}: dataset 'images' is {given}; images are uint8 (N, H, W, 3)")
        source = _fast_source(path, stored) or H5Images(path, "images", stored.shape)
        logger.info("%s: %d images %s read by %s", path, len(stored), stored.shape[1:], type(source).__name__)
        if isinstance(source, H5Images):
            logger.info("%s: HDF5 reads it under one lock; data.worker_processes helps, more threads do not", path)
        return source


# --- encoded images ---------------------------------------------------------------------------------------------------


class EncodedImages:
    """Base of the sources that decode: caching, placeholders for unreadable images, and their accounting.

    Decoded images are looked up and kept in `files.cache`. With `files.allow_missing`, unreadable images become zero
    images with ok False (counted; the first 10 and each 100th are logged) instead of raising ImageReadError.
    """

    def __init__(self, files: ImageFiles) -> None:
        self.name, self.cache, self.allow_missing = str(files.path), files.cache, files.allow_missing
        self.image_shape = (files.img_size, files.img_size, 3)
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
        _check_rows(rows, len(self), self.name)
        ok = np.ones(len(rows), bool)
        for i, row in enumerate(rows.tolist()):
            if self.cache is not None and self.cache.get((self._cache_key, row), out[i]):
                continue
            try:
                decode_image(self.encoded(row), out[i])
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
                f"{message}; restore the file, exclude it with data.hybrid.verify_images.enabled, or set "
                "data.hybrid.allow_missing_images to train on without it"
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


def image_path(directory: str | Path, identifier: str, extension: str) -> str:
    """Path of an image file; the extension (leading dot optional) is added to identifiers that do not end with it."""
    extension = extension if not extension or extension.startswith(".") else f".{extension}"
    if not identifier.lower().endswith(extension.lower()):
        identifier += extension
    return os.path.join(directory, identifier)


@IMAGE_SOURCES.register("folder")
class FolderImages(EncodedImages):
    """Image files in a directory, named by the identifiers of the labels file; see `image_path`.

    Raises:
      FileNotFoundError: no such directory.
    """

    def __init__(self, files: ImageFiles) -> None:
        super().__init__(files)
        check_directory(files.path)
        self._identifiers, self._extension = files.identifiers, files.extension

    def __len__(self) -> int:
        return len(self._identifiers)

    def describe(self, row: int) -> str:
        return image_path(self.name, self._identifiers[row], self._extension)

    def encoded(self, row: int) -> bytes:
        with open(self.describe(row), "rb") as file:
            return file.read()


class PackedImages(EncodedImages):
    """Encoded images in one HDF5 file: contiguous `image_bytes` uint8 [total], `image_offsets` int64 [N + 1].

    Image i is `image_bytes[image_offsets[i]:image_offsets[i + 1]]`, read through a memory map.

    Raises:
      ValueError: another dtype or storage layout, or offsets that do not ascend from 0 to the number of bytes.
    """

    def __init__(self, files: ImageFiles) -> None:
        super().__init__(replace(files, cache=None, allow_missing=False))
        path = files.path
        with _open_h5(path) as file:
            if "image_offsets" not in file:
                raise KeyError(f"{path}: dataset 'image_bytes' needs 'image_offsets' (found {sorted(file)})")
            data, offsets = file["image_bytes"], file["image_offsets"][:]
            if data.dtype != np.uint8 or data.ndim != 1 or (data.size and data.id.get_offset() is None):
                raise ValueError(
                    f"{path}: image_bytes is {data.dtype} {data.shape}; it must be contiguous uint8 (total,)"
                )
            if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != data.size or (np.diff(offsets) < 0).any():
                raise ValueError(f"{path}: image_offsets must ascend from 0 to the {data.size} bytes of image_bytes")
            self._start, self._offsets = (data.id.get_offset() or 0), offsets.astype(np.int64)
        self._map: np.ndarray = np.memmap(path, np.uint8, "r")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_map": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state | {"_map": np.memmap(state["name"], np.uint8, "r")})

    def describe(self, row: int) -> str:
        return f"{self.name}[image_bytes {self._offsets[row]}:{self._offsets[row + 1]}]"

    def encoded(self, row: int) -> np.ndarray:
        return self._map[self._start + self._offsets[row] : self._start + self._offsets[row + 1]]


def check_directory(directory: str | Path) -> None:
    if not Path(directory).is_dir():
        raise FileNotFoundError(f"{directory}: no such image directory; check data.hybrid.images_dir")
