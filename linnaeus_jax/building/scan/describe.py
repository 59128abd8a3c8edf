"""What a data set holds: classes and their sizes, how deep rows are identified, where, when and how high, by whom.

Nothing here draws or prints; `describe_text` and `describe_page` do. Columns that cannot be used are left out and named
in `Description.faults`; what exactly is wrong with them, `verify` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.scan.checks import ERROR, Findings
from linnaeus_jax.building.scan.columns import Identifiers, usable_columns
from linnaeus_jax.building.scan.label_file import LabelFile
from linnaeus_jax.building.scan.metadata import MetadataSet, coordinates, metadata_sets
from linnaeus_jax.building.scan.taxa import Taxa, read_taxa
from linnaeus_jax.data.credits import license_name
from linnaeus_jax.data.labels import OCCURRENCE, SPLIT, SPLITS
from linnaeus_jax.data.labels_file import IDENTIFIERS
from linnaeus_jax.reading.text import printable
from linnaeus_jax.taxonomy.ranks import task_name

#: classes with fewer rows are hard to learn; those with fewer than the larger number are rare
FEW = (10, 50)
UNKNOWN = ""
#: column of texts -> what `Description` calls its rows per text
TEXTS = {"license": "licenses", "rights_holder": "holders", "source_doi": "sources"}
_DAYS = np.cumsum([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


@dataclass(frozen=True)
class Side:
    """One side of a split. `taxa`: task -> taxon ids with a label there; hashes are sorted and distinct."""

    name: str
    rows: int
    taxa: dict[str, NDArray[np.int64]]
    pictures: NDArray[np.int64]
    occurrences: NDArray[np.int64]
    observers: NDArray[np.int64]

    def of(self, task: str) -> NDArray[np.int64]:
        """Taxon ids of a task, none where the side does not have it."""
        return self.taxa.get(task, np.zeros(0, np.int64))


@dataclass(frozen=True)
class Description:
    """Letters: N rows, n of them with a usable value.

    Attributes:
      taxa: labels and names.
      depth: finest labelled rank (task, `UNKNOWN` for none) -> rows, finest first.
      components: metadata data set -> rows with a usable value.
      combinations: data sets that are usable together -> rows.
      places: float32 [n, 2] latitude and longitude in degrees.
      months, hours: rows per month [12] and hour [24].
      elevation: float32 [n] metres, `elevation_period` is the longest scale where they are known modulo it only.
      observers: rows per observer, most first; `unobserved` rows have none.
      licenses, holders, sources: text -> rows, `UNKNOWN` for none; {} where there is no such column.
      sides: of the split; the first is train.
      repeated: rows whose picture an earlier row has.
      faults: one line per column that cannot be used.
    """

    labels: Path
    rows: int
    taxa: Taxa
    depth: dict[str, int]
    components: dict[str, int] = field(default_factory=dict)
    combinations: dict[tuple[str, ...], int] = field(default_factory=dict)
    places: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 2), np.float32))
    months: NDArray[np.int64] = field(default_factory=lambda: np.zeros(12, np.int64))
    hours: NDArray[np.int64] = field(default_factory=lambda: np.zeros(24, np.int64))
    elevation: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    elevation_period: float = 0.0
    observers: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    unobserved: int = 0
    licenses: dict[str, int] = field(default_factory=dict)
    holders: dict[str, int] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    sides: tuple[Side, ...] = ()
    repeated: int = 0
    faults: tuple[str, ...] = ()

    @property
    def finest(self) -> str:
        """The finest task with a label, "" without any."""
        return next((task for task in self.taxa.tasks if len(self.taxa.classes[task]) > 1), "")

    def sizes(self, task: str) -> NDArray[np.int64]:
        """Rows per class of a task, most first; the null class is left out."""
        return np.sort(self.taxa.counts[task][1:])[::-1]


def describe(labels: Path, val_labels: Path | None = None) -> Description:
    """Reads what a labels file holds; with `val_labels` it is the training side of a split.

    Raises:
      UserError: one of them is no labels file.
    """
    findings = Findings()
    with LabelFile(labels) as file:
        reader = _Reader(file, findings)
        taxa = reader.taxa
        reader.read_metadata()
        with findings.of_damage():
            reader.read_raw()
        for name in TEXTS:
            with findings.of_damage():
                reader.read_texts(name)
        sides: tuple[Side, ...] = ()
        repeated = 0
        with findings.of_damage():
            identity = _Identity(reader)
            repeated = identity.repeated
            if val_labels is None:
                sides = _sides_of_column(reader, identity)
            else:
                sides = (_side("train", np.ones(file.rows, bool), taxa, identity), *_other_file(val_labels, findings))
        faults = tuple(finding.message for finding in findings if finding.level == ERROR)
        depth = _depth(taxa)
        return Description(
            labels, file.rows, taxa, depth, **reader.found, sides=sides, repeated=repeated, faults=faults
        )


def _depth(taxa: Taxa) -> dict[str, int]:
    known = taxa.label > 0
    finest = np.where(known.any(axis=1), known.argmax(axis=1) if taxa.tasks else 0, len(taxa.tasks))
    counts = np.bincount(finest, minlength=len(taxa.tasks) + 1).tolist()
    return dict(zip((*taxa.tasks, UNKNOWN), counts))


class _Reader:
    """Reads the columns of one file, its labels and the keyword arguments of `Description`."""

    def __init__(self, file: LabelFile, findings: Findings) -> None:
        self.file, self.findings = file, findings
        self.good = usable_columns(file, findings)
        self.taxa = read_taxa(file, [task for task in file.tasks if task in self.good], findings)
        self.found: dict[str, Any] = {}
        self._places: list[NDArray[np.float32]] = []
        self._heights: list[NDArray[np.float32]] = []
        self._elevation = ""  # the first data set of elevations that can be read

    def read_metadata(self) -> None:
        """Coverage, places, months and hours, and encoded elevation."""
        sets = [one for one in metadata_sets(self.file) if one.name in self.good]
        bits = np.zeros(self.file.rows, np.int64)
        for position, one in enumerate(sets):
            with self.findings.of_damage():
                for start, values, known in one.slabs():
                    bits[start : start + len(values)] |= known.astype(np.int64) << position
                    self._add(one, values[known])
        if self._places:
            self.found["places"] = np.concatenate(self._places)
        if self._heights:
            self.found["elevation"] = np.concatenate(self._heights)
        combination, rows = np.unique(bits, return_counts=True)
        self.found["components"] = {one.name: int((bits >> i & 1).sum()) for i, one in enumerate(sets)}
        self.found["combinations"] = {
            tuple(one.name for i, one in enumerate(sets) if bit >> i & 1): count
            for bit, count in zip(combination.tolist(), rows.tolist())
        }

    def _add(self, data: MetadataSet, values: NDArray[np.floating]) -> None:
        """Usable rows [n, W] of a metadata data set."""
        name, width = data.name, data.width
        if name == "spatial" and width == 3:
            self._places.append(coordinates(values).astype(np.float32))
        elif name == "temporal" and width in (2, 4):
            months, hours = _moments(values, data.columns)
            self.found["months"] = self.found.get("months", 0) + months
            self.found["hours"] = self.found.get("hours", 0) + hours
        elif data.is_elevation and self._elevation in ("", name):
            scales = data.scales
            if 2 * scales.size != width or not width:
                return
            self._elevation, longest = name, int(np.argmax(scales))
            turn = np.arctan2(values[:, 2 * longest], values[:, 2 * longest + 1]) / (2 * np.pi)
            self._heights.append((turn % 1 * scales[longest]).astype(np.float32))
            self.found["elevation_period"] = float(scales[longest])

    def read_raw(self) -> None:
        """Places and elevation as they were before encoding, and observers."""
        if {"raw_lat", "raw_lon"} <= self.good and "places" not in self.found:
            both = np.stack([self.file.numbers("raw_lat"), self.file.numbers("raw_lon")], axis=1).astype(np.float32)
            self.found["places"] = both[np.isfinite(both).all(axis=1) & (both != 0).any(axis=1)]
        if "raw_elevation" in self.good:
            metres = self.file.numbers("raw_elevation").astype(np.float32)
            metres = metres[np.isfinite(metres) & (metres != 0)]
            if len(metres):
                self.found |= {"elevation": metres, "elevation_period": 0.0}
        if "observer_id" in self.good:
            observer = self.file.numbers("observer_id")
            counts = np.unique(observer[observer != 0], return_counts=True)[1]
            self.found |= {"observers": np.sort(counts)[::-1], "unobserved": int((observer == 0).sum())}

    def read_texts(self, name: str) -> None:
        """Rows per text of a column."""
        if name not in self.good:
            return
        counts: Counter[bytes] = Counter()
        for _, part in self.file.slabs(name):
            counts.update(part.tolist())
        texts: Counter[str] = Counter()
        for text, rows in counts.items():
            line = printable(text)
            texts[license_name(line) if name == "license" else line] += rows
        self.found[TEXTS[name]] = dict(texts.most_common())


def _moments(values: NDArray[np.floating], columns: Iterable[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows per month [12] and hour [24] of encoded times [n, 2 or 4]; a pair of zeros is an unknown hour."""
    turn = np.arctan2(values[:, 0], values[:, 1]) / (2 * np.pi) % 1
    known = (values[:, 0] != 0) | (values[:, 1] != 0)
    if next(iter(columns), "").startswith("jd"):
        day = np.rint(turn * 365.25) % 366  # 1 is the first of January
        month = np.minimum(np.searchsorted(_DAYS, day - 1, side="right") - 1, 11)
    else:
        month = np.rint(turn * 12).astype(np.int64) - 1  # December is turn 0 or 1
    months = np.bincount(month[known] % 12, minlength=12)
    if values.shape[1] < 4:
        return months, np.zeros(24, np.int64)
    known = (values[:, 2] != 0) | (values[:, 3] != 0)
    hour = np.floor(np.arctan2(values[known, 2], values[known, 3]) / (2 * np.pi) % 1 * 24 + 1e-3).astype(np.int64)
    return months, np.bincount(hour % 24, minlength=24)


# ---- splits ----------------------------------------------------------------------------------------------------------


class _Identity:
    """What a row is compared by across a split, int64 [N] each, 0 for unknown; `repeated` rows show a picture again."""

    def __init__(self, reader: _Reader) -> None:
        file, good = reader.file, reader.good
        self.pictures = self.occurrences = self.observers = np.zeros(file.rows, np.int64)
        self.repeated = 0
        if IDENTIFIERS in good:
            identifiers = Identifiers(file)
            self.pictures, self.repeated = identifiers.hashes, len(identifiers.repeated)
        if OCCURRENCE in good:
            self.occurrences = file.hashes(OCCURRENCE)
        if "observer_id" in good:
            self.observers = file.numbers("observer_id").astype(np.int64)


def _distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    found = np.unique(values)
    return found[found != 0]


def _side(name: str, mask: NDArray[np.bool_], taxa: Taxa, identity: _Identity) -> Side:
    return Side(
        name,
        int(mask.sum()),
        {task: _distinct(taxa.classes[task][taxa.label[mask, t]]) for t, task in enumerate(taxa.tasks)},
        _distinct(identity.pictures[mask]),
        _distinct(identity.occurrences[mask]),
        _distinct(identity.observers[mask]),
    )


def _sides_of_column(reader: _Reader, identity: _Identity) -> tuple[Side, ...]:
    if SPLIT not in reader.good:
        return ()
    column = reader.file.numbers(SPLIT)
    masks = ((name, column == number) for number, name in enumerate(SPLITS))
    return tuple(_side(name, mask, reader.taxa, identity) for name, mask in masks if mask.any())


def _other_file(labels: Path, findings: Findings) -> tuple[Side, ...]:
    with LabelFile(labels) as file:
        reader = _Reader(file, findings)
        return (_side("val", np.ones(file.rows, bool), reader.taxa, _Identity(reader)),)


# ---- tables ----------------------------------------------------------------------------------------------------------


def rank_rows(found: Description) -> list[list[object]]:
    """Per rank: name, classes, labelled rows, share, smallest, median and largest class, shares of small classes."""
    rows: list[list[object]] = []
    for task in found.taxa.tasks:
        sizes = found.sizes(task)
        labelled = int(sizes.sum())
        share = f"{labelled / found.rows:.1%}" if found.rows else "–"
        spread = [f"{size:,.0f}" for size in (sizes[-1], np.median(sizes), sizes[0])] if len(sizes) else ["–"] * 3
        small = [f"{(sizes < few).mean():.0%}" if len(sizes) else "–" for few in FEW]
        rows.append([task_name(task), f"{len(sizes):,}", f"{labelled:,}", share, *spread, *small])
    return rows


RANK_NOTE = f"Rows with a label, rows per class, and the share of classes under {FEW[0]} and {FEW[1]} rows."
RANK_COLUMNS = ("rank", "classes", "rows", "of all", "least", "median", "most", *(f"under {few}" for few in FEW))


def split_tables(found: Description) -> Iterator[tuple[Side, list[list[object]]]]:
    """What train and each other side share: the other side, and rows of what, in both, only in train, only there."""
    for other in found.sides[1:]:
        train = found.sides[0]
        pairs = [("pictures", train.pictures, other.pictures), ("occurrences", train.occurrences, other.occurrences)]
        pairs += [("observers", train.observers, other.observers)]
        pairs += [(f"classes of {task_name(task)}", train.taxa[task], other.of(task)) for task in found.taxa.tasks]
        rows: list[list[object]] = []
        for what, left, right in pairs:
            if len(left) or len(right):
                both = len(np.intersect1d(left, right, assume_unique=True))
                rows.append([what, *(f"{n:,}" for n in (both, len(left) - both, len(right) - both))])
        yield other, rows


def split_columns(other: Side) -> tuple[str, ...]:
    """Heads of the columns of `split_tables`."""
    return ("", "in both", "only train", f"only {other.name}")


def observer_rows(found: Description) -> list[list[object]]:
    """How concentrated the observers are, as (text, value)."""
    counts = found.observers
    if not len(counts):
        return []
    shares = np.cumsum(counts) / counts.sum()
    half = int(np.searchsorted(shares, 0.5)) + 1
    return [
        ["observers", f"{len(counts):,}"],
        ["rows without an observer", f"{found.unobserved:,}"],
        ["rows of an observer: median", f"{np.median(counts):g}"],
        ["rows of the most active", f"{counts[0]:,}"],
        ["share of the 10 most active", f"{shares[min(9, len(shares) - 1)]:.1%}"],
        ["observers who gave half of the rows", f"{half:,}"],
    ]
