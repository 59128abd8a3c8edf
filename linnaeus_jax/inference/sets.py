"""Sets of taxa that hold the truth as often as asked for, where a coarser taxon would be no way out.

A set is of leaves, taxa without any taxon below them: species, and a genus or family whose images all have no species.
The share of a leaf is its probability among all leaves. A set holds the leaf with the largest share and all whose share
reaches a threshold; it is never empty, and a higher coverage gives a superset. The score of a row whose label is a leaf
is the share of the label, 1 where that is the largest: up to it the set holds the truth. Of n scores, the one in place
ceil((n + 1) level), from the largest down, is the threshold; sets hold the truth of exchangeable pictures with a
probability of at least `level` (Sadinle et al. 2019, Least Ambiguous Set-Valued Classifiers). Nothing is drawn: equal
outputs of a model give equal sets. What was measured beside sums of probabilities: `benchmarks.prediction_sets`.

A model is less sure of taxa with few training rows, and one threshold would leave them out too often. So leaves are put
into groups by their training rows, where the rows that are measured suffice for several, and each group has a threshold
of its own, from the rows whose label is in it: the promise then holds in each group (Vovk 2012, label-conditional).

Where a set holds all leaves below a taxon, and these are several, it is written as that taxon; of taxa with the same
leaves, as the finest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.inference import conformal
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy

#: place of the task, class and probability of a taxon
Entry = tuple[int, int, float]
#: rows that a group is measured on, at least; groups, at most
LEAST_ROWS, MOST_GROUPS = 100, 4


class Leaves:
    """The leaves of a taxonomy and what lies above them; taxa of all ranks are numbered as one, the finest rank first.

    Attributes:
      itself: int64 [L], numbers of the leaves.
      below: int64 [taxa], leaves that each taxon holds, itself included.
    """

    def __init__(self, taxonomy: Taxonomy) -> None:
        tree = taxonomy.tree
        self.tasks, self._first = taxonomy.tasks, taxonomy.first
        sizes = [tree.num_classes[task] for task in self.tasks]
        self._start = np.cumsum([0, *sizes])
        chains = []
        for place, task in enumerate(self.tasks):
            inner = [tree.anc[finer][self._first :, place - at] for at, finer in enumerate(self.tasks[:place])]
            leaves = np.setdiff1d(np.arange(self._first, sizes[place]), np.concatenate([[-1], *inner]))
            chain = np.full((len(leaves), len(sizes)), -1, np.int64)
            above = tree.anc[task][leaves]
            chain[:, place:] = np.where(above >= self._first, above + self._start[place:-1], -1)
            chains.append(chain)
        self._chain = np.concatenate(chains)
        self.itself: NDArray[np.int64] = self._chain[np.arange(len(self._chain)), (self._chain >= 0).argmax(axis=1)]
        self.below: NDArray[np.int64] = np.bincount(self._chain[self._chain >= 0], minlength=self._start[-1])
        self._leaf_of = np.full(self._start[-1], -1, np.int64)
        self._leaf_of[self.itself] = np.arange(len(self.itself))

    def of(self, classes: NDArray[np.integer]) -> NDArray[np.int64]:
        """int64 [N]: the leaf that the finest taxon of each row is, of classes int [N, T]; -1 where it is none."""
        known = classes >= self._first
        place = known.argmax(axis=1)
        number = self._start[place] + np.take_along_axis(classes, place[:, None], axis=1)[:, 0]
        return np.where(known.any(axis=1), self._leaf_of[np.where(known.any(axis=1), number, 0)], -1)

    def shares(self, by_task: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """float64 [N, L] of probabilities by task, see `Answers.probabilities`."""
        probability = self._probabilities(by_task)[:, self.itself]
        total = probability.sum(axis=1, keepdims=True)
        return np.asarray(probability / np.where(total > 0, total, 1.0))

    def _probabilities(self, by_task: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        return np.concatenate([by_task[task] for task in self.tasks], axis=1)

    def written(self, inside: NDArray[np.bool_], by_task: Mapping[str, NDArray[np.float64]]) -> list[list[Entry]]:
        """The taxa that sets of leaves [N, L] are written as, the most probable first."""
        rows, leaves = np.nonzero(inside)
        chosen, held = self.itself[leaves], np.ones(len(rows), np.int64)
        for taxon in self._chain[leaves].T:  # from the finest rank up
            _, group, times = np.unique(rows * (len(self.below) + 1) + taxon, return_inverse=True, return_counts=True)
            whole = (taxon >= 0) & (times[group] == self.below[taxon]) & (self.below[taxon] > held)
            chosen, held = np.where(whole, taxon, chosen), np.where(whole, self.below[taxon], held)
        row, number = np.unique(np.stack([rows, chosen], axis=1), axis=0).T
        probability = self._probabilities(by_task)[row, number]
        order = np.lexsort((number, -probability, row))
        place = np.searchsorted(self._start, number, side="right") - 1
        found: list[list[Entry]] = [[] for _ in inside]
        columns = (each[order].tolist() for each in (row, place, number - self._start[place], probability))
        for at, *entry in zip(*columns, strict=True):
            found[at].append((entry[0], entry[1], entry[2]))
        return found


def scores(shares: NDArray[np.float64], label: NDArray[np.integer]) -> NDArray[np.float64]:
    """float64 [n] of shares [n, L] and the leaves [n] that are true."""
    return np.where(shares.argmax(axis=1) == label, 1.0, shares[np.arange(len(label)), label])


def groups(trained: NDArray[np.int64], label: NDArray[np.integer]) -> list[int]:
    """The fewest training rows of the leaves of each group, ascending, so that each is measured on enough rows.

    Args:
      trained: [L], training rows of the leaves.
      label: [n], the leaves that the rows are labelled with.
    """
    counts, place = np.unique(trained, return_inverse=True)
    rows = np.bincount(place[label], minlength=len(counts))
    wanted, found, measured = max(LEAST_ROWS, len(label) / MOST_GROUPS), [0], 0
    for count, more in zip(counts.tolist(), rows.tolist()):
        if measured >= wanted:
            found.append(count)
            measured = 0
        measured += more
    return found[:-1] if measured < wanted and len(found) > 1 else found


def group_of(trained: NDArray[np.int64], found: Sequence[int]) -> NDArray[np.int64]:
    """int64 [L]: the number of the group of each leaf."""
    return np.maximum(np.searchsorted(np.asarray(found, np.int64), trained, side="right") - 1, 0)


def thresholds(score: NDArray[np.float64]) -> dict[str, float]:
    """Per cent of coverage, as text -> least share, for every level that so many rows allow."""
    return {level: -least for level, least in conformal.thresholds(-score).items()}


def thresholds_of_groups(score: NDArray[np.float64], group: NDArray[np.integer]) -> dict[str, list[float]]:
    """Per cent of coverage, as text -> least share for each group, for every level that the rows of all allow.

    Args:
      group: [n], numbers of the groups of the labels.
    """
    parts = [thresholds(score[group == number]) for number in range(int(group.max()) + 1)]
    levels = [level for level in parts[0] if all(level in part for part in parts)]
    return {level: [part[level] for part in parts] for level in levels}


def inside(shares: NDArray[np.float64], least: float | NDArray[np.float64]) -> NDArray[np.bool_]:
    """bool [N, L]: leaves of the sets of shares [N, L]; `least` of all, or of each leaf [L]."""
    found = shares >= least
    found[np.arange(len(found)), shares.argmax(axis=1)] = True
    return found
