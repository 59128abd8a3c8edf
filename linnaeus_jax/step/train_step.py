"""The train step: the gradient of an update, summed over its micro-batches, then `apply`.

The gradient of one micro-batch is that of `objective.task_losses`, weighted. GradNorm's measurement is another function
for it, see `_measured_gradient`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from linnaeus_jax import backend
from linnaeus_jax.learning import gradnorm, losses
from linnaeus_jax.learning.gradnorm import GradNormSettings, TaskGradients
from linnaeus_jax.learning.update import Trainable, Update, UpdateSettings, merge_params
from linnaeus_jax.metrics.phase import add
from linnaeus_jax.schedules.values import values_at
from linnaeus_jax.step import probes
from linnaeus_jax.step.objective import Batch, MicroBatchStats, Objective, Targets
from linnaeus_jax.step.state import MetricAccumulator, TrainState


class GradSums(struct.PyTreeNode):
    """Gradient and statistics of one update, summed over its micro-batches (and devices)."""

    grads: Any  # like the parameters, None where frozen
    task_losses: jax.Array  # float32 [T], mean over the labels that count
    measured: MicroBatchStats
    gradnorm: TaskGradients | None = None


class StepOutputs(struct.PyTreeNode):
    """What the host may want to know of one update; stays on the device unless it is fetched."""

    loss: jax.Array  # float32 [], weighted total
    task_losses: jax.Array  # float32 [T]
    grad_norm: jax.Array  # float32 [], before clipping
    clipped_norm: jax.Array
    finite: jax.Array  # bool []
    skipped: jax.Array  # int32 []
    skipped_in_a_row: jax.Array  # int32 []
    learning_rates: dict[str, jax.Array]
    probabilities: dict[str, jax.Array]
    statistics: MetricAccumulator  # of this update alone
    gradnorm: dict[str, jax.Array]
    probes: dict[str, Any]  # by name, see `probes.measure`
    frames: Any  # of the passes, where they are recorded


@dataclass(frozen=True, eq=False)
class StepSettings(UpdateSettings):
    """Everything static that the application of a gradient depends on."""

    learning_rates: Mapping[str, optax.Schedule]  # by group
    gradnorm: GradNormSettings | None
    probes: Sequence[probes.Probe]


class _Micro(NamedTuple):
    """One micro-batch, and what the model keeps besides parameters, as it is before it."""

    batch: Batch  # leading [B]
    targets: Targets
    number: jax.Array  # int32 [], which of the update
    model_state: Any


@dataclass(frozen=True, eq=False)
class _Losses:
    """The task losses of a micro-batch as a function of what trains; with everything else of the update.

    Attributes:
      params: those that train, at which the gradient is taken; frozen: the rest of them.
      counts: float32 [T], valid labels of the whole update.
      labelled: float32 [T], labelled samples of these rows, for GradNorm.
      weights: float32 [T], of the tasks.
    """

    objective: Objective
    params: Any
    frozen: Any
    counts: jax.Array
    labelled: jax.Array
    weights: jax.Array
    step: jax.Array

    def trained(self, micro: _Micro) -> tuple[Any, Any]:
        """What is differentiated: parameters, and taps that see gradients inside the model where they are recorded."""
        whole = merge_params(self.params, self.frozen)
        batch, targets, number, model_state = micro
        return self.params, self.objective.cotangent_taps(whole, model_state, batch, targets, self.step, number)

    def tasks(self, trained: tuple[Any, Any], micro: _Micro) -> tuple[jax.Array, MicroBatchStats]:
        """(float32 [T], statistics) of parameters and taps."""
        params = merge_params(trained[0], self.frozen)
        batch, targets, number, model_state = micro
        task_losses, stats = self.objective.task_losses(
            params, model_state, batch, targets, self.counts, self.step, number, trained[1]
        )
        # a micro-batch of nothing but padding, which fills up the last update of an epoch, leaves no trace
        has_rows = (batch["weight"] > 0).any()
        return task_losses, stats.replace(model_state=_select(has_rows, stats.model_state, model_state))

    def total(self, trained: tuple[Any, Any], micro: _Micro) -> tuple[jax.Array, tuple[jax.Array, MicroBatchStats]]:
        """(the weighted loss, what `tasks` gives)."""
        task_losses, stats = self.tasks(trained, micro)
        return jnp.vdot(self.weights, task_losses), (task_losses, stats)

    def of_labelled(self, params: Any, micro: _Micro, measure: GradNormSettings) -> tuple[jax.Array, None]:
        """What GradNorm measures, float32 [T]."""
        batch, targets, number, model_state = micro
        return self.objective.labelled_losses(
            merge_params(params, self.frozen),
            model_state,
            batch,
            targets,
            self.labelled,
            self.step,
            number,
            zero_metadata=measure.zero_metadata,
            refine=measure.refine,
        ), None


def _gradient(of: _Losses, micro: _Micro) -> GradSums:
    """Gradient of the weighted loss of one micro-batch."""
    (grads, tapped), (task_losses, stats) = jax.grad(of.total, has_aux=True)(of.trained(micro), micro)
    return GradSums(grads, task_losses, of.objective.with_tapped(stats, tapped, grads))


def _measured_gradient(of: _Losses, micro: _Micro, measure: GradNormSettings) -> GradSums:
    """As `_gradient`, with those of the single tasks."""
    if not measure.folded:
        sums = _gradient(of, micro)
        alone, _, grads = gradnorm.task_gradients(lambda params: of.of_labelled(params, micro, measure), of.params)
        return sums.replace(gradnorm=TaskGradients(alone, grads))
    task_losses, stats, (task_grads, tapped) = gradnorm.task_gradients(
        lambda trained: of.tasks(trained, micro), of.trained(micro)
    )
    grads = gradnorm.combine(task_grads, of.weights)
    stats = of.objective.with_tapped(stats, None if tapped is None else tapped.over_first_axis(), grads)
    return GradSums(grads, task_losses, stats, TaskGradients(task_losses, task_grads))


def grad_sums(
    objective: Objective,
    params: Any,
    model_state: Any,
    batch: Batch,
    targets: Targets,
    counts: jax.Array,
    task_weights: jax.Array,
    step: jax.Array,
    measure: GradNormSettings | None = None,
    frozen: Any = None,
) -> GradSums:
    """Gradient of the weighted total loss of one update.

    With `counts` of the global batch, sums over disjoint shards of rows add up to the gradient of the whole.

    Args:
      params: those that train; nothing else is differentiated.
      batch, targets: leading [A, B].
      counts: float32 [T], valid labels of the whole update.
      task_weights: float32 [T].
      measure: also measure the gradients of the single tasks.
      frozen: the rest of the parameters, see `Optimizer.split_frozen`; None: all train.
    """
    labelled = losses.label_counts(~targets.null, batch["weight"])
    of = _Losses(objective, params, frozen, counts, labelled, task_weights, step)

    def gradient(micro: _Micro) -> GradSums:
        return _gradient(of, micro) if measure is None else _measured_gradient(of, micro, measure)

    micro_batches = batch["label"].shape[0]
    first = gradient(_Micro(tree_index(batch, 0), tree_index(targets, 0), jnp.int32(0), model_state))
    if micro_batches == 1:
        return first

    def body(total: GradSums, x: tuple[Batch, Targets, jax.Array]) -> tuple[GradSums, None]:
        part = gradient(_Micro(*x, total.measured.model_state))
        merged = objective.merge(total.measured, part.measured)
        summed: GradSums = jax.tree.map(jnp.add, total.replace(measured=None), part.replace(measured=None))
        return summed.replace(measured=merged), None

    rest = jax.tree.map(lambda x: x[1:], (batch, targets, jnp.arange(micro_batches, dtype=jnp.int32)))
    # XLA on CPU runs convolutions inside a while loop on one thread, so there the loop is unrolled.
    unroll = micro_batches - 1 if backend.UNROLLED_ACCUMULATION.here() else 1
    return jax.lax.scan(body, first, rest, unroll=unroll)[0]


def tree_index(tree: Any, index: int) -> Any:
    """Every leaf's part at `index` of its first axis."""
    return jax.tree.map(lambda x: x[index], tree)


def _select(condition: jax.Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda n, o: jnp.where(condition, n, o), new, old)


def apply(
    objective: Objective, settings: StepSettings, state: TrainState, sums: GradSums, targets: Targets, batch: Batch
) -> tuple[TrainState, StepOutputs]:
    """Clips, transforms and applies the gradient, at the learning rates of `state.step`; skips non-finite updates."""
    weights, stats = state.gradnorm.weights, sums.measured
    loss = jnp.vdot(weights, sums.task_losses)
    update = Update(settings, Trainable(state.params, state.opt_state, state.ema), sums.grads, state.step)
    finite = jnp.isfinite(update.norm) & jnp.isfinite(loss)
    if objective.recorder is not None:
        finite &= objective.recorder.all_finite(stats.frames)

    gradnorm_state, gradnorm_metrics = state.gradnorm, dict[str, jax.Array]()
    if sums.gradnorm is not None and settings.gradnorm is not None:
        labelled = losses.label_counts(~targets.null, batch["weight"])
        gradnorm_state, gradnorm_metrics = settings.gradnorm.new_weights(state.gradnorm, sums.gradnorm, labelled)

    rates = values_at(settings.learning_rates, state.step)
    scheduled = values_at(objective.probabilities.by_name(), state.step)
    changes = functools.partial(update.changes, rates, finite)
    inputs = _probe_inputs(state, sums, update.norm, loss, targets, batch, scheduled, changes)
    probe_results = probes.measure(settings.probes, inputs)
    # ordered after the probes, which read the old parameters: XLA can then update these in place instead of copying
    # them
    new, clipped_norm = update.new(rates, finite & probes.ordering_token(probe_results))

    assert state.interval is not None  # only in a checkpoint
    statistics = _statistics(targets, batch, stats, loss, update.norm, finite)
    skipped = state.skipped + jnp.where(finite, 0, 1)
    in_a_row = jnp.where(finite, 0, state.skipped_in_a_row + 1)
    outputs = StepOutputs(
        loss=loss,
        task_losses=sums.task_losses,
        grad_norm=update.norm,
        clipped_norm=clipped_norm,
        finite=finite,
        skipped=skipped,
        skipped_in_a_row=in_a_row,
        learning_rates=rates,
        probabilities=scheduled,
        statistics=statistics,
        gradnorm=gradnorm_metrics,
        probes=probe_results,
        frames=stats.frames,
    )
    new_state = TrainState(
        step=state.step + 1,
        params=new.params,
        model_state=_select(finite, stats.model_state, state.model_state),
        opt_state=new.opt_state,
        gradnorm=_select(finite, gradnorm_state, state.gradnorm),
        ema=new.ema,
        skipped=skipped,
        skipped_in_a_row=in_a_row,
        interval=add(state.interval, statistics),
    )
    return new_state, outputs


def _probe_inputs(
    state: TrainState,
    sums: GradSums,
    norm: jax.Array,
    loss: jax.Array,
    targets: Targets,
    batch: Batch,
    scheduled: dict[str, jax.Array],
    updates: Callable[[], Any],
) -> probes.ProbeInputs:
    return probes.ProbeInputs(
        step=state.step,
        params=state.params,
        grads=sums.grads,
        grad_norm=norm,
        loss=loss,
        task_losses=sums.task_losses,
        task_weights=state.gradnorm.weights,
        counts=losses.label_counts(targets.loss_mask, batch["weight"]),
        sums=sums.measured.sums,
        batch=batch,
        null=targets.null,
        loss_mask=targets.loss_mask,
        partner_label=targets.partner_label,
        lam=targets.lam,
        probabilities=scheduled,
        preview=sums.measured.preview,
        sample_losses=sums.measured.sample_losses,
        updates=updates,
    )


def _statistics(
    targets: Targets,
    batch: Batch,
    stats: MicroBatchStats,
    loss: jax.Array,
    norm: jax.Array,
    finite: jax.Array,
) -> MetricAccumulator:
    """The statistics of one update; of a skipped one, whose losses are in no mean, its null labels alone."""
    sums = dict(stats.sums)
    sums["loss_weighted"] = loss * sums["count"]
    null = targets.null & (batch["weight"] > 0)[..., None]
    return MetricAccumulator(
        sums={name: jnp.where(finite, x, 0) for name, x in sums.items()},
        grad_norm=jnp.where(finite, norm, 0.0),
        updates=finite.astype(jnp.int32),
        meta_valid=jnp.where(finite, stats.meta_valid, 0),
        null_total=null.sum(axis=(0, 1), dtype=jnp.int32),
        null_included=(null & targets.loss_mask).sum(axis=(0, 1), dtype=jnp.int32),
    )


def make_train_step(
    objective: Objective, settings: StepSettings, *, measure: bool = False
) -> Callable[[TrainState, Batch], tuple[TrainState, StepOutputs]]:
    """The pure function (state, batch [A, B, ...]) -> (new state, outputs); `measure`: with GradNorm's measurement."""

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepOutputs]:
        targets, counts = objective.build_targets(batch, state.step)
        trained, frozen = settings.optimizer.split_frozen(state.params)
        sums = grad_sums(
            objective,
            trained,
            state.model_state,
            batch,
            targets,
            counts,
            state.gradnorm.weights,
            state.step,
            measure=settings.gradnorm if measure else None,
            frozen=frozen,
        )
        return apply(objective, settings, state, sums, targets, batch)

    return train_step
