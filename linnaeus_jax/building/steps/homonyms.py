"""One name that means two taxa, such as Morus, a genus of trees and one of birds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Protocol

from linnaeus_jax.reading.text import printable
from linnaeus_jax.taxonomy.ranks import task_name

#: between the name of a homonym and that of its parent
_OF = "\0"


class NamedRecord(Protocol):
    """The part of a `taxa.Record` that is looked at."""

    ids: list[int | None]
    names: list[str | None]
    rows: int
    reason: str


def shown_name(name: str) -> str:
    """The name that people read."""
    return name.partition(_OF)[0]


def split_homonyms(records: Sequence[NamedRecord], tasks: Sequence[str]) -> list[str]:
    """Makes two taxa of a name that stands below two parents, where it cannot be one; returns a sentence for each.

    So it is if every record of the name has all coarser ranks, no record has an id for it, and each parent has finer
    taxa of its own: a species that stands below both shows that one of the two parents is a mistake.
    """
    sentences: list[str] = []
    for level in range(len(tasks) - 2, 0, -1):  # of the finest rank no finer taxa can tell
        by_name: dict[str, list[NamedRecord]] = defaultdict(list)
        for record in records:
            name = record.names[level]
            if name is not None and not record.reason:
                by_name[name].append(record)
        for name, group in sorted(by_name.items()):
            rows = _parents(group, level)
            if len(rows) < 2:
                continue
            for record in group:
                record.names[level] = f"{name}{_OF}{_parent(record, level)}"
            listed = " and ".join(
                f"in {printable(shown_name(parent))} ({count} rows)" for parent, count in rows.items()
            )
            rank, above = task_name(tasks[level]), task_name(tasks[level + 1])
            sentences.append(
                f"{rank} {printable(shown_name(name))} is a name of {len(rows)} taxa, by {above}: {listed}"
            )
    return sentences


def _parent(record: NamedRecord, level: int) -> str:
    return record.names[level + 1] or str(record.ids[level + 1])


def _parents(group: Sequence[NamedRecord], level: int) -> Counter[str]:
    """Rows below each parent of the records of one name, the most first; empty where they may be one taxon."""
    rows: Counter[str] = Counter()
    finer: dict[str, set[str | int]] = defaultdict(set)
    for record in group:
        coarser = zip(record.names[level + 1 :], record.ids[level + 1 :])
        if record.ids[level] is not None or any(given == (None, None) for given in coarser):
            return Counter()
        parent = _parent(record, level)
        rows[parent] += record.rows
        child = record.names[level - 1] or record.ids[level - 1]
        if child is not None:
            finer[parent].add(child)
    several = sum(map(len, finer.values())) > len(set().union(*finer.values()))
    return Counter() if several or len(finer) < len(rows) else Counter(dict(rows.most_common()))
