"""Checks of the pictures of a labels file: number, storage, and that every one can be decoded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.scan.findings import SHOWN, Findings
from linnaeus_jax.building.scan.label_file import LabelFile
from linnaeus_jax.building.scan.verify_columns import repeated_rows
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.decoding import image_size, read_image
from linnaeus_jax.data.h5_direct import ChunkedImages, StoredImages
from linnaeus_jax.data.h5_images import H5Images, JoinedImages, PackedImages
from linnaeus_jax.data.hdf5 import open_hdf5
from linnaeus_jax.data.image_checks import IDENTIFIERS_DIGEST
from linnaeus_jax.data.images import FolderImages, ImageSource
from linnaeus_jax.data.labels import read_identifiers
from linnaeus_jax.data.labels_file import IDENTIFIERS
from linnaeus_jax.data.parallel import in_order
from linnaeus_jax.data.verify_images import missing_rows
from linnaeus_jax.reading.labelled_pictures import PROVENANCE, default_extension, misalignment, open_pictures

DECODE = ("all", "sample", "none")
#: side that a picture is decoded to when it is only checked; JPEG is read to its end at any scale
CHECK_SIZE = (16, 16)
#: rows of one piece of work
_PIECE = 32


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


def check_pictures(
    file: LabelFile, checks: PictureChecks, findings: Findings, *, aligned: bool
) -> tuple[PictureFacts | None, NDArray[np.int64] | None]:
    """Checks the pictures.

    Args:
      aligned: whether the identifiers of the labels file can be read.

    Returns:
      What is known of them, None where they cannot be opened, and a hash of every picture's content int64 [N], 0 for
      one that cannot be read; None unless all were decoded.
    """
    is_folder = checks.path.is_dir()
    if is_folder and not aligned:
        findings.error("images", f"{checks.path}: without readable identifiers no picture can be found in a folder")
        return None, None
    try:
        source = open_pictures(checks.path, file.path, checks.extension, aligned=False)
    except UserError as error:
        findings.error("images", str(error))
        return None, None
    count = len(source)
    if count != file.rows:
        findings.error("image_count", f"{checks.path}: {count} pictures for {file.rows} rows; both must be row-aligned")
    if not is_folder and aligned and count == file.rows:
        _check_alignment(checks.path, file.path, findings)
    storage = "folder" if is_folder else "packed" if isinstance(source, PackedImages) else "raw"
    _describe_storage(checks.path, source, storage, findings)
    missing = np.zeros(0, np.int64)
    if isinstance(source, FolderImages):
        missing = _missing(file, checks, source, findings)
    facts = PictureFacts(str(checks.path), storage, type(source).__name__, count, missing=len(missing))
    if checks.decode == "none" or not count:
        return facts, None
    present = np.setdiff1d(np.arange(count), missing)
    rows = present
    if checks.decode == "sample" and len(present) > checks.sample:
        rows = np.sort(np.random.default_rng(0).choice(present, checks.sample, replace=False))
    seen = _Seen(count)
    _decode(source, storage, rows, seen, checks.progress)
    seen.report(findings, len(rows), source)
    everything = checks.decode == "all"
    if everything:
        _check_repeated(file, seen.content, aligned and count == file.rows, findings)
    ok = rows[seen.size[rows].min(axis=1) > 0] if len(rows) else rows
    facts = replace(
        facts,
        checked=len(rows),
        unreadable=len(seen.failed),
        missing=len(missing) + len(seen.empty),
        bytes=seen.bytes,
        heights=_spread(seen.size[ok, 0]),
        widths=_spread(seen.size[ok, 1]),
    )
    return facts, seen.content if everything and count == file.rows else None


def _check_alignment(images: Path, labels: Path, findings: Findings) -> None:
    try:
        problem = misalignment(images, labels)
    except ValueError as error:
        problem = str(error)
    if problem:
        findings.error("alignment", problem)
    with open_hdf5(images) as file:
        if IDENTIFIERS_DIGEST not in file.attrs and PROVENANCE not in file.attrs:
            findings.note(
                "alignment",
                f"{images}: it does not say whose pictures it holds, so that nobody knows whether its rows are those "
                f"of {labels}; tools.pack writes it",
            )


def _spread(values: NDArray[np.int32]) -> tuple[float, ...]:
    return (float(values.min()), float(np.median(values)), float(values.max())) if len(values) else ()


def _missing(file: LabelFile, checks: PictureChecks, source: FolderImages, findings: Findings) -> NDArray[np.int64]:
    """Rows without a file, with advice where the extension is the reason."""
    identifiers = read_identifiers(str(file.path))
    extension = default_extension(identifiers) if checks.extension is None else checks.extension
    if not extension and default_extension(identifiers) == "":
        findings.note("extension", "identifiers are whole file names: train with data.hybrid.file_extension=''")
    missing = np.array(missing_rows(identifiers, str(checks.path), extension), np.int64)
    if not len(missing):
        return missing
    advice = ""
    if len(missing) == len(identifiers) and extension:
        plain = len(identifiers) - len(missing_rows(identifiers, str(checks.path), ""))
        if plain:
            advice = f"; {plain} are found without {extension!r}: set data.hybrid.file_extension=''"
    findings.error(
        "missing_image",
        f"{len(missing)} of {len(identifiers)} rows have no file in {checks.path}{advice}",
        missing,
        [source.describe(int(row)) for row in missing[:SHOWN]],
    )
    return missing


def _describe_storage(path: Path, source: ImageSource, storage: str, findings: Findings) -> None:
    """Says which reader is used and, where it is a slow one, what to do."""
    parts = source.parts if isinstance(source, JoinedImages) else (source,)
    if any(isinstance(part, StoredImages) and part.checks is None for part in parts):
        findings.note(
            "checksums",
            f"{path}: no checksums of its pictures, so that damaged pixels are not seen; tools.pack writes them",
        )
    if isinstance(source, H5Images | ChunkedImages):
        with open_hdf5(path) as file:
            dataset = file["images"]
            layout = f"chunks {dataset.chunks}, compression {dataset.compression}" if dataset.chunks else "no chunks"
        findings.warning(
            "layout",
            f"{path}: this layout ({layout}) is unpacked chunk by chunk, 2 to 500 times slower than raw ones; "
            "python -m linnaeus_jax.tools.pack copies it into a contiguous file",
        )
    elif storage == "folder":
        findings.note(
            "layout", f"{path}: one file per picture; python -m linnaeus_jax.tools.pack puts them into one, which is "
            "read faster"
        )  # fmt: skip
    else:
        findings.note("layout", f"{path}: {storage} pictures, read where they lie in the file")


class _Seen:
    """What was seen of each picture: size int32 [N, 2], 0 where unreadable, hash of the content int64 [N]."""

    def __init__(self, count: int) -> None:
        self.size = np.zeros((count, 2), np.int32)
        self.content = np.zeros(count, np.int64)
        self.bytes = 0
        self.empty: list[int] = []
        self.failed: list[int] = []
        self.reasons: list[str] = []
        self.blank: list[int] = []

    def fail(self, row: int, reason: str) -> None:
        self.failed.append(row)
        if len(self.reasons) < SHOWN:
            self.reasons.append(reason)

    def report(self, findings: Findings, checked: int, source: ImageSource) -> None:
        if self.empty and isinstance(source, PackedImages):
            findings.error(
                "missing_image", f"{len(self.empty)} of {len(source)} rows have no picture (0 bytes)", self.empty
            )
        if self.failed:
            lines = [f"row {row}: {_where(source, row)}: {why}" for row, why in zip(self.failed, self.reasons)]
            findings.error(
                "unreadable_image", f"{len(self.failed)} of {checked} pictures cannot be read", self.failed, lines
            )
        if self.blank:
            findings.warning("blank_image", f"{len(self.blank)} pictures have one colour all over", self.blank)


def _where(source: ImageSource, row: int) -> str:
    return source.describe(row) if isinstance(source, (FolderImages, PackedImages)) else f"image {row}"


@dataclass(frozen=True)
class _Look:
    """One picture: its size, hash of its content, encoded bytes; or why it cannot be read."""

    row: int
    size: tuple[int, int] = (0, 0)
    content: int = 0
    length: int = 0
    is_blank: bool = False
    is_empty: bool = False
    reason: str = ""


def _digest(data: bytes | memoryview) -> int:
    """A hash that is never 0; hashlib lets other threads work meanwhile."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big", signed=True) or 1


def _decode(
    source: ImageSource,
    storage: str,
    rows: NDArray[np.int64],
    seen: _Seen,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Looks at the pictures of `rows` on all cores."""
    look = _look_at_raw if storage == "raw" else _look_at_encoded
    done = 0
    for looks in in_order(lambda piece: look(source, piece), np.array_split(rows, -(-len(rows) // _PIECE) or 1)):
        for one in looks:
            if one.is_empty and storage == "packed":
                seen.empty.append(one.row)
                continue
            if one.reason:
                seen.fail(one.row, one.reason)
                continue
            seen.size[one.row], seen.content[one.row] = one.size, one.content
            seen.bytes += one.length
            if one.is_blank:
                seen.blank.append(one.row)
        done += len(looks)
        if progress is not None:
            progress(done, len(rows))


def _look_at_encoded(source: Any, rows: NDArray[np.int64]) -> list[_Look]:
    looks = []
    for row in rows.tolist():
        try:
            data = bytes(source.encoded(row))
            if not data:
                looks.append(_Look(row, is_empty=True, reason="empty file"))
                continue
            image = read_image(data, CHECK_SIZE)
            looks.append(_Look(row, image_size(data), _digest(data), len(data), bool(np.ptp(image) == 0)))
        except (OSError, ValueError) as error:
            looks.append(_Look(row, reason=(error.strerror if isinstance(error, OSError) else "") or str(error)))
    return looks


def _look_at_raw(source: ImageSource, rows: NDArray[np.int64]) -> list[_Look]:
    height, width, _ = source.image_shape
    image = np.empty((1, *source.image_shape), np.uint8)
    looks = []
    for row in rows:
        try:
            source.read(np.array([row]), image)
        except (OSError, RuntimeError) as error:  # of HDF5: a damaged chunk
            looks.append(_Look(int(row), reason=str(error)))
            continue
        is_blank = bool((image == image[:, :1, :1]).all())
        looks.append(_Look(int(row), (height, width), _digest(image.data), image.nbytes, is_blank))
    return looks


def _check_repeated(file: LabelFile, content: NDArray[np.int64], aligned: bool, findings: Findings) -> None:
    """Pictures with the bytes of an earlier one."""
    repeated = repeated_rows(content)
    if len(repeated):
        lines = file.texts(IDENTIFIERS, repeated[:SHOWN]) if aligned else []
        findings.warning(
            "duplicate_image", f"{len(repeated)} pictures are copies of an earlier row's picture", repeated, lines
        )
