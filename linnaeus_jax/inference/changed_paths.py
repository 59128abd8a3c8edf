"""Probabilities of taxa that were merged or moved after the training: those of the paths that they are made of.

The heads say what they were trained to say, so the posterior is that of the taxonomy of the training. Each of its paths
is then called as it is now, and paths with the same name are one: the probability of what was merged is the sum, a
taxon that moved lies below its new parent, and a parent that no head knows has the probability of its members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.paths import NONE, Logits, PathProbabilities, TaxonomyPaths


class ChangedPaths(TaxonomyPaths):
    """The paths of the training with the probabilities of the taxa that are answered.

    Attributes:
      called: int32 [P, T], the classes that every path names now.
    """

    def __init__(self, taxonomy: Taxonomy, counts: Mapping[str, Sequence[int]] | None = None) -> None:
        super().__init__(taxonomy.of_heads.tree, counts)
        self.now = taxonomy
        self.called = self._called() if taxonomy.heads else self.classes
        if taxonomy.heads:
            self._classes, self._group = np.unique(self.called, axis=0, return_inverse=True)

    def _called(self) -> NDArray[np.int32]:
        """int32 [P, T]: the classes that every path names now."""
        tree, heads = self.now.tree, self.now.heads
        assert heads is not None
        unknown = 0 if tree.null_possible else NONE
        called, ended = np.full_like(self.classes, unknown), np.zeros(len(self.classes), bool)
        for place, task in enumerate(tree.task_keys):
            column = self.classes[:, place]
            of = np.where(column >= self.now.first, heads.class_of[task][column], NONE)
            here = np.flatnonzero(~ended & (of >= self.now.first))
            above = tree.anc[task][of[here]]
            called[here, place:] = np.where(above < 0, unknown, above)
            ended[here] = True
        return called

    def of_heads(self, logits: Logits, temperature: Mapping[str, float]) -> PathProbabilities:
        """Of the classes that the heads have, whatever they are called now."""
        return super().__call__(logits, temperature)

    def __call__(
        self,
        logits: Logits,
        temperature: Mapping[str, float],
        allowed: Mapping[str, NDArray[np.bool_]] | None = None,
        class_balance: float = 0.0,
        more: NDArray[np.float64] | None = None,
    ) -> PathProbabilities:
        """See `TaxonomyPaths`; `allowed` and what comes back are of the taxa that are answered."""
        if not self.now.heads:
            return super().__call__(logits, temperature, allowed, class_balance, more)
        scores = self.scores(logits, temperature, None, class_balance, more)
        for place, task in enumerate(self.tree.task_keys if allowed is not None else ()):
            assert allowed is not None
            scores[:, ~np.append(allowed[task], True)[self.called[:, place]]] = -np.inf  # NONE is the last
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
        probability = _onto(shifted / shifted.sum(axis=1, keepdims=True), self._group, len(self._classes))
        by_task = {}
        for place, task in enumerate(self.tree.task_keys):
            classes = self._classes[:, place]
            of_class = _onto(
                probability, np.maximum(classes, 0), len(self.now.classes[task]), classes >= self.now.first
            )
            if self.tree.null_possible:
                of_class[:, 0] = np.clip(1.0 - of_class[:, 1:].sum(axis=1), 0.0, 1.0)
            by_task[task] = np.clip(of_class, 0.0, 1.0)
        return PathProbabilities(self._classes[probability.argmax(axis=1)], by_task)


def _onto(
    values: NDArray[np.float64], group: NDArray[np.integer], count: int, counted: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """Sums [N, count] of values [N, P] by their group [P]; `counted`: those that count."""
    ones = np.ones(len(group)) if counted is None else counted.astype(np.float64)
    return np.asarray(values @ csr_array((ones, (np.arange(len(group)), group)), shape=(len(group), count)))
