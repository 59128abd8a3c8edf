"""From logits to what is said of every picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.bundle import Calibration
from linnaeus_jax.inference.paths import NONE, Logits, TaxonomyPaths, documented_consistency, log_softmax
from linnaeus_jax.inference.results import Prediction, Taxon
from linnaeus_jax.inference.taxonomy import Taxonomy

CONSISTENCY = ("path", "documented")
#: an answer is at least this probable, unless asked otherwise
MIN_CONFIDENCE = 0.5
TOP_K = 5
#: so many are looked for one after the other
FEW = 16


@dataclass(frozen=True, eq=False)
class AnswerOptions:
    """What to report; made by `Answers.options`.

    Attributes:
      top_k: taxa of every rank.
      min_confidence: of the answer.
      consistency: "path": the most probable path and probabilities that agree across ranks; "documented": every rank by
        itself, and null where it contradicts the coarser ones, as the original does.
      allowed: task -> bool [C]; None: all classes.
      always: (task, class index) of the taxa that are always reported.
    """

    top_k: int = TOP_K
    min_confidence: float = MIN_CONFIDENCE
    consistency: str = "path"
    allowed: Mapping[str, NDArray[np.bool_]] | None = None
    always: tuple[tuple[str, int], ...] = field(default=())


class Answers:
    """Turns logits into predictions, by the taxonomy and the calibration of one model."""

    def __init__(self, taxonomy: Taxonomy, calibration: Calibration) -> None:
        self.taxonomy, self.calibration = taxonomy, calibration
        self._paths = TaxonomyPaths(taxonomy.tree)

    def options(
        self,
        *,
        top_k: int = TOP_K,
        min_confidence: float = MIN_CONFIDENCE,
        consistency: str = "path",
        restrict: str | int | Iterable[str | int] | None = None,
        always_report: str | int | Iterable[str | int] = (),
    ) -> AnswerOptions:
        """Checked options.

        Args:
          restrict: ids or scientific names; only these taxa, what lies below them and their ancestors are reported,
            with probabilities that are normalised over them.
          always_report: taxa that are reported whatever their probability.

        Raises:
          UserError: a value that cannot be, or taxa that the model does not know.
        """
        if top_k < 1:
            raise UserError(f"top_k is {top_k}; give at least 1")
        if not 0 <= min_confidence <= 1:
            raise UserError(f"min_confidence is {min_confidence:g}; give a probability between 0 and 1")
        if consistency not in CONSISTENCY:
            raise UserError(f"consistency is {consistency!r}; choose one of {', '.join(CONSISTENCY)}")
        allowed = None if restrict is None else self.taxonomy.allowed(restrict)
        always = tuple(dict.fromkeys(self.taxonomy.find(always_report)))
        return AnswerOptions(int(top_k), float(min_confidence), consistency, allowed, always)

    def probabilities(
        self, logits: Logits, options: AnswerOptions
    ) -> tuple[NDArray[np.int32], dict[str, NDArray[np.float64]]]:
        """The classes that are answered, int32 [N, T] with the finest rank first (-1: none), and task -> probability
        float64 [N, C] of every class."""
        if options.consistency == "path":
            found = self._paths(logits, self.calibration.paths, options.allowed)
            return found.best, found.by_task
        by_task, best = {}, []
        for task in self.taxonomy.tasks:
            allowed = slice(None) if options.allowed is None else np.flatnonzero(options.allowed[task])
            of_task = np.zeros(logits[task].shape)
            if of_task[:, allowed].size:  # none is allowed where there is no null and all are orphans of finer ranks
                of_task[:, allowed] = np.exp(log_softmax(logits[task][:, allowed], self.calibration.ranks[task]))
            by_task[task] = of_task
            best.append(np.where(of_task.any(axis=1), of_task.argmax(axis=1), NONE))
        return np.stack(best, axis=1).astype(np.int32), by_task

    def __call__(
        self,
        logits: Logits,
        options: AnswerOptions,
        inputs: Sequence[tuple[str, ...]] | None = None,
        notes: Sequence[tuple[str, ...]] | None = None,
    ) -> list[Prediction]:
        """One prediction per row of the logits.

        Args:
          inputs, notes: of every row, see `Prediction`.
        """
        best, by_task = self.probabilities(logits, options)
        count = len(best)
        top = {task: best_first(by_task[task], options.top_k) for task in self.taxonomy.tasks}
        given_up = np.zeros(best.shape, bool)
        if options.consistency == "documented" and self.taxonomy.tree.null_possible:
            given_up = documented_consistency(self.taxonomy.tree, best)
        return [
            self._prediction(
                row,
                best[row],
                given_up[row],
                by_task,
                top,
                options,
                inputs[row] if inputs else (),
                notes[row] if notes else (),
            )
            for row in range(count)
        ]

    def _prediction(
        self,
        row: int,
        best: NDArray[np.int32],
        given_up: NDArray[np.bool_],
        by_task: Mapping[str, NDArray[np.float64]],
        top: Mapping[str, NDArray[np.int64]],
        options: AnswerOptions,
        inputs: tuple[str, ...],
        notes: tuple[str, ...],
    ) -> Prediction:
        path: list[Taxon] = []
        tops: dict[str, tuple[Taxon, ...]] = {}
        answer = None
        for place in range(len(best) - 1, -1, -1):
            task, index = self.taxonomy.tasks[place], int(best[place])
            if given_up[place]:
                taxon = self.taxon(task, 0, 1.0)
                tops[taxon.rank] = (taxon,)
            else:
                probability = by_task[task][row]
                nothing = max(0.0, 1.0 - float(probability.sum()))  # no class of that rank
                taxon = self.taxon(task, index, float(probability[index]) if index >= 0 else nothing)
                listed = [int(i) for i in top[task][row] if options.allowed is None or options.allowed[task][i]]
                tops[taxon.rank] = tuple(self.taxon(task, i, float(probability[i])) for i in listed)
            path.append(taxon)
            if taxon.known and taxon.probability >= options.min_confidence:
                answer = taxon
        always = tuple(self.taxon(task, i, float(by_task[task][row, i])) for task, i in options.always)
        return Prediction(tuple(path), tops, answer, always, inputs, notes)

    def taxon(self, task: str, index: int, probability: float) -> Taxon:
        """A class as it is reported; an index of -1 is unknown, as class 0 is where it is null."""
        rank = self.taxonomy.ranks[task]
        if index < self.taxonomy.first:
            return Taxon(rank, 0, "", "", probability)
        names = self.taxonomy.names
        return Taxon(
            rank,
            int(names.classes[task][index]),
            str(names.name[task][index]),
            str(names.common_name[task][index]),
            probability,
        )


def best_first(probability: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Indices [N, min(count, C)] of the largest of [N, C], largest first, the first one on a tie."""
    count = min(count, probability.shape[1])
    if count > FEW:
        return np.argsort(-probability, axis=1, kind="stable")[:, :count]
    left, rows = probability.copy(), np.arange(len(probability))
    best = np.empty((len(probability), count), np.int64)
    for place in range(count):  # faster than sorting or partitioning, which move all the others too
        best[:, place] = left.argmax(axis=1)
        left[rows, best[:, place]] = -np.inf
    return best
