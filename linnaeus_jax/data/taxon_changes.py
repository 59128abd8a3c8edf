"""Taxa that are renamed, merged, moved and split by a list, without pictures: the tree and the names before and after.

All changes of a list hold at once: the taxa that they change are called as they were, what these become as it is now.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.taxon_names import TaxonNames, id_of_name
from linnaeus_jax.taxonomy.ranks import task_name
from linnaeus_jax.taxonomy.tree import TaxonomyTree

RENAME, MERGE, MOVE, SPLIT, NEW = KINDS = ("rename", "merge", "move", "split", "new")
#: of errors in a message
_SHOWN = 50
_ID_AT_END = re.compile(r"(?:.*\[)?(\d+)\]?")


@dataclass(frozen=True)
class Change:
    """One line of a list.

    Attributes:
      where: of messages, such as "line 3".
      kind: one of `KINDS`; "new" is a taxon that others move to.
      taxon: name, id, or "name [id]".
      rank: its name; "": the one at which there is such a taxon.
      to: what it is renamed to or merged into, at the same rank; of a split, what it becomes, for people.
      parent: of the next coarser rank, of a taxon that is renamed, moved or new; "": it stays where it is.
      taxon_id: of a taxon that is renamed or new; 0: as it was, or, where it was made of the name, of the new name.
    """

    where: str
    kind: str
    taxon: str
    rank: str = ""
    to: str = ""
    parent: str = ""
    taxon_id: int = 0


@dataclass(frozen=True, eq=False)
class ChangedTaxa:
    """What a list makes of a tree.

    Attributes:
      tree, names: afterwards.
      class_of: task -> int64 [C], of each class before, what it is now; -1: unknown at its rank, and its parent above.
      split: (task, class before, what it becomes) of what pictures have to decide.
      done: kind -> how many.
      notes: what should be known, a sentence each.
    """

    before: TaxonomyTree
    tree: TaxonomyTree
    names: TaxonNames
    class_of: Mapping[str, NDArray[np.int64]]
    split: tuple[tuple[str, int, str], ...]
    done: Mapping[str, int]
    notes: tuple[str, ...]

    @property
    def same_classes(self) -> bool:
        """Whether names and ids alone are others."""
        return all(
            np.array_equal(each, np.arange(self.tree.num_classes[task]))
            and np.array_equal(self.before.parent[task], self.tree.parent[task])
            for task, each in self.class_of.items()
        )

    def rows(self, label: NDArray[np.integer]) -> NDArray[np.int64]:
        """Taxon ids [N, T] of rows with classes [N, T] before; a rank changes only where the list says so."""
        tasks, null = self.tree.task_keys, self.names.classes
        now = np.stack([self.class_of[task][label[:, t]] for t, task in enumerate(tasks)], axis=1)
        for t, (task, above) in reversed([*enumerate(pairwise(tasks))]):  # what a finer rank says holds
            parent, of = self.before.parent[task], self.class_of[task]
            was = np.where(parent < 0, -1, self.class_of[above][parent])
            moved = (of >= 0) & (was != np.where(of < 0, -1, self.tree.parent[task][of]))
            rows = np.flatnonzero(moved[label[:, t]] & (label[:, t] >= int(self.tree.null_possible)))
            now[rows, t + 1 :] = self.tree.anc[task][now[rows, t], 1:]
        ids = [np.where(now[:, t] < 0, 0, null[task][now[:, t]]) for t, task in enumerate(tasks)]
        return np.stack(ids, axis=1)


def change_taxa(
    tree: TaxonomyTree,
    names: TaxonNames,
    changes: Sequence[Change],
    *,
    split_to_parent: bool = False,
    skip_unknown: bool = False,
) -> ChangedTaxa:
    """Makes all changes.

    Args:
      split_to_parent: taxa that are split, and have none below them, become unknown at their rank; else they stay.
      skip_unknown: changes of taxa that are not here are left out, and counted in a note.

    Raises:
      UserError: what is wrong, one line for each change that cannot be made; none is made then.
    """
    work = _Changing(tree, names, skip_unknown)
    work.name(changes)
    work.relate(split_to_parent)
    if work.errors:
        more = [f"and {len(work.errors) - _SHOWN} more"] * (len(work.errors) > _SHOWN)
        raise UserError("\n".join([f"{len(work.errors)} changes cannot be made:", *work.errors[:_SHOWN], *more]))
    return work.result()


@dataclass(eq=False)
class _Taxon:
    """A class while a list changes it: `at` is its place before, -1 of a new one; `into` what it is merged into."""

    task: str
    at: int
    taxon_id: int
    name: str
    common: str = ""
    parent: _Taxon | None = None
    into: _Taxon | None = None
    lost: bool = False
    change: Change | None = None

    @property
    def now(self) -> _Taxon:
        return self.into or self

    @property
    def renamed(self) -> bool:
        return self.change is not None and self.change.kind in (RENAME, NEW)


class _Changing:
    """A tree of which the classes are objects."""

    def __init__(self, tree: TaxonomyTree, names: TaxonNames, skip_unknown: bool) -> None:
        self.tree, self.tasks, self.skip = tree, tree.task_keys, skip_unknown
        self.taxa: dict[str, list[_Taxon]] = {}
        for task in self.tasks:
            columns = (each[task].tolist() for each in (names.classes, names.name, names.common_name))
            self.taxa[task] = [_Taxon(task, at, *row) for at, row in enumerate(zip(*columns, strict=True))]
        for task, above in pairwise(self.tasks):
            for taxon, parent in zip(self.taxa[task], tree.parent[task].tolist(), strict=True):
                taxon.parent = self.taxa[above][parent] if parent >= 0 else None
        self.errors: list[str] = []
        self.unknown: list[str] = []
        self.strays: list[str] = []
        self.known = self._by_text()

    def _by_text(self) -> dict[str, list[_Taxon]]:
        found: dict[str, list[_Taxon]] = {}
        for task in self.tasks:
            for taxon in self.taxa[task][int(self.tree.null_possible) :]:
                for text in {taxon.name, taxon.name.casefold(), f"[{taxon.taxon_id}]"} - {""}:
                    found.setdefault(text, []).append(taxon)
        return found

    def _find(self, known: Mapping[str, list[_Taxon]], text: str, tasks: Sequence[str]) -> list[_Taxon]:
        number = _ID_AT_END.fullmatch(text)
        for key in (text, text.casefold(), f"[{number[1]}]" if number else ""):
            if found := [taxon for taxon in known.get(key, ()) if taxon.task in tasks]:
                return found
        return []

    def _one(self, known: Mapping[str, list[_Taxon]], text: str, tasks: Sequence[str], change: Change) -> _Taxon | None:
        """The class that a text names at some ranks; None and an error where that is not one."""
        found = self._find(known, text, tasks)
        if len(found) == 1:
            return found[0]
        if found:
            said = ", ".join(f"{task_name(taxon.task)} [{taxon.taxon_id}]" for taxon in found)
            self._wrong(change, f"{text!r} is several taxa, {said}: give its rank, or its id as it stands here")
        elif self.skip and known is self.known:
            self.unknown.append(text)
        elif other := self._find(known, text, self.tasks):
            where = f"of rank {task_name(tasks[0])} here; it is one of rank {task_name(other[0].task)}"
            self._wrong(change, f"{text!r} is no taxon {where}")
        else:
            near = difflib.get_close_matches(text, sorted({t.name for task in tasks for t in self.taxa[task]}), 1)
            where = f" of rank {task_name(tasks[0])}" * (len(tasks) == 1)
            self._wrong(change, f"{text!r} is no taxon{where} here" + "".join(f"; did you mean {n!r}?" for n in near))
        return None

    def _wrong(self, change: Change, text: str) -> None:
        self.errors.append(f"{change.where}: {text}")

    def name(self, changes: Sequence[Change]) -> None:
        """Finds what each line changes, and names it."""
        coming = {{RENAME: each.to, NEW: each.taxon}.get(each.kind, "") for each in changes}
        for change in changes:
            tasks = [t for t in self.tasks if change.rank.casefold() in ("", t.casefold(), task_name(t))]
            here = self._find(self.known, change.taxon, tasks)
            lacking = change.kind == MERGE and change.to not in coming and not self._find(self.known, change.to, tasks)
            if self.skip and here and lacking:  # what it is merged into is not here
                change = replace(change, kind=RENAME)
                coming.add(change.to)
            if not tasks:
                there = ", ".join(map(task_name, self.tasks))
                self._wrong(change, f"there is no rank {change.rank!r}; there are {there}")
            elif change.kind == NEW and len(tasks) > 1:
                self._wrong(change, f"{change.taxon!r} is new: give its rank")
            elif change.kind == NEW:
                if not (self.skip and here):
                    taxon = _Taxon(tasks[0], -1, change.taxon_id, change.taxon, change=change)
                    self.taxa[tasks[0]].append(taxon)
            elif one := self._one(self.known, change.taxon, tasks, change):
                if one.change:
                    self._wrong(change, f"{change.taxon!r} changes in {one.change.where} already; keep one")
                else:
                    one.change = change
        for task in self.tasks:
            self._rename(task)

    def _rename(self, task: str) -> None:
        """Names and ids of a rank; errors where one is that of two taxa."""
        renamed = [taxon for taxon in self.taxa[task] if taxon.renamed]
        was = {taxon: taxon.name for taxon in renamed if taxon.at >= 0}
        for taxon in was:
            assert taxon.change
            if taxon.change.taxon_id or taxon.taxon_id == id_of_name(task, taxon.name, ()):
                taxon.taxon_id = taxon.change.taxon_id  # 0 where it was made of the name
            taxon.name = taxon.change.to
            genus = taxon.parent.name if task == "taxa_L10" and taxon.parent and not taxon.change.parent else ""
            if genus and was[taxon].partition(" ")[0] == genus != taxon.name.partition(" ")[0]:
                self.strays.append(f"{taxon.name} in {genus}")
        for taxon in renamed:
            ids = {other.taxon_id for other in self.taxa[task]}
            taxon.taxon_id = taxon.taxon_id or id_of_name(task, taxon.name, ids)
        called, numbers = (Counter(getattr(t, key) for t in self.taxa[task]) for key in ("name", "taxon_id"))
        for taxon in renamed:
            assert taxon.change
            if was.get(taxon) == taxon.name:
                self._wrong(taxon.change, f"{taxon.name!r} is called so already")
            elif called[taxon.name] > 1:
                self._wrong(taxon.change, f"there is a {task_name(task)} {taxon.name!r} already; merge into it")
            elif numbers[taxon.taxon_id] > 1 or not 0 < taxon.taxon_id < 2**32:
                self._wrong(taxon.change, f"the id {taxon.taxon_id} is taken, or none from 1 to {2**32 - 1}")

    def relate(self, split_to_parent: bool) -> None:
        """Merges, moves and splits."""
        now = self._by_text()
        parents = {taxon.parent for task in self.tasks for taxon in self.taxa[task]}
        for taxon in (each for task in self.tasks for each in self.taxa[task]):
            if not (change := taxon.change):
                continue
            if change.kind == MERGE and (one := self._one(now, change.to, (taxon.task,), change)):
                if one is taxon:
                    self._wrong(change, f"{change.taxon!r} would be merged into itself")
                elif one.change and one.change.kind in (MERGE, SPLIT):
                    other = one.change
                    self._wrong(change, f"{change.to!r} is itself {other.kind} in {other.where}; name what stays")
                else:
                    taxon.into = one
            taxon.lost = change.kind == SPLIT and split_to_parent and taxon not in parents
            if change.kind in (MERGE, SPLIT) and change.parent:
                self._wrong(change, f"a {change.kind} has no parent of its own; leave {change.parent!r} out")
            elif change.kind in (MOVE, NEW, RENAME):
                self._move(now, taxon, change)

    def _move(self, now: Mapping[str, list[_Taxon]], taxon: _Taxon, change: Change) -> None:
        above = self.tasks[self.tasks.index(taxon.task) + 1 :][:1]
        if not above and (change.parent or change.kind == MOVE):
            rank = task_name(taxon.task)
            self._wrong(change, f"{rank} is the coarsest rank here: nothing lies above {change.taxon!r}")
        elif above and change.parent:
            taxon.parent = self._one(now, change.parent, above, change)
        elif above and change.kind != RENAME:
            self._wrong(change, f"{change.taxon!r}: give its parent, a {task_name(above[0])}")

    def result(self) -> ChangedTaxa:
        kept = {task: [t for t in self.taxa[task] if not (t.into or t.lost)] for task in self.tasks}
        place: dict[_Taxon | None, int] = {t: at for task in self.tasks for at, t in enumerate(kept[task])}
        sizes = {task: len(each) for task, each in kept.items()}
        ids = {task: np.array([t.taxon_id for t in each], np.int64) for task, each in kept.items()}
        parents = {
            task: np.array([place.get(t.parent and t.parent.now, -1) for t in each], np.int32)
            for task, each in kept.items()
        }
        saved = {
            task: {str(t.taxon_id): {"name": t.name, "common_name": t.common} for t in each}
            for task, each in kept.items()
        }
        rules = {"null_possible": self.tree.null_possible, "null_below": self.tree.null_below}
        changed = [t for task in self.tasks for t in self.taxa[task] if t.change]
        notes = []
        if self.unknown:
            notes.append(f"{len(self.unknown)} changes are of taxa that are not here, such as {self.unknown[0]!r}")
        if self.strays:
            notes.append(
                f"{len(self.strays)} renamed species stay in a genus of another name, such as {self.strays[0]}; give "
                "their parent"
            )
        return ChangedTaxa(
            self.tree,
            TaxonomyTree(self.tasks, sizes, parents, **rules),
            TaxonNames.from_json(ids, saved),
            {t: np.array([place.get(e.now, -1) for e in each if e.at >= 0]) for t, each in self.taxa.items()},
            tuple((t.task, t.at, t.change.to) for t in changed if t.change and t.change.kind == SPLIT),
            Counter(t.change.kind for t in changed if t.change),
            tuple(notes),
        )


def described_split(changed: ChangedTaxa, names: TaxonNames) -> list[str]:
    """A line for each taxon that is split; `names` are those before."""
    return [f"{task_name(task)} {names.label(task, at)}" + (f": {to}" if to else "") for task, at, to in changed.split]
