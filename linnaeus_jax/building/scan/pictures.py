"""The pictures of a labels file with their checks: number, storage, and that every one can be decoded."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.scan.checks import SHOWN, DamagedError, Found, error, note, warning
from linnaeus_jax.building.scan.columns import repeated_rows
from linnaeus_jax.building.scan.label_file import LabelFile
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.alignment import (
    IDENTIFIERS_DIGEST,
    PROVENANCE,
    label_checksums,
    misalignment,
    other_contents,
    others,
)
from linnaeus_jax.data.decoding import image_size, read_image
from linnaeus_jax.data.h5_direct import StoredImages
from linnaeus_jax.data.h5_images import H5Images, JoinedImages, PackedImages
from linnaeus_jax.data.hdf5 import open_hdf5
from linnaeus_jax.data.images import EncodedImages, FolderImages, ImageReadError, ImageSource
from linnaeus_jax.data.labels import read_identifiers
from linnaeus_jax.data.labels_file import IDENTIFIERS
from linnaeus_jax.data.parallel import in_order
from linnaeus_jax.data.verify_images import missing_rows
from linnaeus_jax.reading.labelled_pictures import default_extension, open_pictures, stored_picture

DECODE = ("all", "sample", "none")
#: side that a picture is decoded to when it is only checked; JPEG is read to its end at any scale
CHECK_SIZE = (16, 16)
#: rows of one piece of work
_PIECE = 32


class UnreadableError(Exception):
    """A picture that cannot be read, and why; `is_empty`: there is nothing to read."""

    def __init__(self, reason: str, *, is_empty: bool = False) -> None:
        super().__init__(reason)
        self.is_empty = is_empty


def read_one(source: ImageSource, row: int, size: tuple[int, int]) -> tuple[NDArray[np.uint8], bytes]:
    """One picture [h, w, 3] with its own aspect ratio, and its bytes: the encoded ones, or the pixels.

    Args:
      size: height and width that an encoded one is needed at.

    Raises:
      UnreadableError: the message is the reason.
    """
    try:
        stored = stored_picture(source, row)
        if not isinstance(stored, bytes):
            return stored, stored.tobytes()
        if not stored:
            raise UnreadableError("empty file", is_empty=True)
        return read_image(stored, size), stored
    except (OSError, ValueError, RuntimeError, ImageReadError) as error:  # of HDF5: a damaged chunk
        raise UnreadableError(getattr(error, "strerror", None) or str(error)) from error


@dataclass(frozen=True)
class PictureChecks:
    """Which pictures are checked, and how.

    Attributes:
      path: a folder, or an HDF5 file of raw or packed pictures.
      extension: added to identifiers that do not end with it, as `data.hybrid.file_extension`; None: see
        `default_extension`.
      decode: "all" pictures, a "sample" of `sample` random ones, or "none".
      progress: called with (pictures checked, pictures to check).
    """

    path: Path
    extension: str | None = None
    decode: str = "all"
    sample: int = 1000
    progress: Callable[[int, int], None] | None = None


@dataclass(frozen=True)
class PictureFacts:
    """What is known of the pictures. `heights` and `widths` are smallest, median and largest of the readable ones that
    were checked, `bytes` their encoded size together."""

    path: str
    storage: str  # "folder", "packed" or "raw"
    reader: str
    count: int
    checked: int = 0
    unreadable: int = 0
    missing: int = 0
    bytes: int = 0
    heights: tuple[float, ...] = ()
    widths: tuple[float, ...] = ()


class Pictures:
    """The pictures of a labels file, opened.

    Args:
      aligned: whether the identifiers of the labels file can be read.

    Raises:
      DamagedError: they cannot be opened.
    """

    def __init__(self, file: LabelFile, asked: PictureChecks, *, aligned: bool) -> None:
        self.file, self.asked, self.path = file, asked, asked.path
        if self.path.is_dir() and not aligned:
            reason = "without readable identifiers no picture can be found in a folder"
            raise DamagedError(f"{self.path}: {reason}", "images")
        try:
            self.source = source = open_pictures(self.path, file.path, asked.extension, aligned=False)
        except UserError as error:
            raise DamagedError(str(error), "images") from error
        is_folder = isinstance(source, FolderImages)
        self.storage = "folder" if is_folder else "packed" if isinstance(source, PackedImages) else "raw"
        self.count = len(source)
        self.is_slow = isinstance(source, H5Images)
        self.aligned = aligned and self.count == file.rows

    @cached_property
    def identifiers(self) -> NDArray[np.object_]:
        """Those of the labels file."""
        return read_identifiers(str(self.file.path))

    def rows_without_file(self, extension: str) -> list[int]:
        """Rows whose file is not in the folder."""
        return missing_rows(self.identifiers, str(self.path), extension)

    @cached_property
    def missing(self) -> NDArray[np.int64]:
        """Rows without a file in the folder."""
        return np.array(self.rows_without_file(self.extension) if self.storage == "folder" else [], np.int64)

    @cached_property
    def extension(self) -> str:
        """What is added to identifiers."""
        return default_extension(self.identifiers) if self.asked.extension is None else self.asked.extension

    def where(self, row: int) -> str:
        """What a picture is called in messages."""
        return self.source.describe(row) if isinstance(self.source, EncodedImages) else f"image {row}"

    def facts(self) -> PictureFacts:
        """What is known of them before any is read."""
        reader = type(self.source).__name__
        return PictureFacts(str(self.path), self.storage, reader, self.count, missing=len(self.missing))

    @cached_property
    def misalignment(self) -> str:
        """What is wrong where they belong to other identifiers or contents; "" for nothing."""
        try:
            return misalignment(self.path, self.source, str(self.file.path)) if self.aligned else ""
        except ValueError as error:
            return str(error)

    def says_nothing(self) -> bool:
        """Whether a file does not say whose pictures it holds."""
        if self.storage == "folder" or not self.aligned:
            return False
        with open_hdf5(self.path) as file:
            return IDENTIFIERS_DIGEST not in file.attrs and PROVENANCE not in file.attrs

    def no_checksums(self) -> bool:
        """Whether raw pictures have none."""
        parts = self.source.parts if isinstance(self.source, JoinedImages) else (self.source,)
        return any(isinstance(part, StoredImages) and part.checks is None for part in parts)

    def slow_layout(self) -> Iterator[Found]:
        """How they are stored, where that is slow to read."""
        if self.is_slow:
            with open_hdf5(self.path) as file:
                chunks, compression = file["images"].chunks, file["images"].compression
            layout = f"chunks {chunks}, compression {compression}" if chunks else "no chunks"
            yield Found(fields={"layout": layout})

    def other_layout(self) -> list[Found]:
        """How they are read, where that is not slow."""
        folder = "one file per picture; linnaeus pack puts them into one, which is read faster"
        stored = f"{self.storage} pictures, read where they lie in the file"
        return [] if self.is_slow else [Found(fields={"how": folder if self.storage == "folder" else stored})]

    def without_file(self) -> Iterator[Found]:
        """Rows without a file, with advice where the extension is the reason."""
        advice = ""
        if len(self.missing):
            if len(self.missing) == self.count and self.extension:
                plain = self.count - len(self.rows_without_file(""))
                hint = f"; {plain} are found without {self.extension!r}: set data.hybrid.file_extension=''"
                advice = hint if plain else ""
            yield Found(self.missing, [self.where(int(row)) for row in self.missing[:SHOWN]], {"advice": advice})

    CHECKS: ClassVar = (
        error("image_count", "{it.path}: {it.count} pictures for {it.file.rows} rows; both must be row-aligned",
              lambda it: it.count != it.file.rows),
        error("alignment", "{it.misalignment}", lambda it: bool(it.misalignment)),
        note("alignment", "{it.path}: it does not say whose pictures it holds, so that nobody knows whether its rows "
             "are those of {it.file.path}; linnaeus pack writes it", says_nothing),
        note("checksums", "{it.path}: no checksums of its pictures, so that damaged pixels are not seen; linnaeus pack "
             "writes them", no_checksums),
        warning("layout", "{it.path}: this layout ({layout}) is unpacked chunk by chunk, 2 to 500 times slower than "
                "raw ones; linnaeus pack copies it into a contiguous file", slow_layout),
        note("layout", "{it.path}: {how}", other_layout),
        note("extension", "identifiers are whole file names: train with data.hybrid.file_extension=''",
             lambda it: it.storage == "folder" and not it.extension and not default_extension(it.identifiers)),
        error("missing_image", "{n} of {it.count} rows have no file in {it.path}{advice}", without_file),
    )  # fmt: skip


# ---- reading them


@dataclass(frozen=True)
class _Look:
    """One picture: its size, hash and CRC-32 of its content, length in bytes; or why it cannot be read."""

    row: int
    size: tuple[int, int] = (0, 0)
    content: int = 0
    length: int = 0
    crc: int = 0
    is_blank: bool = False
    is_empty: bool = False
    reason: str = ""


class ReadPictures:
    """Pictures that were read, on all cores.

    Attributes:
      pictures: those that they are of; `checked`: rows that were read.
      size: int32 [N, 2], 0 where it was not read.
      content: hash of what is stored, int64 [N], 0 where it was not read.
      bytes: stored size together.
      empty, failed, blank: rows; `reasons` of the first that failed.
    """

    def __init__(self, pictures: Pictures) -> None:
        asked, source = pictures.asked, pictures.source
        rows = np.setdiff1d(np.arange(pictures.count), pictures.missing)
        if asked.decode == "sample" and len(rows) > asked.sample:
            rows = np.sort(np.random.default_rng(0).choice(rows, asked.sample, replace=False))
        self.pictures, self.checked, self.bytes = pictures, rows, 0
        self.size, self.content = np.zeros((pictures.count, 2), np.int32), np.zeros(pictures.count, np.int64)
        self.crc = np.zeros(pictures.count, np.uint32)
        self.empty, self.failed, self.blank = list[int](), list[int](), list[int]()
        self.reasons: list[str] = []
        done = 0
        pieces = np.array_split(rows, -(-len(rows) // _PIECE) or 1)
        for looks in in_order(lambda piece: [_look(source, row) for row in piece.tolist()], pieces):
            for look in looks:
                self._add(look)
            done += len(looks)
            if asked.progress is not None:
                asked.progress(done, len(rows))

    def _add(self, look: _Look) -> None:
        if look.is_empty and self.pictures.storage == "packed":
            self.empty.append(look.row)
        elif look.reason:
            self.failed.append(look.row)
            self.reasons += [look.reason] if len(self.reasons) < SHOWN else []
        else:
            self.size[look.row], self.content[look.row], self.crc[look.row] = look.size, look.content, look.crc
            self.bytes += look.length
            self.blank += [look.row] if look.is_blank else []

    @property
    def are_all(self) -> bool:
        """Whether every picture was to be read."""
        return self.pictures.asked.decode == "all"

    @property
    def contents(self) -> NDArray[np.int64] | None:
        """A hash of what every row of the labels file shows, if all are known."""
        return self.content if self.are_all and self.pictures.count == self.pictures.file.rows else None

    def facts(self) -> PictureFacts:
        """What is known of them."""
        facts = self.pictures.facts()
        ok = self.checked[self.size[self.checked].min(axis=1) > 0] if len(self.checked) else self.checked
        return replace(
            facts,
            checked=len(self.checked),
            unreadable=len(self.failed),
            missing=facts.missing + len(self.empty),
            bytes=self.bytes,
            heights=_spread(self.size[ok, 0]),
            widths=_spread(self.size[ok, 1]),
        )

    def unreadable(self) -> Iterator[Found]:
        """Rows whose picture cannot be read, with the reasons of the first."""
        if self.failed:
            rows = zip(self.failed, self.reasons)
            yield Found(self.failed, [f"row {row}: {self.pictures.where(row)}: {why}" for row, why in rows])

    def copies(self) -> Iterator[Found]:
        """Rows with the bytes of an earlier one."""
        rows = repeated_rows(self.content) if self.are_all else np.zeros(0, np.int64)
        if len(rows):
            file, aligned = self.pictures.file, self.pictures.aligned
            yield Found(rows, file.texts(IDENTIFIERS, rows[:SHOWN]) if aligned else [])

    def of_others(self) -> Iterator[Found]:
        """Rows that are not what the labels file was built with, where that was not seen before they were read."""
        pictures = self.pictures
        if pictures.aligned and not pictures.misalignment:
            expected, encoded = label_checksums(str(pictures.file.path)), isinstance(pictures.source, EncodedImages)
            rows = others(expected, self.checked, self.crc[self.checked], encoded=encoded)
            if rows is not None and len(rows):
                text = other_contents(pictures.path, pictures.file.path, rows, len(self.checked))
                yield Found(rows, fields={"problem": text})

    CHECKS: ClassVar = (
        error("alignment", "{problem}", of_others),
        error("missing_image", "{n} of {it.pictures.count} rows have no picture (0 bytes)",
              lambda it: np.array(it.empty)),
        error("unreadable_image", "{n} of {it.checked.size} pictures cannot be read", unreadable),
        warning("blank_image", "{n} pictures have one colour all over", lambda it: np.array(it.blank)),
        warning("duplicate_image", "{n} pictures are copies of an earlier row's picture", copies),
    )  # fmt: skip


def _spread(values: NDArray[np.int32]) -> tuple[float, ...]:
    return (float(values.min()), float(np.median(values)), float(values.max())) if len(values) else ()


def _look(source: ImageSource, row: int) -> _Look:
    try:
        image, data = read_one(source, row, CHECK_SIZE)
        size = image_size(data) if isinstance(source, EncodedImages) else image.shape[:2]
    except UnreadableError as error:
        return _Look(row, is_empty=error.is_empty, reason=str(error))
    except ValueError as error:
        return _Look(row, reason=str(error))
    # a hash that is never 0; hashlib lets other threads work meanwhile
    content = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big", signed=True) or 1
    is_blank = bool((image == image[:1, :1]).all())
    return _Look(row, (size[0], size[1]), content, len(data), zlib.crc32(data), is_blank)
