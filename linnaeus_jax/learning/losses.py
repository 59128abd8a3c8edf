"""Per-sample criteria on two-class mixtures of labels, and the per-task loss sums of a micro-batch.

A target is never a dense vector: it is (label, partner_label, lam): weight ``lam`` on `label`, ``1 - lam`` on
`partner_label`.
Every criterion is cross entropy against a smoothed target q(target), linear in the target, so mixed labels cost two
gathers, not a [B, C] array.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.learning.class_weights import mixture_weight
from linnaeus_jax.learning.smoothing import TaxonomySmoothing
from linnaeus_jax.learning.task_weights import per_task

CRITERIA = (
    "CrossEntropyLoss",
    "LabelSmoothingCrossEntropy",
    "SoftTargetCrossEntropy",
    "TaxonomyAwareLabelSmoothing",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Criterion:
    """Cross entropy against a smoothed target; see `make_criterion`.

    Attributes:
      name: one of `CRITERIA`.
      num_classes: C.
      label_smoothing: mass spread evenly over the C - 1 other classes; 0 for none and where C = 1.
      smoothing: taxonomy smoothing, instead of the even one.
    """

    name: str
    num_classes: int
    label_smoothing: float = 0.0
    smoothing: TaxonomySmoothing | None = None

    def __call__(
        self, logits: jax.Array, label: jax.Array, partner_label: jax.Array | None = None, lam: jax.Array | None = None
    ) -> jax.Array:
        """Loss per sample, in nats.

        Args:
          logits: [B, C], promoted to at least float32.
          label: int32 [B], in [0, C); beyond it the loss is NaN.
          partner_label: int32 [B], label of the mixing partner; None: nothing is mixed.
          lam: float32 [B], weight of `label`; 1 where nothing is mixed.

        Returns:
          [B], float32 (float64 if the logits are).

        Raises:
          ValueError: the logits have another number of classes.
        """
        if logits.ndim != 2 or logits.shape[1] != self.num_classes:
            raise ValueError(f"{self.name} expects logits [B, {self.num_classes}], got shape {logits.shape}")
        logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        # Shifted logits: log Z and the expected logit are then both small, so their difference keeps its digits.
        shifted = logits - jax.lax.stop_gradient(jnp.max(logits, axis=1, keepdims=True))
        log_z = jnp.log(jnp.sum(jnp.exp(shifted), axis=1))
        return log_z - self._expected(shifted, label, partner_label, lam)

    def _expected(
        self, logits: jax.Array, label: jax.Array, partner_label: jax.Array | None, lam: jax.Array | None
    ) -> jax.Array:
        """Expected logit [B] under the smoothed target."""

        def mix(of: Callable[[jax.Array], jax.Array]) -> jax.Array:
            value = of(label)
            if partner_label is None or lam is None:
                return value
            weight = lam.reshape((-1,) + (1,) * (value.ndim - 1))
            return weight * value + (1.0 - weight) * of(partner_label)

        def pick(index: jax.Array) -> jax.Array:
            return jnp.take_along_axis(logits, index[:, None], axis=1)[:, 0]

        if self.smoothing is not None:
            label_mass = jnp.asarray(self.smoothing.label_mass)
            # mixed before the reduction: one [B, C] array is kept for the backward pass instead of two
            spread = jnp.sum(mix(self.smoothing.spread_mass) * logits, axis=1)
            return spread + mix(lambda index: label_mass[index] * pick(index))
        if self.label_smoothing == 0.0:
            return mix(pick)
        each = self.label_smoothing / (self.num_classes - 1)
        return (1.0 - self.label_smoothing - each) * mix(pick) + each * jnp.sum(logits, axis=1)


def make_criterion(
    name: str, *, num_classes: int, label_smoothing: float = 0.0, smoothing: TaxonomySmoothing | None = None
) -> Criterion:
    """The criterion of a configured name, for t = lam * [label] + (1 - lam) * [partner_label] and lp = log_softmax:

    * ``CrossEntropyLoss``, ``SoftTargetCrossEntropy``: -sum_c t_c lp_c
    * ``LabelSmoothingCrossEntropy`` (Szegedy et al. 2016, without self-smoothing): 1 - s on the class, s / (C - 1) on
      every other one, s = `label_smoothing`
    * ``TaxonomyAwareLabelSmoothing``: -sum_c (t M)_c lp_c, M = `smoothing`

    Raises:
      ValueError: unknown name, smoothing out of [0, 1), missing or with another number of classes.
    """
    if name not in CRITERIA:
        raise ValueError(f"criterion {name!r} is unknown; choose one of {', '.join(CRITERIA)}")
    if num_classes < 1:
        raise ValueError(f"{name} needs at least one class, got num_classes={num_classes}")
    if name == "LabelSmoothingCrossEntropy":
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"model.label_smoothing={label_smoothing} must lie in [0, 1)")
        return Criterion(name, num_classes, label_smoothing=float(label_smoothing) if num_classes > 1 else 0.0)
    if name == "TaxonomyAwareLabelSmoothing":
        if smoothing is None:
            raise ValueError(
                f"{name} needs taxonomy smoothing for its task: set loss.taxonomy_smoothing.enabled to True for it"
            )
        if smoothing.num_classes != num_classes:
            raise ValueError(f"{name}: the smoothing has {smoothing.num_classes} classes, the task {num_classes}")
        return Criterion(name, num_classes, smoothing=smoothing)
    return Criterion(name, num_classes)


def resolve_funcs(
    funcs: str | Sequence[str], tasks: Sequence[str], key: str = "loss.task_specific.train.funcs"
) -> tuple[str, ...]:
    """Names of the tasks' criteria, [T], from one name for all or one per task.

    Raises:
      ValueError: wrong length or an unknown name.
    """
    names = per_task(funcs, tasks, key)
    for task, name in zip(tasks, names, strict=True):
        if name not in CRITERIA:
            raise ValueError(f"{key}={name!r} ({task}) is unknown; choose one of {', '.join(CRITERIA)}")
    return names


class TaskLosses(NamedTuple):
    """Sums over the rows of one micro-batch, T tasks in task order; they add up over micro-batches and devices."""

    numerator: (
        jax.Array
    )  # float32 [T], where `loss_mask`, class weights applied: divide by `label_counts` of the update
    raw_sum: jax.Array  # float32 [T], all real rows, neither masked nor class weighted
    per_sample: jax.Array  # float32 [B, T], raw losses, 0 for padding


def task_loss_sums(
    logits: Mapping[str, jax.Array],
    label: jax.Array,
    partner_label: jax.Array | None,
    lam: jax.Array | None,
    weight: jax.Array,
    loss_mask: jax.Array,
    criteria: Mapping[str, Criterion],
    class_weights: Mapping[str, np.ndarray] | None = None,
) -> TaskLosses:
    """Loss sums of every task. The task loss is ``numerator / max(n, 1)``, n = `label_counts` over the whole update,
    so one big batch, micro-batches and sharded batches give the same loss and gradient.

    Args:
      logits: task -> [B, C].
      label: int32 [B, T], columns in the order of `criteria`.
      partner_label: int32 [B, T], labels of the mixing partners; None: nothing is mixed.
      lam: float32 [B], weight of `label`.
      weight: float32 [B], 1 for real rows, 0 for padding.
      loss_mask: bool [B, T], which labels count, see `null_masking.loss_mask`.
      criteria: task -> criterion, T entries in task order.
      class_weights: task -> float32 [C], applied once; None: not applied in this phase.

    Raises:
      ValueError: `label` or `loss_mask` does not have one column per task.
      KeyError: a task has no logits or no class weights.
    """
    if label.shape[1] != len(criteria) or loss_mask.shape[1] != len(criteria):
        raise ValueError(
            f"label {label.shape} and loss_mask {loss_mask.shape} need one column per task of {list(criteria)}"
        )
    raw, weighted = [], []
    for k, (task, criterion) in enumerate(criteria.items()):
        target = (label[:, k], None if partner_label is None else partner_label[:, k], lam)
        loss = jnp.where(weight > 0, criterion(logits[task], *target), 0.0)
        raw.append(loss)
        weighted.append(loss if class_weights is None else loss * mixture_weight(class_weights[task], *target))
    per_sample = jnp.stack(raw, axis=1)
    factor = jnp.where(loss_mask, weight[:, None], 0.0)
    return TaskLosses(
        numerator=jnp.sum(jnp.stack(weighted, axis=1) * factor, axis=0),
        raw_sum=jnp.sum(per_sample * weight[:, None], axis=0),
        per_sample=per_sample,
    )


def label_counts(loss_mask: jax.Array, weight: jax.Array) -> jax.Array:
    """Labels that count per task, float32 [T], of bool loss_mask [..., T] and weight [...], over all leading axes."""
    return jnp.sum(jnp.where(loss_mask, weight[..., None], 0.0), axis=tuple(range(loss_mask.ndim - 1)))
