"""The labels file as one table of columns in memory: taxa, class indices, metadata vectors and their validity."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.credits import CREDITS
from linnaeus_jax.data.hdf5 import members
from linnaeus_jax.data.labels_file import (
    IDENTIFIERS,
    TextDigest,
    column_names,
    json_attribute,
    open_labels,
    text_dataset,
    text_pieces,
    texts_of,
    validated_dataset,
    values_of,
)
from linnaeus_jax.data.metadata import Component, ComponentSettings, SourceColumns, build_metadata, component_layout
from linnaeus_jax.files import FILES_ONLY
from linnaeus_jax.mistakes import InputError

log = logging.getLogger(__name__)

SUBSET_PREFIX = "subset_"
#: most subsets of one kind: each one adds a count and a metric per rank to every validation phase
MAX_SUBSETS = 256
MAX_TAXON_ID = 2**32 - 1
SPLIT = "split"
#: meaning of the values of the dataset `split`
SPLITS = ("train", "val", "test")
OCCURRENCE = "occurrence_id"


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
    offered: frozenset[str] = frozenset()  # names of everything at the top of the file

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
    return with_classes([_read_columns(path, tuple(tasks), components) for path in paths], null_possible=null_possible)


def with_classes(
    tables: Sequence[LabelTable], *, null_possible: bool
) -> tuple[list[LabelTable], dict[str, NDArray[np.int64]]]:
    """The tables with the labels that follow from their taxa, and the classes, see `read_label_tables`."""
    tables, tasks = list(tables), tables[0].tasks
    classes: dict[str, NDArray[np.int64]] = {}
    for column, task in enumerate(tasks):
        ids = np.unique(np.concatenate([np.unique(table.taxon[:, column]) for table in tables]))
        ids = ids[ids != 0]
        if not len(ids):
            log.warning("no row of %s has a label in %s", ", ".join(table.path for table in tables), task)
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
    with open_labels(path) as file:
        return texts_of(text_dataset(file, path, IDENTIFIERS), path)


def read_identifiers_digest(path: str, rows: NDArray[np.int64] | None = None) -> str:
    """The `TextDigest` of the image identifiers of a labels file, or of some ascending rows int64 [n] of it.

    Raises:
      FileNotFoundError, ValueError: as `read_label_tables`.
    """
    digest = TextDigest()
    with open_labels(path) as file:
        for start, part in text_pieces(text_dataset(file, path, IDENTIFIERS), path):
            if rows is not None:
                first, last = np.searchsorted(rows, (start, start + len(part)))
                part = part[rows[first:last] - start]
            digest.add(part)
    return digest.hexdigest()


def text_hashes(path: str, name: str = IDENTIFIERS) -> NDArray[np.int64]:
    """int64 [N]: a hash of each row's text in the dataset `name`, the same for equal ones within one process; 0 for "".

    Far smaller and faster to sort than the texts themselves.

    Raises:
      FileNotFoundError, ValueError: as `read_label_tables`.
    """
    with open_labels(path) as file:
        dataset = text_dataset(file, path, name, len(text_dataset(file, path, IDENTIFIERS)))
        hashes = np.empty(len(dataset), np.int64)
        for start, part in text_pieces(dataset, path):
            hashes[start : start + len(part)] = [hash(item) for item in part]
    return hashes


def occurrence_numbers(parts: Sequence[tuple[LabelTable, NDArray[np.int64]]]) -> NDArray[np.int64]:
    """int64 [N]: of rows of tables, one table after the other, the same number for those of one occurrence; a row that
    belongs to none has its own.

    Raises:
      FileNotFoundError, ValueError: as `read_label_tables`.
    """
    found = [
        text_hashes(table.path, OCCURRENCE)[rows] if OCCURRENCE in table.offered else np.zeros(len(rows), np.int64)
        for table, rows in parts
    ]
    hashes = np.concatenate(found)
    return np.where(
        hashes == 0, np.arange(len(hashes)), len(hashes) + np.unique(hashes, return_inverse=True)[1]
    ).astype(np.int64)


def read_split_column(path: str) -> NDArray[np.uint8]:
    """uint8 [N]: the split that the file gives each row, a position in `SPLITS`.

    Raises:
      FileNotFoundError, ValueError: as `read_label_tables`, or a value that is no such position.
    """
    with open_labels(path) as file:
        rows = len(text_dataset(file, path, IDENTIFIERS))
        values = values_of(validated_dataset(file, path, SPLIT, rows, kinds="ui", dims=(1,)), path)
    wrong = np.flatnonzero((values < 0) | (values >= len(SPLITS)))
    if len(wrong):
        meaning = ", ".join(f"{number} ({name})" for number, name in enumerate(SPLITS))
        raise InputError(
            f"{path}: dataset {SPLIT!r} holds {values[wrong[0]]} in row {wrong[0]}, expected {meaning}; correct it, or "
            "set data.h5.use_split_column = False to split at random"
        )
    return values.astype(np.uint8)


# ---- one file -------------------------------------------------------------------------------------------------------


def _read_columns(path: str, tasks: tuple[str, ...], components: Sequence[ComponentSettings]) -> LabelTable:
    """The table of one file, `label` still empty."""
    with open_labels(path) as file:
        rows = len(text_dataset(file, path, IDENTIFIERS))
        taxon = np.empty((rows, len(tasks)), np.int64)
        for column, task in enumerate(tasks):
            taxon[:, column] = _read_taxa(file, path, task, rows)
        in_region = None
        if "in_region" in file:
            in_region = values_of(validated_dataset(file, path, "in_region", rows, kinds="biu", dims=(1,)), path) != 0
        sources = {
            item.source: _read_source(file, path, item.source, rows) for item in components if item.source in file
        }
        subsets = {
            name.removeprefix(SUBSET_PREFIX): _read_subset(file, path, name, rows)
            for name, item in members(file).items()
            if name.startswith(SUBSET_PREFIX) and isinstance(item, h5py.Dataset)
        }
        offered = frozenset(file)
        vectors = [name for name, item in members(file).items() if isinstance(item, h5py.Dataset) and item.ndim == 2]
        for name in offered.intersection((*CREDITS, OCCURRENCE)):
            text_dataset(file, path, name, rows)  # read later and in part: what is wrong with it is said now
        _log_origin(file, path)
    meta, valid = build_metadata(components, sources, in_region, rows=rows, file=path, offered=vectors)
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
        offered=offered,
    )


def _read_subset(file: h5py.File, path: str, name: str, rows: int) -> NDArray[Any]:
    dataset = validated_dataset(file, path, name, rows, kinds="biuOS", dims=(1,))
    if dataset.dtype.kind in "OS":
        return texts_of(text_dataset(file, path, name, rows), path)
    return values_of(dataset, path)


def _read_taxa(file: h5py.File, path: str, task: str, rows: int) -> NDArray[np.int64]:
    values = values_of(validated_dataset(file, path, task, rows, kinds="ui", dims=(1,)), path)
    if len(values):
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > MAX_TAXON_ID:
            bad = low if low < 0 else high
            raise InputError(f"{path}: dataset {task!r} holds taxon id {bad}, expected 0 (null) .. {MAX_TAXON_ID}")
    return values.astype(np.int64)


def _read_source(file: h5py.File, path: str, name: str, rows: int) -> SourceColumns:
    dataset = validated_dataset(file, path, name, rows, kinds="fiu", dims=(1, 2))
    values = values_of(dataset, path).astype(np.float32, copy=False)
    try:
        names = column_names(dataset)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    values = values[:, None] if values.ndim == 1 else values
    if names and len(names) != values.shape[1]:
        raise InputError(f"{path}: {name!r} has {values.shape[1]} columns but {len(names)} column_names")
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
        parsed = json_attribute(group, "config_json")
    except ValueError as error:
        log.warning("%s: metadata.config_json is not valid JSON (%s), it is ignored", path, error)
        return
    config = parsed if isinstance(parsed, dict) else {"value": parsed}
    told = ", ".join(f"{key}={value}" for key, value in config.items())
    log.info("%s was exported with %s", path, told, extra=FILES_ONLY)
