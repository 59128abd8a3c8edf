"""The label columns with their checks: ranges, gaps, contradictions between ranks, sizes of classes, names of taxa."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.scan.checks import (
    ERROR,
    SHOWN,
    WARNING,
    DamagedError,
    Findings,
    Found,
    error,
    make_checks,
    note,
    warning,
)
from linnaeus_jax.building.scan.label_file import LabelFile
from linnaeus_jax.data.labels import MAX_TAXON_ID
from linnaeus_jax.data.labels_file import validated_dataset, values_of
from linnaeus_jax.data.taxon_names import GROUP, TaxonNames, read_taxon_names
from linnaeus_jax.taxonomy.ranks import RANK_LEVELS, task_level, task_name
from linnaeus_jax.taxonomy.tree import ParentConflict, TaxonomyTree, describe_conflict


@dataclass(frozen=True)
class Taxa:
    """The label columns of a file.

    Attributes:
      classes: task -> taxon ids int64 [C], class 0 = null.
      label: int32 [N, T], class index.
      counts: task -> rows per class, int64 [C].
      names: of the classes, as far as the file knows them.
    """

    tasks: tuple[str, ...]
    classes: dict[str, NDArray[np.int64]]
    label: NDArray[np.int32]
    counts: dict[str, NDArray[np.int64]]
    names: TaxonNames

    def name(self, task: str, index: int) -> str:
        """What a class is called in messages."""
        return self.names.label(task, index)


@dataclass(frozen=True)
class LabelColumn:
    """Taxon ids of a rank as they are stored; `wrong`: rows whose id cannot be."""

    task: str
    values: NDArray[np.integer]
    wrong: NDArray[np.int64]

    @property
    def first(self) -> object:
        """A wrong one."""
        return self.values[self.wrong[0]]

    CHECKS: ClassVar = (
        error("taxon_range", f"{{it.task}}: {{n}} rows hold a taxon id outside of 0 (null) to {MAX_TAXON_ID}, e.g. "
              "{it.first}; write such labels as 0, or number the taxa anew", lambda it: it.wrong),
    )  # fmt: skip


def read_taxa(file: LabelFile, tasks: Sequence[str], findings: Findings) -> Taxa:
    """The readable label columns among `tasks`; what is wrong with the values is a finding."""
    classes, counts, columns = {}, {}, []
    for task in tasks:
        with findings.of_damage():
            values = file.numbers(task)
            small = values.dtype == np.uint32
            wrong = np.zeros(0, np.int64) if small else np.flatnonzero((values < 0) | (values > MAX_TAXON_ID))
            make_checks(LabelColumn(task, values, wrong), findings)
            values[wrong] = 0
            ids, inverse = np.unique(values, return_inverse=True)
            has_null = bool(len(ids)) and ids[0] == 0
            label = inverse.astype(np.int32) + (0 if has_null else 1)
            classes[task] = (ids if has_null else np.concatenate([np.zeros(1, np.int64), ids])).astype(np.int64)
            counts[task] = np.bincount(label, minlength=len(classes[task]))
            columns.append(label)
    label = np.stack(columns, axis=1) if columns else np.empty((file.rows, 0), np.int32)
    return Taxa(tuple(classes), classes, label, counts, _names(file, classes, findings))


def _names(file: LabelFile, classes: dict[str, NDArray[np.int64]], findings: Findings) -> TaxonNames:
    """The names of the classes; of the ranks whose names cannot be read, none, with a finding."""
    with contextlib.suppress(ValueError, OSError):  # opening the file takes longest; what is wrong is found below
        return read_taxon_names([str(file.path)], classes)
    no_names = read_taxon_names([], classes)
    name, common_name = dict(no_names.name), dict(no_names.common_name)
    for task, ids in classes.items():
        with findings.of_damage():
            try:
                of_task = read_taxon_names([str(file.path)], {task: ids})
            except ValueError as error:
                raise DamagedError(str(error), "names") from error
            name |= of_task.name
            common_name |= of_task.common_name
    return TaxonNames(classes, name, common_name)


# ---- one rank


@dataclass(frozen=True)
class Rank:
    """A rank among the others."""

    taxa: Taxa
    task: str

    @property
    def classes(self) -> int:
        """Their number, the null class left out."""
        return len(self.taxa.classes[self.task]) - 1

    @property
    def only(self) -> str:
        """The one class that there is."""
        return self.taxa.name(self.task, 1)

    CHECKS: ClassVar = (
        note("ranks", "{it.task}: no rank of that level has a name; it is shown as {it.task}",
             lambda it: task_level(it.task) not in (None, *RANK_LEVELS.values())),
        warning("empty_rank", "{it.task}: no row has a label; leave it out of data.task_keys_h5",
                lambda it: it.classes == 0),
        note("one_class", "{it.task}: all labels are {it.only}; there is nothing to learn",
             lambda it: it.classes == 1 and len(it.taxa.tasks) > 1),
    )  # fmt: skip


# ---- ranks together


@dataclass(frozen=True)
class RankFacts:
    """Numbers of one rank. `orphans` are labelled rows without a label in the next rank, `gaps` rows without a label
    here although a finer and a coarser rank have one; `conflicts` are classes with several parents."""

    task: str
    rank: str
    classes: int
    labelled: int
    null_share: float
    smallest: int
    median: float
    largest: int
    one_row: int
    orphans: int
    gaps: int
    conflicts: int


class Hierarchy:
    """The labels across ranks.

    Args:
      conflict_limit: largest share of a class's rows that may contradict its parent, as `data.parent_conflict_limit`.
      threshold: fewest rows that a link between a class and its parent should rest on.

    Attributes:
      known: bool [N, T], rows with a label.
      gaps: task -> rows without a label there although a finer and a coarser rank have one.
      orphans: task -> rows with a label there and none in the next coarser rank.
      pairs: (index of a task, task, the next coarser one).
    """

    def __init__(self, taxa: Taxa, conflict_limit: float, threshold: int) -> None:
        self.taxa, self.conflict_limit, self.threshold = taxa, conflict_limit, threshold
        self.known = known = taxa.label > 0
        self.pairs = [(t, *pair) for t, pair in enumerate(pairwise(taxa.tasks))]
        self.gaps = {
            taxa.tasks[t]: np.flatnonzero(~known[:, t] & known[:, :t].any(axis=1) & known[:, t + 1 :].any(axis=1))
            for t in range(1, len(taxa.tasks) - 1)
        }
        self.orphans = {task: np.flatnonzero(known[:, t] & ~known[:, t + 1]) for t, task, _ in self.pairs}

    @cached_property
    def tree(self) -> tuple[TaxonomyTree, list[ParentConflict]]:
        """The tree of the majority, and the classes with several parents, most rows against it first."""
        tree, conflicts = TaxonomyTree.from_labels(self.taxa.classes, [self.taxa.label], null_possible=True)
        return tree, sorted(conflicts, key=lambda conflict: -sum(conflict.counts[1:]))

    def facts(self, task: str) -> RankFacts:
        """The numbers of a rank."""
        counts, rows = self.taxa.counts[task][1:], len(self.taxa.label)
        labelled = int(counts.sum())
        conflicts = self.tree[1] if self.pairs else []
        return RankFacts(
            task=task,
            rank=task_name(task),
            classes=len(counts),
            labelled=labelled,
            null_share=1 - labelled / rows if rows else 0.0,
            smallest=int(counts.min()) if len(counts) else 0,
            median=float(np.median(counts)) if len(counts) else 0.0,
            largest=int(counts.max()) if len(counts) else 0,
            one_row=int((counts == 1).sum()),
            orphans=len(self.orphans.get(task, ())),
            gaps=len(self.gaps.get(task, ())),
            conflicts=sum(conflict.task == task for conflict in conflicts),
        )

    def unlabelled(self) -> NDArray[np.int64]:
        """Rows without any label."""
        return np.flatnonzero(~self.known.any(axis=1)) if self.taxa.tasks else np.zeros(0, np.int64)

    def found_gaps(self) -> list[Found]:
        """Those of every rank."""
        return [Found(rows, fields={"task": task}) for task, rows in self.gaps.items() if len(rows)]

    def found_orphans(self) -> Iterator[Found]:
        """Those of every rank, with the classes that never have a parent."""
        taxa, known = self.taxa, self.known
        for t, task, coarser in self.pairs:
            rows, labelled = self.orphans[task], int(known[:, t].sum())
            if len(rows):
                with_parent = np.zeros(len(taxa.classes[task]), bool)
                with_parent[taxa.label[known[:, t] & known[:, t + 1], t]] = True
                alone = np.setdiff1d(np.flatnonzero((taxa.counts[task] > 0) & ~with_parent), [0])
                never = f"; {len(alone)} classes never have a parent" if len(alone) else ""
                fields = {"task": task, "labelled": labelled, "share": len(rows) / labelled, "coarser": coarser}
                yield Found(rows, [taxa.name(task, int(i)) for i in alone[:SHOWN]], {**fields, "never": never})

    def contradictions(self) -> Iterator[Found]:
        """Classes with several parents; those within the limit are a warning."""
        taxa, known, limit = self.taxa, self.known, self.conflict_limit
        for t, task, coarser in self.pairs:
            tree, conflicts = self.tree
            for level, more, fix in ((ERROR, "more", "correct them, or raise "), (WARNING, "not more", "")):
                group = [c for c in conflicts if c.task == task and (c.minority_share > limit) == (level == ERROR)]
                if not group:
                    continue
                child, parent = taxa.label[:, t], taxa.label[:, t + 1]
                against = known[:, t] & known[:, t + 1] & (parent != tree.parent[task][child])
                rows = np.flatnonzero(against & np.isin(child, [conflict.child for conflict in group]))
                lines = [describe_conflict(conflict, taxa.tasks, taxa.name) for conflict in group[:SHOWN]]
                fields = {"task": task, "classes": len(group), "coarser": coarser, "more": more, "fix": fix}
                yield Found(rows, lines, fields, level)

    def weak_links(self) -> Iterator[Found]:
        """Links to a parent that rest on few rows."""
        taxa, known = self.taxa, self.known
        for t, task, coarser in self.pairs if self.threshold > 1 else ():
            both = known[:, t] & known[:, t + 1]
            width = len(taxa.classes[coarser])
            links = taxa.label[both, t].astype(np.int64) * width + taxa.label[both, t + 1]
            link, count = np.unique(links, return_counts=True)
            weak = np.flatnonzero(count < self.threshold)
            lines = [
                f"{taxa.name(task, int(link[i] // width))} in {taxa.name(coarser, int(link[i] % width))}: "
                f"{count[i]} rows"
                for i in weak[np.argsort(count[weak], kind="stable")][:SHOWN]
            ]
            if len(weak):
                yield Found((), lines, {"task": task, "n": len(weak), "links": len(link), "coarser": coarser})

    def roots(self) -> Iterator[Found]:
        """Classes of the coarsest rank."""
        for task in self.taxa.tasks[-1:]:
            top = len(self.taxa.classes[task]) - 1
            kind = "one root" if top == 1 else f"{top} roots, a metaclade" if top else "no root"
            yield Found(fields={"rank": task_name(task), "kind": kind})

    CHECKS: ClassVar = (
        warning("no_label", "{n} rows have no label in any rank; they are never used", unlabelled),
        warning("gap", "{task}: {n} rows have no label, although a finer and a coarser rank have one", found_gaps),
        warning("orphan", "{task}: {n} of {labelled} labelled rows ({share:.1%}) have no label in {coarser}{never}",
                found_orphans),
        error("parent_conflict", "{task}: {classes} classes have several parents in {coarser}, {n} rows against the "
              "majority; {more} than {it.conflict_limit:g} of a class's rows ({fix}data.parent_conflict_limit)",
              contradictions),
        warning("weak_link", "{task}: {n} of {links} links to a parent in {coarser} have fewer than {it.threshold} "
                "rows", weak_links),
        note("roots", "{rank} is the coarsest rank: {kind}", roots),
    )  # fmt: skip


# ---- names


@dataclass(frozen=True)
class NamesGroup:
    """The group of taxon names, None without one."""

    group: h5py.Group | None
    tasks: Sequence[str]

    def others(self) -> list[Found]:
        """Names of what is no rank."""
        return [Found(fields={"task": task}) for task in sorted(set(self.group or ()) - set(self.tasks))]

    CHECKS: ClassVar = (
        note("names", f"there is no group {GROUP!r}: classes are shown by their taxon ids",
             lambda it: it.group is None),
        warning("names", f"{GROUP}/{{task}}: there is no such label column", others),
    )  # fmt: skip


class RankNames:
    """The names of one rank.

    Attributes:
      present: whether there are any, at `where`.
      ids, names: of the classes, null left out; none where they cannot be read, which `read_taxa` finds.
      share: of the classes that have a name.
      unused: names of taxa that no row has.
    """

    def __init__(self, file: LabelFile, group: h5py.Group, taxa: Taxa, task: str) -> None:
        self.task, self.where, self.present = task, f"{GROUP}/{task}", task in group
        self.ids, self.names, self.unused, self.share = taxa.classes[task][1:], taxa.names.name[task][1:], 0, 0.0
        try:
            known = validated_dataset(file.file, str(file.path), f"{self.where}/taxon_id", None, kinds="ui", dims=(1,))
            self.unused = len(np.setdiff1d(values_of(known, str(file.path)), self.ids))
            self.share = 1 - int((self.names == "").sum()) / len(self.ids) if len(self.ids) else 1.0
        except ValueError:
            self.ids, self.names = self.ids[:0], self.names[:0]

    def nameless(self) -> Iterator[Found]:
        """Classes without a name."""
        if len(without := np.flatnonzero(self.names == "")):
            yield Found((), [str(self.ids[i]) for i in without[:SHOWN]], {"n": len(without), "of": len(self.ids)})

    def shared(self) -> list[Found]:
        """Names of more than one taxon."""
        owners: dict[str, list[int]] = {}
        for taxon, name in zip(self.ids.tolist(), self.names.tolist()):
            owners.setdefault(name, []).append(taxon)
        twice = [f"{name}: {', '.join(map(str, taxa))}" for name, taxa in owners.items() if name and len(taxa) > 1]
        return [Found((), twice, {"n": len(twice)})] if twice else []

    CHECKS: ClassVar = (
        note("names", f"{GROUP} has nothing for {{it.task}}", lambda it: not it.present),
        warning("names", "{it.where}: {n} of {of} classes have no name", nameless),
        note("names", "{it.where}: {it.unused} names are of taxa that no row has", lambda it: it.unused),
        warning("names", "{it.where}: {n} names belong to more than one taxon", shared),
    )
