"""Datasets of a labels file, opened and checked: what every reader of such a file shares."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

IDENTIFIERS = "img_identifiers"
#: attribute of label columns whose ranks have no numbers: their place, 0 = the finest
RANK_PLACE = "rank_place"
CHUNK = 1 << 17  # rows of texts decoded at a time, to bound the number of Python strings alive
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
        if dataset.attrs.get(TEXT_DIGEST, "") in ("", self.hexdigest()):
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
      ValueError: it is no HDF5 file, or damaged.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"labels file {path!r} does not exist; check data.h5.*_path")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"labels file {path!r} is no HDF5 file, or truncated or damaged: {error}") from error
    with file:
        yield file


def checked(
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
        beside = file[name.rpartition("/")[0] or "/"]
        offered = sorted(key for key, item in beside.items() if isinstance(item, h5py.Dataset))
        close = difflib.get_close_matches(name, offered, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{path}: dataset {name!r} is missing; the file has {', '.join(offered) or 'none'}{hint}")
    check_stored_inside(path, dataset)
    if dataset.dtype.kind not in kinds:
        expected = " or ".join(_KINDS[kind] for kind in kinds)
        raise ValueError(f"{path}: dataset {name!r} has dtype {dataset.dtype}, expected {expected}")
    if dataset.ndim not in dims:
        expected = " or ".join(str(dim) for dim in dims)
        raise ValueError(f"{path}: dataset {name!r} has shape {dataset.shape}, expected {expected} dimension(s)")
    if rows is not None and len(dataset) != rows:
        raise ValueError(f"{path}: dataset {name!r} has {len(dataset)} rows, expected {rows} as in {like!r}")
    return dataset


def check_stored_inside(path: str | Path, dataset: h5py.Dataset) -> None:
    """Raises ValueError for a dataset whose bytes HDF5 would read from any other file ("external storage")."""
    if dataset.external:
        raise ValueError(
            f"{path}: the values of {dataset.name!r} lie in {dataset.external[0][0]!r}, a file of another kind, which "
            "is not read; copy them into the HDF5 file"
        )


def text_dataset(
    file: h5py.File, path: str, name: str, rows: int | None = None, *, like: str = IDENTIFIERS
) -> h5py.Dataset:
    """A dataset of strings, else as `checked`."""
    dataset = checked(file, path, name, rows, kinds="OS", dims=(1,), like=like)
    if h5py.check_string_dtype(dataset.dtype) is None:
        raise ValueError(f"{path}: dataset {name!r} has dtype {dataset.dtype}, expected strings")
    return dataset


def values_of(dataset: h5py.Dataset, path: str, rows: slice | NDArray[np.int64] = slice(None)) -> NDArray[Any]:
    """The values of some rows, by default of all; an array of rows must ascend. ValueError where it is damaged."""
    try:
        return dataset[rows]
    except OSError as error:
        raise ValueError(f"{path}: dataset {dataset.name!r} cannot be read, the file is damaged: {error}") from error


def texts_of(dataset: h5py.Dataset, path: str) -> NDArray[Any]:
    """StringDType [N]; bytes that are not UTF-8 become U+FFFD. ValueError where it is damaged."""
    digest = TextDigest()
    texts = np.empty(len(dataset), np.dtypes.StringDType())
    for start in range(0, len(dataset), CHUNK):
        part = values_of(dataset, path, slice(start, start + CHUNK))
        texts[start : start + len(part)] = [item.decode("utf-8", "replace") for item in part]
        digest.add(part)
    if problem := digest.problem(dataset):
        raise ValueError(f"{path}: {problem}")
    return texts


def text_of(value: object) -> str:
    """Text of an attribute or a string; bytes that are not UTF-8 become U+FFFD."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
