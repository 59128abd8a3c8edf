"""The train step: `grad_sums` over the micro-batches, then `apply`; with or without the measurement of GradNorm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from linnaeus_jax import backend
from linnaeus_jax.learning import gradnorm, losses, optimizers
from linnaeus_jax.learning.branches import computed_if
from linnaeus_jax.learning.joining import as_stored, global_norm
from linnaeus_jax.metrics.phase import add
from linnaeus_jax.schedules.values import values_at
from linnaeus_jax.step import probes
from linnaeus_jax.step.objective import Measured, Objective, Targets
from linnaeus_jax.step.state import IntervalSums, TrainState

Batch = Mapping[str, jax.Array]


class GradSums(struct.PyTreeNode):
    """Gradient and statistics of one update, summed over its micro-batches (and devices)."""

    grads: Any  # like the parameters, None where frozen
    task_losses: jax.Array  # float32 [T], mean over the labels that count
    measured: Measured
    gradnorm: TaskGradients | None = None


class TaskGradients(struct.PyTreeNode):
    """What GradNorm measures: gradients of the single, unweighted task losses."""

    losses: jax.Array  # float32 [T]
    grads: Any  # like the parameters, leading [T]; None where frozen


@dataclass(frozen=True, eq=False)
class GradNormSettings:
    """How GradNorm measures and moves the task weights."""

    shared: Any  # pytree of bools like the parameters: what trains of the trunk, over which norms are taken
    alpha: float
    rule: str
    kappa: float
    lr: float
    zero_metadata: bool  # measure without metadata
    refine: bool  # measure with what hierarchical heads take from the coarser ranks
    folded: bool  # the measured losses are those that train, so that one pass serves both

    def new_weights(
        self, state: gradnorm.GradNormState, measured: TaskGradients, counts: jax.Array
    ) -> tuple[gradnorm.GradNormState, dict[str, jax.Array]]:
        """New task weights; tasks without a labelled sample (`counts` 0) keep theirs."""
        return gradnorm.gradnorm_update(
            state,
            gradnorm.shared_norms(measured.grads, self.shared),
            measured.losses,
            counts > 0,
            alpha=self.alpha,
            rule=self.rule,
            kappa=self.kappa,
            lr=self.lr,
        )


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
    interval: IntervalSums  # of this update alone
    gradnorm: dict[str, jax.Array]
    probes: dict[str, Any]  # by name, see `probes.measure`
    frames: Any  # of the passes, where they are recorded


@dataclass(frozen=True, eq=False)
class StepSettings:
    """Everything static that the application of a gradient depends on."""

    probes: Sequence[probes.Probe]
    optimizer: optimizers.Optimizer
    learning_rates: Mapping[str, optax.Schedule]  # by group
    clip_mode: str
    clip_limit: float
    ema_decay: float | None
    gradnorm: GradNormSettings | None


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

    def one(micro: Batch, target: Targets, index: jax.Array, model_state: Any) -> GradSums:
        whole = optimizers.join_frozen(params, frozen)
        slots = objective.gradient_slots(whole, model_state, micro, target, step, index)

        def losses_of(subject: tuple[Any, Any]) -> tuple[jax.Array, Measured]:
            params, slots = subject
            params = optimizers.join_frozen(params, frozen)
            task_losses, measured = objective.task_losses(
                params, model_state, micro, target, counts, step, index, slots
            )
            # a micro-batch of nothing but padding, which fills up the last update of an epoch, leaves no trace
            state = jax.tree.map(
                lambda new, old: jnp.where((micro["weight"] > 0).any(), new, old), measured.model_state, model_state
            )
            return task_losses, measured.replace(model_state=state)

        def total(subject: tuple[Any, Any]) -> tuple[jax.Array, tuple[jax.Array, Measured]]:
            task_losses, measured = losses_of(subject)
            return jnp.vdot(task_weights, task_losses), (task_losses, measured)

        def recorded(measured: Measured, grads: Any, slot_grads: Any) -> Measured:
            if slot_grads is None or objective.recorder is None:
                return measured
            return measured.replace(frames=objective.recorder.with_gradients(measured.frames, slot_grads, grads))

        if measure is not None and measure.folded:
            task_losses, measured, (task_grads, slot_grads) = gradnorm.task_gradients(losses_of, (params, slots))
            grads = gradnorm.combine(task_grads, task_weights)
            measured = recorded(measured, grads, None if slot_grads is None else slot_grads.over_first_axis())
            return GradSums(grads, task_losses, measured, TaskGradients(task_losses, task_grads))
        (grads, slot_grads), (task_losses, measured) = jax.grad(total, has_aux=True)((params, slots))
        measured = recorded(measured, grads, slot_grads)
        if measure is None:
            return GradSums(grads, task_losses, measured)

        def measured_losses(params: Any) -> tuple[jax.Array, None]:
            params = optimizers.join_frozen(params, frozen)
            return objective.labelled_losses(
                params,
                model_state,
                micro,
                target,
                labelled,
                step,
                index,
                zero_metadata=measure.zero_metadata,
                refine=measure.refine,
            ), None

        alone, _, task_grads = gradnorm.task_gradients(measured_losses, params)
        return GradSums(grads, task_losses, measured, TaskGradients(alone, task_grads))

    def at(tree: Any, index: int) -> Any:
        return jax.tree.map(lambda x: x[index], tree)

    micro_batches = batch["label"].shape[0]
    first = one(at(batch, 0), at(targets, 0), jnp.int32(0), model_state)
    if micro_batches == 1:
        return first

    def body(total: GradSums, x: tuple[Batch, Targets, jax.Array]) -> tuple[GradSums, None]:
        part = one(*x, total.measured.model_state)
        summed = jax.tree.map(jnp.add, total, part)
        # the model's state goes from one micro-batch to the next, and what is shown of single rows is of the first
        kept = summed.measured.replace(
            model_state=part.measured.model_state,
            preview=total.measured.preview,
            sample_losses=total.measured.sample_losses,
        )
        if objective.recorder is not None:
            kept = kept.replace(frames=objective.recorder.merge(total.measured.frames, part.measured.frames))
        return summed.replace(measured=kept), None

    rest = jax.tree.map(lambda x: x[1:], (batch, targets, jnp.arange(micro_batches, dtype=jnp.int32)))
    # XLA on CPU runs convolutions inside a while loop on one thread, so there the loop is unrolled.
    unroll = micro_batches - 1 if backend.target() == "cpu" else 1
    return jax.lax.scan(body, first, rest, unroll=unroll)[0]


class Trainable(NamedTuple):
    """What an update changes unless it is skipped; `params` and `ema` are None where frozen."""

    params: Any
    opt_state: Any
    ema: Any


class Updated(NamedTuple):
    """What one optimizer update makes, small leaves joined."""

    new: Trainable
    updates: Any  # what it adds to the parameters
    clipped_norm: jax.Array


def _optimizer_update(
    settings: StepSettings, old: Trainable, step: jax.Array, grads: Any, rates: Mapping[str, jax.Array]
) -> Updated:
    """One optimizer update of joined trees; their norm is clipped, if anything of them."""
    optimizer = settings.optimizer.joined
    assert optimizer is not None
    limit = settings.clip_limit if settings.clip_mode == "norm" else 0.0
    grads, clipped_norm = optimizers.clip(grads, "norm", limit)
    if limit > 0:
        clipped_norm *= optimizers.clip_factor(clipped_norm, limit)
    descent, opt_state = optimizer.transform.update(grads, old.opt_state, old.params)
    updates = optimizer.apply_learning_rates(descent, rates)
    params = optax.apply_updates(old.params, updates)
    ema = None
    if settings.ema_decay is not None:
        ema = optimizers.ema_update(old.ema, params, settings.ema_decay, step)
    return Updated(Trainable(params, opt_state, ema), updates, clipped_norm)


def apply(
    objective: Objective, settings: StepSettings, state: TrainState, sums: GradSums, targets: Targets, batch: Batch
) -> tuple[TrainState, StepOutputs]:
    """Clips, transforms and applies the gradient, at the learning rates of `state.step`; skips non-finite updates."""
    weights = state.gradnorm.weights
    loss = jnp.vdot(weights, sums.task_losses)
    trained, frozen = settings.optimizer.split_frozen(state.params)
    ema, frozen_ema = (None, None) if state.ema is None else settings.optimizer.split_frozen(state.ema)
    optimizer, joining = settings.optimizer, settings.optimizer.joining
    old = Trainable(joining.join(trained), joining.join_state(state.opt_state), joining.join(ema))
    joined_grads = joining.join(as_stored(sums.grads))
    norm = global_norm(joined_grads)
    finite = jnp.isfinite(norm) & jnp.isfinite(loss)
    if objective.recorder is not None:
        finite &= objective.recorder.all_finite(sums.measured.frames)

    gradnorm_state = state.gradnorm
    gradnorm_metrics: dict[str, jax.Array] = {}
    if sums.gradnorm is not None and settings.gradnorm is not None:
        labelled = losses.label_counts(~targets.null, batch["weight"])
        gradnorm_state, gradnorm_metrics = settings.gradnorm.new_weights(state.gradnorm, sums.gradnorm, labelled)

    rates = values_at(settings.learning_rates, state.step)

    if settings.clip_mode == "adaptive":  # it looks at the units of single leaves
        clipped, _ = optimizers.clip(sums.grads, "adaptive", settings.clip_limit, params=trained, ndim=optimizer.ndim)
        joined_grads = joining.join(clipped)

    @jax.jit  # traced once for the probes and the update
    def update(old: Trainable, step: jax.Array, grads: Any, rates: Mapping[str, jax.Array]) -> Updated:
        return _optimizer_update(settings, old, step, grads, rates)

    def applied_updates() -> Any:
        updates = update(old, state.step, joined_grads, rates).updates
        return joining.split(jax.tree.map(lambda u: jnp.where(finite, u, 0.0), updates))

    scheduled, measured = values_at(objective.probabilities.by_name(), state.step), sums.measured
    inputs = probes.ProbeInputs(
        step=state.step,
        params=state.params,
        grads=sums.grads,
        loss=loss,
        task_losses=sums.task_losses,
        task_weights=weights,
        counts=losses.label_counts(targets.loss_mask, batch["weight"]),
        sums=measured.sums,
        batch=batch,
        null=targets.null,
        loss_mask=targets.loss_mask,
        partner_label=targets.partner_label,
        lam=targets.lam,
        probabilities=scheduled,
        preview=measured.preview,
        sample_losses=measured.sample_losses,
        updates=applied_updates,
    )
    probe_results = probes.measure(settings.probes, inputs)

    # On a CPU a branch of its own is compiled alike with and without probes: its operands, the gradients, are arrays in
    # memory, and XLA fuses nothing across its border. So probes change no bit of the parameters, and no update of a
    # whole vector is computed again for each leaf that is cut from it. The branch runs after the probes so that it may
    # write over the parameters; XLA would copy them for probes that could run later.
    def updated(kept: tuple[Trainable, jax.Array]) -> tuple[Trainable, jax.Array]:
        made = update(kept[0], state.step, joined_grads, rates)
        return made.new, made.clipped_norm

    new, clipped_norm = computed_if(finite & probes.true_after(probe_results), updated, (old, norm))

    def accepted(new: Any, old: Any) -> Any:
        return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)

    assert state.interval is not None  # only in a checkpoint
    interval = _interval(objective, targets, batch, measured, loss, norm, finite)
    skipped = state.skipped + jnp.where(finite, 0, 1)
    in_a_row = jnp.where(finite, 0, state.skipped_in_a_row + 1)
    outputs = StepOutputs(
        loss=loss,
        task_losses=sums.task_losses,
        grad_norm=norm,
        clipped_norm=clipped_norm,
        finite=finite,
        skipped=skipped,
        skipped_in_a_row=in_a_row,
        learning_rates=rates,
        probabilities=scheduled,
        interval=interval,
        gradnorm=gradnorm_metrics,
        probes=probe_results,
        frames=measured.frames,
    )
    new_state = TrainState(
        step=state.step + 1,
        params=optimizers.join_frozen(joining.split(new.params), frozen),
        model_state=accepted(measured.model_state, state.model_state),
        opt_state=joining.split_state(new.opt_state),
        gradnorm=accepted(gradnorm_state, state.gradnorm),
        ema=optimizers.join_frozen(joining.split(new.ema), frozen_ema),
        skipped=skipped,
        skipped_in_a_row=in_a_row,
        interval=add(state.interval, interval),
    )
    return new_state, outputs


def _interval(
    objective: Objective,
    targets: Targets,
    batch: Batch,
    measured: Measured,
    loss: jax.Array,
    norm: jax.Array,
    finite: jax.Array,
) -> IntervalSums:
    """The statistics of one update; a skipped one adds its samples but no non-finite number."""
    sums = dict(measured.sums)
    sums["loss_weighted"] = loss * sums["count"]
    sums = {name: jnp.where(finite | jnp.issubdtype(x.dtype, jnp.integer), x, 0) for name, x in sums.items()}
    null = targets.null & (batch["weight"] > 0)[..., None]
    return IntervalSums(
        sums=sums,
        grad_norm=jnp.where(finite, norm, 0.0),
        updates=finite.astype(jnp.int32),
        meta_valid=measured.meta_valid,
        null_total=null.sum(axis=(0, 1), dtype=jnp.int32),
        null_included=(null & targets.loss_mask).sum(axis=(0, 1), dtype=jnp.int32),
    )


def make_train_step(
    objective: Objective, settings: StepSettings, *, measure: bool = False
) -> Callable[[TrainState, Batch], tuple[TrainState, StepOutputs]]:
    """The pure function (state, batch [A, B, ...]) -> (new state, outputs); `measure`: with GradNorm's measurement."""

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepOutputs]:
        targets, counts = objective.prepare(batch, state.step)
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
