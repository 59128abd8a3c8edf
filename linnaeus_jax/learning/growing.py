"""A linear classifier that learns new classes from few rows, and from rows of the old ones, without forgetting these.

What is sought is the change of the old classifier and the columns of the new classes with the least

    sum of weight * -log p - <slope, change> + |change|^2 / (2 strength)

over principal components of the features. The slope is that of the loss of the old rows at the old classifier, as in
variance-reduced gradients (Johnson & Zhang 2013): without new rows the old classifier itself is the least, whatever it
was fitted to and whichever rows were kept. It is convex, and begins anew at the old classifier whenever classes are
added, so that the order in which they come is of no importance.

A new class is taken for as common as the mean of the old ones, whatever the number of its rows (logit adjustment, Menon
et al. 2021). Only the strength is chosen, on rows that a fit has not seen: a bias of all new classes that is chosen so
is further off where validation and use differ (benchmarks/README.md). It is lowered where more than `LOST` of the old
rows would be right no more because of a new class.

Letters of shapes: N rows, D features, P components, C classes of a rank of which B are old, J rows that judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from linnaeus_jax.learning.discriminant import Affine
from linnaeus_jax.learning.regression import CURVATURE, components_of

#: inverse strengths of the penalty, in the order in which they are tried; iterations for each; parts that the new rows
#: are judged in; most numbers of a change
STRENGTHS, ITERATIONS, FOLDS, MOST_NUMBERS = (0.01, 0.1), 15, 3, 1 << 23
#: most of the old rows that judge, as a share, that may be right no more because of a new class
LOST = 0.03


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Rows of old and new classes.

    Attributes:
      x: float32 [N, D].
      weight: float32 [N], training rows that each stands for.
      old: bool [N], it is of the rows that the old classifier was made with.
      fits, judges: bool [N], it is fitted to; it judges, by a fit without it.
    """

    x: NDArray[np.float32]
    weight: NDArray[np.float32]
    old: NDArray[np.bool_]
    fits: NDArray[np.bool_]
    judges: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Grown:
    """A classifier with new classes.

    Attributes:
      affine: kernel [D, C] and bias [C], float32.
      logits: float32 [J, C] of the rows that judge, each by a fit without it.
    """

    affine: Affine
    logits: NDArray[np.float32]


def grow(
    rows: KeptRows,
    label_NT: NDArray[np.integer],
    bases: Mapping[str, Affine],
    before: Mapping[str, NDArray[np.float32]],
    classes: Mapping[str, int],
) -> dict[str, Grown]:
    """Rank -> the old classifier with new classes behind its own.

    Args:
      label_NT: classes, in the order of the ranks of `bases`; below 0 is none, and has no part in a rank.
      bases: rank -> the old classifier, of B classes.
      before: rank -> float32 [N, B], its logits, of old rows that judge by one that was not fitted to them.
      classes: rank -> number of all classes.
    """
    z_MP, to_raw = components_of(
        rows.x[rows.fits], rows.weight[rows.fits], max(1, MOST_NUMBERS // max(classes.values()))
    )
    return {
        rank: _grown(rows, z_MP, to_raw, label_NT[:, place], base, before[rank], classes[rank])
        for place, (rank, base) in enumerate(bases.items())
    }


def _grown(
    rows: KeptRows,
    z_MP: NDArray[np.float32],
    to_raw: Callable[[Affine], Affine],
    label_N: NDArray[np.integer],
    base: Affine,
    before_NB: NDArray[np.float32],
    classes: int,
) -> Grown:
    known, count = label_N >= 0, len(base[1])
    fits, judges = rows.fits & known, rows.judges & known
    z_MP = z_MP[known[rows.fits]]
    fold, both = np.full(len(label_N), -1), fits & judges
    fold[both] = places_within(label_N[both]) % FOLDS
    within_NB = rows.x @ base[0] + base[1]
    of_strength = np.zeros((len(STRENGTHS), len(label_N), classes), np.float32)
    of_strength[:, :, :count] = before_NB
    for part in (*np.unique(fold[both]).tolist(), None):  # the last is fitted to all
        used = fold[fits] != part
        of = np.flatnonzero(fits)[used]
        found = _changes(z_MP[used], within_NB[of], label_N[of], rows.weight[of], rows.old[of], classes)
        affines = [to_raw(each) for each in found]
        at = rows.judges & (fold == (-1 if part is None else part))
        for logits, (kernel, bias) in zip(of_strength, affines, strict=True):
            logits[at] += rows.x[at] @ kernel + bias
    usual = rows.weight[fits & rows.old].sum() / max(len(np.unique(label_N[fits & rows.old])), 1)
    more = np.log(max(usual, 1.0) / np.maximum(np.bincount(label_N[fits], minlength=classes)[count:], 1))
    of_strength[:, :, count:] += more
    best = int(np.argmin([_loss_of_classes(logits[judges], label_N[judges]) for logits in of_strength]))
    old = judges & rows.old
    right = old & (before_NB.argmax(axis=1) == label_N)
    less = too_high(of_strength[best][right], label_N[right], count, math.ceil(LOST * int(old.sum())))
    of_strength[best][:, count:] -= less
    more -= less
    kernel, bias = affines[best]
    kernel[:, :count] += base[0]
    bias[:count] += base[1]
    bias[count:] += more
    return Grown((kernel, bias), of_strength[best][rows.judges])


def too_high(logits_JC: NDArray[np.float32], label_J: NDArray[np.integer], old: int, most: int) -> np.float32:
    """By how much the logits of new classes, those from `old` on, must be lower for at most so many of the rows to have
    one of them above their own."""
    over = np.sort(logits_JC[:, old:].max(axis=1, initial=-np.inf) - logits_JC[np.arange(len(label_J)), label_J])
    return np.float32(max(over[-1 - most], 0.0)) if len(over) > most else np.float32(0)


def _loss_of_classes(logits_JC: NDArray[np.float32], label_J: NDArray[np.integer]) -> float:
    """Mean of -log p, in which every class counts the same."""
    loss = -log_softmax(logits_JC, axis=1)[np.arange(len(label_J)), label_J]
    return float((loss / np.bincount(label_J)[label_J]).sum())


def places_within(group: NDArray[np.integer]) -> NDArray[np.int64]:
    """int64 [N]: how many of the rows before each have the same value, or the same row of values, in [N] or [N, T]."""
    _, group = np.unique(group, axis=0, return_inverse=True)
    order = np.argsort(group.reshape(-1), kind="stable")
    starts = np.flatnonzero(np.diff(group.reshape(-1)[order], prepend=-1))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    return place


def _changes(
    z_MP: NDArray[np.float32],
    within_MB: NDArray[np.float32],
    label_M: NDArray[np.integer],
    weight_M: NDArray[np.float32],
    old_M: NDArray[np.bool_],
    classes: int,
) -> Iterator[Affine]:
    """For each strength what is added to the old classifier, and new columns: kernel [P, C] and bias [C], by L-BFGS,
    each from the one before.

    Args:
      within_MB: logits by the old classifier.
    """
    (count, width), total = within_MB.shape, weight_M.sum()
    right, share_M = np.arange(count), (weight_M / total)[:, None]
    before_MC = np.zeros((count, classes), np.float32)
    before_MC[:, :width] = within_MB
    slope = np.zeros((z_MP.shape[1] + 1, classes), np.float32)
    away = softmax(within_MB[old_M], axis=1)
    away[np.arange(len(away)), label_M[old_M]] -= 1.0
    away *= share_M[old_M]
    slope[:, :width] = np.vstack([z_MP[old_M].T @ away, away.sum(axis=0)])
    variance_P, change = np.square(z_MP).mean(axis=0), np.zeros_like(slope)

    def loss(
        scaled: NDArray[np.float64], decay: float, length: NDArray[np.float32]
    ) -> tuple[float, NDArray[np.float64]]:
        change = scaled.reshape(slope.shape).astype(np.float32) * length
        log_p = log_softmax(before_MC + z_MP @ change[:-1] + change[-1], axis=1)
        away = np.exp(log_p)
        away[right, label_M] -= 1.0
        away *= share_M
        gradient = np.vstack([z_MP.T @ away + decay * change[:-1], away.sum(axis=0)]) - slope
        value = -(share_M[:, 0] * log_p[right, label_M]).sum() + 0.5 * decay * np.square(change[:-1]).sum()
        return float(value - (slope * change).sum()), (gradient * length).ravel().astype(np.float64)

    for strength in STRENGTHS:
        decay = 1 / (strength * total)
        # each component has a length of its own in the search
        length = np.append(1 / np.sqrt(CURVATURE * variance_P + decay), 1.0).astype(np.float32)[:, None]
        settings = {"maxiter": ITERATIONS, "maxcor": 8}
        begin = (change / length).ravel().astype(np.float64)
        found = minimize(loss, begin, (decay, length), jac=True, method="L-BFGS-B", options=settings).x
        change = found.reshape(slope.shape).astype(np.float32) * length
        yield change[:-1], change[-1]
