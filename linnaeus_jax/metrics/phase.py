"""What every phase measures: rows, chain accuracies, accuracies and losses; and all metrics of a phase together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.metrics.extras import NO_EXTRAS, SCORES, PhaseExtras
from linnaeus_jax.metrics.metric import (
    VAL,
    MetricInfo,
    MetricInputs,
    PhaseMetric,
    Sums,
    named,
    per_task,
    rank_of_label,
    ratio,
)

#: the sums of the rows of two phases, two trees of one structure
add = PhaseMetric.merge


class Rows(PhaseMetric):
    """The number of rows, which the others divide by."""

    def empty(self, tasks: Sequence[str]) -> Sums:
        return {"count": jnp.zeros((), jnp.int32)}

    def update(self, inputs: MetricInputs) -> Sums:
        return {"count": _total(inputs.valid)}


class Chains(PhaseMetric):
    """Rows that are right at every rank."""

    infos: ClassVar = {
        "chain_accuracy": MetricInfo(
            "all ranks right", "rows right at every task / rows", "fraction", True, core="chain_acc"
        ),
        "partial_chain_accuracy": MetricInfo(
            "all known ranks right",
            "rows right at every task with a label / rows with a label at any task",
            "fraction",
            True,
            core="partial_chain_acc",
        ),
    }

    def empty(self, tasks: Sequence[str]) -> Sums:
        return dict.fromkeys(("chain", "partial_chain", "has_label"), jnp.zeros((), jnp.int32))

    def update(self, inputs: MetricInputs) -> Sums:
        valid, right, labelled = inputs.valid, inputs.right, inputs.labelled
        return {
            "chain": _total(valid & right.all(axis=1)),
            "partial_chain": _total(valid & labelled.any(axis=1) & (right | ~labelled).all(axis=1)),
            "has_label": _total(valid & labelled.any(axis=1)),
        }

    def compute(self, sums: Mapping[str, np.ndarray], tasks: Sequence[str]) -> dict[str, float]:
        values = {
            "chain_accuracy": ratio(sums["chain"], sums["count"]),
            "partial_chain_accuracy": ratio(sums["partial_chain"], sums["has_label"]),
        }
        return named(values, tasks)


class Accuracies(PhaseMetric):
    """Accuracies of every rank, of null and other labels apart."""

    infos: ClassVar = {
        "acc1": per_task("top-1", "rows whose best class is the label / rows", "%", True),
        "acc3": per_task("top-3", "rows whose label is among the best three classes / rows", "%", True),
        "null/acc1": per_task("top-1 of null labels", "as acc1, over rows without a label", "%", True),
        "non_null/acc1": per_task("top-1 of known labels", "as acc1, over rows with a label", "%", True),
        "macro_acc1": per_task("mean of classes", "mean of top-1 of every class that has rows", "%", True, VAL),
    }

    def empty(self, tasks: Sequence[str]) -> Sums:
        names = ("correct1", "correct3", "non_null", "correct1_non_null")
        return dict.fromkeys(names, jnp.zeros(len(tasks), jnp.int32))

    def update(self, inputs: MetricInputs) -> Sums:
        rows, right = inputs.rows, inputs.right
        widths = jnp.asarray([min(3, z.shape[1]) for z in inputs.logits.values()], jnp.int32)
        return {
            "correct1": _total(rows & right),
            "correct3": _total(rows & (inputs.rank < widths[None, :])),
            "non_null": _total(inputs.counted),
            "correct1_non_null": _total(inputs.counted & right),
        }

    def compute(self, sums: Mapping[str, np.ndarray], tasks: Sequence[str]) -> dict[str, float]:
        count, labelled, right = sums["count"], sums["non_null"], sums["correct1_non_null"]
        values = {
            "acc1": ratio(sums["correct1"], count, 100),
            "acc3": ratio(sums["correct3"], count, 100),
            "non_null/acc1": ratio(right, labelled, 100),
            "null/acc1": ratio(sums["correct1"] - right, count - labelled, 100),
        }
        return named(values, tasks)


class Losses(PhaseMetric):
    """Losses of every rank, of null and other labels apart, and their totals."""

    infos: ClassVar = {
        "loss": MetricInfo(
            "loss",
            "training: the weighted total that is trained on, without masked null labels; validation: mean over tasks, "
            "with class weights where they are on in validation",
            "nats",
            False,
            per_task=True,
            core="loss",
        ),
        "loss_weighted": MetricInfo("weighted loss", "mean over rows of Σ_t weight_t · loss_t", "nats", False),
        "loss_unweighted": MetricInfo(
            "loss, mean of ranks",
            "mean over rows and tasks, null labels included",
            "nats",
            False,
            core="loss_unweighted",
        ),
        "null/loss": per_task("loss of null labels", "mean loss over rows without a label", "nats", False),
        "non_null/loss": per_task("loss of known labels", "mean loss over rows with a label", "nats", False),
    }

    def empty(self, tasks: Sequence[str]) -> Sums:
        of_tasks = dict.fromkeys(("loss", "loss_non_null", "loss_null"), jnp.zeros(len(tasks), jnp.float32))
        return of_tasks | {"loss_weighted": jnp.zeros((), jnp.float32)}

    def update(self, inputs: MetricInputs) -> Sums:
        rows, loss = inputs.rows, inputs.loss
        return {
            "loss": jnp.where(rows, loss, 0.0).sum(axis=0),
            "loss_non_null": jnp.where(inputs.counted, loss, 0.0).sum(axis=0),
            "loss_null": jnp.where(rows & ~inputs.labelled, loss, 0.0).sum(axis=0),
            "loss_weighted": jnp.where(inputs.valid, inputs.loss_weighted, 0.0).sum(),
        }

    def compute(self, sums: Mapping[str, np.ndarray], tasks: Sequence[str]) -> dict[str, float]:
        count, labelled = sums["count"], sums["non_null"]
        values = {
            "loss_weighted": ratio(sums["loss_weighted"], count),
            "loss_unweighted": ratio(np.mean(sums["loss"]), count),
            "loss": ratio(sums["loss"], count),
            "non_null/loss": ratio(sums["loss_non_null"], labelled),
            "null/loss": ratio(sums["loss_null"], count - labelled),
        }
        return named(values, tasks)


#: what every phase measures
ALWAYS: tuple[PhaseMetric, ...] = (Rows(), Chains(), Accuracies(), Losses())


def _total(mask: jax.Array) -> jax.Array:
    return mask.sum(axis=0, dtype=jnp.int32)


def empty_sums(tasks: Sequence[str], extras: PhaseExtras = NO_EXTRAS) -> Sums:
    """The sums of no row."""
    return {name: x for metric in (*ALWAYS, *extras.metrics) for name, x in metric.empty(tasks).items()}


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
      membership: kind of subset -> bool [B, S] or int32 [B]; kinds that are not measured are ignored.
      columns: other columns of the batch: `subsets` int32 [B, len(extras.kinds)] where there are kinds, and for metrics
        of plugins `row`, `group`, `meta` and `meta_valid`, see `MetricInputs`.
    """
    columns = columns or {}
    subsets = {kind: columns["subsets"][:, i] for i, kind in enumerate(extras.kinds if columns else ())}
    given: dict[str, Any] = {name: columns.get(name) for name in ("row", "group", "meta", "meta_valid")}
    inputs = MetricInputs(
        logits,
        label,
        weight,
        subsets=subsets,
        loss=loss,
        loss_weighted=loss_weighted,
        null_possible=null_possible,
        membership={**(membership or {}), **subsets},
        **given,
    )
    _ = inputs.valid, inputs.right, inputs.labelled, inputs.rows  # what all share is traced first, whatever is chosen
    return {name: x for metric in (*ALWAYS, *extras.metrics) for name, x in metric.update(inputs).items()}


def summarise(
    sums: Mapping[str, np.ndarray],
    tasks: Sequence[str],
    extras: PhaseExtras = NO_EXTRAS,
    scores: np.ndarray | None = None,
) -> dict[str, float]:
    """Metric name -> value: chain accuracies as fractions, per-task accuracies in percent, losses, and the extras.

    A metric without any sample is absent.

    Args:
      scores: float32 [n, T], `signed_confidence` of every row, in any order; None: no risk-coverage.
    """
    sums = sums if scores is None else {**sums, SCORES: scores}
    return {name: x for metric in (*ALWAYS, *extras.metrics) for name, x in metric.compute(sums, tasks).items()}


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
