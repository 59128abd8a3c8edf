"""Per-sample losses on two-class mixtures of labels, and the per-task loss sums of a micro-batch.

A loss is a function ``(logits [B, C], label int32 [B], *, option=default, ...) -> [B]``, registered by name:

    @LOSSES.register("FocalLoss")
    def focal_loss(logits, label, *, gamma: float = 2.0): ...

Logits are at least float32. Its options are the keys ``loss.FocalLoss.<option>``; a ValueError that it raises is a
config error. Targets under mixing are (label, partner_label, lam), never a dense vector, and the loss of such a row is
``lam * loss(label) + (1 - lam) * loss(partner_label)``. A function that has the keyword-only arguments
`partner_label` and `lam` (both may be None) mixes by itself; those here do: cross entropy is linear in the target, so
they mix the picked logits. `label_smoothing` and `smoothing` (of the task) are given to who asks for them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.learning.class_weights import mixture_weight
from linnaeus_jax.learning.mixing import interpolate
from linnaeus_jax.learning.smoothing import TaxonomySmoothing
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.registry import LOSSES, required_kwargs

TAXONOMY = "TaxonomyAwareLabelSmoothing"


@LOSSES.register("SoftTargetCrossEntropy")
@LOSSES.register("CrossEntropyLoss")
def cross_entropy(
    logits: jax.Array, label: jax.Array, *, partner_label: jax.Array | None, lam: jax.Array | None
) -> jax.Array:
    """``-sum_c t_c lp_c`` with t = lam * [label] + (1 - lam) * [partner_label] and lp = log_softmax."""
    return _against(logits, lambda shifted: interpolate(functools.partial(_pick, shifted), label, partner_label, lam))


@LOSSES.register("LabelSmoothingCrossEntropy")
def label_smoothing_cross_entropy(
    logits: jax.Array,
    label: jax.Array,
    *,
    partner_label: jax.Array | None,
    lam: jax.Array | None,
    label_smoothing: float,
) -> jax.Array:
    """`cross_entropy` with 1 - `label_smoothing` on the class and the rest spread evenly over the C - 1 other ones.

    Szegedy et al. 2016, but without mass for the class itself in the spread.
    """
    if label_smoothing == 0.0 or logits.shape[1] == 1:
        return cross_entropy(logits, label, partner_label=partner_label, lam=lam)
    each = label_smoothing / (logits.shape[1] - 1)

    def expected(shifted: jax.Array) -> jax.Array:
        picked = interpolate(functools.partial(_pick, shifted), label, partner_label, lam)
        return (1.0 - label_smoothing - each) * picked + each * jnp.sum(shifted, axis=1)

    return _against(logits, expected)


@LOSSES.register(TAXONOMY)
def taxonomy_smoothing_cross_entropy(
    logits: jax.Array,
    label: jax.Array,
    *,
    partner_label: jax.Array | None,
    lam: jax.Array | None,
    smoothing: TaxonomySmoothing | None,
) -> jax.Array:
    """``-sum_c (t M)_c lp_c``, M = `smoothing`; t and lp as in `cross_entropy`.

    Raises:
      ValueError: no smoothing, or of another number of classes.
    """
    if smoothing is None:
        raise InputError("needs taxonomy smoothing for its task: set loss.taxonomy_smoothing.enabled to True for it")
    if smoothing.num_classes != logits.shape[1]:
        raise ValueError(f"the smoothing has {smoothing.num_classes} classes, the task {logits.shape[1]}")

    def expected(shifted: jax.Array) -> jax.Array:
        label_mass = jnp.asarray(smoothing.label_mass)
        # mixed before the reduction: one [B, C] array is kept for the backward pass instead of two
        spread = jnp.sum(interpolate(smoothing.spread_mass, label, partner_label, lam) * shifted, axis=1)
        return spread + interpolate(lambda index: label_mass[index] * _pick(shifted, index), label, partner_label, lam)

    return _against(logits, expected)


def _against(logits: jax.Array, expected: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Cross entropy [B] against a target under which `expected` gives the expected logit [B]."""
    # Shifted logits: log Z and the expected logit are then both small, so their difference keeps its digits.
    shifted = logits - jax.lax.stop_gradient(jnp.max(logits, axis=1, keepdims=True))
    log_z = jnp.log(jnp.sum(jnp.exp(shifted), axis=1))
    return log_z - expected(shifted)


def _pick(logits: jax.Array, index: jax.Array) -> jax.Array:
    return jnp.take_along_axis(logits, index[:, None], axis=1)[:, 0]


@dataclasses.dataclass(frozen=True, eq=False)
class Criterion:
    """The loss of one task; see `make_criterion`.

    Attributes:
      name: as registered.
      num_classes: C.
      function: what is registered, with its options.
      smoothing: taxonomy smoothing that `function` uses; None: it uses none.
    """

    name: str
    num_classes: int
    function: Callable[..., jax.Array]
    smoothing: TaxonomySmoothing | None = None

    def __call__(
        self, logits: jax.Array, label: jax.Array, partner_label: jax.Array | None = None, lam: jax.Array | None = None
    ) -> jax.Array:
        """Loss per row; of the built-in functions in nats.

        Args:
          logits: [B, C], promoted to at least float32.
          label: int32 [B], in [0, C); beyond it the built-in losses are NaN.
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
        if "partner_label" in required_kwargs(self.function):
            return self.function(logits, label, partner_label=partner_label, lam=lam)
        return interpolate(functools.partial(self.function, logits), label, partner_label, lam)


def make_criterion(
    name: str,
    *,
    num_classes: int,
    label_smoothing: float = 0.0,
    smoothing: TaxonomySmoothing | None = None,
    options: Mapping[str, Any] | None = None,
) -> Criterion:
    """The criterion of a registered name; its function is tried on shapes alone.

    Args:
      label_smoothing, smoothing: for functions that ask for them.
      options: section ``loss.<name>`` of the configuration.

    Raises:
      ValueError: unknown name, no classes, or whatever the function raises, beginning with ``loss.<name>``.
    """
    given = {"label_smoothing": label_smoothing, "smoothing": smoothing}
    function = LOSSES.bind(name, options or {}, given)
    criterion = Criterion(name, num_classes, function, function.keywords.get("smoothing"))
    if num_classes < 1:
        raise ValueError(f"{name} needs at least one class, got num_classes={num_classes}")
    rows = 2
    with LOSSES.wrap_errors(name):
        loss = jax.eval_shape(
            criterion, jax.ShapeDtypeStruct((rows, num_classes), jnp.float32), jax.ShapeDtypeStruct((rows,), jnp.int32)
        )
        if getattr(loss, "shape", None) != (rows,):
            raise InputError(f"must return one loss per row, shape ({rows},) for {rows} rows, not {loss}")
    return criterion


class TaskLosses(NamedTuple):
    """Sums over the rows of one micro-batch, T tasks in task order; they add up over micro-batches and devices."""

    numerator: (
        jax.Array
    )  # float32 [T], where `loss_mask`, class weights applied: divide by `label_counts` of the update
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
        raise InputError(
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
        per_sample=per_sample,
    )


def label_counts(loss_mask: jax.Array, weight: jax.Array) -> jax.Array:
    """Labels that count per task, float32 [T], of bool loss_mask [..., T] and weight [...], over all leading axes."""
    return jnp.sum(jnp.where(loss_mask, weight[..., None], 0.0), axis=tuple(range(loss_mask.ndim - 1)))
