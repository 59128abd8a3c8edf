"""The train step: the gradient of an update, summed over its micro-batches, then `apply`.

The gradient of one micro-batch is that of `objective.task_losses`, weighted. An update that measures GradNorm has those
of the single losses, too: of the same losses where they serve both, otherwise of `objective.labelled_losses`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

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
from linnaeus_jax.step.objective import Batch, Objective, RowResults, Targets
from linnaeus_jax.step.state import Statistics, TrainState

Result = TypeVar("Result")


class GradSums(struct.PyTreeNode):
    """Gradient and statistics of one update, summed over its micro-batches (and devices)."""

    grads: Any  # like the parameters, None where frozen
    task_losses: jax.Array  # float32 [T], mean over the labels that count
    statistics: Statistics
    rows: RowResults  # of the first micro-batch
    gradnorm: TaskGradients | None = None
    model_state: Any = None  # after the update; None of a single micro-batch

    def merge(self, later: GradSums) -> GradSums:
        """Those of both."""
        summed: GradSums = jax.tree.map(jnp.add, self.replace(rows={}), later.replace(rows={}))
        return summed.replace(rows=self.rows)  # type: ignore[no-any-return]


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
    statistics: Statistics  # of this update alone
    gradnorm: dict[str, jax.Array]
    probes: dict[str, Any]  # by name, see `probes.measure`


@dataclass(frozen=True, eq=False)
class StepSettings(UpdateSettings):
    """Everything static that the application of a gradient depends on."""

    learning_rates: Mapping[str, optax.Schedule]  # by group
    gradnorm: GradNormSettings | None
    probes: Sequence[probes.Probe]


def grad_sums(
    objective: Objective,
    settings: StepSettings,
    state: TrainState,
    batch: Batch,
    targets: Targets,
    counts: jax.Array,
    *,
    measure: bool = False,
) -> GradSums:
    """Gradient of the weighted total loss of one update, of the parameters that train.

    With `counts` of the global batch, sums over disjoint shards of rows add up to the gradient of the whole.

    Args:
      batch, targets: leading [A, B].
      counts: float32 [T], valid labels of the whole update.
      measure: also measure the gradients of the single tasks, for GradNorm.
    """
    trained, frozen = settings.optimizer.split_frozen(state.params)
    step, weights, how = state.step, state.gradnorm.weights, settings.gradnorm if measure else None
    labelled = losses.label_counts(~targets.null, batch["weight"])

    def gradient(micro: Batch, targets: Targets, index: jax.Array, model_state: Any) -> tuple[GradSums, Any]:
        def task_losses(trained: Any) -> tuple[jax.Array, tuple[Any, Statistics, RowResults]]:
            params = merge_params(trained, frozen)
            return objective.task_losses(params, model_state, micro, targets, counts, step, index)

        def weighted_loss(trained: Any) -> tuple[jax.Array, tuple[jax.Array, Any]]:
            each, aux = task_losses(trained)
            return jnp.vdot(weights, each), (each, aux)

        def labelled_losses(trained: Any) -> tuple[jax.Array, None]:
            assert how is not None
            params = merge_params(trained, frozen)
            return objective.labelled_losses(params, model_state, micro, targets, labelled, step, index, how), None

        if how is not None and how.folded:
            each, (new_state, statistics, rows), task_grads = gradnorm.task_gradients(task_losses, trained)
            grads, measured = gradnorm.combine(task_grads, weights), TaskGradients(each, task_grads)
            return GradSums(grads, each, statistics, rows, measured), new_state
        grads, (each, (new_state, statistics, rows)) = jax.grad(weighted_loss, has_aux=True)(trained)
        if how is None:
            return GradSums(grads, each, statistics, rows), new_state
        alone, _, task_grads = gradnorm.task_gradients(labelled_losses, trained)
        return GradSums(grads, each, statistics, rows, TaskGradients(alone, task_grads)), new_state

    sums, new_state = over_micro_batches(gradient, GradSums.merge, batch, targets, state.model_state)
    return sums.replace(model_state=new_state)  # type: ignore[no-any-return]


def over_micro_batches(
    function: Callable[[Batch, Targets, jax.Array, Any], tuple[Result, Any]],
    merge: Callable[[Result, Result], Result],
    batch: Batch,
    targets: Targets,
    model_state: Any,
) -> tuple[Result, Any]:
    """The merged results of the micro-batches of an update, and the model's state after them.

    Args:
      function: (micro-batch, its targets, its index int32 [], model's state) -> (result, model's state after it).
      batch, targets: leading [A, B].
    """
    micro_batches = batch["label"].shape[0]
    every = batch, targets, jnp.arange(micro_batches, dtype=jnp.int32)
    alone: tuple[Batch, Targets, jax.Array] = jax.tree.map(lambda x: x[0], every)
    first = function(*alone, model_state)
    if micro_batches == 1:
        return first

    def body(carry: tuple[Result, Any], x: tuple[Batch, Targets, jax.Array]) -> tuple[tuple[Result, Any], None]:
        part, model_state = function(*x, carry[1])
        return (merge(carry[0], part), model_state), None

    # XLA on CPU runs convolutions inside a while loop on one thread, so there the loop is unrolled.
    unroll = micro_batches - 1 if backend.UNROLLED_ACCUMULATION.here() else 1
    return jax.lax.scan(body, first, jax.tree.map(lambda x: x[1:], every), unroll=unroll)[0]


def apply(
    objective: Objective, settings: StepSettings, state: TrainState, sums: GradSums, targets: Targets, batch: Batch
) -> tuple[TrainState, StepOutputs]:
    """Clips, transforms and applies the gradient, at the learning rates of `state.step`; skips non-finite updates."""
    loss = jnp.vdot(state.gradnorm.weights, sums.task_losses)
    update = Update(settings, Trainable(state.params, state.opt_state, state.ema), sums.grads, state.step)
    finite = jnp.isfinite(update.norm) & jnp.isfinite(loss)

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
    statistics = _of_update(sums.statistics, loss, update.norm, finite)
    skipped = state.skipped + jnp.where(finite, 0, 1)
    in_a_row = jnp.where(finite, 0, state.skipped_in_a_row + 1)
    kept = functools.partial(jnp.where, finite)  # the new where the update is made, else the old
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
    )
    new_state = TrainState(
        step=state.step + 1,
        params=new.params,
        model_state=jax.tree.map(kept, sums.model_state, state.model_state),
        opt_state=new.opt_state,
        gradnorm=jax.tree.map(kept, gradnorm_state, state.gradnorm),
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
        sums=sums.statistics.sums,
        batch=batch,
        null=targets.null,
        loss_mask=targets.loss_mask,
        partner_label=targets.partner_label,
        lam=targets.lam,
        probabilities=scheduled,
        updates=updates,
        **sums.rows,
    )


def _of_update(merged: Statistics, loss: jax.Array, norm: jax.Array, finite: jax.Array) -> Statistics:
    """The statistics of one update; of a skipped one, whose losses are in no mean, its null labels alone."""
    sums = merged.sums | {"loss_weighted": loss * merged.sums["count"]}
    return merged.replace(  # type: ignore[no-any-return]
        sums={name: jnp.where(finite, x, 0) for name, x in sums.items()},
        grad_norm=jnp.where(finite, norm, 0.0),
        updates=finite.astype(jnp.int32),
        meta_valid=jnp.where(finite, merged.meta_valid, 0),
    )


def make_train_step(
    objective: Objective, settings: StepSettings, *, measure: bool = False
) -> Callable[[TrainState, Batch], tuple[TrainState, StepOutputs]]:
    """The pure function (state, batch [A, B, ...]) -> (new state, outputs); `measure`: with GradNorm's measurement."""

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepOutputs]:
        targets, counts = objective.build_targets(batch, state.step)
        sums = grad_sums(objective, settings, state, batch, targets, counts, measure=measure)
        return apply(objective, settings, state, sums, targets, batch)

    return train_step
