"""The columns of a labels file: their types and lengths, identifiers, splits and subsets, with their checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.scan.checks import SHOWN, Findings, Found, Part, error, make_checks, note, warning
from linnaeus_jax.building.scan.label_file import LabelFile
from linnaeus_jax.building.scan.taxa import Taxa
from linnaeus_jax.data.labels import MAX_SUBSETS, OCCURRENCE, SPLIT, SPLITS, SUBSET_PREFIX
from linnaeus_jax.data.labels_file import IDENTIFIERS, json_attribute
from linnaeus_jax.data.splits import FEWEST_ROWS
from linnaeus_jax.data.taxon_names import GROUP
from linnaeus_jax.reading.paths import UNSAFE

TEXT = "text"
#: data set -> kinds of its dtype ("text" for strings), numbers of dimensions
COLUMNS: dict[str, tuple[str, tuple[int, ...]]] = {
    IDENTIFIERS: (TEXT, (1,)),
    "spatial": ("fiu", (1, 2)),
    "temporal": ("fiu", (1, 2)),
    "raw_lat": ("fiu", (1,)),
    "raw_lon": ("fiu", (1,)),
    "raw_elevation": ("fiu", (1,)),
    "raw_date_observed": (TEXT, (1,)),
    "in_region": ("biu", (1,)),
    "anomaly_score": ("fiu", (1,)),
    "observer_id": ("iu", (1,)),
    SPLIT: ("iu", (1,)),
    "license": (TEXT, (1,)),
    "rights_holder": (TEXT, (1,)),
    "source_doi": (TEXT, (1,)),
    OCCURRENCE: (TEXT, (1,)),
}
_KINDS = {"f": "float", "i": "int", "u": "unsigned int", "b": "bool"}


@dataclass(frozen=True)
class Content:
    """What a file is about."""

    file: LabelFile

    def offered(self) -> Iterator[Found]:
        """Columns that might have been meant, where there are no labels."""
        if not self.file.tasks:
            names = [name for name in self.file.datasets if name.startswith("taxa")]
            yield Found(fields={"names": ", ".join(names) or "no taxa_L<level>"})

    CHECKS: ClassVar = (
        error("structure", f"there is no dataset {IDENTIFIERS!r}: no row says which picture it belongs to",
              lambda it: IDENTIFIERS not in it.file.datasets),
        error("structure", "there is no label column taxa_L10, taxa_L20, ... (found {names})", offered),
        error("structure", "the file has no rows", lambda it: not it.file.rows),
    )  # fmt: skip


class Column:
    """A data set, before it is read.

    Attributes:
      is_usual: whether its name means something; others can serve as metadata.
      fault: why it cannot be read further, "" where it can.
    """

    def __init__(self, file: LabelFile, name: str) -> None:
        data, (kinds, dims) = file.datasets[name], _expected(name)
        self.name, self.rows, self.is_usual = name, file.rows, bool(dims)
        self.dtype, self.shape = data.dtype, data.shape
        words = [_KINDS[kind] for kind in kinds.replace(TEXT, "")]
        self.kinds = " or ".join(["strings", *words] if TEXT in kinds else words)
        self.dims = " or ".join(map(str, dims))
        if data.dtype.kind not in kinds.replace(TEXT, "") and not (TEXT in kinds and file.is_text(name)):
            self.fault = "dtype"
        elif data.ndim not in (dims or (2,)):
            self.fault = "shape"
        else:
            self.fault = "" if file.has(name) else "length"
        self.usual_fault = self.fault if self.is_usual else ""

    CHECKS: ClassVar = (
        note("length", "{it.name}: {it.shape[0]} rows, so it cannot be metadata of the {it.rows} rows",
             lambda it: it.fault == "length" and not it.is_usual),
        error("dtype", "{it.name}: dtype {it.dtype}, expected {it.kinds}", lambda it: it.usual_fault == "dtype"),
        error("shape", "{it.name}: shape {it.shape}, expected {it.dims} dimensions",
              lambda it: it.usual_fault == "shape"),
        error("length", "{it.name}: {it.shape[0]} rows, expected {it.rows} as in " + IDENTIFIERS,
              lambda it: it.usual_fault == "length"),
        note("dtype", "{it.name}: dtype {it.dtype} is read as well as uint32",
             lambda it: it.name.startswith("taxa_") and not it.fault and it.dtype != np.uint32),
    )  # fmt: skip


def _expected(name: str) -> tuple[str, tuple[int, ...]]:
    """Kinds and dimensions; no dimensions for a name that means nothing."""
    if name.startswith("taxa_"):
        return "ui", (1,)
    if name.startswith("elevation_"):
        return "fiu", (1, 2)
    if name.startswith(SUBSET_PREFIX):
        return TEXT + "biu", (1,)
    return COLUMNS.get(name, ("f", ()))


@dataclass(frozen=True)
class Rest:
    """What else is in a file."""

    file: LabelFile
    unknown: list[str]

    def no_json(self) -> Iterator[Found]:
        """Where the group `metadata` says nothing that can be read."""
        if "metadata" in self.file.groups:
            try:
                json_attribute(self.file.file["metadata"], "config_json")
            except ValueError as error:
                yield Found(fields={"error": error})

    def no_meaning(self) -> list[Found]:
        """Items of unknown names."""
        return [Found((), sorted(self.unknown), {"n": len(self.unknown)})] if self.unknown else []

    CHECKS: ClassVar = (
        note("unknown", "{n} items have no meaning here and are not read", no_meaning),
        warning("origin", "there is no group 'metadata': nothing is known about the origin of the data",
                lambda it: "metadata" not in it.file.groups),
        warning("origin", "the attribute config_json of 'metadata' is not valid JSON: {error}", no_json),
    )  # fmt: skip


def usable_columns(file: LabelFile, findings: Findings) -> set[str]:
    """Names of the data sets that can be read further; what is wrong with the others is found."""
    columns = [Column(file, name) for name in file.datasets]
    unknown = [column.name for column in columns if column.fault and not column.is_usual]
    unknown += [name for name in file.groups if name not in ("metadata", GROUP)]
    parts: tuple[Part, ...] = (Content(file), *columns, Rest(file, unknown))
    for part in parts:
        make_checks(part, findings)
    return {column.name for column in columns if not column.fault}


@dataclass(frozen=True)
class AskedRanks:
    """Label columns that are to be used, those of the default configuration, and the file."""

    tasks: Sequence[str]
    default: Sequence[str]
    file: LabelFile

    def missing(self) -> list[Found]:
        """Those that there are not."""
        has = ", ".join(self.file.tasks) or "no label column"
        return [Found(fields={"task": task, "has": has}) for task in self.tasks if task not in self.file.datasets]

    def left(self) -> list[Found]:
        """Those of the file that are not asked for."""
        left = [task for task in self.file.tasks if task not in self.tasks]
        return [Found(fields={"left": ", ".join(left)})] if self.tasks and left else []

    def others(self) -> list[Found]:
        """Those of the file, where they are not the default ones."""
        differ = not self.tasks and self.file.tasks and tuple(self.file.tasks) != tuple(self.default)
        return [Found(fields={"keys": ",".join(map(repr, self.file.tasks))})] if differ else []

    CHECKS: ClassVar = (
        error("ranks", "{task} is asked for, but the file has {has}", missing),
        note("ranks", "not checked, because they were not asked for: {left}", left),
        note("ranks", "the file has other ranks than the default; for all of them set data.task_keys_h5=({keys},)",
             others),
    )  # fmt: skip


# ---- identifiers


class Identifiers:
    """The column of identifiers; DamagedError.

    Attributes:
      hashes: int64 [N], equal for equal texts within one process, 0 for "".
      repeated, unsafe, undecodable: rows; the first have the identifier of an earlier one.
    """

    def __init__(self, file: LabelFile) -> None:
        self.file, self.hashes = file, np.empty(file.rows, np.int64)
        unsafe, undecodable = list[int](), list[int]()
        for start, part in file.slabs(IDENTIFIERS):
            texts = part.tolist()
            self.hashes[start : start + len(part)] = [hash(text) for text in texts]
            unsafe += [start + i for i, text in enumerate(texts) if UNSAFE.search(text)]
            undecodable += [start + i for i, text in enumerate(texts) if not text.isascii() and not _is_utf8(text)]
        self.unsafe, self.undecodable = np.array(unsafe, np.int64), np.array(undecodable, np.int64)
        self.repeated = repeated_rows(self.hashes)

    def shown(self, rows: NDArray[np.int64]) -> list[Found]:
        """What is found in some rows, with the texts of the first."""
        return [Found(rows, self.file.texts(IDENTIFIERS, rows[:SHOWN]))] if len(rows) else []

    CHECKS: ClassVar = (
        error("empty_identifier", "{n} rows have an empty identifier", lambda it: np.flatnonzero(it.hashes == 0)),
        error("unsafe_identifier", "{n} identifiers lead out of the folder of pictures (absolute, '..') or hold "
              "control characters", lambda it: it.shown(it.unsafe)),
        error("undecodable_identifier", "{n} identifiers are not UTF-8, so no file can be found by them",
              lambda it: it.shown(it.undecodable)),
        warning("duplicate_identifier", "{n} rows have the identifier of an earlier row, so two rows show one picture",
                lambda it: it.shown(it.repeated)),
    )  # fmt: skip


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def repeated_rows(hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows whose hash an earlier row has, ascending; 0 stands for nothing."""
    order = np.argsort(hashes, kind="stable")
    same = hashes[order][1:] == hashes[order][:-1]
    return np.sort(order[1:][same & (hashes[order][1:] != 0)])


# ---- splits


class Split:
    """The column `split`; DamagedError.

    Attributes:
      side: int64 [N].
      hashes: what must not stand on two sides -> int64 [N], 0 for nothing.
      rows: per side; `is_drawn`: whether runs draw validation rows from those of training.
    """

    def __init__(self, file: LabelFile, taxa: Taxa, hashes: Mapping[str, NDArray[np.int64]]) -> None:
        self.taxa, self.hashes = taxa, hashes
        self.side = file.numbers(SPLIT).astype(np.int64)
        self.rows = {name: int((self.side == number).sum()) for number, name in enumerate(SPLITS)}
        self.is_drawn = not self.rows["val"] and self.rows["test"] > 0 and self.rows["train"] >= FEWEST_ROWS

    def other_values(self) -> Iterator[Found]:
        """Rows on no side."""
        wrong = np.flatnonzero((self.side < 0) | (self.side >= len(SPLITS)))
        known = ", ".join(f"{number} {name}" for number, name in enumerate(SPLITS))
        if len(wrong):
            yield Found(wrong, fields={"known": known, "first": self.side[wrong[0]]})

    def empty_sides(self) -> list[Found]:
        """Of train and val."""
        empty = [name for name in ("train", "val") if not self.rows[name] and len(self.side) and not self.is_drawn]
        return [Found(fields={"name": name}) for name in empty]

    def leaks(self) -> Iterator[Found]:
        """Rows whose hash also stands on another side, one per change of side."""
        for what, hashes in self.hashes.items():
            known = np.where((self.side >= 0) & (self.side < len(SPLITS)), hashes, 0)
            order = np.lexsort((self.side, known))
            ordered, sides = known[order], self.side[order]
            change = (ordered[1:] == ordered[:-1]) & (ordered[1:] != 0) & (sides[1:] != sides[:-1])
            if change.any():
                yield Found(np.sort(order[1:][change]), fields={"what": what})

    def unknown_classes(self) -> Iterator[Found]:
        """Classes outside of train that are not in it."""
        for t, task in enumerate(self.taxa.tasks):
            label, classes = self.taxa.label[:, t], len(self.taxa.classes[task])
            train, *others = (np.bincount(label[self.side == side], minlength=classes) for side in range(len(SPLITS)))
            for name, rows in zip(SPLITS[1:], others, strict=True):
                only = np.setdiff1d(np.flatnonzero((rows > 0) & (train == 0)), [0])
                lines = [f"{self.taxa.name(task, int(i))}: {rows[i]} rows" for i in only[:SHOWN]]
                if len(only):
                    yield Found((), lines, {"task": task, "n": len(only), "name": name})

    CHECKS: ClassVar = (
        error("split_value", "split: {n} rows hold another value than {known}, e.g. {first}", other_values),
        note("split_drawn", "split: no row is val; every run draws some of the training rows for validation",
             lambda it: it.is_drawn),
        error("split_empty", "split: no row is {name}", empty_sides),
        error("split_leak", "{n} rows share their {what} with a row on another side of the split, so validation "
              "measures what was trained on", leaks),
        warning("split_classes", "{task}: {n} classes stand in {name} and not in train; none of them can be recognised",
                unknown_classes),
    )  # fmt: skip


# ---- subsets


class Subset:
    """A column subset_<kind>: its `values` without "", and those with a slash; DamagedError."""

    def __init__(self, file: LabelFile, name: str) -> None:
        self.name, self.values, self.most = name, set[bytes](), MAX_SUBSETS
        for _, part in file.slabs(name):
            self.values |= set((part if file.is_text(name) else np.unique(part[part >= 0]).astype("S")).tolist())
            if len(self.values) > 100 * self.most:
                break
        self.values -= {b""}
        self.count = len(self.values)

    def slashes(self) -> list[Found]:
        """Values that cannot be part of a name."""
        wrong = sorted(value for value in self.values if b"/" in value)
        return [Found((), wrong, {"n": len(wrong)})] if wrong else []

    CHECKS: ClassVar = (
        error("subset", "{it.name}: {it.count} or more different values, at most {it.most} are allowed",
              lambda it: it.count > it.most),
        error("subset", "{it.name}: {n} values hold '/', which no metric's name can", slashes),
    )  # fmt: skip
