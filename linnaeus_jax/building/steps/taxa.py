"""From names and ids as a source has them to taxon ids at every rank: synonyms, parents, rare classes.

Rows that say the same of their taxon are handled together as one `Record`, of which there are as many as taxa rather
than as many as pictures.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from linnaeus_jax.building.steps.homonyms import shown_name, split_homonyms
from linnaeus_jax.data.labels import MAX_TAXON_ID
from linnaeus_jax.data.taxon_names import describe_taxon, id_of_name
from linnaeus_jax.reading.columns import is_own, level_number, rank_name, task_of
from linnaeus_jax.reading.schema import (
    LABEL_PARTS,
    NO_LABEL,
    REASON,
    TAXON_NOTES,
    TWO_PARENTS,
    UNRESOLVED_SYNONYM,
    WRITTEN,
    label_column,
)
from linnaeus_jax.reading.text import printable
from linnaeus_jax.taxonomy.ranks import task_name
from linnaeus_jax.taxonomy.scientific_names import alike, binomial, without_authors

DEFAULT_LEVELS = ("L10", "L20", "L30", "L40")
SPECIES, GENUS = "taxa_L10", "taxa_L20"
#: statuses of Darwin Core's taxonomicStatus that name another taxon
_SYNONYM = re.compile(r"synonym|misapplied", re.IGNORECASE)


@dataclass
class Record:
    """What one or more rows say of their taxon.

    Attributes:
      ids, names, commons: per level, None where not given.
      rows: that say this and are not rejected yet.
      taxa: taxon id per level, 0 = null.
      reason, detail: why it is rejected; empty if it is not.
      written: the first of the names that were changed, as the source has it.
    """

    ids: list[int | None]
    names: list[str | None]
    commons: list[str | None]
    notes: dict[str, str | None]
    rows: int = 0
    taxa: list[int] = field(default_factory=list)
    reason: str = ""
    detail: str = ""
    written: str | None = None

    @property
    def level(self) -> int | None:
        """Position of the finest level with a label; None where there is none."""
        return next((i for i, given in enumerate(zip(self.ids, self.names)) if given != (None, None)), None)

    @property
    def is_synonym(self) -> bool:
        return bool(_SYNONYM.search(self.notes.get("status") or ""))

    def reject(self, reason: str, detail: str) -> None:
        if not self.reason:
            self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Synonym:
    """One name that was replaced, in `rows` rows."""

    task: str
    name: str
    accepted: str
    taxon_id: int
    rows: int


@dataclass(frozen=True)
class SmallClass:
    """A class with too few rows, which became null at its rank."""

    task: str
    taxon_id: int
    name: str
    rows: int


@dataclass(frozen=True)
class Taxa:
    """The labels of all rows.

    Attributes:
      tasks: label columns, finest first.
      taxon: uint32 [N, T], 0 = null.
      names: {task: {taxon id: (name, common name)}} of the ids in use, empty text where unknown.
      reason, detail: [N] objects, None where the row is not rejected here.
    """

    tasks: tuple[str, ...]
    taxon: NDArray[np.uint32]
    names: dict[str, dict[int, tuple[str, str]]]
    reason: NDArray[np.object_]
    detail: NDArray[np.object_]
    synonyms: tuple[Synonym, ...]
    small_classes: tuple[SmallClass, ...]
    warnings: tuple[str, ...]


def chosen_levels(offered: Sequence[str], asked: Sequence[str], named: Collection[str] = ()) -> tuple[str, ...]:
    """The levels of a data set, finest first: those asked for, or the default and `named` ones, or all that there are.

    Ranks with names of their own stand in the order in which they are asked for.

    Raises:
      ValueError: the source lacks a level, or has none; one twice, or levels of the taxonomy that do not rise beside
        ranks with names of their own.
    """
    if not offered:
        raise ValueError("the source has no column of names or ids at any rank; name them with --rank-map")
    lacking = [rank_name(level) for level in asked if level not in offered]
    if lacking:
        there = ", ".join(map(rank_name, offered))
        raise ValueError(f"--ranks: the source has no {', '.join(lacking)}; it has {there}")
    own = tuple(filter(is_own, offered))
    default = tuple(level for level in offered if level in DEFAULT_LEVELS or level in named)
    chosen = asked or (offered if own else default) or offered
    if not any(map(is_own, chosen)):
        return tuple(level for level in offered if level in chosen)
    numbers = [level_number(level) for level in chosen if not is_own(level)]
    if len(set(chosen)) < len(chosen) or numbers != sorted(numbers):
        names = ",".join(map(rank_name, chosen))
        raise ValueError(f"--ranks {names}: name each rank once, finest first; those of the taxonomy keep their order")
    return tuple(chosen)


def label_rows(frame: pl.DataFrame, levels: Sequence[str], synonyms: Mapping[str, str], min_per_class: int) -> Taxa:
    """Labels of every row; rows that have a `reason` already count for nothing.

    Args:
      frame: of `SourceRows`.
      levels: label columns, finest first.
      synonyms: name -> accepted name, beside what the rows say themselves.
      min_per_class: classes with fewer rows become null at their rank.
    """
    tasks = tuple(map(task_of, levels))
    records, codes = _records(frame, levels)
    homonyms = split_homonyms(records, tasks)
    synonyms = _cleaned(synonyms, records)
    names = [_RankNames(task) for task in tasks]
    for record in records:
        for level, rank in enumerate(names):
            rank.add(record.ids[level], record.names[level], record.commons[level], record.rows)
    replaced = _accepted_names(records, synonyms, names)
    for level, rank in enumerate(names):
        accepted = [name for where, name in replaced.values() if where == level]
        if rank.task == GENUS:
            accepted += [name.split()[0] for where, name in replaced.values() if names[where].task == SPECIES]
        rank.number(accepted)
    for record in records:
        record.taxa = [rank.taxon(i, name) for rank, i, name in zip(names, record.ids, record.names)]
    own = [record for number, record in enumerate(records) if number not in replaced]
    _settle_parents(own, names)  # first: synonyms take over what is settled
    listed = _replace(records, replaced, names)
    _settle_parents(records, names)
    for record in records:
        if not any(record.taxa):
            said = record.written or record.notes.get("scientific_name")
            told = f": {said!r} names none" if said else ""
            record.reject(NO_LABEL, f"no name and no id at any rank in use{told}")
    small = _drop_small(records, names, min_per_class)

    taxon = np.array([record.taxa for record in records], np.uint32).reshape(len(records), len(tasks))
    used = {task: set(taxon[:, t].tolist()) - {0} for t, task in enumerate(tasks)}
    return Taxa(
        tasks,
        taxon[codes],
        {rank.task: {taxon_id: rank.name_of(taxon_id) for taxon_id in sorted(used[rank.task])} for rank in names},
        np.array([record.reason or None for record in records], object)[codes],
        np.array([record.detail or None for record in records], object)[codes],
        tuple(listed),
        tuple(small),
        (*homonyms, *(warning for t, rank in enumerate(names) for warning in rank.warnings(used[tasks[t]]))),
    )


def _cleaned(synonyms: Mapping[str, str], records: Sequence[Record]) -> dict[str, str]:
    """The given synonyms, and those of them with authors or other marks also as the names of records are written."""
    known = {name for record in records for name in record.names if name}
    both = dict(synonyms)
    for name, accepted in synonyms.items():
        plain = accepted if accepted in known else binomial(accepted) or accepted
        both[name] = plain
        if cleaned := binomial(name):
            both.setdefault(cleaned, plain)
    return both


def _records(frame: pl.DataFrame, levels: Sequence[str]) -> tuple[list[Record], NDArray[np.int64]]:
    """The distinct records, in order of first occurrence, and the number of the record of every row."""
    labels = [label_column(part, level) for level in levels for part in LABEL_PARTS]
    written = [name for name in frame.columns if name.startswith(WRITTEN)]
    columns = [name for name in (*labels, *TAXON_NOTES, *written) if name in frame.columns]
    # numbers in place of texts: a million rows of text in a dozen columns would take gigabytes to group
    numbers = frame.select(pl.col(name).cast(pl.Categorical).to_physical() for name in columns)
    counted = numbers.with_columns(frame[REASON].is_null().alias("counts")).with_row_index("first")
    groups = counted.group_by(columns, maintain_order=True).agg(pl.col("first").first(), pl.col("counts").sum())
    numbered = groups.select(columns).with_row_index("code")
    codes = numbers.join(numbered, on=columns, how="left", nulls_equal=True, maintain_order="left")["code"]
    distinct = frame.select(pl.col(columns).cast(pl.String))[groups["first"].to_numpy()]
    distinct = distinct.with_columns(groups["counts"].alias("rows"))
    records = []
    for row in distinct.iter_rows(named=True):
        ids, names, commons = ([row.get(label_column(part, level)) for level in levels] for part in LABEL_PARTS)
        notes = {name: row.get(name) for name in TAXON_NOTES}
        texts = [_clean(name) for name in names]
        keys = [_integer(text) for text in ids]
        # an id that is no number is a name of its own; 0 stands for no taxon
        texts = [
            name or (None if key or _clean(text) in ("0", "0.0") else _clean(text))
            for key, text, name in zip(keys, ids, texts)
        ]
        said = next(filter(None, (row[name] for name in written)), None)
        records.append(Record(keys, texts, [_clean(name) for name in commons], notes, row["rows"], written=said))
    return records, codes.to_numpy().astype(np.int64)


def _clean(name: str | None) -> str | None:
    return " ".join(unicodedata.normalize("NFC", name).split()) or None if name else None


def _integer(text: str | None) -> int | None:
    """A taxon id; None for 0, which stands for no taxon, and for what is no id."""
    text = (text or "").strip().removesuffix(".0")
    return int(text) if text.isascii() and text.isdecimal() and 0 < int(text) <= MAX_TAXON_ID else None


def _plain_name(name: str | None) -> str | None:
    return without_authors(name) if name else None


class _RankNames:
    """Names and ids at one rank."""

    def __init__(self, task: str) -> None:
        self.task = task
        self._names: dict[int, Counter[str]] = defaultdict(Counter)  # by taxon id
        self._commons: dict[int, Counter[str]] = defaultdict(Counter)
        self._ids: dict[str, Counter[int]] = defaultdict(Counter)  # by name
        self._nameless: dict[str, Counter[str]] = {}  # common names of names without id

    def add(self, taxon_id: int | None, name: str | None, common: str | None, rows: int) -> None:
        if taxon_id is not None:
            self._names[taxon_id].update({name: rows + 1} if name else {})
            self._commons[taxon_id].update({common: rows + 1} if common else {})
        if name is not None:
            self._ids[name].update({taxon_id: rows + 1} if taxon_id is not None else {})
            if taxon_id is None:
                self._nameless.setdefault(name, Counter()).update({common: rows + 1} if common else {})

    def number(self, accepted: Iterable[str]) -> None:
        """Gives every name without an id one that follows from the name alone, unless it is taken already."""
        for name in accepted:
            _ = self._ids[name]
        for name in sorted(name for name, ids in self._ids.items() if not ids):
            taxon_id = id_of_name(self.task, name, self._names)
            self._ids[name][taxon_id] = 1
            self._names[taxon_id][name] = 1
            self._commons[taxon_id].update(self._nameless.get(name, ()))

    def taxon(self, taxon_id: int | None, name: str | None) -> int:
        """0 where neither is given; of a name with several ids that of most rows, of equally many the smallest."""
        if taxon_id is not None or name is None:
            return taxon_id or 0
        return _most(self._ids[name])

    def find(self, taxon_id: int | None) -> bool:
        """Whether any row has this id."""
        return taxon_id in self._names

    def name_of(self, taxon_id: int) -> tuple[str, str]:
        """Scientific and common name, those of most rows."""
        names, commons = self._names[taxon_id], self._commons[taxon_id]
        return shown_name(_most(names)) if names else "", _most(commons) if commons else ""

    def text(self, taxon_id: int) -> str:
        """What people read: "genus Morus [2871]"."""
        return f"{task_name(self.task)} {describe_taxon(taxon_id, self.name_of(taxon_id)[0])}"

    def warnings(self, used: Collection[int]) -> Iterable[str]:
        """A sentence for each id with several names, each name with several ids, and classes of nearly one name.

        Args:
          used: ids in use.
        """
        groups = alike({self.name_of(taxon_id)[0] for taxon_id in used} - {""})
        if groups:
            first = " and ".join(map(printable, max(groups, key=len)[:3]))
            yield (
                f"{sum(map(len, groups))} classes of {task_name(self.task)} differ only in case, author or ×, "
                f"e.g. {first}; if they are one, --synonyms replaces names; --names scientific reads all as scientific"
            )
        for taxon_id, names in self._names.items():
            if len(names) > 1:
                yield f"{task_name(self.task)} {taxon_id} has several names: {', '.join(sorted(names))}"
        for name, ids in self._ids.items():
            if len(ids) > 1 and name in self._nameless:
                yield f"{task_name(self.task)} {name} has several ids; rows without an id got {self.taxon(None, name)}"


#: place of a name: (level, name)
_Place = tuple[int, str]


def _accepted_names(
    records: Sequence[Record], synonyms: Mapping[str, str], names: Sequence[_RankNames]
) -> dict[int, _Place]:
    """Number of each record whose name is replaced -> the accepted name; unresolvable ones are rejected.

    An accepted name may itself be a synonym: chains are followed to their end.
    """
    direct: dict[_Place, str] = {}
    asked: dict[int, _Place] = {}
    for number, record in enumerate(records):
        level = record.level
        if level is None:
            continue
        name = record.names[level]
        given = synonyms.get(name or "") or _own_accepted_name(record, level, names[level], records)
        if given is None:
            if record.is_synonym and not _interpreted(record, name):
                accepted = record.notes.get("accepted_name") or record.notes.get("accepted_id")
                found = f"no row has its accepted taxon {accepted}" if accepted else "without an accepted taxon"
                record.reject(UNRESOLVED_SYNONYM, f"{name or record.ids[level]} is a synonym {found}")
            continue
        if name is not None and given != name:
            direct[level, name] = given
        asked[number] = (level, given)
    resolved = {}
    for number, (level, name) in asked.items():
        visited = [records[number].names[level] or "", name]
        while (level, visited[-1]) in direct and direct[level, visited[-1]] not in visited:
            visited.append(direct[level, visited[-1]])
        if (level, visited[-1]) in direct:
            chain = " -> ".join([*visited, direct[level, visited[-1]]])
            records[number].reject(UNRESOLVED_SYNONYM, f"the synonyms go in a circle: {chain}")
        elif visited[-1] != visited[0]:
            resolved[number] = (level, visited[-1])
    return resolved


def _own_accepted_name(record: Record, level: int, rank: _RankNames, records: Sequence[Record]) -> str | None:
    """The accepted name that the record states, by name or by an id that some row has."""
    if not record.is_synonym:
        return None
    accepted = _plain_name(record.notes.get("accepted_name"))
    if accepted:
        return accepted
    taxon_id = _integer(record.notes.get("accepted_id"))
    return rank.name_of(taxon_id)[0] or None if taxon_id is not None and rank.find(taxon_id) else None


def _interpreted(record: Record, name: str | None) -> bool:
    """Whether the label is another taxon than the row's own scientific name, as in GBIF's interpreted columns."""
    own = _plain_name(record.notes.get("scientific_name"))
    return own is not None and name is not None and own != name


#: (level, taxon id) -> taxa of the coarser ranks -> rows that have them
_Above = dict[tuple[int, int], Counter[tuple[int, ...]]]


def _replace(records: Sequence[Record], replaced: Mapping[int, _Place], names: Sequence[_RankNames]) -> list[Synonym]:
    """Puts the accepted taxa in place, with the coarser ranks that rows of the accepted taxon have most often."""
    above: _Above = defaultdict(Counter)
    counted: Counter[tuple[str, str, str, int]] = Counter()
    for number, record in enumerate(records):
        if number not in replaced and not record.reason:
            for level, taxon_id in enumerate(record.taxa):
                above[level, taxon_id][tuple(record.taxa[level + 1 :])] += record.rows
            rank = names[record.level or 0]
            old, new = record.notes.get("scientific_name"), record.names[record.level or 0]
            if record.is_synonym and old and new and _plain_name(old) != new:  # the source had replaced it already
                counted[rank.task, old, new, record.taxa[record.level or 0]] += record.rows
    for number, (level, name) in replaced.items():
        record, rank = records[number], names[level]
        if not record.reason:
            record.taxa[level] = rank.taxon(None, name)
            _put_coarser(record, level, name, above, names)
            old = record.notes.get("scientific_name") or record.names[level] or str(record.ids[level])
            counted[rank.task, old, name, record.taxa[level]] += record.rows
    return [Synonym(*what, rows) for what, rows in sorted(counted.items())]


def _put_coarser(record: Record, level: int, name: str, above: _Above, names: Sequence[_RankNames]) -> None:
    """Gives a record the coarser ranks of its accepted name; where no row has that species, those of its genus."""
    tasks = [rank.task for rank in names]
    known = above.get((level, record.taxa[level]))
    if known is None and tasks[level] == SPECIES and GENUS in tasks:
        level = tasks.index(GENUS)
        record.taxa[level] = names[level].taxon(None, name.split()[0])
        known = above.get((level, record.taxa[level]))
    if known:
        record.taxa[level + 1 :] = _most(known)


def _most(counts: Mapping[Any, int]) -> Any:
    """The key with the highest count; of several the smallest."""
    return min(counts, key=lambda key: (-counts[key], key))


def _settle_parents(records: Sequence[Record], names: Sequence[_RankNames]) -> None:
    """Rejects the records that contradict the parent which most rows of their taxon have; ties: the smaller id."""
    for level, (rank, above) in enumerate(pairwise(names)):
        linked = [record for record in records if not record.reason and record.taxa[level] and record.taxa[level + 1]]
        parents: dict[int, Counter[int]] = defaultdict(Counter)
        for record in linked:
            parents[record.taxa[level]][record.taxa[level + 1]] += record.rows
        best = {child: _most(counts) for child, counts in parents.items()}
        for record in linked:
            child, parent = record.taxa[level], record.taxa[level + 1]
            chosen, counts = best[child], parents[child]
            if chosen != parent:
                record.reject(
                    TWO_PARENTS,
                    f"{rank.text(child)}: {counts[parent]} rows in {above.text(parent)}, "
                    f"{counts[chosen]} in {above.text(chosen)}",
                )


def _drop_small(records: Sequence[Record], names: Sequence[_RankNames], least: int) -> list[SmallClass]:
    """Makes classes with fewer than `least` rows null at their rank."""
    dropped = []
    for level, rank in enumerate(names):
        rows: Counter[int] = Counter()
        for record in records:
            if not record.reason and record.taxa[level]:
                rows[record.taxa[level]] += record.rows
        small = {taxon_id for taxon_id, count in rows.items() if 0 < count < least}
        for record in records:
            if record.taxa[level] in small:
                record.taxa[level] = 0
                if not any(record.taxa):
                    record.reject(NO_LABEL, f"every class has fewer than {least} rows (--min-per-class)")
        dropped += [SmallClass(rank.task, one, rank.name_of(one)[0], rows[one]) for one in sorted(small)]
    return dropped
