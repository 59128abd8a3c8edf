"""Linear classifiers of features, one for each rank: multinomial logistic regression or linear discriminants, whichever
is better out of folds.

Letters of shapes: N rows, M views of them, D features, P principal components, F sets of rows that are fitted to, T
ranks, C classes of a rank, S classes of all ranks, R views of a chunk.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from linnaeus_jax.learning.discriminant import Affine, FeatureSums, best_scale, cross_entropy

#: folds; inverse strengths of the penalty, as scikit-learn's `C`, in the order in which they are tried; iterations for
#: each; principal components of the standardised features that are kept
FOLDS, STRENGTHS, ITERATIONS, COMPONENTS = 5, (0.01, 0.1, 1.0), 15, 1024
#: most multiply-adds of all regressions, about two minutes on two cores; beyond them discriminants alone are fitted
MOST_PRODUCTS = 1e13
#: second derivative of the loss by a logit, about, in the scaling of components
CURVATURE = 0.005
DISCRIMINANTS = "linear discriminants"
#: views whose logits are in memory at once; logit of a class without rows while the others are fitted
CHUNK, ABSENT = 1024, -1e9


@dataclass(frozen=True, eq=False)
class RankFit:
    """A linear classifier of one rank.

    Attributes:
      logits: float32 [N, C], of the first view of every row by a classifier that was fitted to the other folds.
      kind: of classifier, in words.
      accuracy: share of the labelled rows that `logits` have right.
      fits: the same classifier fitted to each of the `sets`: kernel [D, C] and bias [C], float32; `x @ kernel + bias`
        are logits.
    """

    logits: NDArray[np.float32]
    kind: str
    accuracy: float
    fits: Sequence[Affine]


def stratified_folds(
    label_NT: NDArray[np.integer], folds: int = FOLDS, seed: int = 0, group_N: NDArray[np.integer] | None = None
) -> NDArray[np.int64]:
    """Fold of every row, [N]; the n rows of a class of any rank lie in min(n, `folds`) folds, evenly.

    Args:
      label_NT: classes, finest rank first; each class has one parent, and a label below 0 is none.
      group_N: rows with the same number lie in one fold, that of the first of them; None: each is its own.
    """
    if group_N is not None:
        _, first, place = np.unique(group_N, return_index=True, return_inverse=True)
        return stratified_folds(label_NT[first], folds, seed)[place]
    shuffled = np.random.default_rng(seed).permutation(len(label_NT))
    order = np.lexsort((shuffled, *label_NT.T))  # by the coarsest rank first: rows of a class follow each other
    fold = np.empty(len(label_NT), np.int64)
    fold[order] = np.arange(len(label_NT)) % folds
    return fold


def fit_ranks(
    x_MD: NDArray[np.float32],
    label_NT: NDArray[np.integer],
    classes: Mapping[str, int],
    row_M: NDArray[np.integer] | None = None,
    sets: Sequence[NDArray[np.bool_]] = (),
    *,
    seed: int = 0,
    folds: int = FOLDS,
    group_N: NDArray[np.integer] | None = None,
) -> dict[str, RankFit]:
    """Rank -> its classifier with the least cross entropy out of folds, which with few rows is less a matter of luck
    than accuracy; without the ranks of which fewer than two classes have rows.

    Args:
      label_NT: classes, finest rank first; a label below 0 is none.
      classes: rank -> number of classes, in the order of the columns of labels.
      row_M: of which row each view is, the unaugmented one first; None: one view of each. A row counts the same,
        however many views it has.
      sets: bool [N] each, rows of `RankFit.fits`; where there are none, only logits out of folds are made.
      seed, folds, group_N: of `stratified_folds`.
    """
    row_M = np.arange(len(label_NT)) if row_M is None else row_M
    _, first, views = np.unique(row_M, return_index=True, return_counts=True)
    fold, weight_M = stratified_folds(label_NT, folds, seed, group_N), (1 / views[row_M]).astype(np.float32)

    def sums_of(chosen: NDArray[np.bool_]) -> FeatureSums:
        sums = FeatureSums(classes, x_MD.shape[1])
        sums.add(x_MD[chosen], label_NT[row_M[chosen]], weight_M[chosen])
        return sums

    parts = [sums_of(fold[row_M] == number) for number in range(folds)]
    sums = [functools.reduce(operator.add, parts[:number] + parts[number + 1 :]) for number in range(folds)]
    whole = parts[0] + sums[0]
    sums += [whole if chosen.all() else sums_of(chosen[row_M]) for chosen in sets]
    ways: dict[str, list[_Way]] = {rank: [] for rank in classes}
    for rank, count in classes.items():
        if whole.discriminants(rank) is not None:
            fits = [each.discriminants(rank) or affine_of_nothing(x_MD.shape[1], count) for each in sums]
            ways[rank].append(_Way(DISCRIMINANTS, fits[folds:], _out_of_fold(x_MD[first], fold, fits[:folds])))
    if regression_products(len(x_MD), x_MD.shape[1], classes, len(sums)) <= MOST_PRODUCTS and any(ways.values()):
        z_MP, to_raw = components_of(x_MD, weight_M)
        chosen_FN = np.stack([*(fold != number for number in range(folds)), *sets])
        path = regressions(z_MP, label_NT[row_M], weight_M * chosen_FN[:, row_M], classes, STRENGTHS, ITERATIONS)
        for strength, maps in zip(STRENGTHS, path, strict=True):
            for rank in filter(ways.get, classes):
                kind, fits = f"logistic regression, C = {strength:g}", maps[rank]
                raw = [to_raw(fit) for fit in fits[folds:]]
                ways[rank].append(_Way(kind, raw, _out_of_fold(z_MP[first], fold, fits[:folds])))
    found = {}
    for place, rank in enumerate(classes):
        if ways[rank]:
            scaled = (_scaled(way, label_NT[:, place]) for way in ways[rank])
            found[rank] = min(scaled, key=operator.itemgetter(0))[1]
    return found


class _Way(NamedTuple):
    """A kind of classifier, fitted to each of the sets, and logits [N, C] out of folds."""

    kind: str
    fits: Sequence[Affine]
    logits: NDArray[np.float32]


def regression_products(views: int, width: int, classes: Mapping[str, int], fits: int = FOLDS + 2) -> float:
    """Multiply-adds of so many regressions of `fit_ranks`, of folds and sets, about."""
    passes = 2.5 * ITERATIONS * len(STRENGTHS) * fits
    return passes * views * min(width, COMPONENTS) * sum(classes.values()) + 10.0 * width**3


def components_of(
    x_MD: NDArray[np.float32], weight_M: NDArray[np.float32], most: int = COMPONENTS
) -> tuple[NDArray[np.float32], Callable[[Affine], Affine]]:
    """Principal components [M, P] of the standardised features, which labels have no part in; and a function from a map
    of them to one of the features. The last components are mostly noise, and cost most of the time: at most `most` and
    `COMPONENTS` are kept."""
    mean = np.average(x_MD, axis=0, weights=weight_M)
    z_MD = x_MD - mean.astype(np.float32)
    scale = np.sqrt(np.average(np.square(z_MD), axis=0, weights=weight_M))
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 1e-6 * scale.max(initial=0.0))
    z_MD *= inverse.astype(np.float32)
    axes_DP = np.linalg.eigh(z_MD.T @ (z_MD * weight_M[:, None]) / weight_M.sum())[1][
        :, : -min(most, COMPONENTS) - 1 : -1
    ]

    def to_raw(affine: Affine) -> Affine:
        kernel = inverse[:, None] * (axes_DP @ affine[0].astype(np.float64))
        return kernel.astype(np.float32), (affine[1] - mean @ kernel).astype(np.float32)

    return z_MD @ axes_DP, to_raw


def affine_of_nothing(width: int, count: int) -> Affine:
    """Equal logits of all classes."""
    return np.zeros((width, count), np.float32), np.zeros(count, np.float32)


def _scaled(way: _Way, label: NDArray[np.integer]) -> tuple[float, RankFit]:
    """A way with logits that are as sure as they are right, and by what it is ranked."""
    known, scale = label >= 0, best_scale(way.logits, label)
    hits = float((way.logits[known].argmax(axis=1) == label[known]).mean())
    fits = [(kernel * scale, bias * scale) for kernel, bias in way.fits]
    fit = RankFit(way.logits * scale, way.kind, hits, fits)
    return cross_entropy(fit.logits[known], label[known]), fit


def _out_of_fold(x_ND: NDArray[np.float32], fold: NDArray[np.int64], affines: Sequence[Affine]) -> NDArray[np.float32]:
    logits = np.empty((len(x_ND), len(affines[0][1])), np.float32)
    for number, (kernel, bias) in enumerate(affines):
        logits[fold == number] = x_ND[fold == number] @ kernel + bias
    return logits


def regressions(
    x_MP: NDArray[np.float32],
    label_MT: NDArray[np.integer],
    weight_FM: NDArray[np.float32],
    classes: Mapping[str, int],
    strengths: Sequence[float],
    iterations: int,
) -> Iterator[dict[str, list[Affine]]]:
    """For each strength of the penalty, rank -> kernel [P, C] and bias [C] for each line of weights, which have nearly
    the least `0.5 |kernel|² + strength * Σ weight * -log p`: all together by L-BFGS in float32, each strength from the
    one before.

    A class without rows is as likely as half a row of all would make it, or less, for each of them.

    Args:
      x_MP: uncorrelated features, for each of which the search has a length of its own.
      label_MT: below 0 is none, and has no part in a rank.
    """
    spans = tuple(pairwise(accumulate(classes.values(), initial=0)))
    known_MT = label_MT >= 0
    total_FT = weight_FM @ known_MT.astype(np.float32)
    rows_FS = np.concatenate(
        [
            np.stack([np.bincount(label[known], weight[known], stop - start) for weight in weight_FM])
            for label, known, (start, stop) in zip(label_MT.T, known_MT.T, spans, strict=True)
        ],
        axis=1,
    )
    absent_FS = np.where(rows_FS > 0, 0.0, ABSENT).astype(np.float32)
    lacking = -len(x_MP) % CHUNK
    chunks = [
        np.pad(array, [(0, lacking), (0, 0)]).reshape(-1, CHUNK, array.shape[1])
        for array in (x_MP, label_MT.astype(np.int32), weight_FM.T.astype(np.float32))
    ]
    variance_P = np.square(x_MP).mean(axis=0)
    params = np.zeros((x_MP.shape[1] + 1, *rows_FS.shape), np.float32)
    for strength in strengths:
        decay_FT = 1 / (strength * np.maximum(total_FT, 1e-6)).astype(np.float32)
        length_P = 1 / np.sqrt(CURVATURE * variance_P + decay_FT[-1].mean())
        length = np.append(length_P, 1.0).astype(np.float32)[:, None, None]
        decay_FS = np.repeat(decay_FT, list(classes.values()), axis=1)
        solved = _solve(params / length, chunks, absent_FS, total_FT, decay_FS, length, spans=spans, steps=iterations)
        params = np.asarray(solved) * length
        found: dict[str, list[Affine]] = {rank: [] for rank in classes}
        for line, rows in enumerate(rows_FS):
            for place, (rank, (start, stop)) in enumerate(zip(classes, spans, strict=True)):
                kernel, bias = params[:-1, line, start:stop].copy(), params[-1, line, start:stop].copy()
                missing = rows[start:stop] == 0
                if missing.any() and not missing.all():
                    logits = x_MP[weight_FM[line] > 0] @ kernel[:, ~missing] + bias[~missing]
                    top = logits.max(axis=1)
                    least = (top + np.log(np.exp(logits - top[:, None]).sum(axis=1))).min()
                    bias[missing] = least + np.log(0.5 / total_FT[line, place])
                found[rank].append((kernel, bias))
        yield found


@functools.partial(jax.jit, static_argnames=("spans", "steps"))
def _solve(
    first: jax.Array,
    chunks: Any,
    absent_FS: jax.Array,
    total_FT: jax.Array,
    decay_FS: jax.Array,
    length: jax.Array,
    *,
    spans: tuple[tuple[int, int], ...],
    steps: int,
) -> jax.Array:
    """Scaled kernel and bias, [P + 1, F, S]."""

    def chunk_sums(params: jax.Array, chunk: Any) -> tuple[jax.Array, jax.Array]:
        """Sum of the losses of some views, and its derivatives [P + 1, F, S]."""
        x_RP, label_RT, weight_RF = chunk
        logits = jnp.einsum("rp,pfs->rfs", x_RP, params[:-1]) + (params[-1] + absent_FS)[None]
        total, slopes = jnp.float32(0), []
        for place, (start, stop) in enumerate(spans):
            label = label_RT[:, place]
            weight = weight_RF * (label >= 0)[:, None] / jnp.maximum(total_FT[:, place], 1e-6)[None]
            log_p = jax.nn.log_softmax(logits[:, :, start:stop])
            right = jax.nn.one_hot(label, stop - start)[:, None]
            total -= (weight * (log_p * right).sum(axis=2)).sum()
            slopes.append((jnp.exp(log_p) - right) * weight[:, :, None])
        slope = jnp.concatenate(slopes, axis=2)
        return total, jnp.concatenate([jnp.einsum("rp,rfs->pfs", x_RP, slope), slope.sum(axis=0)[None]])

    def value_and_slope(scaled: jax.Array) -> tuple[jax.Array, jax.Array]:
        params = scaled * length

        def add(sums: Any, chunk: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, chunk_sums(params, chunk)), None

        (total, slope), _ = jax.lax.scan(add, (jnp.float32(0), jnp.zeros_like(params)), chunks)
        pull = decay_FS[None] * params[:-1]
        return total + 0.5 * (pull * params[:-1]).sum(), (slope.at[:-1].add(pull)) * length

    # the derivatives come with the value, without a second pass over the views
    loss: Any = jax.custom_vjp(lambda scaled: value_and_slope(scaled)[0])
    loss.defvjp(value_and_slope, lambda slope, of_value: (slope * of_value,))
    solver, value_and_grad = optax.lbfgs(memory_size=8), optax.value_and_grad_from_state(loss)

    def step(_: int, carry: Any) -> Any:
        params, state = carry
        value, grad = value_and_grad(params, state=state)
        updates, state = solver.update(grad, state, params, value=value, grad=grad, value_fn=loss)
        return optax.apply_updates(params, updates), state

    params: jax.Array = jax.lax.fori_loop(0, steps, step, (first, solver.init(first)))[0]
    return params
