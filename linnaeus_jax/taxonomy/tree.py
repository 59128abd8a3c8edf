"""The tree (or forest) of classes, held as parent and ancestor tables.

Tasks run from the finest rank to the coarsest; the parent of a class belongs to the next task. The null class has
neither parent nor children.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.mistakes import InputError, whole

VERSION = "1.0"
#: ranks of one tree, of which an ancestor table grows with the square; the taxonomic ones are 31
MOST_RANKS = 100

#: (task, class index) -> what people read for the class
ClassName = Callable[[str, int], str]


@dataclass(frozen=True)
class ParentConflict:
    """A class seen under several parents. `parents` are class indices, most frequent first; `counts` are rows."""

    task: str
    child: int
    parents: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def minority_share(self) -> float:
        """Share of the class's rows that contradict the chosen (first) parent."""
        return 1.0 - self.counts[0] / sum(self.counts)


def parents_of(
    links: Mapping[str, Mapping[Any, Any]], sizes: Mapping[str, int], name: str
) -> dict[str, NDArray[np.int32]]:
    """Parent tables, as `TaxonomyTree` takes them, of the `hierarchy_map_raw` of `TaxonomyTree.to_json`.

    Args:
      sizes: task -> number of classes, finest task first.
      name: of the file, for messages.

    Raises:
      InputError: a link from or to what is no class.
      TypeError: a class that is no integer.
    """
    parents = {task: np.full(size, -1, np.int32) for task, size in list(sizes.items())[:-1]}
    if unknown := sorted(map(str, set(links) - set(parents))):
        raise InputError(f"{name} links classes of {unknown[0][:100]}, which is no rank with a coarser one")
    for (task, table), coarser in zip(parents.items(), list(sizes)[1:], strict=True):
        for child, parent in links.get(task, {}).items():
            if not (0 <= whole(child) < sizes[task] and 0 <= whole(parent) < sizes[coarser]):
                raise InputError(f"{name} links class {child} of {task} to {parent}, and there is no such class")
            table[whole(child)] = whole(parent)
    return parents


class TaxonomyTree:
    """Parent links between the classes of adjacent tasks, and everything that follows from them.

    Attributes:
      task_keys: tasks, finest first.
      num_classes: {task: number of classes}.
      null_possible: whether class 0 of every task is the null class.
      null_below: whether null may stand below a taxon: the genus is known, the species is not.
      parent: {task: int32 [C]}: class index of each class's parent in the next coarser task, -1 for none.
      anc: {task: int32 [C, tasks from this one to the coarsest]}: column d is the ancestor d ranks up, column 0 the
        class itself, -1 where there is none.
    """

    def __init__(
        self,
        task_keys: Sequence[str],
        num_classes: Mapping[str, int],
        parents: Mapping[str, NDArray[np.integer]],
        *,
        null_possible: bool = True,
        null_below: bool = True,
    ) -> None:
        """Args: parents: {task: int [C], class index in the next task or -1}; the coarsest task may be left out."""
        self.task_keys = tuple(task_keys)
        self.num_classes = {task: int(num_classes[task]) for task in task_keys}
        self.null_possible, self.null_below = null_possible, null_below
        self.parent: dict[str, NDArray[np.int32]] = {}
        self.anc: dict[str, NDArray[np.int32]] = {}
        above = np.empty((0, 0), np.int32)  # of the coarsest task
        for task in reversed(self.task_keys):
            size = self.num_classes[task]
            itself = np.arange(size, dtype=np.int32)[:, None]
            parent = np.asarray(parents.get(task, np.full(size, -1)), np.int32)
            # a last row of -1 makes index -1 (no parent) gather "no ancestors"
            padded = np.vstack([above, np.full((1, above.shape[1]), -1, np.int32)])
            self.parent[task] = parent
            self.anc[task] = above = np.hstack([itself, padded[parent]])

    @classmethod
    def from_labels(
        cls,
        classes: Mapping[str, NDArray[np.int64]],
        labels: Sequence[NDArray[np.int32]],
        *,
        null_possible: bool,
        conflict_limit: float = 1.0,
        class_name: ClassName | None = None,
    ) -> tuple[TaxonomyTree, list[ParentConflict]]:
        """Tree from the rows in which both of two adjacent ranks are labelled.

        A class with several parents gets the one seen most often, on a tie the one with the smaller taxon id.

        Args:
          classes: {task: taxon ids int64 [C] of its classes}, finest task first.
          labels: class indices int32 [N, T] of one or more files; null is 0 if `null_possible`, else -1.
          conflict_limit: largest share of a class's rows that may contradict the chosen parent.
          class_name: how messages call a class; None: by its taxon id.

        Returns:
          The tree and all conflicts within the limit.

        Raises:
          ValueError: a conflict above the limit; the message lists the worst ones with taxon ids and counts.
        """
        tasks = tuple(classes)
        first = 1 if null_possible else 0
        parents: dict[str, NDArray[np.int32]] = {}
        conflicts: list[ParentConflict] = []
        for column, (task, coarser) in enumerate(pairwise(tasks)):
            width = max(len(classes[coarser]), 1)
            links = []
            for label in labels:
                child, parent = label[:, column], label[:, column + 1]
                both = (child >= first) & (parent >= first)
                links.append(child[both].astype(np.int64) * width + parent[both])
            link, count = np.unique(np.concatenate(links), return_counts=True)
            child, parent = np.divmod(link, width)
            order = np.lexsort((parent, -count, child))  # best parent first within each child
            child, parent, count = child[order], parent[order], count[order]
            distinct, start, parent_count = np.unique(child, return_index=True, return_counts=True)
            parents[task] = np.full(len(classes[task]), -1, np.int32)
            parents[task][distinct] = parent[start]
            for i in np.flatnonzero(parent_count > 1):
                span = slice(start[i], start[i] + parent_count[i])
                conflicts.append(
                    ParentConflict(task, int(distinct[i]), tuple(parent[span].tolist()), tuple(count[span].tolist()))
                )
        above = [conflict for conflict in conflicts if conflict.minority_share > conflict_limit]
        if above:
            name = class_name or (lambda task, index: str(classes[task][index]))
            above.sort(key=lambda conflict: -conflict.minority_share)
            raise InputError(
                f"{len(above)} classes contradict their majority parent in more than data.parent_conflict_limit = "
                f"{conflict_limit:g} of their rows; correct the labels or raise the limit:\n"
                + "\n".join(describe_conflict(conflict, tasks, name) for conflict in above[:20])
            )
        sizes = {task: len(ids) for task, ids in classes.items()}
        return cls(tasks, sizes, parents, null_possible=null_possible), conflicts

    def finest_below(self) -> list[NDArray[np.int64]]:
        """Of every task int [C]: how many classes of the finest one, null apart, lie below each class."""
        ancestors = self.anc[self.task_keys[0]][int(self.null_possible) :].T
        sizes = self.num_classes.values()
        return [np.bincount(of[of >= 0], minlength=size) for of, size in zip(ancestors, sizes, strict=True)]

    def path_counts(self, labels: NDArray[np.integer]) -> dict[str, list[int]]:
        """How many rows end at each class: task -> [C], rows whose finest known class it is.

        Args:
          labels: int [N, T], finest rank first; rows without any class count as null of the finest rank.
        """
        known = labels >= int(self.null_possible)
        place = np.where(known.any(axis=1), known.argmax(axis=1), 0)
        finest = np.take_along_axis(labels, place[:, None], axis=1)[:, 0]
        return {
            task: np.bincount(finest[place == t], minlength=self.num_classes[task]).tolist()
            for t, task in enumerate(self.task_keys)
        }

    def top_classes(self) -> range:
        """The non-null classes of the coarsest task: more than one makes the data a metaclade."""
        return range(1 if self.null_possible else 0, self.num_classes[self.task_keys[-1]])

    def to_json(self) -> dict[str, Any]:
        """The content of taxonomy_tree.json; classes without parent are left out of `hierarchy_map_raw`, which is
        {task: {child class: parent class}} of all tasks but the coarsest. `null_possible` and
        `null_below` are there only if false."""
        links = {task: enumerate(self.parent[task].tolist()) for task in self.task_keys[:-1]}
        return {
            "__taxonomy_tree_version__": VERSION,
            "task_keys": list(self.task_keys),
            "num_classes": self.num_classes,
            "hierarchy_map_raw": {
                task: {child: parent for child, parent in pairs if parent >= 0} for task, pairs in links.items()
            },
            "metadata": {"creation_time": time.strftime("%Y-%m-%d %H:%M:%S")}
            | ({} if self.null_possible else {"null_possible": False})
            | ({} if self.null_below else {"null_below": False}),
        }


def describe_conflict(conflict: ParentConflict, tasks: Sequence[str], class_name: ClassName) -> str:
    """One line, e.g. "taxa_L10 57: parents 3 (40 rows), 9 (2 rows)" where classes are called by their taxon ids."""
    above = tasks[tasks.index(conflict.task) + 1]
    rows = ", ".join(
        f"{class_name(above, parent)} ({count} rows)" for parent, count in zip(conflict.parents, conflict.counts)
    )
    return f"{conflict.task} {class_name(conflict.task, conflict.child)}: parents {rows}"
