"""Taxa that are renamed, merged, moved and split by a list, without pictures: the tree and the names before and after.

All changes of a list hold at once: the taxa that they change are called as they were, what these become as it is now.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.taxon_names import TaxonNames, describe_taxon, id_of_name
from linnaeus_jax.taxonomy.ranks import task_name
from linnaeus_jax.taxonomy.tree import TaxonomyTree

RENAME, MERGE, MOVE, SPLIT, NEW = KINDS = ("rename", "merge", "move", "split", "new")
#: of errors in a message
_SHOWN = 50
_ID_AT_END = re.compile(r"(?:.*\[)?(\d+)\]?")
#: rank and place of a class
_Class = tuple[str, int]


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
    work.read(changes)
    work.relate(split_to_parent)
    if work.errors:
        more = [f"and {len(work.errors) - _SHOWN} more"] * (len(work.errors) > _SHOWN)
        raise UserError("\n".join([f"{len(work.errors)} changes cannot be made:", *work.errors[:_SHOWN], *more]))
    return work.result()


class _Changing:
    """A tree of which the ranks are lists."""

    def __init__(self, tree: TaxonomyTree, names: TaxonNames, skip_unknown: bool) -> None:
        self.tree, self.tasks, self.first, self.skip = tree, tree.task_keys, int(tree.null_possible), skip_unknown
        self.ids = {task: names.classes[task].tolist() for task in self.tasks}
        self.was = {task: list(map(str, names.name[task].tolist())) for task in self.tasks}
        self.name = {task: list(each) for task, each in self.was.items()}
        self.common = {task: list(map(str, names.common_name[task].tolist())) for task in self.tasks}
        self.parent = {task: tree.parent[task].tolist() for task in self.tasks}
        self.changed: dict[_Class, Change] = {}
        self.born: dict[_Class, Change] = {}
        self.merged: dict[_Class, int] = {}
        self.lost: set[_Class] = set()
        self.split: list[tuple[str, int, str]] = []
        self.errors: list[str] = []
        self.unknown: list[str] = []
        self.known = self._lookup(self.was)

    def _lookup(self, names: Mapping[str, Sequence[str]]) -> dict[str, list[_Class]]:
        found: dict[str, list[_Class]] = {}
        for task in self.tasks:
            for index in range(self.first, len(self.ids[task])):
                name = names[task][index] if index < len(names[task]) else ""
                for text in {name, name.casefold(), f"[{self.ids[task][index]}]"} - {""}:
                    found.setdefault(text, []).append((task, index))
        return found

    def _find(self, known: Mapping[str, list[_Class]], text: str, tasks: Iterable[str]) -> list[_Class]:
        number, tasks = _ID_AT_END.fullmatch(text), set(tasks)
        for key in (text, text.casefold(), f"[{number[1]}]" if number else ""):
            if found := [each for each in known.get(key, ()) if each[0] in tasks]:
                return found
        return []

    def _one(self, known: Mapping[str, list[_Class]], text: str, tasks: Sequence[str], change: Change) -> _Class | None:
        """The class that a text names at some ranks; None and an error where that is not one."""
        found = self._find(known, text, tasks)
        if len(found) == 1:
            return found[0]
        if found:
            said = ", ".join(f"{task_name(task)} [{self.ids[task][at]}]" for task, at in found)
            self._wrong(change, f"{text!r} is several taxa, {said}: give its rank, or its id as it stands here")
        elif self.skip and known is self.known:
            self.unknown.append(text)
        else:
            every = {self.name[task][at] for each in known.values() for task, at in each if task in tasks}
            near = difflib.get_close_matches(text, sorted(every), 1)
            where = f" of rank {task_name(tasks[0])}" if len(tasks) == 1 else ""
            hint = f"; did you mean {near[0]!r}?" if near else ""
            if other := self._find(known, text, self.tasks):
                hint = f"; it is one of rank {task_name(other[0][0])}"
            self._wrong(change, f"{text!r} is no taxon{where} here{hint}")
        return None

    def _wrong(self, change: Change, text: str) -> None:
        self.errors.append(f"{change.where}: {text}")

    def _tasks(self, change: Change) -> tuple[str, ...]:
        if not change.rank:
            return self.tasks
        found = tuple(task for task in self.tasks if change.rank.casefold() in (task.casefold(), task_name(task)))
        if not found:
            self._wrong(change, f"there is no rank {change.rank!r}; there are {', '.join(map(task_name, self.tasks))}")
        return found

    def read(self, changes: Sequence[Change]) -> None:
        """Finds what each line changes, and names it."""
        coming = {change.to for change in changes if change.kind == RENAME} | {
            change.taxon for change in changes if change.kind == NEW
        }
        for change in changes:
            tasks = self._tasks(change)
            lacking = change.kind == MERGE and change.to not in coming and not self._find(self.known, change.to, tasks)
            if (
                self.skip and lacking and self._find(self.known, change.taxon, tasks)
            ):  # what it is merged into is not here
                change = replace(change, kind=RENAME)
                coming.add(change.to)
            if change.kind == NEW and len(tasks) == 1:
                if not (self.skip and self._find(self.known, change.taxon, tasks)):
                    self._add(change, tasks[0])
            elif change.kind == NEW:
                self._wrong(change, f"{change.taxon!r} is new: give its rank") if tasks else None
            elif tasks and (one := self._one(self.known, change.taxon, tasks, change)):
                if one in self.changed:
                    self._wrong(change, f"{change.taxon!r} changes in {self.changed[one].where} already; keep one")
                else:
                    self.changed[one] = change
        for (task, at), change in self.changed.items():
            if change.kind == RENAME:
                made = self.ids[task][at] == id_of_name(task, self.was[task][at], ())
                self.ids[task][at] = change.taxon_id or (0 if made else self.ids[task][at])
                self.name[task][at] = change.to
        for task in self.tasks:
            self._number(task)

    def _add(self, change: Change, task: str) -> None:
        self.born[task, len(self.ids[task])] = change
        self.ids[task].append(change.taxon_id)
        self.name[task].append(change.taxon)
        self.common[task].append("")
        self.parent[task].append(-1)

    def _number(self, task: str) -> None:
        """Ids of what has none; errors where a name or an id is one of two taxa."""
        ids, names = self.ids[task], self.name[task]
        for at in range(self.first, len(ids)):
            ids[at] = ids[at] or id_of_name(task, names[at], {*ids})
        called, numbers = Counter(names), Counter(ids)
        for (_, at), change in [each for each in (self.changed | self.born).items() if each[0][0] == task]:
            if change.kind in (RENAME, NEW):
                if names[at] == (self.was[task][at] if change.kind == RENAME else ""):
                    self._wrong(change, f"{change.taxon!r} is called so already" if change.taxon else "it has no name")
                elif called[names[at]] > 1:
                    self._wrong(change, f"there is a {task_name(task)} {names[at]!r} already; merge into it")
                elif numbers[ids[at]] > 1 or not 0 < ids[at] < 2**32:
                    self._wrong(change, f"the id {ids[at]} is taken, or none from 1 to {2**32 - 1}")

    def relate(self, split_to_parent: bool) -> None:
        """Merges, moves and splits."""
        now = self._lookup(self.name)
        for (task, at), change in self.changed.items():
            if change.kind == MERGE and (one := self._one(now, change.to, (task,), change)):
                if one[1] == at:
                    self._wrong(change, f"{change.taxon!r} would be merged into itself")
                elif one in self.changed and self.changed[one].kind in (MERGE, SPLIT):
                    other = self.changed[one]
                    self._wrong(change, f"{change.to!r} is itself {other.kind} in {other.where}; name what stays")
                else:
                    self.merged[task, at] = one[1]
            if change.kind == SPLIT:
                self.split.append((task, at, change.to))
                coarser = self.tasks.index(task) and self.tasks[self.tasks.index(task) - 1]
                if split_to_parent and not (coarser and at in self.parent[coarser]):
                    self.lost.add((task, at))
        for (task, at), change in (self.changed | self.born).items():
            if change.kind in (MOVE, NEW, RENAME):
                self._move(now, task, at, change)
            elif change.parent:
                self._wrong(change, f"a {change.kind} has no parent of its own; leave {change.parent!r} out")

    def _move(self, now: Mapping[str, list[_Class]], task: str, at: int, change: Change) -> None:
        place = self.tasks.index(task)
        if place + 1 == len(self.tasks):
            if change.parent or change.kind == MOVE:
                self._wrong(change, f"{task_name(task)} is the coarsest rank here: nothing lies above {change.taxon!r}")
            return
        above = self.tasks[place + 1]
        if change.parent and (one := self._one(now, change.parent, (above,), change)):
            self.parent[task][at] = one[1]
        elif not change.parent and change.kind != RENAME:
            self._wrong(change, f"{change.taxon!r}: give its parent, a {task_name(above)}")

    def result(self) -> ChangedTaxa:
        place, class_of = {}, {}
        for task in self.tasks:
            gone = {at for name, at in {*self.merged, *self.lost} if name == task}
            kept = [at for at in range(len(self.ids[task])) if at not in gone]
            place[task] = {at: number for number, at in enumerate(kept)} | {-1: -1}
            into = {at: to for (name, at), to in self.merged.items() if name == task}
            place[task] |= {at: place[task][into[at]] if at in into else -1 for at in gone}
            count = self.tree.num_classes[task]
            class_of[task] = np.array([place[task][at] for at in range(count)], np.int64)
            for column in (self.ids, self.name, self.common, self.parent):
                column[task] = [column[task][at] for at in kept]  # type: ignore[index,assignment]
        parents = {
            task: np.array([place[above][at] for at in self.parent[task]], np.int32)
            for task, above in pairwise(self.tasks)
        }
        sizes = {task: len(each) for task, each in self.ids.items()}
        rules = {"null_possible": self.tree.null_possible, "null_below": self.tree.null_below}
        ids = {task: np.array(each, np.int64) for task, each in self.ids.items()}
        saved = {
            task: {
                str(i): {"name": name, "common_name": common}
                for i, name, common in zip(ids[task].tolist(), self.name[task], self.common[task], strict=True)
            }
            for task in self.tasks
        }
        tree = TaxonomyTree(self.tasks, sizes, parents, **rules)
        done = Counter(change.kind for change in (self.changed | self.born).values())
        named = TaxonNames.from_json(ids, saved)
        return ChangedTaxa(
            self.tree, tree, named, class_of, tuple(self.split), done, self._notes(tree, named, class_of)
        )

    def _notes(
        self, tree: TaxonomyTree, names: TaxonNames, class_of: Mapping[str, NDArray[np.int64]]
    ) -> tuple[str, ...]:
        notes = []
        if self.unknown:
            notes.append(f"{len(self.unknown)} changes are of taxa that are not here, such as {self.unknown[0]!r}")
        others = []
        for (task, at), change in self.changed.items():
            if change.kind == RENAME and task == "taxa_L10" and (above := tree.parent[task][class_of[task][at]]) >= 0:
                genus = str(names.name[self.tasks[1 + self.tasks.index(task)]][above])
                if change.to.split()[0] != genus != "" and self.was[task][at].split()[0] == genus:
                    others.append(f"{change.to} in {genus}")
        if others:
            notes.append(
                f"{len(others)} renamed species stay in a genus of another name, such as {others[0]}; give their parent"
            )
        return tuple(notes)


def described_split(changed: ChangedTaxa, names: TaxonNames) -> list[str]:
    """A line for each taxon that is split; `names` are those before."""
    return [
        f"{task_name(task)} {describe_taxon(*_of(names, task, at))}" + (f": {to}" if to else "")
        for task, at, to in changed.split
    ]


def _of(names: TaxonNames, task: str, at: int) -> tuple[int, str, str]:
    return int(names.classes[task][at]), str(names.name[task][at]), str(names.common_name[task][at])
