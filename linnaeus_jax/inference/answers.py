"""From logits to what is said of every picture."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, repeat
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.parallel import in_order
from linnaeus_jax.inference import conformal, reasons, sets
from linnaeus_jax.inference.bundle.bundle import Calibration
from linnaeus_jax.inference.bundle.statistics import FeatureStatistics
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.changed_paths import ChangedPaths
from linnaeus_jax.inference.novelty import AUTO, FIELDS, KINDS, Novelty, share_of
from linnaeus_jax.inference.paths import (
    NONE,
    Logits,
    check_finite,
    documented_consistency,
    log_softmax,
    some,
)
from linnaeus_jax.inference.prior import PRIOR, PRIOR_CHANGE, BoundPrior, Prior, said_of_prior
from linnaeus_jax.inference.results import Prediction, Taxon, taxon_of
from linnaeus_jax.reading.metadata import Observation

CONSISTENCY = ("path", "documented")
#: an answer is at least this probable, unless asked otherwise
MIN_CONFIDENCE = 0.5
TOP_K = 5
#: so many are looked for one after the other
FEW = 16
#: probabilities that are worked on at once, in numbers of 8 bytes
BLOCK = 1 << 19


@dataclass(frozen=True, eq=False)
class AnswerOptions:
    """What to report; made by `Answers.options`.

    Attributes:
      top_k: taxa of every rank.
      min_confidence: of the answer; of a coverage, just above its threshold.
      consistency: "path": the most probable path and probabilities that agree across ranks; "documented": every rank by
        itself, and null where it contradicts the coarser ones, as the original does.
      allowed: task -> bool [C]; None: all classes.
      always: (task, class index) of the taxa that are always reported.
      class_balance: see `TaxonomyPaths.__call__`.
      coverage: that was asked for.
      least_share: of the taxa of a set, see `sets`; None: no sets.
      prior: whether it is said what the prior of places and dates changes.
      novelty: share of false alarms, see `novelty`; None: it is not said whether a picture shows something new.
    """

    top_k: int = TOP_K
    min_confidence: float = MIN_CONFIDENCE
    consistency: str = "path"
    allowed: Mapping[str, NDArray[np.bool_]] | None = None
    always: tuple[tuple[str, int], ...] = field(default=())
    class_balance: float = 0.0
    coverage: float | None = None
    least_share: float | Sequence[float] | None = None
    prior: bool = False
    novelty: float | None = None


#: of a picture: (class, probability) of every rank, coarsest first; which of them is the answer, their number for none;
#: the most probable classes of every rank and their probabilities; probabilities of what is always reported; code of
#: the reason; the taxa of the set and how many leaves these are, None and 0 where no sets are wanted
AnsweredRow = tuple[
    list[tuple[int, float]],
    int,
    list[tuple[list[int], list[float]]],
    list[float],
    str,
    tuple[list[sets.Entry] | None, int],
]


#: one of `novelty.KINDS`; place of the task, class and probability of the taxon that it is new below; scores
NovelRow = tuple[str, sets.Entry | None, float, float]


@dataclass(frozen=True, eq=False)
class Answered:
    """What is said of N pictures, as arrays; ranks are those of the taxonomy, the finest first.

    Attributes:
      best: int32 [N, T], classes of the answers; null, or -1 where there is none, are unknown.
      probability: float64 [N, T], of these.
      given_up: bool [N, T], null only because the rank contradicted the coarser ones.
      answer: int64 [N], which rank is the deepest that is probable enough; -1: none.
      top: task -> the most probable classes, int64 [N, k], best first, and their probabilities, float64 [N, k].
      always: float64 [N, A], probabilities of `AnswerOptions.always`.
      reason: int8 [N], places in `reasons.CODES`.
      sets: object [N], lists of `sets.Entry`; [0] where no sets are wanted.
      set_size: int64 [N], leaves of each set; [0] likewise.
      prior: [N] of `PRIOR_CHANGE`; [0] where there is no prior.
      novelty: records of `novelty.FIELDS` [N]; [0] where it is not asked for.
    """

    best: NDArray[np.int32]
    probability: NDArray[np.float64]
    given_up: NDArray[np.bool_]
    answer: NDArray[np.int64]
    top: Mapping[str, tuple[NDArray[np.int64], NDArray[np.float64]]]
    always: NDArray[np.float64]
    reason: NDArray[np.int8]
    sets: NDArray[np.object_]
    set_size: NDArray[np.int64]
    prior: NDArray[Any] = field(default_factory=lambda: np.zeros(0, PRIOR_CHANGE))
    novelty: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, FIELDS))

    def rows(self, tasks: Sequence[str]) -> Iterator[AnsweredRow]:
        """Every picture as plain numbers; a rank that was given up lists null alone.

        Args:
          tasks: those of the taxonomy, the coarsest first.
        """
        path = self.best[:, ::-1].tolist(), self.probability[:, ::-1].tolist()
        given_up, always = self.given_up[:, ::-1].tolist(), self.always.tolist()
        places = (len(tasks) - 1 - self.answer).tolist()
        tops = [[array.tolist() for array in self.top[task]] for task in tasks]
        lost = ([NONE], [1.0])
        codes = [reasons.CODES[code] for code in self.reason.tolist()]
        held = zip(self.sets.tolist(), self.set_size.tolist()) if len(self.set_size) else repeat((None, 0))
        listed = list(islice(held, len(places)))
        for row, place in enumerate(places):
            top = [
                lost if gone else (classes[row], probabilities[row])
                for (classes, probabilities), gone in zip(tops, given_up[row])
            ]
            yield list(zip(path[0][row], path[1][row])), place, top, always[row], codes[row], listed[row]

    def novelties(self) -> list[NovelRow]:
        """Of every picture; a kind of "" where it is not asked for."""
        if not len(self.novelty):
            return [("", None, 0.0, 0.0)] * len(self.answer)
        return [
            (KINDS[kind], (task, index, p) if kind == 1 and task >= 0 else None, known, outside)
            for kind, task, index, p, outside, known in self.novelty.tolist()
        ]


class Answers:
    """Turns logits into predictions, by the taxonomy and the calibration of one model."""

    def __init__(
        self, taxonomy: Taxonomy, calibration: Calibration, statistics: FeatureStatistics | None = None
    ) -> None:
        self.taxonomy, self.calibration = taxonomy, calibration
        self.paths = ChangedPaths(taxonomy, calibration.path_counts)
        self.novelty: Novelty | None = None
        if statistics is not None and calibration.novelty:
            self.novelty = Novelty(self.paths, calibration, statistics)
        #: training rows of the taxa that are answered, see `TaxonomyTree.path_counts`
        self.path_counts = taxonomy.summed(calibration.path_counts)
        self.leaves = sets.Leaves(taxonomy)
        #: int64 [L], training rows of every leaf; None where they are not known
        self.trained: NDArray[np.int64] | None = None
        if self.path_counts:
            every = np.concatenate([np.asarray(self.path_counts[task], np.int64) for task in taxonomy.tasks])
            self.trained = every[self.leaves.itself]
        self.prior: BoundPrior | None = None

    def least_shares(self, least: float | Sequence[float]) -> float | NDArray[np.float64]:
        """The threshold of `Calibration.sets` of every leaf, [L], where it is one for each group."""
        if not isinstance(least, Sequence):
            return least
        assert self.trained is not None  # see `bundle.fields`
        return np.asarray(least, np.float64)[sets.group_of(self.trained, self.calibration.set_groups)]

    def with_prior(self, prior: Prior, cut: float = 0.0) -> Answers:
        """The same with a prior of places and dates; see `BoundPrior.of`."""
        same = copy.copy(self)
        same.prior = BoundPrior.of(prior, self.taxonomy, self.paths.called, cut)
        return same

    def located(self, logits: Logits, observations: Sequence[Observation]) -> Logits:
        """Logits with what the prior, if there is one, says of the places and dates of the rows."""
        return logits if self.prior is None else {**logits, PRIOR: self.prior.of_observations(observations)}

    def options(
        self,
        *,
        top_k: int = TOP_K,
        min_confidence: float = MIN_CONFIDENCE,
        consistency: str = "path",
        restrict: str | int | Iterable[str | int] | None = None,
        always_report: str | int | Iterable[str | int] = (),
        coverage: float | None = None,
        class_balance: float = 0.0,
        as_sets: bool = False,
        novelty: float | str = AUTO,
    ) -> AnswerOptions:
        """Checked options.

        Args:
          coverage: instead of `min_confidence`: answer with the finest taxon so that this share of the answers holds
            the truth; see `conformal`.
          restrict: ids or scientific names; only these taxa, what lies below them and their ancestors are reported,
            with probabilities that are normalised over them.
          always_report: taxa that are reported whatever their probability.
          class_balance: 0: taxa are as likely beforehand as in training; 1: all alike, which gives rare ones more
            answers and common ones fewer.
          as_sets: with a `coverage`: also the smallest set of taxa that holds the truth as often; see `sets`.
          novelty: say whether a picture shows a known taxon, for a share of false alarms, see `Novelty.thresholds`;
            "off": do not; "auto": for `novelty.SHARE`, where the model can.

        Raises:
          UserError: a value that cannot be, or taxa that the model does not know.
        """
        if top_k < 1:
            raise UserError(f"top_k is {top_k}; give at least 1")
        if not 0 <= min_confidence <= 1:
            raise UserError(f"min_confidence is {min_confidence:g}; give a probability between 0 and 1")
        if consistency not in CONSISTENCY:
            raise UserError(f"consistency is {consistency!r}; choose one of {', '.join(CONSISTENCY)}")
        if not 0 <= class_balance <= 1:
            raise UserError(f"class_balance is {class_balance:g}; give a number between 0 and 1")
        if class_balance and (consistency != "path" or not self.calibration.path_counts):
            raise UserError(
                "class_balance needs answers by the best path, and the training rows of each taxon, which this model "
                "does not know; bundle its run again, or leave it out"
                if consistency == "path"
                else "class_balance is of answers by the best path; leave out consistency 'documented'"
            )
        if self.prior and consistency != "path":
            raise UserError("a prior is of answers by the best path; leave out consistency 'documented'")
        least_share = None
        if as_sets and coverage is None:
            raise UserError("sets of taxa are made for a coverage; give one, such as 0.9, or ask for answers")
        if coverage is not None:
            if restrict is not None or consistency != "path" or class_balance or self.prior:
                raise UserError(
                    "coverage was measured for answers by the best path among all taxa, as common as in training; "
                    "leave out restrict, class_balance, prior, and consistency 'documented'"
                )
            known = self.calibration
            min_confidence = conformal.least_confidence(known.coverage, known.coverage_rows, coverage)
            if as_sets:
                least_share = conformal.threshold(known.sets, known.set_rows, coverage, "a set for coverage")
        allowed = None if restrict is None else self.taxonomy.allowed(restrict)
        always = tuple(dict.fromkeys(self.taxonomy.find(always_report)))
        return AnswerOptions(
            int(top_k),
            float(min_confidence),
            consistency,
            allowed,
            always,
            float(class_balance),
            coverage,
            least_share,
            self.prior is not None,
            share_of(self.novelty, novelty),
        )

    def probabilities(
        self, logits: Logits, options: AnswerOptions
    ) -> tuple[NDArray[np.int32], dict[str, NDArray[np.float64]]]:
        """The classes that are answered, int32 [N, T] with the finest rank first (-1: none), and task -> probability
        float64 [N, C] of every class. Raises NotFiniteError for logits that are not finite."""
        check_finite(logits)
        if options.consistency == "path":
            more = self.prior.scores(logits[PRIOR]) if self.prior and PRIOR in logits else None
            found = self.paths(logits, self.calibration.paths, options.allowed, options.class_balance, more)
            return found.best, found.by_task
        by_task, best = {}, []
        for task in self.taxonomy.tasks:
            allowed = slice(None) if options.allowed is None else self.taxonomy.columns(task, options.allowed[task])
            of_task = np.zeros(logits[task].shape)
            if of_task[:, allowed].size:  # none is allowed where there is no null and all are orphans of finer ranks
                of_task[:, allowed] = np.exp(log_softmax(logits[task][:, allowed], self.calibration.ranks[task]))
            by_task[task] = of_task = self.taxonomy.summed({task: of_task})[task]
            best.append(np.where(of_task.any(axis=1), of_task.argmax(axis=1), NONE))
        return np.stack(best, axis=1).astype(np.int32), by_task

    def answered(self, logits: Logits, options: AnswerOptions) -> Answered:
        """What is said of every row of the logits, as arrays.

        Of many classes, a few rows are taken at a time, by threads: in a whole batch every operation would go through
        memory.
        """
        rows = max(1, BLOCK // sum(len(self.taxonomy.classes[task]) for task in self.taxonomy.tasks))
        count = len(next(iter(logits.values())))
        blocks = (slice(start, start + rows) for start in range(0, count, rows))
        if rows >= count:
            return self._answered(logits, options)

        def of_block(block: slice) -> Answered:
            return self._answered({task: z[block] for task, z in logits.items()}, options)

        parts = [vars(part) for part in in_order(of_block, blocks)]
        return Answered(**jax.tree.map(lambda *pieces: np.concatenate(pieces), *parts))

    def _answered(self, logits: Logits, options: AnswerOptions) -> Answered:
        best, by_task = self.probabilities(logits, options)
        tasks, every = self.taxonomy.tasks, np.arange(len(best))
        given_up = np.zeros(best.shape, bool)
        if options.consistency == "documented" and self.taxonomy.tree.null_possible:
            given_up = documented_consistency(self.taxonomy.tree, best)
        contradicting = given_up & (best >= self.taxonomy.first)  # null below a taxon is given up, too
        best = np.where(given_up, 0, best).astype(np.int32)
        probability = np.stack([by_task[task][every, best[:, t]] for t, task in enumerate(tasks)], axis=1)
        probability[given_up] = 1.0
        if not self.taxonomy.tree.null_possible:  # what is left for no class of a rank
            nothing = np.stack([np.maximum(1.0 - by_task[task].sum(axis=1), 0.0) for task in tasks], axis=1)
            probability = np.where(best < 0, nothing, probability)
        good = (best >= self.taxonomy.first) & (probability >= options.min_confidence)
        answer = np.where(good.any(axis=1), good.argmax(axis=1), -1)  # the finest one stands first
        top = {}
        for task in tasks:
            listed = None if options.allowed is None else np.flatnonzero(options.allowed[task])
            index = best_first(by_task[task] if listed is None else by_task[task][:, listed], options.top_k)
            index = index if listed is None else listed[index]
            top[task] = (index, np.take_along_axis(by_task[task], index, axis=1))
        always = [by_task[task][:, index] for task, index in options.always]
        held: NDArray[np.object_] = np.zeros(0, object)
        size = np.zeros(0, np.int64)
        if options.least_share is not None:
            inside = sets.inside(self.leaves.shares(by_task), self.least_shares(options.least_share))
            held, size = np.empty(len(best), object), inside.sum(axis=1)
            for row, entries in enumerate(self.leaves.written(inside, by_task)):  # of one length they would be a table
                held[row] = entries
        return Answered(
            best,
            probability,
            given_up,
            answer,
            top,
            np.stack(always, axis=1) if always else np.zeros((len(best), 0)),
            self._reasons(logits, options, best, contradicting, answer),
            held,
            size,
            self._changed(logits, options, best, answer) if PRIOR in logits else np.zeros(0, PRIOR_CHANGE),
            self._novel(logits, options.novelty),
        )

    def _novel(self, logits: Logits, share: float | None) -> NDArray[np.void]:
        """Records of `FIELDS`; [0] where it is not asked for, or there are no features."""
        if share is None or self.novelty is None or not self.novelty.can_judge(logits):
            return np.zeros(0, FIELDS)
        return self.novelty(logits, share)

    def _changed(
        self, logits: Logits, options: AnswerOptions, best: NDArray[np.int32], answer: NDArray[np.int64]
    ) -> NDArray[Any]:
        """`PRIOR_CHANGE` of every row: the answer without the prior, and why it is another."""
        assert self.prior is not None
        ratios, every = logits[PRIOR], np.arange(len(best))
        plain, by_task = self.probabilities({task: z for task, z in logits.items() if task != PRIOR}, options)
        each = [by_task[task][every, plain[:, t]] for t, task in enumerate(self.taxonomy.tasks)]
        good = (plain >= self.taxonomy.first) & (np.stack(each, axis=1) >= options.min_confidence)
        found = np.zeros(len(best), PRIOR_CHANGE)
        found["known"] = ratios.any(axis=1)
        found["rank"] = np.where(good.any(axis=1), good.argmax(axis=1), -1)
        found["times"] = 1.0
        for t, task in enumerate(self.taxonomy.tasks):
            now, then = answer == t, found["rank"] == t
            found["before"][now] = by_task[task][now, best[now, t]]
            found["times"][now, 0] = self.prior.times(ratios[now], task, best[now, t])
            found["index"][then], found["probability"][then] = plain[then, t], each[t][then]
            found["times"][then, 1] = self.prior.times(ratios[then], task, plain[then, t])
        return found

    def _reasons(
        self,
        logits: Logits,
        options: AnswerOptions,
        best: NDArray[np.int32],
        contradicting: NDArray[np.bool_],
        answer: NDArray[np.int64],
    ) -> NDArray[np.int8]:
        """Places in `reasons.CODES`, see `Answered`."""
        first, width = self.taxonomy.first, best.shape[1]
        finer = np.arange(width) < np.where(answer < 0, width, answer)[:, None]
        named = (finer & (best >= first)).any(axis=1)
        end = np.where(np.arange(width) >= np.maximum(answer, 0)[:, None], best, NONE)
        below = reasons.LOW_PROBABILITY if options.coverage is None else reasons.COVERAGE
        code = reasons.CODES.index
        found = np.full(len(best), code(reasons.UNIDENTIFIED))
        found[(answer >= 0) & (self.leaves.of(end) >= 0)] = code(reasons.NO_CLASS_BELOW)
        found[named] = code(below)
        found[(finer & contradicting).any(axis=1)] = code(reasons.CONTRADICTION)
        found[answer == 0] = 0
        rows = np.flatnonzero(answer != 0)
        if options.allowed is not None and len(rows):
            free, _ = self.probabilities(some(logits, rows), replace(options, allowed=None))
            out = [~np.append(options.allowed[task], True)[free[:, t]] for t, task in enumerate(self.taxonomy.tasks)]
            found[rows[(finer[rows] & np.stack(out, axis=1)).any(axis=1)]] = code(reasons.RESTRICTED)
        return found.astype(np.int8)

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
        return self.predictions(self.answered(logits, options), options, inputs, notes)

    def predictions(
        self,
        answered: Answered,
        options: AnswerOptions,
        inputs: Sequence[tuple[str, ...]] | None = None,
        notes: Sequence[tuple[str, ...]] | None = None,
    ) -> list[Prediction]:
        """The rows of `answered` with names."""
        tasks = self.taxonomy.tasks[::-1]
        found, novel = [], answered.novelties()
        for row, (path, place, tops, always, code, (listed, size)) in enumerate(answered.rows(tasks)):
            taxa = tuple(self.taxon(task, *each) for task, each in zip(tasks, path, strict=True))
            top = {
                self.taxonomy.ranks[task]: tuple(map(self.taxon, repeat(task), *each))
                for task, each in zip(tasks, tops, strict=True)
            }
            answer = taxa[place] if place < len(taxa) else None
            fixed = tuple(self.taxon(*where, p) for where, p in zip(options.always, always, strict=True))
            said = inputs[row] if inputs else (), notes[row] if notes else ()
            why = reasons.text(code, answer.rank if answer else "", options.min_confidence, options.coverage)
            members = None if listed is None else tuple(self.taxon(tasks[~at], i, p) for at, i, p in listed)
            prior = (
                said_of_prior(self.taxonomy, answered.prior[row], answered.answer[row], answered.best[row])
                if len(answered.prior)
                else (None, None)
            )
            kind, below, *scores = novel[row]
            parent = None if below is None else self.taxon(tasks[~below[0]], *below[1:])
            new = (kind, parent, *scores)
            found.append(Prediction(taxa, top, answer, fixed, *said, code, why, members, size, *prior, *new))
        return found

    def taxon(self, task: str, index: int, probability: float) -> Taxon:
        """A class as it is reported; an index of -1 is unknown, as class 0 is where it is null."""
        return taxon_of(self.taxonomy, task, index, probability)


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
