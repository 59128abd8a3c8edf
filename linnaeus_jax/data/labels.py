"""The labels file as one table of columns in memory: taxa, class indices, metadata vectors and their validity."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.metadata import Component, ComponentSettings, SourceColumns, build_metadata, component_layout

log = logging.getLogger(__name__)

IDENTIFIERS = "img_identifiers"
SUBSET_PREFIX = "subset_"
MAX_TAXON_ID = 2**32 - 1
_CHUNK = 1 << 17  # rows of identifiers decoded at a time, to bound the number of Python strings alive


@dataclass(frozen=True)
class LabelTable:
    """All rows of one labels file, in file order.

    Letters: N rows, T tasks (finest first), D metadata columns, K metadata components.
    """

    path: str
    tasks: tuple[str, ...]
    taxon: NDArray[np.int64]  # [N, T], taxon id, 0 = null
    label: NDArray[np.int32]  # [N, T], class index; null is 0 where there is a null class, else -1
    meta: NDArray[np.float32]  # [N, D], zero where invalid
    meta_valid: NDArray[np.bool_]  # [N, K]
    in_region: NDArray[np.bool_] | None  # [N]; None: the file does not say
    components: tuple[Component, ...]
    subsets: dict[str, NDArray[Any]] = field(default_factory=dict)  # kind -> int, bool or StringDType [N], see subsets

    def __len__(self) -> int:
        return len(self.taxon)

    @cached_property
    def identifiers(self) -> NDArray[Any]:
        """StringDType [N]: file name or relative path of each image; read from the file at the first access."""
        return read_identifiers(self.path)


def read_label_tables(
    paths: Sequence[str],
    tasks: Sequence[str],
    components: Sequence[ComponentSettings],
    *,
    null_possible: bool,
) -> tuple[list[LabelTable], dict[str, NDArray[np.int64]]]:
    """Reads labels files that share their classes.

    The classes of a task are the distinct non-zero taxon ids of all rows of all files, ascending, behind the null
    class (taxon id 0) if `null_possible`.

    Args:
      paths: HDF5 files.
      tasks: label columns, finest rank first.
      components: metadata components to read.
      null_possible: whether rows may lack a label, i.e. whether class 0 is null.

    Returns:
      One table per path, and {task: taxon ids int64 [C]}.

    Raises:
      FileNotFoundError: a file does not exist.
      ValueError: not an HDF5 file, damaged, or a dataset is absent or has the wrong type, shape, length or range.
    """
    tables = [_read_columns(path, tuple(tasks), components) for path in paths]
    classes: dict[str, NDArray[np.int64]] = {}
    for column, task in enumerate(tasks):
        ids = np.unique(np.concatenate([np.unique(table.taxon[:, column]) for table in tables]))
        ids = ids[ids != 0]
        if not len(ids):
            log.warning("no row of %s has a label in %s", ", ".join(paths), task)
        classes[task] = np.concatenate([np.zeros(1, np.int64), ids]) if null_possible else ids
    for i, table in enumerate(tables):
        label = np.empty(table.taxon.shape, np.int32)
        for column, task in enumerate(tasks):
            taxon = table.taxon[:, column]
            label[:, column] = np.searchsorted(classes[task], taxon)
            if not null_possible:
                label[taxon == 0, column] = -1
        tables[i] = replace(table, label=label)
    return tables, classes


def read_identifiers(path: str) -> NDArray[Any]:
    """StringDType [N]: the image identifiers of a labels file; bytes that are not UTF-8 become U+FFFD.

    Raises:
      FileNotFoundError, ValueError: as `read_label_tables`.
    """
    with _open(path) as file:
        return _read_texts(_identifier_dataset(file, path), path)


def identifier_hashes(path: str) -> NDArray[np.int64]:
    """int64 [N]: a hash of each row's image identifier, the same for equal ones within one process; 0 for "".

    Far smaller and faster to sort than the identifiers themselves.

    Raises:
      FileNotFoundError, ValueError: as `read_label_tables`.
    """
    with _open(path) as file:
        dataset = _identifier_dataset(file, path)
        hashes = np.empty(len(dataset), np.int64)
        for start in range(0, len(dataset), _CHUNK):
            part = _read(dataset, path, slice(start, start + _CHUNK))
            hashes[start : start + len(part)] = [hash(item) for item in part]
    return hashes


# ---- one file -------------------------------------------------------------------------------------------------------


def _read_columns(path: str, tasks: tuple[str, ...], components: Sequence[ComponentSettings]) -> LabelTable:
    """The table of one file, `label` still empty."""
    with _open(path) as file:
        rows = len(_identifier_dataset(file, path))
        taxon = np.empty((rows, len(tasks)), np.int64)
        for column, task in enumerate(tasks):
            taxon[:, column] = _read_taxa(file, path, task, rows)
        in_region = None
        if "in_region" in file:
            in_region = _read(_dataset(file, path, "in_region", rows, kinds="biu", dims=(1,)), path) != 0
        sources = {
            item.source: _read_source(file, path, item.source, rows) for item in components if item.source in file
        }
        subsets = {
            name.removeprefix(SUBSET_PREFIX): _read_subset(file, path, name, rows)
            for name, item in file.items()
            if name.startswith(SUBSET_PREFIX) and isinstance(item, h5py.Dataset)
        }
        _log_origin(file, path)
    meta, valid = build_metadata(components, sources, in_region, rows=rows, file=path)
    return LabelTable(
        path=path,
        tasks=tasks,
        taxon=taxon,
        label=np.empty((0, len(tasks)), np.int32),
        meta=meta,
        meta_valid=valid,
        in_region=in_region,
        components=tuple(
            replace(component, columns=item.columns or sources[item.source].names)
            for component, item in zip(component_layout(components), components, strict=True)
        ),
        subsets=subsets,
    )


@contextmanager
def _open(path: str) -> Iterator[h5py.File]:
    if not Path(path).is_file():
        raise FileNotFoundError(f"labels file {path!r} does not exist; check data.h5.*_path")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"labels file {path!r} is no HDF5 file, or truncated or damaged: {error}") from error
    with file:
        yield file


def _dataset(
    file: h5py.File, path: str, name: str, rows: int | None, *, kinds: str, dims: tuple[int, ...]
) -> h5py.Dataset:
    """The dataset, checked for type (`numpy.dtype.kind` in `kinds`), number of dimensions and length."""
    dataset = file.get(name)
    if not isinstance(dataset, h5py.Dataset):
        offered = sorted(key for key, item in file.items() if isinstance(item, h5py.Dataset))
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
        raise ValueError(f"{path}: dataset {name!r} has {len(dataset)} rows, expected {rows} as in {IDENTIFIERS!r}")
    return dataset


_KINDS = {"b": "bool", "i": "int", "u": "uint32", "f": "float", "O": "variable-length string", "S": "bytes"}


def _identifier_dataset(file: h5py.File, path: str) -> h5py.Dataset:
    dataset = _dataset(file, path, IDENTIFIERS, None, kinds="OS", dims=(1,))
    if h5py.check_string_dtype(dataset.dtype) is None:
        raise ValueError(f"{path}: dataset {IDENTIFIERS!r} has dtype {dataset.dtype}, expected strings")
    return dataset


def _read(dataset: h5py.Dataset, path: str, rows: slice = slice(None)) -> NDArray[Any]:
    try:
        return dataset[rows]
    except OSError as error:
        raise ValueError(f"{path}: dataset {dataset.name!r} cannot be read, the file is damaged: {error}") from error


def _read_texts(dataset: h5py.Dataset, path: str) -> NDArray[Any]:
    """StringDType [N]; bytes that are not UTF-8 become U+FFFD."""
    texts = np.empty(len(dataset), np.dtypes.StringDType())
    for start in range(0, len(dataset), _CHUNK):
        part = _read(dataset, path, slice(start, start + _CHUNK))
        texts[start : start + len(part)] = [item.decode("utf-8", "replace") for item in part]
    return texts


def _read_subset(file: h5py.File, path: str, name: str, rows: int) -> NDArray[Any]:
    dataset = _dataset(file, path, name, rows, kinds="biuOS", dims=(1,))
    return _read_texts(dataset, path) if dataset.dtype.kind in "OS" else _read(dataset, path)


def _read_taxa(file: h5py.File, path: str, task: str, rows: int) -> NDArray[np.int64]:
    values = _read(_dataset(file, path, task, rows, kinds="ui", dims=(1,)), path)
    if len(values):
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > MAX_TAXON_ID:
            bad = low if low < 0 else high
            raise ValueError(f"{path}: dataset {task!r} holds taxon id {bad}, expected 0 (null) .. {MAX_TAXON_ID}")
    return values.astype(np.int64)


def _read_source(file: h5py.File, path: str, name: str, rows: int) -> SourceColumns:
    dataset = _dataset(file, path, name, rows, kinds="fiu", dims=(1, 2))
    values = _read(dataset, path).astype(np.float32, copy=False)
    names = tuple(_text(item) for item in np.atleast_1d(dataset.attrs.get("column_names", [])))
    values = values[:, None] if values.ndim == 1 else values
    if names and len(names) != values.shape[1]:
        raise ValueError(f"{path}: {name!r} has {values.shape[1]} columns but {len(names)} column_names")
    return SourceColumns(values, names)


def _log_origin(file: h5py.File, path: str) -> None:
    """Says with which settings the generator exported the file, from the attribute `config_json` of `metadata`."""
    group = file.get("metadata")
    if not isinstance(group, h5py.Group):
        log.warning("%s has no group 'metadata': nothing is known about the origin of the data", path)
        return
    if "config_json" not in group.attrs:
        return
    try:
        parsed = json.loads(_text(group.attrs["config_json"]))
    except ValueError as error:
        log.warning("%s: metadata.config_json is not valid JSON (%s), it is ignored", path, error)
        return
    config = parsed if isinstance(parsed, dict) else {"value": parsed}
    log.info("%s was exported with %s", path, ", ".join(f"{key}={value}" for key, value in config.items()))


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
