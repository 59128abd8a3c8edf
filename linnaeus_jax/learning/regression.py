"""Linear classifiers of features, one for each rank: multinomial logistic regression or linear discriminants, whichever
is better out of folds.

Letters of shapes: N rows, D features, P principal components, T ranks, C classes of a rank.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.learning.discriminant import Affine, FeatureSums, best_scale, cross_entropy

#: folds; inverse strengths of the penalty, as scikit-learn's `C`, in the order in which they are tried; iterations for
#: each; principal components of the standardised features that are kept
FOLDS, STRENGTHS, ITERATIONS, COMPONENTS = 5, (0.03, 0.1, 0.3), 15, 512
#: most multiply-adds of all regressions, about two minutes on two cores; beyond them discriminants alone are fitted
MOST_PRODUCTS = 1e13
#: second derivative of the loss by a logit, about, in the scaling of components
CURVATURE = 0.005
DISCRIMINANTS = "linear discriminants"


@dataclass(frozen=True, eq=False)
class RankFit:
    """A linear classifier of one rank.

    Attributes:
      affine: kernel [D, C] and bias [C], float32, of all rows that have a label; `x @ kernel + bias` are logits.
      logits: float32 [N, C], of every row by a classifier that was fitted to the other folds.
      kind: of classifier, in words.
      accuracy: share of the labelled rows that `logits` have right.
    """

    affine: Affine
    logits: NDArray[np.float32]
    kind: str
    accuracy: float


def stratified_folds(label_NT: NDArray[np.integer], folds: int = FOLDS, seed: int = 0) -> NDArray[np.int64]:
    """Fold of every row, [N]; the n rows of a class of any rank lie in min(n, `folds`) folds, evenly.

    Args:
      label_NT: classes, finest rank first; each class has one parent, and a label below 0 is none.
    """
    shuffled = np.random.default_rng(seed).permutation(len(label_NT))
    order = np.lexsort((shuffled, *label_NT.T))  # by the coarsest rank first: rows of a class follow each other
    fold = np.empty(len(label_NT), np.int64)
    fold[order] = np.arange(len(label_NT)) % folds
    return fold


def fit_ranks(
    x_ND: NDArray[np.float32], label_NT: NDArray[np.integer], classes: Mapping[str, int], *, seed: int = 0
) -> dict[str, RankFit]:
    """Rank -> its best classifier by accuracy out of folds, of equal ones that with the least cross entropy; without
    the ranks of which fewer than two classes have rows.

    Args:
      label_NT: classes, finest rank first; a label below 0 is none.
      classes: rank -> number of classes, in the order of the columns of labels.
      seed: of the folds.
    """
    fold, found = stratified_folds(label_NT, seed=seed), {}
    parts = [FeatureSums(classes, x_ND.shape[1]) for _ in range(FOLDS)]
    for number, sums in enumerate(parts):
        sums.add(x_ND[fold == number], label_NT[fold == number])
    others = [functools.reduce(operator.add, parts[:number] + parts[number + 1 :]) for number in range(FOLDS)]
    whole = parts[0] + others[0]
    regresses = regression_products(len(x_ND), x_ND.shape[1], classes) <= MOST_PRODUCTS
    z_NP, to_raw = _components(x_ND) if regresses else (x_ND, None)
    for place, (rank, count) in enumerate(classes.items()):
        label, ways = label_NT[:, place], []
        if (affine := whole.discriminants(rank)) is not None:
            folded = [sums.discriminants(rank) or affine_of_nothing(x_ND.shape[1], count) for sums in others]
            ways.append((DISCRIMINANTS, affine, _out_of_fold(x_ND, fold, folded)))
        if affine is not None and to_raw is not None:
            each = zip(*(_path(z_NP[fold != number], label[fold != number], count) for number in range(FOLDS)))
            for strength, fit, maps in zip(STRENGTHS, _path(z_NP, label, count), each, strict=True):
                ways.append((f"logistic regression, C = {strength:g}", to_raw(fit), _out_of_fold(z_NP, fold, maps)))
        if ways:
            found[rank] = min((_scaled(*way, label) for way in ways), key=operator.itemgetter(0))[1]
    return found


def regression_products(rows: int, width: int, classes: Mapping[str, int]) -> float:
    """Multiply-adds of all regressions of `fit_ranks`, about."""
    passes = 2.0 * ITERATIONS * len(STRENGTHS) * FOLDS
    return passes * rows * min(width, COMPONENTS) * sum(classes.values()) + 10.0 * width**3


def _components(x_ND: NDArray[np.float32]) -> tuple[NDArray[np.float32], Callable[[Affine], Affine]]:
    """Principal components [N, P] of the standardised features, which labels have no part in; and a function from a map
    of them to one of the features. The last components are mostly noise, and cost most of the time."""
    mean, scale = x_ND.mean(axis=0, dtype=np.float64), x_ND.std(axis=0, dtype=np.float64)
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 1e-6 * scale.max(initial=0.0))
    z_ND = (x_ND - mean.astype(np.float32)) * inverse.astype(np.float32)
    axes_DP = np.linalg.eigh(z_ND.T @ z_ND / np.float32(len(z_ND)))[1][:, : -COMPONENTS - 1 : -1]

    def to_raw(affine: Affine) -> Affine:
        kernel = inverse[:, None] * (axes_DP @ affine[0].astype(np.float64))
        return kernel.astype(np.float32), (affine[1] - mean @ kernel).astype(np.float32)

    return z_ND @ axes_DP, to_raw


def affine_of_nothing(width: int, count: int) -> Affine:
    """Equal logits of all classes."""
    return np.zeros((width, count), np.float32), np.zeros(count, np.float32)


def _scaled(
    kind: str, affine: Affine, logits: NDArray[np.float32], label: NDArray[np.integer]
) -> tuple[tuple[float, float], RankFit]:
    """A way with logits that are as sure as they are right, and by what it is ranked."""
    known, scale = label >= 0, np.float32(best_scale(logits, label))
    hits = float((logits[known].argmax(axis=1) == label[known]).mean())
    fit = RankFit((affine[0] * scale, affine[1] * scale), logits * scale, kind, hits)
    return (-hits, cross_entropy(fit.logits[known], label[known])), fit


def _out_of_fold(x_ND: NDArray[np.float32], fold: NDArray[np.int64], affines: Sequence[Affine]) -> NDArray[np.float32]:
    logits = np.empty((len(x_ND), len(affines[0][1])), np.float32)
    for number, (kernel, bias) in enumerate(affines):
        logits[fold == number] = x_ND[fold == number] @ kernel + bias
    return logits


def _path(x_NP: NDArray[np.float32], label: NDArray[np.integer], count: int) -> Iterator[Affine]:
    """Logistic regressions by falling strength of the penalty, each begun from the one before."""
    known = label >= 0
    present, y = np.unique(label[known], return_inverse=True)
    x, (kernel, bias) = x_NP[known], affine_of_nothing(x_NP.shape[1], len(present))
    for strength in STRENGTHS if len(x) else ():
        kernel, bias = logistic_regression(x, y, (kernel, bias), strength)
        whole = affine_of_nothing(x.shape[1], count)
        # a class without rows is as likely as half a row of all would make it, or less, for each of them
        logits = x @ kernel + bias
        top = logits.max(axis=1)
        whole[1][:] = (top + np.log(np.exp(logits - top[:, None]).sum(axis=1))).min() + np.log(0.5 / len(x))
        whole[0][:, present], whole[1][present] = kernel, bias
        yield whole
    if not len(x):
        yield from [affine_of_nothing(x.shape[1], count)] * len(STRENGTHS)


def logistic_regression(
    x_NP: NDArray[np.float32],
    label_N: NDArray[np.integer],
    start: Affine,
    strength: float,
    *,
    iterations: int = ITERATIONS,
) -> Affine:
    """Kernel [P, C] and bias [C] with nearly the least `0.5 |kernel|² + strength * Σ -log p`, by L-BFGS in float32.

    Args:
      x_NP: uncorrelated features, for each of which the search has a length of its own.
      label_N: in [0, C).
      start: where the search begins.
    """
    from scipy.optimize import minimize

    rows, (width, count) = np.arange(len(x_NP)), start[0].shape
    decay = 1 / (strength * len(x_NP))
    length = 1 / np.sqrt(CURVATURE * np.square(x_NP).mean(axis=0) + decay)[:, None]
    x, penalty = x_NP * length.T, (decay * np.square(length)).astype(np.float32)

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        both = flat.astype(np.float32).reshape(width + 1, count)
        kernel, pull = both[:-1], penalty * both[:-1]
        logits = x @ kernel + both[-1]
        logits -= logits.max(axis=1, keepdims=True)
        of_label = logits[rows, label_N]
        p = np.exp(logits, out=logits)
        total = p.sum(axis=1, keepdims=True)
        p /= total
        p[rows, label_N] -= 1
        p /= np.float32(len(rows))
        gradient = np.concatenate([x.T @ p + pull, p.sum(axis=0, keepdims=True)])
        value = (np.log(total[:, 0]) - of_label).mean(dtype=np.float64) + 0.5 * np.vdot(pull, kernel)
        return float(value), gradient.ravel().astype(np.float64)

    first = np.concatenate([start[0] / length, start[1][None]]).ravel().astype(np.float64)
    options = {"maxiter": iterations, "ftol": 1e-7, "gtol": 1e-6, "maxcor": 5}
    found = minimize(loss, first, jac=True, method="L-BFGS-B", options=options).x
    both = found.astype(np.float32).reshape(width + 1, count)
    return both[:-1] * length.astype(np.float32), both[-1]
