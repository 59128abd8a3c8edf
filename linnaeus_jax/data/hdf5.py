"""The one way by which HDF5 files are opened: nothing outside of them is read, and nothing small fills the memory.

HDF5 follows what a file says: data sets whose bytes lie in any other file ("external storage"), links into other files,
virtual data sets over other files, texts of any width, a compression within a compression. A file is untrusted
input, so all of its headers are looked at before any value is read.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.mistakes import InputError

#: what unpacks to more bytes than this, and to more than `BOMB_RATIO` times those of the file, is refused
BOMB_SIZE, BOMB_RATIO = 200 << 20, 200
#: bytes of a text of fixed length, far more than the longest path
MAX_TEXT_BYTES = 1 << 16
#: groups and data sets of a file
MAX_OBJECTS = 100_000
#: files that virtual data sets lead through, one after the other
MAX_DEPTH = 8
#: rows of texts whose lengths are looked at together
_PIECE = 1 << 20
#: what h5py raises where a header is damaged, or says what the library cannot do
_DAMAGE = (OSError, RuntimeError, KeyError, TypeError, ValueError, OverflowError)


class UnsafeFileError(UserError, InputError):
    """An HDF5 file that is damaged, leads out of itself or unpacks to far more than it is; it is not read."""


def open_hdf5(path: str | Path, mode: str = "r") -> h5py.File:
    """Opens a file whose values can be read.

    Virtual data sets may take rows from files in the folder of `path` or below it, which are looked at in the same way;
    that they are there is the reader's matter.

    Args:
      mode: "r", or "r+" to write into it.

    Raises:
      FileNotFoundError: no such file.
      OSError: no HDF5 file, or damaged.
      UnsafeFileError: see there; the message names the file, the data set or link, and the fix.
    """
    return _open(Path(path), mode, ())


def members(group: h5py.Group) -> dict[str, Any]:
    """The data sets and groups in a group, by name.

    h5py's own view of them holds the lock of the library between two of them: where an error in between is kept, no
    other thread reads HDF5 any more.
    """
    return dict(group.items())


@contextmanager
def write_hdf5(path: Path, **options: Any) -> Iterator[h5py.File]:
    """A new file of many data sets, which is made in memory and written when the block ends.

    On a full disk HDF5 cannot write what it keeps when it closes such a file, and ends the process by a segmentation
    fault.

    Args:
      options: of `h5py.File`.

    Raises:
      OSError: it cannot be written.
    """
    with h5py.File(path, "w", driver="core", backing_store=False, **options) as file:
        yield file
        file.flush()
        image = file.id.get_file_image()
    path.write_bytes(image)


def _open(path: Path, mode: str, through: tuple[str, ...]) -> h5py.File:
    """`through`: the files of virtual data sets that led here."""
    if not path.is_file():  # a pipe would be waited for
        raise FileNotFoundError(f"{path}: no such file")
    try:
        file = h5py.File(path, mode)
    except OSError as error:
        raise OSError(f"{path}: not a complete HDF5 file ({error}); copy or build it again") from error
    try:
        _check(path, file, (*through, os.path.realpath(path)))
    except BaseException:
        file.close()
        raise
    return file


def _check(path: Path, file: h5py.File, through: tuple[str, ...]) -> None:
    size = path.stat().st_size
    unpacked, largest, parts = 0, (0, ""), set[Path]()
    for dataset in _datasets(path, file):
        parts |= _parts(path, dataset)
        found = _unpacked_bytes(path, dataset)
        unpacked, largest = unpacked + found, max(largest, (found, dataset.name))
    for part in sorted(parts):
        real = os.path.realpath(part)
        if real == through[-1]:
            continue
        if real in through or len(through) > MAX_DEPTH:
            raise UnsafeFileError(f"{path}: its virtual data sets lead in a circle, by {part}; build the file again")
        if part.is_file():
            _open(part, "r", through).close()
            size += part.stat().st_size
    if unpacked > BOMB_SIZE and unpacked > BOMB_RATIO * size:
        raise UnsafeFileError(
            f"{path}: its {size} bytes say that they unpack to {unpacked} bytes, {largest[0]} of them in "
            f"{largest[1]!r}, more than {BOMB_RATIO} times; it is not read: store it without compression if it is yours"
        )


def _datasets(path: Path, file: h5py.File) -> list[h5py.Dataset]:
    """All data sets of a file, each once."""
    found: list[h5py.Dataset] = []
    groups, seen = [file["/"]], set[int]()
    while groups:
        group = groups.pop()
        for name in _damage_named(path, group.name, lambda group=group: list(group)):
            where = f"{group.name.rstrip('/')}/{name}"
            item = _linked(path, group, name, where)
            address = _damage_named(path, where, lambda item=item: h5py.h5o.get_info(item.id).addr)
            if address in seen:
                continue
            seen.add(address)
            if len(seen) > MAX_OBJECTS:
                raise UnsafeFileError(f"{path}: more than {MAX_OBJECTS} groups and data sets; it is not read")
            if isinstance(item, h5py.Group):
                groups.append(item)
            elif isinstance(item, h5py.Dataset):
                found.append(item)
    return found


def _linked(path: Path, group: h5py.Group, name: str, where: str) -> Any:
    """What stands under a name of a group, in this file."""
    link = _damage_named(path, where, lambda: group.get(name, getlink=True))
    if isinstance(link, h5py.ExternalLink):
        raise UnsafeFileError(
            f"{path}: {where!r} is a link into another file, {link.filename!r}, which is not followed; copy what it "
            "leads to into the file"
        )
    try:
        return group[name]
    except _DAMAGE as error:
        if isinstance(link, h5py.SoftLink):
            raise UnsafeFileError(f"{path}: the link {where!r} to {link.path!r} leads nowhere; remove it") from error
        raise UnsafeFileError(f"{path}: {where!r} cannot be read, the file is damaged: {_text(error)}") from error


def _damage_named(path: Path, where: str | None, look: Any) -> Any:
    """What a look at headers gives; UnsafeFileError where it fails."""
    try:
        return look()
    except _DAMAGE as error:
        raise UnsafeFileError(
            f"{path}: {where!r} cannot be read, the file is damaged, or holds what this program does not know: "
            f"{_text(error)}"
        ) from error


def _text(error: BaseException) -> str:
    return str(error.args[0] if isinstance(error, KeyError) and error.args else error)


def _parts(path: Path, dataset: h5py.Dataset) -> set[Path]:
    """The other files that the values of a data set come from; UnsafeFileError where these are not read."""
    if external := _damage_named(path, dataset.name, lambda: dataset.external):
        raise UnsafeFileError(
            f"{path}: the values of {dataset.name!r} lie in {external[0][0]!r}, a file of another kind, which "
            "is not read; copy them into the HDF5 file"
        )
    parts = set()
    for source in _damage_named(path, dataset.name, lambda: dataset.is_virtual and dataset.virtual_sources()) or ():
        if source.file_name == ".":
            if source.dset_name.strip("/") == dataset.name.strip("/"):
                raise UnsafeFileError(f"{path}: the virtual data set {dataset.name!r} takes its rows from itself")
            continue
        below = os.path.relpath(os.path.abspath(path.parent / source.file_name), os.path.abspath(path.parent))
        if below.split(os.sep)[0] == ".." or "%b" in source.file_name:
            raise UnsafeFileError(
                f"{path}: {dataset.name!r} takes rows from {source.file_name!r}; only files in the folder of the file, "
                "or below it, named one by one, are read: put them there and merge them again"
            )
        parts.add(path.parent / below)
    return parts


def _unpacked_bytes(path: Path, dataset: h5py.Dataset) -> int:
    """Bytes that reading a data set takes; UnsafeFileError where its values are of no type or size that is read."""
    kind, shape = _damage_named(path, dataset.name, lambda: (dataset.dtype, dataset.shape))
    if shape is None:
        raise UnsafeFileError(f"{path}: dataset {dataset.name!r} has no values; remove it")
    text = h5py.check_string_dtype(kind)
    if text is not None and (text.length or 0) > MAX_TEXT_BYTES:
        raise UnsafeFileError(
            f"{path}: dataset {dataset.name!r} holds texts of {text.length} bytes each; at most {MAX_TEXT_BYTES} are "
            "read: store them with their own lengths"
        )
    width = kind.itemsize
    if kind.hasobject and (fill := _damage_named(path, dataset.name, lambda: dataset.fillvalue)):
        width += len(fill) if isinstance(fill, bytes | str) else width  # of every row that was never written
    chunks = _damage_named(path, dataset.name, lambda: dataset.chunks)
    sides = [-(-side // chunk) * chunk for side, chunk in zip(shape, chunks, strict=True)] if chunks else shape
    return math.prod(sides) * width


# ---- texts of variable length ----------------------------------------------------------------------------------------


def check_texts(path: str | Path, dataset: h5py.Dataset) -> None:
    """Checks that the texts [N] of variable length of a data set are no longer than the file, each counted by itself.

    Every writer stores each text once, but rows may be made to share one: a small file then fills the memory.

    Raises:
      UnsafeFileError: they are longer.
    """
    text = h5py.check_string_dtype(dataset.dtype)
    if text is None or text.length is not None or dataset.ndim != 1 or dataset.is_virtual:
        return
    size = Path(path).stat().st_size
    total = sum(int(lengths.sum(dtype=np.int64)) for lengths in _text_lengths(Path(path), dataset))
    if total > size:
        raise UnsafeFileError(
            f"{path}: the texts of {dataset.name!r} take {total} bytes together, more than the {size} of the file, so "
            "that rows share them; it is not read: write each text by itself"
        )


def _text_lengths(path: Path, dataset: h5py.Dataset) -> Iterator[NDArray[np.uint32]]:
    """The lengths that rows of a data set of texts say, piece by piece; nothing of a storage that is not known here.

    In the file a text is its length (4 bytes), the address of a heap and a number within it (4 bytes).

    Raises:
      OSError: a chunk is damaged.
    """
    address = dataset.file.id.get_create_plist().get_sizes()[0]
    row = np.dtype({"names": ["length"], "formats": ["<u4"], "offsets": [0], "itemsize": 8 + address})
    if dataset.chunks is None:
        offset = dataset.id.get_offset()
        for start in range(0, len(dataset) if offset is not None else 0, _PIECE):
            count = min(_PIECE, len(dataset) - start)
            yield np.fromfile(path, row, count, offset=offset + start * row.itemsize)["length"]
        return
    plist = dataset.id.get_create_plist()
    filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    if not set(filters) <= {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}:
        return
    for number in range(dataset.id.get_num_chunks()):
        start = dataset.id.get_chunk_info(number).chunk_offset
        mask, data = dataset.id.read_direct_chunk(start)
        size = dataset.chunks[0] * row.itemsize
        for place, one in reversed(list(enumerate(filters))):
            if mask >> place & 1 or one == h5py.h5z.FILTER_SHUFFLE:  # which HDF5 leaves out for such texts
                continue
            if one == h5py.h5z.FILTER_FLETCHER32:
                data = data[:-4]
            else:
                try:
                    data = zlib.decompressobj().decompress(data, size + 4)
                except zlib.error as error:
                    raise OSError(f"{path}: a chunk of {dataset.name!r} cannot be unpacked: {error}") from error
        yield np.frombuffer(data, row, min(dataset.chunks[0], len(dataset) - start[0]))["length"]
