"""Temperatures of a model from rows with known labels, and how good its probabilities are with them.

A temperature divides the logits of a rank (Guo et al. 2017, On Calibration of Modern Neural Networks). `ranks` has one
for every rank by itself; `paths` has those of the product over a path (`paths.py`), which are also the weights that the
ranks have in it, and are fitted together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle import Calibration
from linnaeus_jax.inference.paths import Logits, TaxonomyPaths, log_softmax
from linnaeus_jax.inference.taxonomy import Taxonomy
from linnaeus_jax.metrics.extras import CALIBRATION_BINS, ranked, risk_coverage

#: temperatures are sought between these
LOWEST, HIGHEST = 0.01, 100.0
#: standard deviations of the priors of log T; chosen on halves of a validation set of 1200 rows
RANK_SPREAD, PATH_SPREAD = 0.06, 0.5
#: numbers of a matrix rows x classes that is computed at once
CHUNK = 1 << 22
#: the least probability of a label that counts, so that none costs infinitely much
TINY = 1e-12
#: of the logarithm of a temperature, for differences, whose error is about as large
STEP = 1e-6
#: temperatures of paths are fitted on so many rows x paths, but at least on so many rows; four numbers need no more
MOST_NUMBERS, LEAST_ROWS = 1 << 24, 200
#: change of the loss, relative to it, at which a fit ends
ENOUGH = 1e-6
#: loss and its gradient by the logarithms of the temperatures
Objective = Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]]


def fit(logits: Logits, labels: NDArray[np.integer], taxonomy: Taxonomy) -> Calibration:
    """Temperatures under which the labels are most probable.

    What is minimised is the sum of -log p over the rows and the ranks at which they are labelled, plus a prior: log T
    is normal around log T0, that of `Calibration.none`. It counts little beside thousands of rows, but keeps
    temperatures finite where there are few rows, and near T0 where a handful of errors would decide. A rank without
    labels keeps T0 for itself. Paths of many classes are fitted on a random part of the rows.

    Args:
      logits: task -> float32 [N, C].
      labels: int [N, T], class indices with the finest rank first; null is no label.

    Returns:
      Temperatures under which the rows that they were fitted on are at least as probable as under `Calibration.none`.
    """
    tasks = taxonomy.tasks
    start = Calibration.none(tasks)
    known = labelled(labels, taxonomy)
    if not known.any():
        return start
    ranks = {}
    for place, task in enumerate(tasks):
        rows = known[:, place]
        of_rank = _rank_objective(np.asarray(logits[task])[rows], labels[rows, place])
        ranks[task] = float(_minimised(of_rank, np.array([start.ranks[task]]), RANK_SPREAD)[0])
    of_paths = _path_objective(logits, labels, taxonomy)
    paths = _minimised(of_paths, np.array([start.paths[task] for task in tasks]), PATH_SPREAD)
    return Calibration(ranks, dict(zip(tasks, paths.tolist(), strict=True)), int(known.any(axis=1).sum()))


def labelled(labels: NDArray[np.integer], taxonomy: Taxonomy) -> NDArray[np.bool_]:
    """bool [N, T]: the label is a taxon."""
    return np.asarray(labels) >= taxonomy.first


def _minimised(objective: Objective, start: NDArray[np.float64], spread: float) -> NDArray[np.float64]:
    """Temperatures of the least objective with its prior, or `start` where none is better."""
    from scipy.optimize import minimize

    def penalised(log_t: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, gradient = objective(log_t)
        away = log_t - np.log(start)
        return value + 0.5 * float(away @ away) / spread**2, gradient + away / spread**2

    bounds = [(np.log(LOWEST), np.log(HIGHEST))] * len(start)
    found = minimize(penalised, np.log(start), jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": ENOUGH})
    better = np.isfinite(found.fun) and found.fun <= penalised(np.log(start))[0]
    return np.exp(np.asarray(found.x, np.float64)) if better else start


def _rank_objective(logits: NDArray[np.float32], label: NDArray[np.integer]) -> Objective:
    """-log p of the labels of one rank: logits [n, C], label [n]."""

    def objective(log_t: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, slope, beta = 0.0, 0.0, float(np.exp(-log_t[0]))
        for rows in _chunks(*logits.shape):
            z = np.asarray(logits[rows], np.float64)
            log_p = log_softmax(z * beta)
            at_label = np.arange(len(z)), label[rows]
            value -= float(log_p[at_label].sum())
            # d(-log p)/d(log T) = beta (z[label] - sum of p z)
            slope += beta * float(z[at_label].sum() - (np.exp(log_p) * z).sum())
        return value, np.array([slope])

    return objective


def _path_objective(logits: Logits, labels: NDArray[np.integer], taxonomy: Taxonomy) -> Objective:
    """-log of the probability that the paths give to the labels, summed over the labelled ranks."""
    paths, tasks = TaxonomyPaths(taxonomy.tree), taxonomy.tasks
    labels, known = np.asarray(labels), labelled(labels, taxonomy)
    used = np.flatnonzero(known.any(axis=1))
    most = max(LEAST_ROWS, MOST_NUMBERS // len(paths.classes))
    if len(used) > most:
        used = np.random.default_rng(0).choice(used, most, replace=False)

    def objective(log_t: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        temperature = dict(zip(tasks, np.exp(log_t).tolist(), strict=True))
        value, slope = 0.0, np.zeros(len(tasks))
        for part in _chunks(len(used), len(paths.classes)):
            rows = used[part]
            some = {task: np.asarray(logits[task])[rows] for task in tasks}
            terms = [paths.rank_scores(place, some[task], t) for place, (task, t) in enumerate(temperature.items())]
            scores = np.sum(terms, axis=0)
            slopes = [  # d(score)/d(log temperature)
                (paths.rank_scores(place, some[task], t * np.exp(STEP)) - terms[place]) / STEP
                for place, (task, t) in enumerate(temperature.items())
            ]
            everything, mean = _log_sum(scores, slopes)
            for place, task in enumerate(tasks):
                start, stop = paths.spans[task]
                for label, where in _groups(labels[rows, place], known[rows, place]):
                    if start[label] == stop[label]:
                        continue  # no path names this class
                    span = np.s_[where, start[label] : stop[label]]
                    inside, mean_inside = _log_sum(scores[span], [each[span] for each in slopes])
                    value += float((everything[where] - inside).sum())
                    slope += (mean[:, where] - mean_inside).sum(axis=1)
        return value, slope

    return objective


def _log_sum(
    scores: NDArray[np.float64], slopes: Sequence[NDArray[np.float64]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """log of the sum of exp(scores) over [n, P], and its slopes [T, n] from those of the scores."""
    highest = scores.max(axis=1, keepdims=True)
    weight = np.exp(scores - highest)
    total = weight.sum(axis=1)
    return highest[:, 0] + np.log(total), np.stack([(weight * each).sum(axis=1) / total for each in slopes])


def _groups(label: NDArray[np.integer], known: NDArray[np.bool_]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Every label that is known, with its rows."""
    order = np.flatnonzero(known)
    order = order[np.argsort(label[order], kind="stable")]
    starts = np.flatnonzero(np.diff(label[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        if len(rows):
            yield int(label[rows[0]]), rows


def _chunks(rows: int, width: int) -> Iterator[slice]:
    """Slices of rows, of at most `CHUNK` numbers each."""
    step = max(1, CHUNK // max(width, 1))
    return (slice(start, start + step) for start in range(0, rows, step))


# ---- how good probabilities are


@dataclass(frozen=True, eq=False)
class Judged:
    """What was answered for N pictures with known labels; all arrays [N, T], finest rank first.

    Attributes:
      label: int32, class indices.
      known: bool, the label is a taxon.
      best: int32, the class that was answered, null or -1 where none was.
      confidence: float64, its probability; 0 where none was answered.
      of_label: float64, probability of the label; 1 where it is not known.
    """

    label: NDArray[np.int32]
    known: NDArray[np.bool_]
    best: NDArray[np.int32]
    confidence: NDArray[np.float64]
    of_label: NDArray[np.float64]

    @property
    def right(self) -> NDArray[np.bool_]:
        """bool [N, T]: the label is known and was answered."""
        return self.known & (self.best == self.label)

    def take(self, rows: NDArray[Any]) -> Judged:
        """Some of the rows."""
        return Judged(*(getattr(self, each.name)[rows] for each in fields(self)))


def joined(parts: Sequence[Judged]) -> Judged:
    """All rows, one part after the other."""
    return Judged(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Judged)))


def judge(logits: Logits, labels: NDArray[np.integer], answers: Answers, consistency: str = "path") -> Judged:
    """Answers by calibrated logits, task -> float32 [N, C], beside labels int [N, T].

    Args:
      consistency: "path", or "documented" for every rank by itself; see `AnswerOptions`.
    """
    taxonomy, options = answers.taxonomy, answers.options(consistency=consistency)
    label: NDArray[np.int32] = np.asarray(labels, np.int32)
    known = labelled(label, taxonomy)
    best = np.zeros(label.shape, np.int32)
    confidence, of_label = np.zeros(label.shape), np.ones(label.shape)
    for rows in _chunks(len(label), sum(taxonomy.tree.num_classes.values())):
        best[rows], by_task = answers.probabilities({task: logits[task][rows] for task in taxonomy.tasks}, options)
        for place, task in enumerate(taxonomy.tasks):
            chosen, true = best[rows, place], label[rows, place]
            line = np.arange(len(true))
            confidence[rows, place] = np.where(chosen >= 0, by_task[task][line, chosen], 0.0)
            of_label[rows, place] = np.where(known[rows, place], by_task[task][line, true], 1.0)
    return Judged(label, known, best, confidence, of_label)


def accuracy(judged: Judged) -> NDArray[np.float64]:
    """Share of the labelled rows that are answered rightly, [T]; NaN at a rank without labels."""
    return _share(judged.right.sum(axis=0), judged.known.sum(axis=0))


def nll(judged: Judged) -> NDArray[np.float64]:
    """Mean of -log of the label's probability, in nats, over the labelled rows, [T]; NaN at a rank without labels."""
    cost = -np.log(np.maximum(judged.of_label, TINY))
    return _share(np.where(judged.known, cost, 0.0).sum(axis=0), judged.known.sum(axis=0))


def reliability(judged: Judged, place: int) -> NDArray[np.float64]:
    """Mean confidence, accuracy and rows [bins, 3] of the bins (low, high] of confidence at a rank that hold rows."""
    known = judged.known[:, place]
    confidence, right = judged.confidence[known, place], judged.right[known, place]
    level = np.clip(np.ceil(confidence * CALIBRATION_BINS).astype(int) - 1, 0, CALIBRATION_BINS - 1)
    count, of_right, of_confidence = (
        np.bincount(level, weights, CALIBRATION_BINS) for weights in (None, right, confidence)
    )
    held = count > 0
    return np.stack([of_confidence[held] / count[held], of_right[held] / count[held], count[held]], axis=1)


def ece(judged: Judged) -> NDArray[np.float64]:
    """Expected calibration error over the labelled rows, in the bins of `metrics.extras`, [T]; NaN without labels."""
    errors = []
    for place in range(judged.label.shape[1]):
        confidence, right, rows = reliability(judged, place).T
        errors.append(float(rows @ np.abs(confidence - right)) / rows.sum() if len(rows) else np.nan)
    return np.array(errors)


def coverage_and_risk(judged: Judged, place: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Share of the labelled rows of a rank that is answered, and errors among them, the most confident rows first."""
    known = judged.known[:, place]
    confidence = judged.confidence[known, place]
    return risk_coverage(*ranked(np.where(judged.right[known, place], confidence, -confidence)))


def roll_up(judged: Judged, thresholds: Sequence[float], first: int) -> list[RollUp]:
    """What answering at the deepest rank above a threshold gives, for every threshold.

    An answer below the finest label is judged where the label is: as right if its ancestor there is. One without a
    label at its rank or above is not judged.

    Args:
      first: index of the first class that is a taxon, `Taxonomy.first`.
    """
    found = []
    for threshold in thresholds:
        sure = (judged.best >= first) & (judged.confidence >= threshold)
        deepest = np.where(sure.any(axis=1), sure.argmax(axis=1), sure.shape[1])
        judgeable = judged.known & (np.arange(sure.shape[1]) >= deepest[:, None])
        at = judgeable.argmax(axis=1)
        can = judgeable.any(axis=1)
        wrong = can & ~judged.right[np.arange(len(at)), at]
        shares = np.bincount(deepest, minlength=sure.shape[1] + 1) / max(len(deepest), 1)
        error = float(wrong.sum() / can.sum()) if can.any() else float("nan")
        found.append(RollUp(float(threshold), tuple(shares[:-1].tolist()), float(shares[-1]), error))
    return found


@dataclass(frozen=True)
class RollUp:
    """Answers at one `min_confidence`.

    Attributes:
      threshold: the least probability of an answer.
      shares: of all rows, those answered at each rank, finest first.
      unanswered: share of the rows without an answer.
      error: share of errors among the answers that can be judged; NaN without any.
    """

    threshold: float
    shares: tuple[float, ...]
    unanswered: float
    error: float


def _share(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
