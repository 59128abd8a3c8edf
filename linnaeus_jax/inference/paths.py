"""Probabilities that agree across ranks: a distribution over the paths of the taxonomy.

A path names a class of every rank: a taxon, its ancestors, and null ("unknown") at the finer ranks. Its probability is
proportional to exp(sum over ranks t of z_t[class] / temperature_t), the product of what the single ranks say, where a
rank at which a class has no ancestor says null, or 1/C where there is no null. The probability of a taxon is the sum
over the paths through it, so that it never exceeds that of its ancestors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.taxonomy.tree import TaxonomyTree

Logits = Mapping[str, NDArray[np.float32]]
#: what stands for a class where a path has none at a rank
NONE = -1


@dataclass(frozen=True, eq=False)
class PathProbabilities:
    """Of N pictures.

    Attributes:
      best: int32 [N, T], classes of the most probable path, finest rank first; null or NONE where it is unknown.
      by_task: task -> float64 [N, C], probability of every class; they sum to 1 with what has no class at that rank.
    """

    best: NDArray[np.int32]
    by_task: dict[str, NDArray[np.float64]]


class TaxonomyPaths:
    """The paths of a taxonomy and their probabilities.

    Attributes:
      classes: int32 [P, T], finest rank first; 0 is null where there is one, NONE where a path has no class.
    """

    def __init__(self, tree: TaxonomyTree) -> None:
        self.tree = tree
        unknown = 0 if tree.null_possible else NONE
        parts = []
        for place, task in enumerate(tree.task_keys):
            ends = np.arange(int(tree.null_possible), tree.num_classes[task])
            if not tree.null_possible and place:  # only taxa without children are ends of their own
                ends = np.setdiff1d(ends, tree.parent[tree.task_keys[place - 1]])
            chain = np.where(tree.anc[task][ends] < 0, unknown, tree.anc[task][ends])
            parts.append(np.hstack([np.full((len(ends), place), unknown, np.int32), chain]))
        if tree.null_possible:
            parts.append(np.zeros((1, len(tree.task_keys)), np.int32))
        classes = np.concatenate(parts).astype(np.int32)
        # the paths through a taxon lie side by side, since its ancestors come first in the order
        self.classes: NDArray[np.int32] = classes[np.lexsort(classes.T)]
        self._spans = [self._span(place, task) for place, task in enumerate(tree.task_keys)]

    def _span(self, place: int, task: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and last path (excluded) of every class; nothing for null and for classes that no path names."""
        count, column = self.tree.num_classes[task], self.classes[:, place]
        start, stop = np.zeros(count, np.int64), np.zeros(count, np.int64)
        named, first, size = np.unique(column, return_index=True, return_counts=True)
        taxa = named >= int(self.tree.null_possible)
        start[named[taxa]], stop[named[taxa]] = first[taxa], first[taxa] + size[taxa]
        return start, stop

    def scores(
        self,
        logits: Logits,
        temperature: Mapping[str, float],
        allowed: Mapping[str, NDArray[np.bool_]] | None = None,
    ) -> NDArray[np.float64]:
        """Unnormalised log-probabilities [N, P]; -inf for paths with a class that is not `allowed`."""
        total: NDArray[np.float64] | float = 0.0
        for place, task in enumerate(self.tree.task_keys):
            scaled = log_softmax(logits[task], temperature[task])
            if allowed is not None:
                scaled = np.where(allowed[task], scaled, -np.inf)
            nothing = np.full((len(scaled), 1), -np.log(scaled.shape[1]))
            total = total + np.concatenate([scaled, nothing], axis=1)[:, self.classes[:, place]]  # NONE is the last
        return np.asarray(total)

    def __call__(
        self,
        logits: Logits,
        temperature: Mapping[str, float],
        allowed: Mapping[str, NDArray[np.bool_]] | None = None,
    ) -> PathProbabilities:
        """Probabilities of logits float32 [N, C] by task; with `allowed` (task -> bool [C]), of what they allow."""
        scores = self.scores(logits, temperature, allowed)
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
        probability = shifted / shifted.sum(axis=1, keepdims=True)
        summed = np.concatenate([np.zeros((len(scores), 1)), np.cumsum(probability, axis=1)], axis=1)
        by_task = {}
        for (start, stop), task in zip(self._spans, self.tree.task_keys, strict=True):
            of_class = np.clip(summed[:, stop] - summed[:, start], 0.0, 1.0)
            if self.tree.null_possible:
                of_class[:, 0] = np.clip(1.0 - of_class[:, 1:].sum(axis=1), 0.0, 1.0)
            by_task[task] = of_class
        return PathProbabilities(self.classes[scores.argmax(axis=1)], by_task)


def log_softmax(logits: NDArray[np.floating], temperature: float = 1.0) -> NDArray[np.float64]:
    """log softmax(logits / temperature) of [N, C], in float64."""
    scaled = np.asarray(logits, np.float64) / temperature
    scaled = scaled - scaled.max(axis=1, keepdims=True)
    return scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))


def documented_consistency(
    tree: TaxonomyTree, best: NDArray[np.integer], tasks: Sequence[str] | None = None
) -> NDArray[np.bool_]:
    """bool [N, T]: ranks whose answer becomes null with certainty, by the rule of the original (spec observability
    §10), where every rank is answered by itself.

    From the coarsest rank down, an answer is given up if it is null below a known one, if the nearest coarser answer
    was null or was given up, or if its ancestor there is another taxon.

    Args:
      best: class indices [N, T] of the best answers, 0 for null.
      tasks: of the columns, finest first; default: all of the tree. A rank that was left out is passed over, since
        ancestors are compared.
    """
    tasks = tuple(tree.task_keys if tasks is None else tasks)
    given_up = np.zeros(np.shape(best), bool)
    final = np.array(best)
    for column in range(len(tasks) - 2, -1, -1):
        task, above = tasks[column], tasks[column + 1]
        up = tree.task_keys.index(above) - tree.task_keys.index(task)
        ancestor = tree.anc[task][final[:, column], up]
        wrong = (final[:, column + 1] == 0) | (ancestor != final[:, column + 1]) | (final[:, column] == 0)
        given_up[:, column], final[wrong, column] = wrong, 0
    return given_up
