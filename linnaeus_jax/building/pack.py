"""Pictures from a folder into one HDF5 file and back, without touching a byte of them.

The file holds `image_bytes` uint8 [total] and `image_offsets` int64 [N + 1], row-aligned with the labels file; a row
without a picture has no bytes. The attribute `provenance` is JSON: program, folder, counts. Files of either form say
whose rows they hold, and raw pictures have checksums, see `data/image_checks.py`.
"""

from __future__ import annotations

import os
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
from numpy.typing import NDArray

import linnaeus_jax
from linnaeus_jax.building.scan.checks import SHOWN
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.alignment import IDENTIFIERS_DIGEST, PROVENANCE, label_checksums, other_contents, others
from linnaeus_jax.data.h5_images import IMAGE_BYTES, IMAGE_OFFSETS, IMAGES, PackedImages
from linnaeus_jax.data.image_checks import checksum, write_checksums
from linnaeus_jax.data.images import ImageSource
from linnaeus_jax.data.labels import read_identifiers, read_identifiers_digest, text_hashes
from linnaeus_jax.data.parallel import in_order
from linnaeus_jax.files import json_text, replaced_file, sync, sync_tree
from linnaeus_jax.reading.labelled_pictures import default_extension, open_pictures
from linnaeus_jax.reading.paths import SafeFolder, UnsafePathError
from linnaeus_jax.reading.text import printable

#: bytes read ahead as one piece, and most rows of one
PIECE_BYTES, PIECE_ROWS = 4 << 20, 256
#: threads that wait for the disk
THREADS = 8

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PackOptions:
    """How pictures are moved.

    Attributes:
      extension: added to identifiers that do not end with it, as `data.hybrid.file_extension`; None: see
        `default_extension`.
      allow_missing: rows without a file get no bytes, instead of an error.
      force: an existing file is replaced; an existing folder is kept under the name <folder>.old.
      png: raw pixels are written as PNG files.
      progress: called with (rows done, rows).
    """

    extension: str | None = None
    allow_missing: bool = False
    force: bool = False
    png: bool = False
    progress: Progress = lambda done, total: None


@dataclass(frozen=True)
class PackReport:
    """What was written: `rows` pictures of `bytes` bytes; `missing` rows have none."""

    out: Path
    rows: int
    bytes: int
    missing: int


def pack(labels: Path, images: Path, out: Path, options: PackOptions) -> PackReport:
    """Moves pictures: a folder into a file, a file of packed (or with `png` raw) pictures into a folder, or a file of
    raw pictures into one that is stored contiguously.

    Whatever is written appears under its name when it is complete, in one step; until then it is called <out>.partial.

    Args:
      out: a file if it ends with .h5 or .hdf5, else a folder.

    Raises:
      UserError: a picture is missing, a path is unsafe, `out` exists, or the two do not fit together.
      OSError: of the disk.
    """
    identifiers = _identifiers(labels)
    if options.extension is None:
        options = replace(options, extension=default_extension(identifiers))
    to_file = out.suffix.lower() in (".h5", ".hdf5")
    if images.is_dir():
        if not to_file:
            raise UserError(f"{images} is a folder, so --out must be a file ending with .h5, not {out}")
        return pack_folder(labels, identifiers, images, out, options)
    source = open_pictures(images, labels, options.extension)
    if len(source) != len(identifiers):
        raise UserError(f"{images} holds {len(source)} pictures, but {labels} has {len(identifiers)} rows")
    if isinstance(source, PackedImages):
        if to_file:
            raise UserError(f"{images} is packed already; --out must be a folder, not {out}")
        return unpack(labels, source, identifiers, out, options)
    if to_file:
        return copy_raw(labels, images, source, out, options)
    if not options.png:
        raise UserError(f"{images} holds raw pixels: add --png for a folder of PNG files, or name a file ending in .h5")
    return unpack(labels, source, identifiers, out, options)


def _identifiers(labels: Path) -> NDArray[Any]:
    try:
        return read_identifiers(str(labels))
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error


@contextmanager
def _complete_file(out: Path, *, force: bool) -> Iterator[Path]:
    """Yields the path to write to; what is there when the block ends becomes `out`, in one step."""
    if out.exists() and not force:
        raise UserError(f"{out} exists; give another --out, or --force to replace it")
    with replaced_file(out, large=True) as partial:
        yield partial


# ---- folder -> file --------------------------------------------------------------------------------------------------


def pack_folder(labels: Path, identifiers: NDArray[Any], folder: Path, out: Path, options: PackOptions) -> PackReport:
    """The files of a folder as one HDF5 file, see `pack`."""
    safe = SafeFolder(folder)
    sizes = _sizes(safe, identifiers, options)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    total, missing = int(offsets[-1]), int((sizes == 0).sum())
    with _complete_file(out, force=options.force) as partial:
        if shutil.disk_usage(out.parent).free < total:
            raise UserError(
                f"{out}: the pictures take {total / 1e6:,.1f} MB, more than is free; free space there, or choose "
                "another place"
            )
        with h5py.File(partial, "w") as file:
            file[IMAGE_OFFSETS] = offsets
            data = file.create_dataset(IMAGE_BYTES, (total,), np.uint8)
            file.attrs[IDENTIFIERS_DIGEST] = read_identifiers_digest(str(labels))
            file.attrs[PROVENANCE] = json_text(
                {
                    "program": f"linnaeus_jax {linnaeus_jax.__version__} pack",
                    "folder": folder.resolve().name,
                    "extension": options.extension,
                    "rows": len(identifiers),
                    "missing": missing,
                }
            )
            checksums: list[int] = []

            def read(rows: range) -> list[bytes]:
                return [_read(safe, identifiers, row, int(sizes[row]), options) for row in rows]

            for rows, contents in zip(_pieces(offsets), in_order(read, _pieces(offsets), threads=THREADS)):
                if content := b"".join(contents):
                    data[offsets[rows.start] : offsets[rows.stop]] = np.frombuffer(content, np.uint8)
                checksums += map(zlib.crc32, contents)
                options.progress(len(checksums), len(identifiers))
            write_checksums(file, checksums)
        expected, found, rows_read = label_checksums(str(labels)), np.array(checksums, np.uint32), np.flatnonzero(sizes)
        other = others(expected, rows_read, found[rows_read], encoded=True)
        if other is not None and len(other):
            raise UserError(other_contents(folder, labels, other, len(rows_read)))
    return PackReport(out, len(identifiers) - missing, total, missing)


def _sizes(safe: SafeFolder, identifiers: NDArray[Any], options: PackOptions) -> NDArray[np.int64]:
    """Bytes of every file, int64 [N]; 0 for a missing or empty one."""
    sizes = np.zeros(len(identifiers), np.int64)
    missing: list[str] = []
    for row, identifier in enumerate(identifiers):
        try:
            status = os.stat(safe.path(identifier, options.extension or ""))
            sizes[row] = status.st_size if stat.S_ISREG(status.st_mode) else 0
        except UnsafePathError as error:
            raise UserError(f"row {row}: {printable(identifier)}: {error}; nothing was packed") from error
        except (FileNotFoundError, NotADirectoryError):
            pass
        if not sizes[row] and len(missing) < SHOWN:
            missing.append(f"row {row}: {printable(identifier)}")
    count = int((sizes == 0).sum())
    if count and not options.allow_missing:
        raise UserError(
            f"{count} of {len(sizes)} rows have no file, or an empty one, in {safe.root}:\n  " + "\n  ".join(missing)
            + f"\nrestore them, check --extension (now {options.extension!r}), or pack without them by --allow-missing"
        )  # fmt: skip
    return sizes


def _pieces(offsets: NDArray[np.int64]) -> Iterator[range]:
    """Rows that are read together: at most `PIECE_ROWS`, and more than one only up to `PIECE_BYTES`."""
    start, count = 0, len(offsets) - 1
    while start < count:
        stop = int(np.searchsorted(offsets, offsets[start] + PIECE_BYTES, side="right")) - 1
        stop = min(max(stop, start + 1), start + PIECE_ROWS, count)
        yield range(start, stop)
        start = stop


def _read(safe: SafeFolder, identifiers: NDArray[Any], row: int, size: int, options: PackOptions) -> bytes:
    if not size:
        return b""
    path = safe.path(identifiers[row], options.extension or "")
    with open(path, "rb") as file:
        content = file.read(size + 1)
    if len(content) != size:
        raise UserError(f"{printable(path)} changed while it was packed; run it again")
    return content


# ---- file -> folder --------------------------------------------------------------------------------------------------


def unpack(labels: Path, source: ImageSource, identifiers: NDArray[Any], out: Path, options: PackOptions) -> PackReport:
    """Packed pictures as files, byte for byte, or raw ones as PNG, see `pack`."""
    aside = out.with_name(f"{out.name}.old")
    is_taken = out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir())))
    if is_taken and not options.force:
        raise UserError(f"{out} exists; give another --out, or --force to move it to {aside}")
    if is_taken and aside.exists():
        raise UserError(f"{out} and {aside} both exist; remove one of them")
    extension = ".png" if options.png else options.extension or ""
    partial = out.with_name(f"{out.name}.partial")
    if partial.exists() or partial.is_symlink():  # of a run that was ended
        partial.unlink() if partial.is_symlink() else shutil.rmtree(partial)
    partial.mkdir(parents=True)
    safe = SafeFolder(partial)
    earlier = _earlier_rows(labels, identifiers)
    counts = {"rows": 0, "bytes": 0, "missing": 0}
    try:
        for row, content in enumerate(in_order(lambda row: _content(source, row, options), range(len(identifiers)))):
            if not content:
                counts["missing"] += 1
            elif row in earlier and content != _content(source, earlier[row], options):
                raise UserError(f"rows {earlier[row]} and {row} have one identifier, but different pictures")
            elif row not in earlier:
                _write(safe, row, identifiers[row], extension, content)
                counts["rows"] += 1
                counts["bytes"] += len(content)
            options.progress(row + 1, len(identifiers))
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_tree(partial)
    if is_taken:
        os.rename(out, aside)
    os.rename(partial, out)
    sync(out.parent)
    return PackReport(out, **counts)


def _content(source: ImageSource, row: int, options: PackOptions) -> bytes:
    """The bytes of the file of a row."""
    if isinstance(source, PackedImages):
        return bytes(source.encoded(row))
    image = np.empty((1, *source.image_shape), np.uint8)
    source.read(np.array([row]), image)
    done, data = cv2.imencode(".png", cv2.cvtColor(image[0], cv2.COLOR_RGB2BGR))
    assert done
    return data.tobytes()


def _write(safe: SafeFolder, row: int, identifier: str, extension: str, content: bytes) -> None:
    try:
        path = safe.path(identifier, extension)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "xb") as file:
            file.write(content)
    except UnsafePathError as error:
        raise UserError(f"row {row}: {printable(identifier)}: {error}; nothing was written") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise UserError(
            f"row {row}: {printable(identifier)}: another row's picture has this name in this file system, or is a "
            "folder of it; rename one of them"
        ) from error


def _earlier_rows(labels: Path, identifiers: NDArray[Any]) -> dict[int, int]:
    """Row -> first row with the same identifier, for rows that have one."""
    hashes = text_hashes(str(labels))
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    earliest = first[inverse]
    return {
        row: int(earliest[row])
        for row in np.flatnonzero(earliest != np.arange(len(hashes))).tolist()
        if identifiers[row] == identifiers[earliest[row]]
    }


# ---- raw file -> raw file --------------------------------------------------------------------------------------------


def copy_raw(labels: Path, images: Path, source: ImageSource, out: Path, options: PackOptions) -> PackReport:
    """Raw pictures of any HDF5 layout as one contiguous data set, which is read without the HDF5 library."""
    if out.exists() and images.samefile(out):
        raise UserError(f"--out is the file that is read, {out}; give another one")
    count, height, width, _ = shape = (len(source), *source.image_shape)
    step = max(1, PIECE_BYTES // (height * width * 3))
    with _complete_file(out, force=options.force) as partial, h5py.File(partial, "w") as file:
        data = file.create_dataset(IMAGES, shape, np.uint8)
        checksums: list[int] = []
        for start in range(0, count, step):
            stop = min(start + step, count)
            part = np.empty((stop - start, *shape[1:]), np.uint8)
            source.read(np.arange(start, stop), part)
            data[start:stop] = part
            checksums += map(checksum, part)
            options.progress(stop, count)
        write_checksums(file, checksums)
        file.attrs[IDENTIFIERS_DIGEST] = read_identifiers_digest(str(labels))
    return PackReport(out, count, count * height * width * 3, 0)
