"""Probabilities that agree across ranks: a distribution over the paths of the taxonomy.

A path names a class of every rank: a taxon, its ancestors, and null ("unknown") at the finer ranks. Every rank is
evidence about the path, p_t(c) = softmax(z_t) over the taxa of rank t, beside what was known before, the share of the
training rows of each path (Bayes' rule with one likelihood ratio for each rank):

    log P(path) = log prior(path) + sum over ranks of (log p_t(c_t) - log pi_t(c_t)) / temperature_t + constant

- prior: training rows of the path plus `SEEN`, of those that end above a taxon's children plus `ENDED`;
- pi_t(c): the prior of all paths through c among those that name a taxon of rank t;
- a rank at which the path names no taxon adds nothing. If the path ends at a taxon without any child, as a family does
  whose images all have no species, the rank says what the taxon's own rank says: the finer head knows nothing of such
  images and would name a species of another family;
- 1 / temperature_t is the weight of a rank: ranks that say the same are no independent evidence.

Models whose training rows are not known (of weights from elsewhere, and of bundles of earlier versions, which answer
as they did) multiply what the ranks say, softmax(z_t / temperature_t) over all classes:

- of a taxon, its probability;
- of null below a taxon, the probability of null times the share that the taxon's descendants have in the probability
  of all taxa of that rank, without which paths that end early would be the refuge from ranks that contradict each
  other;
- of null where nothing is known above either, the probability of null;
- of no class where a rank has no null, 1/C.

Where null cannot stand below a taxon (`TaxonomyTree.null_below`), there are no such paths.

The probability of a taxon is the sum over the paths through it, so that it never exceeds that of its ancestors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference import reasons
from linnaeus_jax.taxonomy.tree import TaxonomyTree

Logits = Mapping[str, NDArray[np.floating[Any]]]
#: in place of a rank: what is known of every path beside the prior, float64 [N, P], see `pooling`
EVIDENCE = "evidence"
#: what stands for a class where a path has none at a rank
NONE = -1
#: of the share of a taxon's descendants, what is spread evenly over the taxa of its rank: the model may not know them
EVEN_SHARE = 0.01
#: training rows that are added to those of every path, and to those of a path that ends above the children of its taxon
SEEN, ENDED = 0.5, 0.01
#: why an image has no answer
NOT_FINITE = reasons.text(reasons.NOT_FINITE)


class NotFiniteError(UserError):
    """Rows whose outputs hold NaN or infinity, which are never an answer."""

    reason = reasons.NOT_FINITE


def finite_rows(logits: Logits) -> NDArray[np.bool_]:
    """bool [N]: rows of logits [N, C] by task that are finite at every rank."""
    rows: NDArray[np.bool_] = np.logical_and.reduce([np.isfinite(z).all(axis=1) for z in logits.values()])
    return rows


def some(logits: Logits, rows: NDArray[np.integer | np.bool_]) -> dict[str, NDArray[np.float32]]:
    """Logits of some rows."""
    return {task: z[rows] for task, z in logits.items()}


def check_finite(logits: Logits) -> None:
    """Raises NotFiniteError for logits [N, C] by task that are not all finite."""
    finite = finite_rows(logits)
    if not finite.all():
        raise NotFiniteError(f"{np.count_nonzero(~finite)} of {len(finite)} rows: {NOT_FINITE}")


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

    Args:
      counts: of the training rows, see `TaxonomyTree.path_counts`; empty where they are not known.

    Attributes:
      classes: int32 [P, T], finest rank first; 0 is null where there is one, NONE where a path has no class.
      spans: task -> first and last path (excluded) of every class, int64 [C] each.
      log_prior: float64 [P], 0 where the training rows are not known.
      log_share: of each rank float64 [taxa], shares of the prior; empty where the training rows are not known.
    """

    def __init__(self, tree: TaxonomyTree, counts: Mapping[str, Sequence[int]] | None = None) -> None:
        self.tree = tree
        unknown = 0 if tree.null_possible else NONE
        parts = []
        for place, task in enumerate(tree.task_keys):
            ends = np.arange(int(tree.null_possible), tree.num_classes[task])
            if place and not (tree.null_possible and tree.null_below):  # only taxa without children are ends
                ends = np.setdiff1d(ends, tree.parent[tree.task_keys[place - 1]])
            chain = np.where(tree.anc[task][ends] < 0, unknown, tree.anc[task][ends])
            parts.append(np.hstack([np.full((len(ends), place), unknown, np.int32), chain]))
        if tree.null_possible:
            parts.append(np.zeros((1, len(tree.task_keys)), np.int32))
        classes = np.concatenate(parts).astype(np.int32)
        # the paths through a taxon lie side by side, since its ancestors come first in the order
        self.classes: NDArray[np.int32] = classes[np.lexsort(classes.T)]
        self.spans = {task: self._span(place, task) for place, task in enumerate(tree.task_keys)}
        self.log_prior = np.zeros(len(self.classes))
        self.log_share: list[NDArray[np.float64]] = []
        self._column: list[NDArray[np.int64]] = []
        # of every rank, the coarser ranks that speak in its place, and of which paths
        self._childless: list[list[tuple[int, NDArray[np.int64]]]] = []
        self._unknown_below: list[list[tuple[csr_array, NDArray[np.int64], NDArray[np.int32]]]] = []
        if counts:
            self._set_prior(counts)
        else:
            self._unknown_below = [self._unknown(place) for place in range(len(tree.task_keys))]

    def _set_prior(self, counts: Mapping[str, Sequence[int]]) -> None:
        tree, first = self.tree, int(self.tree.null_possible)
        known = self.classes >= first
        end = np.where(known.any(axis=1), known.argmax(axis=1), 0)
        rows, ends = np.zeros(len(self.classes)), []
        for place, task in enumerate(tree.task_keys):
            here = np.flatnonzero(end == place)
            taxa, childless = self.classes[here, place], known[here, place]
            if place:
                childless &= ~np.isin(taxa, tree.parent[tree.task_keys[place - 1]])
            rows[here] = np.asarray(counts[task])[taxa] + np.where(childless, SEEN, ENDED)
            ends.append(here[childless])
        self.log_prior = np.log(rows / rows.sum())
        for task in tree.task_keys:
            start, stop = (each[first:] for each in self.spans[task])
            through = np.diff(np.concatenate([[0.0], np.cumsum(rows)])[np.stack([start, stop])], axis=0)[0]
            named = np.maximum(through, ENDED)  # a class that no path names
            self.log_share.append(np.log(named / named.sum()))
        self._column = [
            np.where(self.classes[:, place] >= first, self.classes[:, place] - first, len(share))
            for place, share in enumerate(self.log_share)
        ]
        self._childless = [
            [(coarser, paths) for coarser, paths in enumerate(ends) if coarser > place and len(paths)]
            for place in range(len(ends))
        ]

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
        class_balance: float = 0.0,
        more: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Unnormalised log-probabilities [N, P]; -inf for paths with a class that is not `allowed`."""
        total = np.tile((1 - class_balance) * self.log_prior, (len(next(iter(logits.values()))), 1))
        if more is not None:
            total += more
        if EVIDENCE in logits:
            total += logits[EVIDENCE]
        for place, task in enumerate(self.tree.task_keys):
            if EVIDENCE not in logits:
                total += self.rank_scores(place, logits, temperature[task])
            if allowed is not None:
                total[:, ~np.append(allowed[task], True)[self.classes[:, place]]] = -np.inf  # NONE is the last
        return total

    def rank_scores(self, place: int, logits: Logits, temperature: float) -> NDArray[np.float64]:
        """What one rank says of every path: float64 [N, P] from logits [N, C] by task."""
        if self.log_share:
            scores = self._evidence(place, logits)[:, self._column[place]]
            for coarser, paths in self._childless[place]:
                scores[:, paths] = self._evidence(coarser, logits)[:, self._column[coarser][paths]]
            return np.asarray(scores / temperature, np.float64)
        log_p = log_softmax(logits[self.tree.task_keys[place]], temperature)
        nothing = np.full((len(log_p), 1), -np.log(log_p.shape[1]))
        # NONE is the last; np.take is several times faster than the same by indexing
        scores = np.take(np.concatenate([log_p, nothing], axis=1), self.classes[:, place], axis=1, mode="wrap")
        ends = self._unknown_below[place]
        of_taxa = np.exp(log_softmax(log_p[:, 1:])) if ends else log_p
        for below, paths, above in ends:
            share = of_taxa @ below
            even = 1 / max(below.shape[1] - 1, 1)
            scores[:, paths] += np.log((1 - EVEN_SHARE) * share + EVEN_SHARE * even)[:, above]
        return scores

    def weights(self, temperature: Mapping[str, float]) -> list[NDArray[np.float64]]:
        """Of each rank float64 [P]: how much its evidence counts in each path, where the training rows are known."""
        inverse = [1 / temperature[task] for task in self.tree.task_keys]
        found = [np.full(len(self.classes), weight) for weight in inverse]
        for place, childless in enumerate(self._childless):
            for coarser, paths in childless:
                found[coarser][paths] += inverse[place]
        return found

    def _evidence(self, place: int, logits: Logits) -> NDArray[np.float64]:
        """log p - log pi of every taxon of a rank, float64 [N, taxa + 1]; the last is 0, of no taxon."""
        z, log_share = logits[self.tree.task_keys[place]], self.log_share[place]
        ratios = np.zeros((len(z), len(log_share) + 1))
        if len(log_share):
            ratios[:, :-1] = log_softmax(z[:, int(self.tree.null_possible) :]) - log_share
        return ratios

    def _unknown(self, place: int) -> list[tuple[csr_array, NDArray[np.int64], NDArray[np.int32]]]:
        """Where a rank is null below a taxon, for every coarser rank of that taxon: bool [C - 1, C of that rank], the
        descendants of its taxa; the paths; and their taxon there."""
        found = []
        tree = self.tree
        for coarser in range(place + 1, len(tree.task_keys) if tree.null_possible else 0):
            ends = (self.classes[:, place:coarser] == 0).all(axis=1) & (self.classes[:, coarser] > 0)
            paths = np.flatnonzero(ends)
            ancestor = tree.anc[tree.task_keys[place]][1:, coarser - place]
            if not len(paths) or not len(ancestor):
                continue
            taxa = np.flatnonzero(ancestor > 0)
            shape = len(ancestor), tree.num_classes[tree.task_keys[coarser]]
            below = csr_array((np.ones(len(taxa)), (taxa, ancestor[taxa])), shape=shape)
            found.append((below, paths, self.classes[paths, coarser]))
        return found

    def __call__(
        self,
        logits: Logits,
        temperature: Mapping[str, float],
        allowed: Mapping[str, NDArray[np.bool_]] | None = None,
        class_balance: float = 0.0,
        more: NDArray[np.float64] | None = None,
    ) -> PathProbabilities:
        """Probabilities of logits float32 [N, C] by task.

        Args:
          allowed: task -> bool [C]; the probabilities are of what it allows.
          class_balance: by how much paths are as likely as each other beforehand, instead of as in training (0), to 1;
            the logits adjusted by the counts of the classes (Menon et al., 2021).
          more: what is added to the scores, float64 [N, P], see `prior`.
        """
        scores = self.scores(logits, temperature, allowed, class_balance, more)
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
        probability = shifted / shifted.sum(axis=1, keepdims=True)
        summed = np.concatenate([np.zeros((len(scores), 1)), np.cumsum(probability, axis=1)], axis=1)
        by_task = {}
        for task, (start, stop) in self.spans.items():
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
