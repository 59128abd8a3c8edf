"""Statistics of features, thresholds of novelty and how good they are, from rows with known labels; see `novelty`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.inference import conformal
from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import Calibration
from linnaeus_jax.inference.bundle.statistics import FeatureStatistics
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.novelty import CONSTANT, INPUTS, KINDS, SHARE, Novelty
from linnaeus_jax.inference.paths import Logits, some
from linnaeus_jax.inference.quality.calibration import chunks
from linnaeus_jax.learning.regression import ABSENT, stratified_folds
from linnaeus_jax.metrics.judged import number
from linnaeus_jax.reporting.tables import percent

#: of the weights of `Novelty.known`: a higher probability never speaks for new, nor a larger distance for known
BOUNDS = {"log_probability": (0.0, None), "log_distance": (None, 0.0), "energy": (0.0, None)}
#: share of the known pictures that are kept where it is said how many of the others are taken for known
KEPT = 0.95


def fit(
    logits: Logits,
    labels: NDArray[np.integer],
    taxonomy: Taxonomy,
    calibration: Calibration,
    statistics: FeatureStatistics,
    *,
    folds: bool = False,
) -> tuple[Calibration, dict[str, Any] | None]:
    """The calibration with weights and thresholds, and what was measured by leaving taxa out, as JSON types; unchanged,
    and None, where no taxon can be left out or too few rows are labelled.

    Args:
      logits: task -> float32 [N, C], and each layer of the statistics -> float32 [N, D].
      folds: the statistics are of these rows: distances are then to those of other folds.
    """
    answers = Answers(taxonomy, calibration)
    leaf = answers.leaves.of(labels)
    rows = np.flatnonzero(leaf >= 0)
    logits, labels = some(logits, rows), np.asarray(labels)[rows]
    left_out, column = _left_out(labels, answers)
    novelty = Novelty(answers.paths, calibration, statistics)
    layers, known, new, far = statistics.layers, list[Any](), list[Any](), list[Any]()
    fold = stratified_folds(np.where(labels < taxonomy.first, -1, labels)) if folds else np.zeros(len(labels), int)
    for number_ in np.unique(fold):
        own, used = fold == number_, statistics
        if folds:
            others = {layer: logits[layer][~own] for layer in layers}
            used = FeatureStatistics.of_layers(others, labels[~own]) or statistics
        for chunk in chunks(int(own.sum()), len(used.mean)):
            at = np.flatnonzero(own)[chunk]
            here = some(logits, at)
            distance = used.distances(here[used.layer])
            known.append(novelty.inputs(here, distance.min(axis=1)))
            lost = [each[at] for each in column]
            without = {task: _without(here[task], lost[place]) for place, task in enumerate(taxonomy.tasks)}
            gone = (used.label[None, :, :] == np.stack(lost, axis=1)[:, None, :]).any(axis=2)
            distance = np.where(gone & ~gone.all(axis=1, keepdims=True), np.inf, distance)
            nearest = distance.min(axis=1)
            new.append(novelty.inputs(without, nearest)[left_out[at]])
            if used.outside is None:
                far.append(nearest[left_out[at]])
            else:  # a taxon is a small part of the one group
                far.append(used.outside.distances(here[used.outside.layer])[:, 0])
    if not sum(map(len, new)):
        return calibration, None
    x_known, x_new = np.concatenate(known), np.concatenate(new)
    weights = _weights(x_known, x_new)
    score = novelty.known(x_known, weights)
    thresholds = {"outside": conformal.thresholds(np.concatenate(far)), "new": conformal.thresholds(-score)}
    if not thresholds["new"]:
        return calibration, None
    found = {"weights": weights, **thresholds}
    numbers = {"rows": len(score), "left_out": len(x_new)} | told_apart(score, novelty.known(x_new, weights))
    return dataclasses.replace(calibration, novelty=found, novelty_rows=len(score)), numbers


def _left_out(labels: NDArray[np.integer], answers: Answers) -> tuple[NDArray[np.bool_], list[NDArray[np.int64]]]:
    """Of which rows the taxon can be left out, since a sister stays; and of every rank, the class that then has no leaf
    any more, or -2. Without any such row, as where there is one rank, all that leave some class."""
    leaves, taxonomy, first = answers.leaves, answers.taxonomy, answers.taxonomy.first
    starts = np.cumsum([0, *(taxonomy.tree.num_classes[task] for task in taxonomy.tasks)])
    below = np.stack(
        [
            np.where(labels[:, place] >= first, leaves.below[starts[place] + np.maximum(labels[:, place], 0)], 0)
            for place in range(len(taxonomy.tasks))
        ],
        axis=1,
    )
    column = [np.where(below[:, place] == 1, labels[:, place], -2).astype(np.int64) for place in range(below.shape[1])]
    with_sister = np.asarray((below > 1).any(axis=1))
    if not with_sister.any():
        with_sister = np.full(len(labels), len(leaves.itself) > 1)
    return with_sister, column


def _without(z: NDArray[np.float32], column: NDArray[np.int64]) -> NDArray[np.float32]:
    """Logits where one class of each row, if any, has no share."""
    found, rows = z.copy(), np.flatnonzero(column >= 0)
    found[rows, column[rows]] = ABSENT
    return found


def _weights(known: NDArray[np.float64], new: NDArray[np.float64]) -> dict[str, float]:
    """Constant and weights of the logistic regression that tells them apart, each kind of rows as likely as the other,
    with a penalty for weights of standardised values; see `BOUNDS`."""
    from scipy.optimize import minimize

    x = np.concatenate([known, new])
    sign = np.repeat([1.0, -1.0], [len(known), len(new)])
    share = np.repeat([0.5 * len(x) / len(known), 0.5 * len(x) / len(new)], [len(known), len(new)])
    mean, scale = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-9)
    z = np.concatenate([np.ones((len(x), 1)), (x - mean) / scale], axis=1)

    def loss(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        margin = sign * (z @ w)
        wrong = share * sign / (1 + np.exp(np.clip(margin, -500, 500)))
        pull = np.array([0.0, *w[1:]])
        return float((share * np.logaddexp(0, -margin)).sum() + 0.5 * pull @ pull), pull - wrong @ z

    bounds = [(None, None), *(BOUNDS[name] for name in INPUTS)]
    w = minimize(loss, np.zeros(len(bounds)), jac=True, method="L-BFGS-B", bounds=bounds).x
    of_raw = w[1:] / scale
    return {CONSTANT: float(w[0] - mean @ of_raw), **dict(zip(INPUTS, of_raw.tolist(), strict=True))}


def told_apart(known: NDArray[Any], others: NDArray[Any]) -> dict[str, Any]:
    """How well a score tells known pictures, for which it is higher, from others, as JSON types: area under the ROC
    curve, and the share of the others that are taken for known where `KEPT` of the known are."""
    from scipy.stats import rankdata

    if not len(known) or not len(others):
        return {"auroc": None, "false_positives": None}
    rank = rankdata(np.concatenate([known, others]))[: len(known)].sum()
    area = (rank - len(known) * (len(known) + 1) / 2) / (len(known) * len(others))
    least = np.sort(known)[int((1 - KEPT) * len(known))]
    return {"auroc": number(float(area)), "false_positives": number(float((others >= least).mean()))}


def judged(novel: NDArray[np.void], label: NDArray[np.integer], unknown: int) -> dict[str, Any]:
    """Numbers of records of `novelty.FIELDS` beside labels, as JSON types; None where there are no such rows.

    Args:
      label: int [N, T], classes; `unknown` of taxa that the model does not know; anything else below 0 is none.
    """
    named, lost = label >= 0, label == unknown
    deepest = (named | lost).argmax(axis=1)
    new = lost[np.arange(len(label)), deepest] & named.any(axis=1)
    outside, known = lost.any(axis=1) & ~named.any(axis=1), ~lost.any(axis=1) & named.any(axis=1)
    parent = named.argmax(axis=1)
    right = (novel["task"] == parent) & (novel["index"] == label[np.arange(len(label)), parent])
    found: dict[str, Any] = {}
    for name, rows in (("known", known), ("new", new), ("outside", outside)):
        shares = [number(float((novel["kind"][rows] == kind).mean())) if rows.any() else None for kind in range(3)]
        found[name] = {"rows": int(rows.sum()), "said": dict(zip(KINDS, shares, strict=True))}
    found["new"] |= told_apart(novel["known"][known], novel["known"][new])
    found["new"]["right_parent"] = number(float(right[new].mean())) if new.any() else None
    found["share"] = SHARE
    found["outside"] |= told_apart(-novel["outside"][known], -novel["outside"][outside])
    return found


def card_section(found: Mapping[str, Any] | None) -> str:
    """What a card says of the numbers of `fit`; "" without any."""
    if found is None:
        return ""
    return (
        "### What it does not know\n\n`predict` says whether the taxon of a picture is a known one, new below a known "
        "one, or outside: like no training picture. With `--novelty 0.05` about 5 of 100 pictures of known taxa are "
        "called new, and 5 of 100 of new taxa near them outside. Measured by leaving the taxon of each of "
        f"{found['left_out']:,} validation rows out of the answer, not out of the training: area under the ROC curve "
        f"{percent(found['auroc'])} %; where 95 % of {found['rows']:,} rows are called known, "
        f"{percent(found['false_positives'])} % of those are, too, whose taxon is left out. `data.hide_taxa` and "
        "`evaluate` measure it on taxa that a model has never seen."
    )
