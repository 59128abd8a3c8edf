"""The tree (or forest) of classes, held as parent and ancestor tables.

A node is `(task, class index)`. Tasks run from the finest rank to the coarsest; the parent of a class lives one task
further. Every class is a node, the null class included: it has neither parent nor children.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger(__name__)

Node = tuple[str, int]
VERSION = "1.0"


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


class TaxonomyTree:
    """Parent links between the classes of adjacent tasks, and everything that follows from them.

    Attributes:
      task_keys: tasks, finest first.
      num_classes: {task: number of classes}.
      null_possible: whether class 0 of every task is the null class.
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
    ) -> None:
        """Args: parents: {task: int [C], class index in the next task or -1}; the coarsest task may be left out.

        Raises:
          KeyError: a task without an entry in `num_classes`.
          ValueError: a parent table of wrong length, or a parent index outside the next task's classes.
        """
        for task in task_keys:
            if task not in num_classes:
                raise KeyError(f"task {task!r} has no entry in num_classes (it has {sorted(num_classes)})")
        self.task_keys = tuple(task_keys)
        self.num_classes = {task: int(num_classes[task]) for task in task_keys}
        self.null_possible = null_possible
        self._parent: dict[str, NDArray[np.int32]] = {}
        self.anc: dict[str, NDArray[np.int32]] = {}
        above: NDArray[np.int32] | None = None
        for task in reversed(self.task_keys):
            size = self.num_classes[task]
            own = np.arange(size, dtype=np.int32)[:, None]
            if above is None:
                self._parent[task] = np.full(size, -1, np.int32)
                self.anc[task] = above = own
                continue
            parent = np.asarray(parents.get(task, np.full(size, -1)), np.int32)
            if parent.shape != (size,):
                raise ValueError(f"parents of {task!r} have shape {parent.shape}, expected ({size},)")
            if size and not (parent.min() >= -1 and parent.max() < len(above)):
                raise ValueError(f"parents of {task!r} must lie in -1..{len(above) - 1}")
            # a last row of -1 makes index -1 (no parent) gather "no ancestors"
            padded = np.vstack([above, np.full((1, above.shape[1]), -1, np.int32)])
            self._parent[task] = parent
            self.anc[task] = above = np.hstack([own, padded[parent]])

    # ---- construction -------------------------------------------------------------------------------------------

    @classmethod
    def from_hierarchy_map(
        cls,
        task_keys: Sequence[str],
        num_classes: Mapping[str, int],
        hierarchy_map: Mapping[str, Mapping[int, int]],
        *,
        null_possible: bool = True,
    ) -> TaxonomyTree:
        """Tree from `{task: {child class: parent class}}`. Links outside the class ranges are skipped with a warning.

        Raises:
          KeyError: a task of `task_keys` is missing in `num_classes`.
          ValueError: `hierarchy_map` names a task without a coarser one.
        """
        for task in hierarchy_map:
            if task not in task_keys[:-1]:
                raise ValueError(f"hierarchy of {task!r}: not one of {tuple(task_keys[:-1])}, the tasks with parents")
        parents = {}
        for task, coarser in pairwise(task_keys):
            if task not in num_classes or coarser not in num_classes:
                break  # the constructor names the missing one
            table = np.full(num_classes[task], -1, np.int32)
            for child, parent in hierarchy_map.get(task, {}).items():
                if 0 <= child < num_classes[task] and 0 <= parent < num_classes[coarser]:
                    table[child] = parent
                else:
                    log.warning("skipped link %s:%d -> %s:%d: out of range", task, child, coarser, parent)
            parents[task] = table
        return cls(task_keys, num_classes, parents, null_possible=null_possible)

    @classmethod
    def from_labels(
        cls,
        classes: Mapping[str, NDArray[np.int64]],
        labels: Sequence[NDArray[np.int32]],
        *,
        null_possible: bool,
        conflict_limit: float = 1.0,
    ) -> tuple[TaxonomyTree, list[ParentConflict]]:
        """Tree from the rows in which both of two adjacent ranks are labelled.

        A class with several parents gets the one seen most often, on a tie the one with the smaller taxon id.

        Args:
          classes: {task: taxon ids int64 [C] of its classes}, finest task first.
          labels: class indices int32 [N, T] of one or more files; null is 0 if `null_possible`, else -1.
          conflict_limit: largest share of a class's rows that may contradict the chosen parent.

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
            distinct, start, seen = np.unique(child, return_index=True, return_counts=True)
            parents[task] = np.full(len(classes[task]), -1, np.int32)
            parents[task][distinct] = parent[start]
            for i in np.flatnonzero(seen > 1):
                span = slice(start[i], start[i] + seen[i])
                conflicts.append(
                    ParentConflict(task, int(distinct[i]), tuple(parent[span].tolist()), tuple(count[span].tolist()))
                )
        above = [conflict for conflict in conflicts if conflict.minority_share > conflict_limit]
        if above:
            above.sort(key=lambda conflict: -conflict.minority_share)
            raise ValueError(
                f"{len(above)} classes contradict their majority parent in more than data.parent_conflict_limit = "
                f"{conflict_limit:g} of their rows; correct the labels or raise the limit:\n"
                + "\n".join(describe_conflict(conflict, classes) for conflict in above[:20])
            )
        sizes = {task: len(ids) for task, ids in classes.items()}
        return cls(tasks, sizes, parents, null_possible=null_possible), conflicts

    # ---- tables -------------------------------------------------------------------------------------------------

    def parent(self, task: str) -> NDArray[np.int32]:
        """int32 [C]: class index of each class's parent in the next coarser task, -1 for none."""
        return self._parent[task]

    def parents(self) -> list[NDArray[np.int32]]:
        """`parent(task)` of every task, finest first; the coarsest is all -1."""
        return [self._parent[task] for task in self.task_keys]

    def build_distance_matrix(self, task: str) -> NDArray[np.float32]:
        """float32 [C, C]: edges between two classes of one task; 0 on the diagonal, inf without a common ancestor."""
        table = self.anc[task]
        distance = np.full((len(table), len(table)), np.inf, np.float32)
        for depth in range(table.shape[1] - 1, -1, -1):
            ancestor = table[:, depth]
            distance[(ancestor[:, None] == ancestor[None, :]) & (ancestor >= 0)[:, None]] = 2 * depth
        return distance

    def build_hierarchy_matrices(self) -> dict[str, NDArray[np.float32]]:
        """{"<parent task>_<child task>": float32 [Cp, Cc]}: one-hot columns, all zero for null classes and orphans."""
        matrices = {}
        for task, coarser in pairwise(self.task_keys):
            parent = self._parent[task]
            matrix = np.zeros((self.num_classes[coarser], len(parent)), np.float32)
            linked = np.flatnonzero(parent >= 0)
            matrix[parent[linked], linked] = 1.0
            matrices[f"{coarser}_{task}"] = matrix
        return matrices

    # ---- nodes --------------------------------------------------------------------------------------------------

    def __contains__(self, node: Node) -> bool:
        return 0 <= node[1] < self.num_classes.get(node[0], 0)

    def get_parent(self, node: Node) -> Node | None:
        """Parent of a node; None for roots and unknown nodes."""
        ancestors = self.get_ancestors(node)
        return ancestors[1] if len(ancestors) > 1 else None

    def get_ancestors(self, node: Node) -> list[Node]:
        """The node itself, its parent, and so on up to its root; empty for an unknown node."""
        if node not in self:
            return []
        position = self.task_keys.index(node[0])
        chain = self.anc[node[0]][node[1]]
        return [(self.task_keys[position + depth], int(c)) for depth, c in enumerate(chain) if c >= 0]

    def get_children(self, node: Node) -> list[Node]:
        """Children in order of class index; empty for leaves and unknown nodes."""
        position = self.task_keys.index(node[0]) if node in self else 0
        if position == 0:
            return []
        finer = self.task_keys[position - 1]
        return [(finer, int(child)) for child in np.flatnonzero(self._parent[finer] == node[1])]

    def get_descendants(self, node: Node) -> list[Node]:
        """The node itself, then everything below it, breadth first; empty for an unknown node."""
        if node not in self:
            return []
        found, frontier = [node], np.array([node[1]])
        for position in range(self.task_keys.index(node[0]) - 1, -1, -1):
            task, coarser = self.task_keys[position : position + 2]
            place = np.full(self.num_classes[coarser] + 1, -1)  # the extra last entry stays -1, for "no parent"
            place[frontier] = np.arange(len(frontier))
            place_of_parent = place[self._parent[task]]
            below = np.flatnonzero(place_of_parent >= 0)
            frontier = below[np.argsort(place_of_parent[below], kind="stable")]
            found += [(task, int(child)) for child in frontier]
        return found

    def get_nodes_at_level(self, task: str) -> list[Node]:
        """All nodes of a task; empty for an unknown task."""
        return [(task, index) for index in range(self.num_classes.get(task, 0))]

    def get_root_nodes(self) -> list[Node]:
        """Nodes without a parent at any rank (null classes and orphans too), by task position, then class index."""
        return [(task, int(index)) for task in self.task_keys for index in np.flatnonzero(self._parent[task] < 0)]

    def get_leaf_nodes(self) -> list[Node]:
        """Nodes without children (null classes too), by task position, then class index."""
        leaves = []
        for position, task in enumerate(self.task_keys):
            used = self._parent[self.task_keys[position - 1]] if position else np.empty(0, np.int32)
            leaves += [(task, int(i)) for i in np.setdiff1d(np.arange(self.num_classes[task]), used)]
        return leaves

    def top_roots(self) -> list[Node]:
        """The non-null classes of the coarsest task: more than one makes the data a metaclade."""
        task = self.task_keys[-1]
        return self.get_nodes_at_level(task)[1 if self.null_possible else 0 :]

    def lowest_common_ancestor(self, a: Node, b: Node) -> Node | None:
        """The finest node that is an ancestor of (or equal to) both; None if there is none or a node is unknown."""
        others = set(self.get_ancestors(b))
        return next((node for node in self.get_ancestors(a) if node in others), None)

    def taxonomic_distance(self, a: Node, b: Node) -> float:
        """Edges from `a` up to the lowest common ancestor and down to `b`; inf without one or for unknown nodes."""
        common = self.lowest_common_ancestor(a, b)
        if common is None:
            return float("inf")
        level = self.task_keys.index
        return float(2 * level(common[0]) - level(a[0]) - level(b[0]))

    # ---- file ---------------------------------------------------------------------------------------------------

    def hierarchy_map(self) -> dict[str, dict[int, int]]:
        """{task: {child class: parent class}} of all tasks but the coarsest; classes without parent are left out."""

        def links(task: str) -> Iterator[tuple[int, int]]:
            return ((child, parent) for child, parent in enumerate(self._parent[task].tolist()) if parent >= 0)

        return {task: dict(links(task)) for task in self.task_keys[:-1]}

    def save(self, path: str | Path) -> None:
        """Writes the tree as JSON and creates the directory. `metadata.null_possible` is written only if false."""
        content = {
            "__taxonomy_tree_version__": VERSION,
            "task_keys": list(self.task_keys),
            "num_classes": self.num_classes,
            "hierarchy_map_raw": self.hierarchy_map(),
            "metadata": {"creation_time": time.strftime("%Y-%m-%d %H:%M:%S")}
            | ({} if self.null_possible else {"null_possible": False}),
        }
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(content, indent=2), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> TaxonomyTree:
        """Reads a tree written by `save`. A file of another version is read with a warning.

        Raises:
          FileNotFoundError: no such file.
          ValueError: not JSON, or a key is missing or malformed.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"taxonomy tree {path} does not exist")
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"taxonomy tree {path} is not valid JSON: {error}") from error
        needed = ("__taxonomy_tree_version__", "task_keys", "num_classes", "hierarchy_map_raw")
        missing = [key for key in needed if not isinstance(content, dict) or key not in content]
        if missing:
            raise ValueError(f"taxonomy tree {path} lacks {', '.join(missing)}")
        if content["__taxonomy_tree_version__"] != VERSION:
            log.warning("%s has version %s, expected %s", path, content["__taxonomy_tree_version__"], VERSION)
        try:
            links = {
                task: {int(child): int(parent) for child, parent in pairs.items()}
                for task, pairs in content["hierarchy_map_raw"].items()
            }
            null_possible = content.get("metadata", {}).get("null_possible", True)
            return cls.from_hierarchy_map(
                content["task_keys"], content["num_classes"], links, null_possible=null_possible
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"taxonomy tree {path} is malformed: {error}") from error


def describe_conflict(conflict: ParentConflict, classes: Mapping[str, NDArray[np.int64]]) -> str:
    """One line with taxon ids, e.g. "taxa_L10 57: parents 3 (40 rows), 9 (2 rows)"."""
    tasks = list(classes)
    ids = classes[tasks[tasks.index(conflict.task) + 1]]
    seen = ", ".join(f"{ids[parent]} ({count} rows)" for parent, count in zip(conflict.parents, conflict.counts))
    return f"{conflict.task} {classes[conflict.task][conflict.child]}: parents {seen}"
