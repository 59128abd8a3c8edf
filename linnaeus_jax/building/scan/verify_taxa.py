"""Checks of the label columns: ranges, gaps, contradictions between ranks, sizes of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.scan.findings import SHOWN, Findings
from linnaeus_jax.building.scan.label_file import LabelFile, damage_noted
from linnaeus_jax.data.labels import MAX_TAXON_ID
from linnaeus_jax.data.taxon_names import TaxonNames, read_taxon_names
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


def read_taxa(file: LabelFile, tasks: Sequence[str], findings: Findings) -> Taxa:
    """The readable label columns among `tasks`; what is wrong with the values is a finding."""
    used: list[str] = []
    classes, counts, columns = {}, {}, []
    for task in tasks:
        values = None
        with damage_noted(findings):
            values = file.numbers(task)
        if values is None:
            continue
        wrong = (values < 0) | (values > MAX_TAXON_ID) if values.dtype != np.uint32 else np.zeros(0, bool)
        if wrong.any():
            rows = np.flatnonzero(wrong)
            findings.error(
                "taxon_range",
                f"{task}: {len(rows)} rows hold a taxon id outside of 0 (null) to {MAX_TAXON_ID}, e.g. "
                f"{values[rows[0]]}; write such labels as 0, or number the taxa anew",
                rows,
            )
            values = np.where(wrong, 0, values)
        ids, inverse = np.unique(values, return_inverse=True)
        has_null = bool(len(ids)) and ids[0] == 0
        label = inverse.astype(np.int32) + (0 if has_null else 1)
        used.append(task)
        classes[task] = (
            ids.astype(np.int64) if has_null else np.concatenate([np.zeros(1, np.int64), ids]).astype(np.int64)
        )
        counts[task] = np.bincount(label, minlength=len(classes[task]))
        columns.append(label)
    label = np.stack(columns, axis=1) if columns else np.empty((file.rows, 0), np.int32)
    return Taxa(tuple(used), classes, label, counts, _names(file, classes, findings))


def _names(file: LabelFile, classes: dict[str, NDArray[np.int64]], findings: Findings) -> TaxonNames:
    """The names of the classes; of the ranks whose names cannot be read, none, with a finding."""
    no_names = read_taxon_names([], classes)
    name, common_name = dict(no_names.name), dict(no_names.common_name)
    for task, ids in classes.items():
        try:
            of_task = read_taxon_names([str(file.path)], {task: ids})
        except ValueError as error:
            findings.error("names", str(error))
            continue
        name |= of_task.name
        common_name |= of_task.common_name
    return TaxonNames(classes, name, common_name)


def check_taxa(taxa: Taxa, findings: Findings, *, conflict_limit: float, threshold: int) -> list[RankFacts]:
    """Checks labels across ranks.

    Args:
      conflict_limit: largest share of a class's rows that may contradict its parent, as `data.parent_conflict_limit`.
      threshold: fewest rows that a link between a class and its parent should rest on.
    """
    tasks, label = taxa.tasks, taxa.label
    for task in tasks:
        if task_level(task) not in (None, *RANK_LEVELS.values()):
            findings.note("ranks", f"{task}: no rank of that level has a name; it is shown as {task}")
        if len(taxa.classes[task]) == 1:
            findings.warning("empty_rank", f"{task}: no row has a label; leave it out of data.task_keys_h5")
        elif len(taxa.classes[task]) == 2 and len(tasks) > 1:
            findings.note("one_class", f"{task}: all labels are {taxa.name(task, 1)}; there is nothing to learn")
    known = label > 0
    none = np.flatnonzero(~known.any(axis=1))
    if len(none) and tasks:
        findings.warning("no_label", f"{len(none)} rows have no label in any rank; they are never used", none)
    gaps = _gaps(taxa, known, findings)
    orphans = _orphans(taxa, known, findings)
    conflicts = _conflicts(taxa, known, findings, conflict_limit)
    if threshold > 1:
        _weak_links(taxa, known, findings, threshold)
    if tasks:
        top = len(taxa.classes[tasks[-1]]) - 1
        kind = "one root" if top == 1 else f"{top} roots, a metaclade" if top else "no root"
        findings.note("roots", f"{task_name(tasks[-1])} is the coarsest rank: {kind}")
    return [_facts(taxa, task, orphans, gaps, conflicts) for task in tasks]


def _facts(
    taxa: Taxa, task: str, orphans: dict[str, int], gaps: dict[str, int], conflicts: list[ParentConflict]
) -> RankFacts:
    counts, rows = taxa.counts[task][1:], len(taxa.label)
    labelled = int(counts.sum())
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
        orphans=orphans.get(task, 0),
        gaps=gaps.get(task, 0),
        conflicts=sum(conflict.task == task for conflict in conflicts),
    )


def _gaps(taxa: Taxa, known: NDArray[np.bool_], findings: Findings) -> dict[str, int]:
    """Task -> rows without a label there although a finer and a coarser rank have one."""
    result = {}
    for t in range(1, len(taxa.tasks) - 1):
        rows = np.flatnonzero(~known[:, t] & known[:, :t].any(axis=1) & known[:, t + 1 :].any(axis=1))
        result[taxa.tasks[t]] = len(rows)
        if len(rows):
            findings.warning(
                "gap",
                f"{taxa.tasks[t]}: {len(rows)} rows have no label, although a finer and a coarser rank have one",
                rows,
            )
    return result


def _orphans(taxa: Taxa, known: NDArray[np.bool_], findings: Findings) -> dict[str, int]:
    """Task -> rows with a label there and none in the next coarser rank."""
    result = {}
    for t, (task, coarser) in enumerate(pairwise(taxa.tasks)):
        mask = known[:, t] & ~known[:, t + 1]
        rows, labelled = np.flatnonzero(mask), int(known[:, t].sum())
        result[task] = len(rows)
        if not len(rows):
            continue
        with_parent = np.zeros(len(taxa.classes[task]), bool)
        with_parent[taxa.label[known[:, t] & known[:, t + 1], t]] = True
        alone = np.setdiff1d(np.flatnonzero((taxa.counts[task] > 0) & ~with_parent), [0])
        findings.warning(
            "orphan",
            f"{task}: {len(rows)} of {labelled} labelled rows ({len(rows) / labelled:.1%}) have no label in {coarser}"
            + (f"; {len(alone)} classes never have a parent" if len(alone) else ""),
            rows,
            [taxa.name(task, int(index)) for index in alone[:SHOWN]],
        )
    return result


def _conflicts(taxa: Taxa, known: NDArray[np.bool_], findings: Findings, limit: float) -> list[ParentConflict]:
    """Classes with several parents, those within the limit as a warning, those above it as an error."""
    if len(taxa.tasks) < 2:
        return []
    tree, conflicts = TaxonomyTree.from_labels(taxa.classes, [taxa.label], null_possible=True)
    conflicts = sorted(conflicts, key=lambda conflict: -sum(conflict.counts[1:]))
    for t, (task, coarser) in enumerate(pairwise(taxa.tasks)):
        of_task = [conflict for conflict in conflicts if conflict.task == task]
        if not of_task:
            continue
        against = known[:, t] & known[:, t + 1] & (taxa.label[:, t + 1] != tree.parent[task][taxa.label[:, t]])
        for is_error in (True, False):
            group = [conflict for conflict in of_task if (conflict.minority_share > limit) == is_error]
            if not group:
                continue
            in_group = np.isin(taxa.label[:, t], [conflict.child for conflict in group])
            rows = np.flatnonzero(against & in_group)
            (findings.error if is_error else findings.warning)(
                "parent_conflict",
                f"{task}: {len(group)} classes have several parents in {coarser}, {len(rows)} rows against the "
                f"majority; {'more' if is_error else 'not more'} than {limit:g} of a class's rows "
                + (
                    "(correct them, or raise data.parent_conflict_limit)"
                    if is_error
                    else "(data.parent_conflict_limit)"
                ),
                rows,
                [describe_conflict(conflict, taxa.tasks, taxa.name) for conflict in group[:SHOWN]],
            )
    return conflicts


def _weak_links(taxa: Taxa, known: NDArray[np.bool_], findings: Findings, threshold: int) -> None:
    for t, (task, coarser) in enumerate(pairwise(taxa.tasks)):
        both = known[:, t] & known[:, t + 1]
        width = len(taxa.classes[coarser])
        link, count = np.unique(
            taxa.label[both, t].astype(np.int64) * width + taxa.label[both, t + 1], return_counts=True
        )
        weak = np.flatnonzero(count < threshold)
        if len(weak):
            first = weak[np.argsort(count[weak], kind="stable")][:SHOWN]
            findings.warning(
                "weak_link",
                f"{task}: {len(weak)} of {len(link)} links to a parent in {coarser} have fewer than {threshold} rows",
                examples=[
                    f"{taxa.name(task, int(link[i] // width))} in {taxa.name(coarser, int(link[i] % width))}: "
                    f"{count[i]} rows"
                    for i in first
                ],
            )
