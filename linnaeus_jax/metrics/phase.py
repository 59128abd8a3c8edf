"""Sums over one phase (an epoch of training, or one validation pass), exact under padding and any split of the data.

A phase state is a flat dict of device arrays that merge by addition. Counts are int32; sums of losses float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.metrics.extras import NO_EXTRAS, PhaseExtras, Sums


def empty_sums(tasks: Sequence[str], extras: PhaseExtras = NO_EXTRAS) -> Sums:
    """The sums of no row."""
    count = jnp.zeros((), jnp.int32)
    per_task_int, per_task_float = jnp.zeros(len(tasks), jnp.int32), jnp.zeros(len(tasks), jnp.float32)
    return {
        "count": count,
        "chain": count,
        "partial_chain": count,
        "has_label": count,
        "correct1": per_task_int,
        "correct3": per_task_int,
        "non_null": per_task_int,
        "correct1_non_null": per_task_int,
        "loss": per_task_float,
        "loss_non_null": per_task_float,
        "loss_null": per_task_float,
        "loss_weighted": jnp.zeros((), jnp.float32),
    } | extras.zeros(tasks)


def add(left: Any, right: Any) -> Any:
    """The sums of the rows of both, two trees of one structure."""
    return jax.tree.map(jnp.add, left, right)


def rank_of_label(logits: jax.Array, label: jax.Array) -> jax.Array:
    """How many classes are predicted before the label.

    Ties go to the lower index and NaN counts as largest, as in argmax.

    Args:
      logits: float [B, C].
      label: int32 [B].

    Returns:
      int32 [B]; 0 means that the prediction is right.
    """
    logits = jnp.where(jnp.isnan(logits), jnp.inf, logits)
    label_logit = jnp.take_along_axis(logits, label[:, None], axis=1)
    index = jnp.arange(logits.shape[1], dtype=label.dtype)[None, :]
    before = (logits > label_logit) | ((logits == label_logit) & (index < label[:, None]))
    return before.sum(axis=1, dtype=jnp.int32)


def batch_sums(
    logits: Mapping[str, jax.Array],
    label: jax.Array,
    weight: jax.Array,
    loss: jax.Array,
    loss_weighted: jax.Array,
    *,
    null_possible: bool,
    extras: PhaseExtras = NO_EXTRAS,
    membership: Mapping[str, jax.Array] | None = None,
    columns: Mapping[str, jax.Array] | None = None,
) -> Sums:
    """The sums of one batch.

    Args:
      logits: task -> float32 [B, C_t], in task order.
      label: int32 [B, T].
      weight: float32 [B]; rows of weight 0 are padding and count nowhere.
      loss: float32 [B, T], per-sample task losses before null masking.
      loss_weighted: float32 [B], the weighted total of each sample.
      null_possible: whether class 0 stands for "unknown".
      extras: what is measured besides.
      membership: kind of subset -> bool [B, S] or int32 [B], see `PhaseExtras.subsets`.
      columns: other columns of the batch, for metrics and subsets of plugins, see `PhaseExtras.sums`.
    """
    valid = weight > 0
    ranks = jnp.stack([rank_of_label(z, label[:, t]) for t, z in enumerate(logits.values())], axis=1)
    widths = jnp.asarray([min(3, z.shape[1]) for z in logits.values()], jnp.int32)
    right = ranks == 0
    labelled = (label != 0) if null_possible else jnp.ones_like(label, bool)
    rows = valid[:, None]

    def total(mask: jax.Array) -> jax.Array:
        return mask.sum(axis=0, dtype=jnp.int32)

    return {
        "count": total(valid),
        "chain": total(valid & right.all(axis=1)),
        "partial_chain": total(valid & labelled.any(axis=1) & (right | ~labelled).all(axis=1)),
        "has_label": total(valid & labelled.any(axis=1)),
        "correct1": total(rows & right),
        "correct3": total(rows & (ranks < widths[None, :])),
        "non_null": total(rows & labelled),
        "correct1_non_null": total(rows & labelled & right),
        "loss": jnp.where(rows, loss, 0.0).sum(axis=0),
        "loss_non_null": jnp.where(rows & labelled, loss, 0.0).sum(axis=0),
        "loss_null": jnp.where(rows & ~labelled, loss, 0.0).sum(axis=0),
        "loss_weighted": jnp.where(valid, loss_weighted, 0.0).sum(),
    } | extras.sums(logits, label, weight, right, labelled, membership or {}, columns)


def summarise(
    sums: Mapping[str, np.ndarray],
    tasks: Sequence[str],
    extras: PhaseExtras = NO_EXTRAS,
    scores: np.ndarray | None = None,
) -> dict[str, float]:
    """Metric name -> value: losses, chain accuracies as fractions, per-task accuracies in percent, and the extras.

    A metric without any sample is absent. `scores`: see `PhaseExtras.summarise`.
    """

    def ratio(numerator: float | np.ndarray, denominator: float | np.ndarray) -> float | None:
        return float(numerator) / float(denominator) if denominator else None

    count = sums["count"]
    values: dict[str, float | None] = {
        "loss_weighted": ratio(sums["loss_weighted"], count),
        "loss_unweighted": ratio(float(np.mean(sums["loss"])), count),
        "chain_accuracy": ratio(sums["chain"], count),
        "partial_chain_accuracy": ratio(sums["partial_chain"], sums["has_label"]),
    }
    for t, task in enumerate(tasks):
        labelled, unlabelled = sums["non_null"][t], count - sums["non_null"][t]
        values[f"acc1_{task}"] = ratio(100 * sums["correct1"][t], count)
        values[f"acc3_{task}"] = ratio(100 * sums["correct3"][t], count)
        values[f"loss_{task}"] = ratio(sums["loss"][t], count)
        values[f"non_null/acc1_{task}"] = ratio(100 * sums["correct1_non_null"][t], labelled)
        values[f"non_null/loss_{task}"] = ratio(sums["loss_non_null"][t], labelled)
        values[f"null/acc1_{task}"] = ratio(100 * (sums["correct1"][t] - sums["correct1_non_null"][t]), unlabelled)
        values[f"null/loss_{task}"] = ratio(sums["loss_null"][t], unlabelled)
    return {name: value for name, value in values.items() if value is not None} | extras.summarise(sums, tasks, scores)


def accuracy(
    output: jax.Array, target: jax.Array, topk: Sequence[int] = (1,), ignore_index: int | None = None
) -> list[jax.Array]:
    """Top-k accuracies of one task.

    Args:
      output: float [B, C].
      target: int [B].
      topk: values of k; beyond C they count as C.
      ignore_index: rows with this target are left out.

    Returns:
      One float32 [] per k, in percent; 0 where no row is left.
    """
    rank = rank_of_label(output, target)
    counted = jnp.ones_like(target, bool) if ignore_index is None else target != ignore_index
    count = jnp.maximum(counted.sum(), 1)
    return [100.0 * (counted & (rank < min(k, output.shape[1]))).sum() / count for k in topk]
