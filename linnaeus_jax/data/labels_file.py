"""Datasets of a labels file, opened and checked: what every reader of such a file shares."""

from __future__ import annotations

import difflib
import hashlib
import json
import traceback
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.hdf5 import UnsafeFileError, check_texts, members, open_hdf5
from linnaeus_jax.mistakes import InputError

# ---- Texts of unknown origin, made fit for one line of a log, a table or a page


#: longest text that people are shown, in characters
LONGEST = 200
#: marks that reverse or isolate the direction of what follows, and with it of text that is not theirs
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
_UNSHOWABLE = ("Cc", "Cs", "Zl", "Zp")  # control, surrogate, line and paragraph separator


def sanitize_line(text: str) -> str:
    """The text on one line: runs of white space become one space; control characters, marks of writing direction and
    half characters become U+FFFD; what is beyond `LONGEST` characters, an ellipsis."""
    text = " ".join(text[: 4 * LONGEST].split())
    if not text.isprintable():
        text = "".join(
            "\ufffd" if unicodedata.category(character) in _UNSHOWABLE or character in _DIRECTIONS else character
            for character in text
        )
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


# ----------------------------------------------------------------------------------------------------------------------


IDENTIFIERS = "img_identifiers"
#: attribute of label columns whose ranks have no numbers: their place, 0 = the finest
RANK_PLACE = "rank_place"
CHUNK = 1 << 17  # rows of texts decoded at a time, to bound the number of Python strings alive
SLAB_BYTES = 64 << 20  # and bytes, of texts of fixed length
#: what h5py raises where values cannot be read
DAMAGE = (OSError, RuntimeError, ValueError, TypeError)
#: attribute of a dataset of texts, optional: their `TextDigest`; HDF5 has no checksums of texts
TEXT_DIGEST = "sha256_of_texts"
_KINDS = {"b": "bool", "i": "int", "u": "uint32", "f": "float", "O": "variable-length string", "S": "bytes"}


class TextDigest:
    """SHA-256 of texts in UTF-8, each with a 0 byte behind it."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, texts: Iterable[bytes]) -> None:
        self._digest.update(b"\0".join((*texts, b"")))

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def problem(self, dataset: h5py.Dataset) -> str:
        """What is wrong where these are not the texts that a dataset was written with; "" where nothing is known."""
        if text_of(attribute(dataset, TEXT_DIGEST, "")) in ("", self.hexdigest()):
            return ""
        return (
            f"dataset {dataset.name!r} holds other texts than were written: the file is damaged, or it was changed; "
            f"then remove the attribute {TEXT_DIGEST}"
        )


@contextmanager
def open_labels(path: str) -> Iterator[h5py.File]:
    """The file, open for reading.

    Raises:
      FileNotFoundError: it does not exist.
      ValueError: it is no HDF5 file, or damaged, or one that `open_hdf5` refuses.
    """
    try:
        file = open_hdf5(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"labels file {path!r} does not exist; check data.h5.*_path") from error
    except OSError as error:
        raise InputError(f"labels file {path!r} is no HDF5 file, or truncated or damaged: {error}") from error
    with damage_told(file, path):
        yield file


@contextmanager
def damage_told(file: h5py.File, path: str | Path) -> Iterator[h5py.File]:
    """The file, closed at the end. What HDF5 itself raises of it, of whatever type, is an InputError, since no check of
    ours comes before all that a damaged file may say; other errors pass."""
    try:
        with file:
            if any(isinstance(name, bytes) for name in file):
                raise InputError(f"{path} is damaged, or no file of this program: it holds names that are not UTF-8")
            yield file
    except Exception as error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        if isinstance(error, InputError) or not frames[-1].f_globals["__name__"].startswith("h5py."):
            raise
        text = " ".join(str(error.args[0] if error.args else error).split())
        raise InputError(f"{path} is damaged, or no file of this program: {text}") from error


def validated_dataset(
    file: h5py.File,
    path: str,
    name: str,
    rows: int | None,
    *,
    kinds: str,
    dims: tuple[int, ...],
    like: str = IDENTIFIERS,
) -> h5py.Dataset:
    """The dataset, checked for type (`numpy.dtype.kind` in `kinds`), number of dimensions and length.

    Args:
      rows: its length, which is that of the dataset `like`; None: any.

    Raises:
      ValueError: it is absent or not as expected; the message names file and dataset.
    """
    dataset = file.get(name)
    if not isinstance(dataset, h5py.Dataset):
        beside = file.get(name.rpartition("/")[0] or "/")
        items = members(beside).items() if isinstance(beside, h5py.Group) else ()
        offered = sorted(key for key, item in items if isinstance(item, h5py.Dataset))
        close = difflib.get_close_matches(name, offered, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(f"{path}: dataset {name!r} is missing; the file has {', '.join(offered) or 'none'}{hint}")
    if dataset.dtype.kind not in kinds:
        expected = " or ".join(_KINDS[kind] for kind in kinds)
        raise InputError(f"{path}: dataset {name!r} has dtype {dataset.dtype}, expected {expected}")
    if dataset.ndim not in dims:
        expected = " or ".join(str(dim) for dim in dims)
        raise InputError(f"{path}: dataset {name!r} has shape {dataset.shape}, expected {expected} dimension(s)")
    if rows is not None and len(dataset) != rows:
        raise InputError(f"{path}: dataset {name!r} has {len(dataset)} rows, expected {rows} as in {like!r}")
    return dataset


def text_dataset(
    file: h5py.File, path: str, name: str, rows: int | None = None, *, like: str = IDENTIFIERS
) -> h5py.Dataset:
    """A dataset of strings, else as `validated_dataset`."""
    dataset = validated_dataset(file, path, name, rows, kinds="OS", dims=(1,), like=like)
    if h5py.check_string_dtype(dataset.dtype) is None:
        raise InputError(f"{path}: dataset {name!r} has dtype {dataset.dtype}, expected strings")
    try:
        check_texts(path, dataset)
    except DAMAGE as error:
        if isinstance(error, UnsafeFileError):
            raise
        raise InputError(f"{path}: dataset {name!r} cannot be read: {damage(dataset, error)}") from error
    return dataset


def values_of(dataset: h5py.Dataset, path: str, rows: slice | NDArray[np.int64] = slice(None)) -> NDArray[Any]:
    """The values of some rows, by default of all; an array of rows must ascend. ValueError where it is damaged."""
    try:
        return dataset[rows]
    except DAMAGE as error:
        raise InputError(f"{path}: dataset {dataset.name!r} cannot be read: {damage(dataset, error)}") from error


def damage(dataset: h5py.Dataset, error: Exception) -> str:
    """Why HDF5 could not read a dataset."""
    plist = dataset.id.get_create_plist()
    filters = [plist.get_filter(i) for i in range(plist.get_nfilters())]
    unknown = [str(one[0]) for one in filters if not h5py.h5z.filter_avail(one[0])]
    if unknown:
        return f"it is stored by filter {', '.join(unknown)}, which is not installed; store it with gzip, or plain"
    return f"the file is damaged: {error}"


def texts_of(dataset: h5py.Dataset, path: str) -> NDArray[Any]:
    """StringDType [N]; bytes that are not UTF-8 become U+FFFD. ValueError where it is damaged."""
    texts = np.empty(len(dataset), np.dtypes.StringDType())
    for start, part in text_pieces(dataset, path):
        texts[start : start + len(part)] = [item.decode("utf-8", "replace") for item in part]
    return texts


def text_pieces(dataset: h5py.Dataset, path: str) -> Iterator[tuple[int, NDArray[Any]]]:
    """(first row, bytes of some rows) over all rows of a dataset of strings.

    Raises:
      ValueError: it is damaged, or, behind the last piece, these are not the texts that were written.
    """
    digest, step = TextDigest(), rows_of_slab(dataset)
    for start in range(0, len(dataset), step):
        part = values_of(dataset, path, slice(start, start + step))
        digest.add(part)
        yield start, part
    if problem := digest.problem(dataset):
        raise InputError(f"{path}: {problem}")


def rows_of_slab(dataset: h5py.Dataset) -> int:
    """How many rows of a dataset are read at a time."""
    width = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=np.int64))
    return int(np.clip(SLAB_BYTES // max(1, width), 1, CHUNK))


def attribute(item: h5py.Group | h5py.Dataset, name: str, default: object = None) -> Any:
    """The value of an attribute; ValueError where it is of a kind that cannot be read, or damaged."""
    try:
        return item.attrs.get(name, default)
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"the attribute {name!r} of {item.name!r} cannot be read: {error}; remove it") from error


def json_attribute(item: h5py.Group | h5py.Dataset, name: str) -> Any:
    """What an attribute holds as JSON, {} without it; ValueError where it is no JSON, or nested too deeply."""
    try:
        return json.loads(text_of(attribute(item, name, "{}")))
    except RecursionError as error:
        raise InputError(f"the attribute {name!r} of {item.name!r} is nested too deeply") from error


def box_settings(path: str) -> Any:
    """How boxes were cut from the pictures of a data set, as JSON; None of whole pictures.

    Raises:
      FileNotFoundError, ValueError: as `open_labels`.
    """
    with open_labels(path) as file:
        group = file.get("metadata/image_processing")
        return json_attribute(group, "boxes") or None if isinstance(group, h5py.Group) else None


def column_names(dataset: h5py.Dataset) -> tuple[str, ...]:
    """The attribute `column_names`, () without one; ValueError where it is no list of texts."""
    names = np.atleast_1d(attribute(dataset, "column_names", []))
    if names.ndim > 1:
        raise InputError(f"the attribute 'column_names' of {dataset.name!r} has {names.ndim} dimensions; give a list")
    return tuple(text_of(item) for item in names)


def text_of(value: object) -> str:
    """Text of an attribute or a string; bytes that are not UTF-8 become U+FFFD."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
