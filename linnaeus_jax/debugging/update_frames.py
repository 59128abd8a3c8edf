"""Frames of an update: its forward pass, and where asked its backward pass, once more beside the train step.

It is a function of the same state and batch, so that parameters, inputs, random numbers and losses are those of the
update. The step itself knows nothing of it; another program may round otherwise.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from linnaeus_jax.debugging.frame_recorder import CotangentTaps, FrameRecorder, zeros_of
from linnaeus_jax.debugging.frames import Frames, concatenate, merge
from linnaeus_jax.learning.update import Optimizer, merge_params
from linnaeus_jax.step.compilation import CompiledStep, compile_fitting
from linnaeus_jax.step.objective import Batch, Objective, Targets
from linnaeus_jax.step.placement import Placement
from linnaeus_jax.step.program import Program
from linnaeus_jax.step.state import TrainState
from linnaeus_jax.step.train_step import over_micro_batches


class _ObservedModel:
    """In the place of the objective's model: applies it and keeps as `seen` what `record` returns beside the result."""

    seen: Any

    def __init__(self, record: Callable[..., tuple[Any, Any]]) -> None:
        self._record = record

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """As `model.apply`."""
        out, self.seen = self._record(*args, **kwargs)
        return out


def make_update_frames(
    objective: Objective, optimizer: Optimizer, *, gradients: bool
) -> Callable[[TrainState, Batch], Frames]:
    """The pure function (state, batch [A, B, ...]) -> frames of the update, its micro-batches taken together.

    Args:
      gradients: with those of the weighted total loss.
    """
    recorder = FrameRecorder(objective.model)

    def update_frames(state: TrainState, batch: Batch) -> Frames:
        targets, counts = objective.build_targets(batch, state.step)
        trained, frozen = optimizer.split_frozen(state.params)

        def observe(micro: Batch, targets: Targets, index: jax.Array, model_state: Any) -> tuple[Frames, Any]:
            def loss(record: Callable[..., tuple[Any, Any]], trained: Any) -> tuple[jax.Array, tuple[Any, Any]]:
                model = _ObservedModel(record)
                observed = dataclasses.replace(objective, model=model)  # type: ignore[arg-type]
                given = merge_params(trained, frozen), model_state, micro, targets, counts, state.step, index
                losses, (new_state, *_) = observed.task_losses(*given)
                return jnp.vdot(state.gradnorm.weights, losses), (model.seen, new_state)

            if not gradients:
                return loss(recorder.apply, trained)[1]

            def tapped_loss(trained: Any, taps: CotangentTaps) -> tuple[jax.Array, tuple[Any, Any]]:
                return loss(functools.partial(recorder.apply, taps=taps), trained)

            taps = zeros_of(jax.eval_shape(lambda: loss(recorder.apply_for_taps, trained)[1][0]))
            (grads, tapped), (frames, new_state) = jax.grad(tapped_loss, argnums=(0, 1), has_aux=True)(trained, taps)
            return concatenate(frames, tapped.frames(grads)), new_state

        return over_micro_batches(observe, merge, batch, targets, state.model_state)[0]

    return update_frames


def compile_update_frames(
    program: Program, state: Any, batch: Any, placement: Placement, *, gradients: bool
) -> CompiledStep:
    """`make_update_frames` of a program, compiled for the shapes of `state` and `batch`; the state stays as it is."""

    def make(*, recompute: bool = False) -> Callable[[TrainState, Batch], Frames]:
        objective = program.objective_of("plain", recompute=recompute)
        return make_update_frames(objective, program.settings.optimizer, gradients=gradients)

    recomputes = gradients and "plain" in program.may_recompute
    return compile_fitting(
        make, state, batch, placement, "overflow_detector", recomputes=recomputes, results=placement.replicated
    )
