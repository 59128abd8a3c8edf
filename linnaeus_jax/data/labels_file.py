"""Datasets of a labels file, opened and checked: what every reader of such a file shares."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

IDENTIFIERS = "img_identifiers"
CHUNK = 1 << 17  # rows of texts decoded at a time, to bound the number of Python strings alive
_KINDS = {"b": "bool", "i": "int", "u": "uint32", "f": "float", "O": "variable-length string", "S": "bytes"}


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
    if dataset.dtype.kind not in kinds:
        expected = " or ".join(_KINDS[kind] for kind in kinds)
        raise ValueError(f"{path}: dataset {name!r} has dtype {dataset.dtype}, expected {expected}")
    if dataset.ndim not in dims:
        expected = " or ".join(str(dim) for dim in dims)
        raise ValueError(f"{path}: dataset {name!r} has shape {dataset.shape}, expected {expected} dimension(s)")
    if rows is not None and len(dataset) != rows:
        raise ValueError(f"{path}: dataset {name!r} has {len(dataset)} rows, expected {rows} as in {like!r}")
    return dataset


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
    """StringDType [N]; bytes that are not UTF-8 become U+FFFD."""
    texts = np.empty(len(dataset), np.dtypes.StringDType())
    for start in range(0, len(dataset), CHUNK):
        part = values_of(dataset, path, slice(start, start + CHUNK))
        texts[start : start + len(part)] = [item.decode("utf-8", "replace") for item in part]
    return texts


def text_of(value: object) -> str:
    """Text of an attribute or a string; bytes that are not UTF-8 become U+FFFD."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
