"""Scheduled probabilities of masking and mixing, pure functions of the step."""

from __future__ import annotations

from dataclasses import dataclass

from linnaeus_jax.schedules.resolved import PartialMasking, ResolvedSchedule
from linnaeus_jax.schedules.step_function import StepFunction, linear_ramp


@dataclass(frozen=True)
class Probabilities:
    """Each member maps a 0-based step to a probability in [0, 1] (`partial_active`: to a bool)."""

    meta_mask: StepFunction  # all metadata of a sample is masked
    partial_active: StepFunction  # inside the window of partial masking
    partial_mask: StepFunction  # a sample not fully masked loses one combination; without the window gate
    null_mask: StepFunction  # a sample with a null label is kept in the loss
    mix: StepFunction  # a micro-batch is mixed


def partial_window(partial: PartialMasking) -> StepFunction:
    """start_steps <= k < end_steps; False everywhere where partial masking is disabled."""
    start, end = partial.start_steps, partial.end_steps
    if not partial.enabled:
        return StepFunction(lambda xp, k: False)
    if end is None:
        return StepFunction(lambda xp, k: k >= start)
    return StepFunction(lambda xp, k: (k >= start) & (k < end))


def build_probabilities(resolved: ResolvedSchedule) -> Probabilities:
    return Probabilities(
        meta_mask=linear_ramp(resolved.meta_masking),
        partial_active=partial_window(resolved.partial_masking),
        partial_mask=linear_ramp(resolved.partial_masking.prob),
        null_mask=linear_ramp(resolved.null_masking),
        mix=linear_ramp(resolved.mixing.prob),
    )
