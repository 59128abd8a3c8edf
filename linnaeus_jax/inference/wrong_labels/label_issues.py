"""Rows whose label is probably wrong, by confident learning (Northcutt et al., 2021) at every rank.

What is known of a row is said by those that have not seen it: regressions of the features that were fitted to other
folds, and the most similar rows. Both speak twice, the second time without the labels that were doubted the first
time, since these pull what is learned towards themselves. The four speak together:

    log p(class) = 1/3 sum over both times of [log (regression + FLOOR) + 1/2 log (neighbours + FLOOR)] + constant

At each rank the threshold of a class is the mean p of the rows that are labelled so. A row is at issue where another
class than its own is the likeliest of those above their thresholds, which makes a pair of the confident joint, and has
more than `LIKELY` of what is above FLOOR: features that know little would doubt half of the labels otherwise. Rows are
ranked by how far p of their label, over its threshold, lies below that of another class, at the finest rank that their
label names, and worse where they are at issue at coarser ranks, too: another genus is worse than a sister. A row that
names a genus alone is judged as a genus. A class that no other occurrence has is not judged.

Letters of shapes: N rows, T ranks, C classes of a rank, K neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.inference.paths import log_softmax
from linnaeus_jax.inference.wrong_labels.labelled_features import LabelledFeatures
from linnaeus_jax.learning.regression import fit_ranks

#: what a score is lowered by for each coarser rank that is at issue
COARSER = 0.25
#: what a probability over its threshold is raised by in margins, where small ones are mostly noise
EVEN = 0.03
#: least share of the other class of a row that is at issue
LIKELY = 0.7
#: what every share is raised by; neighbours that vote, the first and the second time, of those that are looked for; by
#: which difference of cosines a vote is e times less
FLOOR, VOTERS, LOOKED_FOR, SHARPNESS = 0.01, (10, 5), 30, 0.05

Progress = Callable[[str, int, int], None]


class RankIssues(NamedTuple):
    """What confident learning says of one rank.

    Attributes:
      probability: float64 [N, C].
      margin: float64 [N], log of p over threshold of the label, less that of the best other class; NaN where the row is
        not judged.
      other: int64 [N], that class.
      issue: bool [N], it is likely and counted under another class than its own.
      joint: (label, class that it is counted under, rows at issue) of all pairs, most rows first.
    """

    probability: NDArray[np.float64]
    margin: NDArray[np.float64]
    other: NDArray[np.int64]
    issue: NDArray[np.bool_]
    joint: list[tuple[int, int, int]]

    def shares(self, row: int) -> NDArray[np.float64]:
        """What people read for the probabilities of a row, [C]: without what every share is raised by."""
        return _shares(self.probability[row])


@dataclass(frozen=True, eq=False)
class LabelIssues:
    """What is at issue.

    Attributes:
      ranks: rank -> what is said of it; those with fewer than two classes are left out.
      place: int64 [N], the finest rank at which a row is judged, -1 for none.
      score: float64 [N], the lower the worse; infinite where a row is not judged.
      order: int64 [N], rows from the worst on.
      at_issue: bool [N], at some rank.
    """

    ranks: dict[str, RankIssues]
    place: NDArray[np.int64]
    score: NDArray[np.float64]
    order: NDArray[np.int64]
    at_issue: NDArray[np.bool_]


def find_label_issues(rows: LabelledFeatures, progress: Progress = lambda what, done, total: None) -> LabelIssues:
    """Judges the label of every row; the same rows give the same.

    Args:
      progress: (what is done, done, total).
    """
    probability = probabilities(rows, progress)
    ranks = {
        task: confident_learning(p, _judged(rows, place))
        for place, task in enumerate(rows.tasks)
        if (p := probability.get(task)) is not None
    }
    score, place = np.full(len(rows), np.inf), np.full(len(rows), -1)
    for number, task in reversed(list(enumerate(rows.tasks))):
        if task in ranks:
            judged = ~np.isnan(ranks[task].margin)
            coarser = [ranks[each].issue for each in rows.tasks[number + 1 :] if each in ranks]
            lowered = ranks[task].margin - COARSER * np.sum(coarser, axis=0, dtype=np.float64)
            score[judged], place[judged] = lowered[judged], number
    at_issue = np.logical_or.reduce([found.issue for found in ranks.values()])
    return LabelIssues(ranks, place, score, np.argsort(score, kind="stable"), at_issue)


def probabilities(
    rows: LabelledFeatures, progress: Progress = lambda what, done, total: None
) -> dict[str, NDArray[np.float64]]:
    """Rank -> float64 [N, C] of every row by what has not seen it, see above."""
    near, cosine = rows.nearest(LOOKED_FOR, lambda done, total: progress("comparing pictures", done, total))
    label, total = rows.label, dict[str, NDArray[np.float64]]()
    for time, voters in enumerate(VOTERS):
        progress("fitting heads to folds", time, len(VOTERS))
        logits = dict(rows.logits or {}) if not time else {}
        if not logits:
            fits = fit_ranks(rows.features, label, rows.tree.num_classes, seed=time, group_N=rows.group)
            logits = {task: fit.logits for task, fit in fits.items()}
        doubted = label.copy()
        for place, task in enumerate(rows.tasks):
            if task in logits:
                said = np.log(np.exp(log_softmax(logits[task])) + FLOOR)
                said += 0.5 * np.log(votes(near, cosine, label[:, place], said.shape[1], voters) + FLOOR)
                total[task] = total.get(task, 0.0) + said / 3 * (1 + (time > 0 and task not in total))
                given = rows.label[:, place]
                doubted[(given >= 0) & (said.argmax(axis=1) != given), place] = -1
        label = doubted
    progress("fitting heads to folds", len(VOTERS), len(VOTERS))
    return {task: np.exp(log_softmax(said)) for task, said in total.items()}


def votes(
    near_NK: NDArray[np.int64], cosine_NK: NDArray[np.float64], label: NDArray[np.int64], classes: int, voters: int
) -> NDArray[np.float64]:
    """Shares [N, C] of the classes among the first so many neighbours that have a label and are of another occurrence;
    equal ones where there are none."""
    voter_NK = (label[near_NK] >= 0) & (cosine_NK > -1.5)
    voter_NK &= np.cumsum(voter_NK, axis=1) <= voters
    weight_NK = np.exp((cosine_NK - cosine_NK.max(axis=1, keepdims=True)) / SHARPNESS) * voter_NK
    share = np.zeros((len(label), classes))
    for near, weight in zip(near_NK.T, weight_NK.T):
        share[np.arange(len(label)), label[near]] += weight
    total = share.sum(axis=1, keepdims=True)
    return np.where(total > 0, share / np.maximum(total, 1e-300), 1 / classes)


def _judged(rows: LabelledFeatures, place: int) -> NDArray[np.int64]:
    """int64 [N]: the label at a rank; -1 also where no other occurrence has it."""
    label = rows.label[:, place]
    known = label >= 0
    pairs = np.unique(np.stack([label, rows.group], axis=1)[known], axis=0)
    occurrences = np.bincount(pairs[:, 0], minlength=rows.tree.num_classes[rows.tasks[place]])
    return np.where(known & (occurrences[label] > 1), label, -1)


def confident_learning(probability: NDArray[np.float64], label: NDArray[np.integer]) -> RankIssues:
    """Thresholds, confident joint and margins of one rank.

    Args:
      probability: [N, C], of every row by what has not seen it.
      label: [N], -1 where the row is not judged, by which no class gets a threshold either.
    """
    judged, classes = label >= 0, probability.shape[1]
    row, given = np.flatnonzero(judged), label[judged]
    p = probability[judged]
    own = p[np.arange(len(row)), given]
    count = np.bincount(given, minlength=classes)
    threshold = np.bincount(given, own, classes) / np.maximum(count, 1)
    relative = np.where(count > 0, p / np.maximum(threshold, 1e-12), 0.0)
    counted = np.where((p >= threshold) & (count > 0), p, -1.0)
    confident, counted_as = counted.max(axis=1) >= 0, counted.argmax(axis=1)
    off = confident & (counted_as != given) & (_shares(p)[np.arange(len(row)), counted_as] > LIKELY)
    pair, rows_of = np.unique(np.stack([given, counted_as], axis=1)[off], axis=0, return_counts=True)
    joint = sorted(((*each, n) for each, n in zip(pair.tolist(), rows_of.tolist())), key=lambda each: -each[2])
    ratio = np.log(relative + EVEN)
    own_ratio = ratio[np.arange(len(row)), given]
    ratio[np.arange(len(row)), given] = -np.inf
    margin, other, issue = np.full(len(label), np.nan), np.full(len(label), -1), np.zeros(len(label), bool)
    margin[row], other[row], issue[row] = own_ratio - ratio.max(axis=1), ratio.argmax(axis=1), off
    return RankIssues(probability, margin, other, issue, joint)


def _shares(probability: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities [..., C] without what all classes have."""
    above = probability - probability.min(axis=-1, keepdims=True)
    return np.asarray(above / np.maximum(above.sum(axis=-1, keepdims=True), 1e-300))
