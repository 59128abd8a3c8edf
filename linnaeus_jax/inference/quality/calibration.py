"""Temperatures of a model from rows with known labels, and its answers beside the labels.

A temperature divides the logits of a rank (Guo et al. 2017, On Calibration of Modern Neural Networks). `ranks` has one
for every rank by itself; `paths` has those of the posterior over paths (`paths.py`), whose inverses are the weights of
the ranks in it, and are fitted together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import Calibration
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.paths import Logits, TaxonomyPaths, check_finite, log_softmax
from linnaeus_jax.metrics.judged import Judged

#: temperatures are sought between these
LOWEST, HIGHEST = 0.01, 100.0
#: standard deviation of the prior of log T, of ranks and of paths; of those tried in benchmarks/temperature_prior.py,
#: the one with the best probabilities over true temperatures of 0.25 to 5 and 50 to 5,000 rows
SPREAD = 0.5
#: numbers of a matrix rows x classes that is computed at once
CHUNK = 1 << 22
#: of the logarithm of a temperature, for differences, whose error is about as large
STEP = 1e-6
#: temperatures of paths are fitted on so many rows x paths, but at least on so many rows; four numbers need no more
MOST_NUMBERS, LEAST_ROWS = 1 << 24, 200
#: change of the loss, relative to it, at which a fit ends
ENOUGH = 1e-6
#: loss and its gradient by the logarithms of the temperatures
Objective = Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]]


def fit(
    logits: Logits,
    labels: NDArray[np.integer],
    taxonomy: Taxonomy,
    path_counts: Mapping[str, Sequence[int]] | None = None,
) -> Calibration:
    """Temperatures under which the labels are most probable.

    What is minimised is the sum of -log p over the rows and the ranks at which they are labelled, plus a prior: log T
    is normal around log T0, that of `Calibration.none`. It counts little beside thousands of rows, but keeps
    temperatures finite where there are few rows, and near T0 where a handful of errors would decide. A rank without
    labels keeps T0 for itself. Paths of many classes are fitted on a random part of the rows.

    Args:
      logits: task -> float32 [N, C].
      labels: int [N, T], class indices with the finest rank first; null is no label.
      path_counts: of the training rows, see `TaxonomyTree.path_counts`.

    Returns:
      Temperatures under which the rows that they were fitted on are at least as probable as under `Calibration.none`.

    Raises:
      NotFiniteError: logits that are not finite.
    """
    check_finite(logits)
    tasks = taxonomy.tasks
    start = Calibration.none(tasks, path_counts)
    known = labelled(labels, taxonomy)
    if not known.any():
        return start
    ranks = {}
    for place, task in enumerate(tasks):
        rows = known[:, place]
        of_rank = _rank_objective(np.asarray(logits[task])[rows], labels[rows, place])
        ranks[task] = float(_minimised(of_rank, np.array([start.ranks[task]]))[0])
    of_paths = _path_objective(logits, labels, taxonomy, path_counts)
    paths = _minimised(of_paths, np.array([start.paths[task] for task in tasks]))
    by_task = dict(zip(tasks, paths.tolist(), strict=True))
    return Calibration(ranks, by_task, int(known.any(axis=1).sum()), path_counts=start.path_counts)


def labelled(labels: NDArray[np.integer], taxonomy: Taxonomy) -> NDArray[np.bool_]:
    """bool [N, T]: the label is a taxon."""
    return np.asarray(labels) >= taxonomy.first


def _minimised(objective: Objective, start: NDArray[np.float64], spread: float = SPREAD) -> NDArray[np.float64]:
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
        for rows in chunks(*logits.shape):
            z = np.asarray(logits[rows], np.float64)
            log_p = log_softmax(z * beta)
            at_label = np.arange(len(z)), label[rows]
            value -= float(log_p[at_label].sum())
            # d(-log p)/d(log T) = beta (z[label] - sum of p z)
            slope += beta * float(z[at_label].sum() - (np.exp(log_p) * z).sum())
        return value, np.array([slope])

    return objective


def _path_objective(
    logits: Logits,
    labels: NDArray[np.integer],
    taxonomy: Taxonomy,
    path_counts: Mapping[str, Sequence[int]] | None = None,
) -> Objective:
    """-log of the probability that the paths give to the labels, summed over the labelled ranks."""
    paths, tasks = TaxonomyPaths(taxonomy.tree, path_counts), taxonomy.tasks
    labels, known = np.asarray(labels), labelled(labels, taxonomy)
    used = np.flatnonzero(known.any(axis=1))
    most = max(LEAST_ROWS, MOST_NUMBERS // len(paths.classes))
    if len(used) > most:
        used = np.random.default_rng(0).choice(used, most, replace=False)

    def objective(log_t: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        temperature = dict(zip(tasks, np.exp(log_t).tolist(), strict=True))
        value, slope = 0.0, np.zeros(len(tasks))
        for part in chunks(len(used), len(paths.classes)):
            rows = used[part]
            some = {task: np.asarray(logits[task])[rows] for task in tasks}
            terms = [paths.rank_scores(place, some, t) for place, t in enumerate(temperature.values())]
            scores = np.sum(terms, axis=0) + paths.log_prior
            slopes = [  # d(score)/d(log temperature)
                (paths.rank_scores(place, some, t * np.exp(STEP)) - terms[place]) / STEP
                for place, t in enumerate(temperature.values())
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


def chunks(rows: int, width: int) -> Iterator[slice]:
    """Slices of rows, of at most `CHUNK` numbers each."""
    step = max(1, CHUNK // max(width, 1))
    return (slice(start, start + step) for start in range(0, rows, step))


# ---- rows judged


def judge(
    logits: Logits,
    labels: NDArray[np.integer],
    answers: Answers,
    consistency: str = "path",
    row: NDArray[np.integer] | None = None,
) -> Judged:
    """Answers by calibrated logits, task -> float32 [N, C], beside labels int [N, T].

    Args:
      consistency: "path", or "documented" for every rank by itself; see `AnswerOptions`.
      row: int [N], of the labels file; default: their numbers.
    """
    taxonomy, options = answers.taxonomy, answers.options(consistency=consistency)
    label: NDArray[np.int32] = np.asarray(labels, np.int32)
    known = labelled(label, taxonomy)
    predicted = np.zeros(label.shape, np.int32)
    probability, of_label = np.zeros(label.shape), np.ones(label.shape)
    for rows in chunks(len(label), sum(taxonomy.tree.num_classes.values())):
        predicted[rows], by_task = answers.probabilities({key: z[rows] for key, z in logits.items()}, options)
        for place, task in enumerate(taxonomy.tasks):
            chosen, true = predicted[rows, place], label[rows, place]
            line = np.arange(len(true))
            probability[rows, place] = np.where(chosen >= 0, by_task[task][line, chosen], 0.0)
            of_label[rows, place] = np.where(known[rows, place], by_task[task][line, true], 1.0)
    return Judged(np.arange(len(label)) if row is None else row, label, known, predicted, probability, of_label)
