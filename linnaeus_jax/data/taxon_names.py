"""Names of taxa: the group `taxon_names` of a labels file, and what people read for a class.

`taxon_names/<task>` holds `taxon_id` uint32 [C] ascending, `name` (scientific) and `common_name`, variable-length
strings [C], "" where there is none. A task without such a group has no names.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from linnaeus_jax.data.labels_file import (
    CHUNK,
    open_labels,
    sanitize_line,
    text_dataset,
    text_of,
    validated_dataset,
    values_of,
)
from linnaeus_jax.mistakes import InputError, shortened

log = logging.getLogger(__name__)

GROUP = "taxon_names"
_FIELDS = ("name", "common_name")
_TEXT = np.dtypes.StringDType()


@dataclass(frozen=True)
class TaxonNames:
    """The names of the classes of some data.

    Attributes:
      classes: {task: taxon ids int64 [C]}, 0 for the null class.
      name, common_name: {task: StringDType [C]}, in the order of the classes, "" where there is none.
    """

    classes: Mapping[str, NDArray[np.int64]]
    name: Mapping[str, NDArray[Any]]
    common_name: Mapping[str, NDArray[Any]]

    def label(self, task: str, index: int) -> str:
        """What people read for a class, e.g. "Passer domesticus (house sparrow) [13858]", see `describe_taxon`."""
        taxon = int(self.classes[task][index])
        return describe_taxon(taxon, str(self.name[task][index]), str(self.common_name[task][index]))

    @classmethod
    def from_json(
        cls, classes: Mapping[str, NDArray[np.int64]], saved: Mapping[str, Mapping[str, Mapping[str, str]]]
    ) -> TaxonNames:
        """The names of some classes from what `to_json` gave, each made fit for one line."""
        fields = {
            field: {
                task: np.array(
                    [
                        sanitize_line(str(saved.get(task, {}).get(str(taxon), {}).get(field, "")))
                        for taxon in ids.tolist()
                    ],
                    _TEXT,
                )
                for task, ids in classes.items()
            }
            for field in _FIELDS
        }
        return cls(classes, **fields)

    def to_json(self) -> dict[str, dict[str, dict[str, str]]]:
        """{task: {taxon id: {"name", "common_name"}}} of the classes that have a name; the content of
        taxon_names.json."""
        tasks: dict[str, dict[str, dict[str, str]]] = {}
        for task, ids in self.classes.items():
            names, common = self.name[task], self.common_name[task]
            tasks[task] = {
                str(ids[i]): {"name": str(names[i]), "common_name": str(common[i])}
                for i in np.flatnonzero((names != "") | (common != "")).tolist()
            }
        return tasks


def id_of_name(task: str, name: str, taken: Container[int]) -> int:
    """The id of a taxon that a source gives none: it follows from rank and name alone, unless it is taken already."""
    most = np.iinfo(np.int32).max
    taxon_id = int.from_bytes(hashlib.sha256(f"{task}:{name}".encode()).digest()[:4]) >> 1 or 1
    while taxon_id in taken:
        taxon_id = taxon_id % most + 1
    return taxon_id


def describe_taxon(taxon: int | str, name: str = "", common_name: str = "") -> str:
    """A taxon as people read it, its id last: "Passer domesticus (house sparrow) [13858]"; the id alone where no name
    is known, "null" for taxon 0."""
    if not int(taxon):
        return "null"
    if name and common_name:
        name = f"{name} ({common_name})"
    known = name or common_name
    return f"{known} [{taxon}]" if known else str(taxon)


def read_taxon_names(paths: Sequence[str], classes: Mapping[str, NDArray[np.int64]]) -> TaxonNames:
    """The names of some classes from labels files; where two files contradict each other, the first one's name counts.

    Args:
      paths: labels files, with or without the group.
      classes: {task: taxon ids int64 [C], ascending}.

    Raises:
      FileNotFoundError: a file does not exist.
      ValueError: a damaged file or a malformed group; the message names file and dataset.
    """
    names: dict[str, dict[str, NDArray[Any]]] = {
        field: {task: np.full(len(ids), "", _TEXT) for task, ids in classes.items()} for field in _FIELDS
    }
    contradictions: list[str] = []
    for path in paths:
        with open_labels(path) as file:
            group = file.get(GROUP)
            if group is None:
                continue
            if not isinstance(group, h5py.Group):
                raise InputError(f"{path}: {GROUP!r} is a dataset, expected a group with one group for each rank")
            for task, ids in classes.items():
                if task in group:
                    contradictions += _merge(file, path, task, ids, {field: names[field][task] for field in _FIELDS})
    if contradictions:
        log.warning(
            "%s: the files give %d taxa different names, that of the first file counts: %s",
            ", ".join(paths),
            len(contradictions),
            shortened(contradictions, separator="; "),
        )
    return TaxonNames(classes, names["name"], names["common_name"])


def write_taxon_names(
    file: h5py.File, task: str, taxon_id: ArrayLike, name: Sequence[str], common_name: Sequence[str] = ()
) -> None:
    """Writes the names of one rank into a labels file that has none of it yet.

    Args:
      taxon_id: [C], distinct and not 0, in any order.
      name: scientific names [C], "" where none is known. Characters that no single line can hold are replaced.
      common_name: [C], or empty if none is known.

    Raises:
      ValueError: ids that repeat or are no taxon ids, or texts of another number.
    """
    ids = np.asarray(taxon_id, np.int64).reshape(-1)
    order = np.argsort(ids, kind="stable")
    texts = dict(zip(_FIELDS, (name, common_name or [""] * len(ids)), strict=True))
    if len(ids) and (ids.min() < 1 or ids.max() > np.iinfo(np.uint32).max or (np.diff(ids[order]) == 0).any()):
        raise InputError(f"names of {task}: taxon ids must be distinct and within 1..{np.iinfo(np.uint32).max}")
    for field, values in texts.items():
        if len(values) != len(ids):
            raise InputError(f"names of {task}: {len(values)} texts of {field} for {len(ids)} taxa")
    group = file.create_group(f"{GROUP}/{task}")
    group.create_dataset("taxon_id", data=ids[order].astype(np.uint32))
    for field, values in texts.items():
        lines = [sanitize_line(values[i]) for i in order]
        group.create_dataset(field, data=np.array(lines, object), dtype=h5py.string_dtype())


def _merge(
    file: h5py.File, path: str, task: str, classes: NDArray[np.int64], names: Mapping[str, NDArray[Any]]
) -> list[str]:
    """Fills in the `names` of some classes that are still unknown; a sentence for each taxon whose name differs."""
    where = f"{GROUP}/{task}"
    if not isinstance(file[where], h5py.Group):
        raise InputError(f"{path}: {where!r} is a dataset, expected a group with taxon_id, name and common_name")
    like = f"{where}/taxon_id"
    ids = values_of(validated_dataset(file, path, like, None, kinds="ui", dims=(1,)), path).astype(np.int64)
    if (np.diff(ids) <= 0).any():
        raise InputError(f"{path}: dataset {like!r} must ascend, every taxon once; sort it")
    if not len(ids):
        return []
    place = np.minimum(np.searchsorted(ids, classes), len(ids) - 1)
    has_name = (ids[place] == classes) & (classes != 0)
    rows, owners = place[has_name], np.flatnonzero(has_name)
    contradictions = []
    for field, held in names.items():
        source = f"{where}/{field}"
        if field == "common_name" and source not in file:
            continue
        dataset = text_dataset(file, path, source, len(ids), like=like)
        for start in range(0, len(ids), CHUNK):  # whole pieces: HDF5 is slow to pick many single strings
            first, last = np.searchsorted(rows, (start, start + CHUNK))
            if first == last:
                continue
            texts = values_of(dataset, path, slice(start, start + CHUNK))
            new = np.array([sanitize_line(text_of(texts[row - start])) for row in rows[first:last]], _TEXT)
            old = held[owners[first:last]]
            for i in np.flatnonzero((old != "") & (new != "") & (old != new)).tolist():
                contradictions.append(f"{task} {classes[owners[first + i]]}: {str(old[i])!r} and {str(new[i])!r}")
            held[owners[first:last]] = np.where(old == "", new, old)
    return contradictions
