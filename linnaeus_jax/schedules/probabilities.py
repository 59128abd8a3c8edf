"""Scheduled probabilities of masking and mixing, pure functions of the update index."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.schedules.resolved import PartialMasking, ResolvedSchedule
from linnaeus_jax.schedules.step_function import StepFunction, linear_ramp


@dataclass(frozen=True)
class Probabilities:
    """Each member maps an update index to a probability in [0, 1] (`partial_active`: to a bool)."""

    meta_mask: StepFunction  # all metadata of a sample is masked
    partial_active: StepFunction  # inside the window of partial masking
    partial_mask: StepFunction  # a sample not fully masked loses one combination; without the window gate
    null_mask: StepFunction  # a sample with a null label is kept in the loss
    mix: StepFunction  # a micro-batch is mixed


def partial_window(partial: PartialMasking) -> StepFunction:
    """start_steps <= k < end_steps; False everywhere where partial masking is disabled."""
    if not partial.enabled:
        return StepFunction(lambda k: np.bool_(False), lambda k: jnp.zeros((), jnp.bool_))
    start, end = partial.start_steps, partial.end_steps

    def host(k: np.ndarray) -> np.ndarray:
        return (k >= start) if end is None else (k >= start) & (k < end)

    def traced(k: jax.Array) -> jax.Array:
        return (k >= start) if end is None else (k >= start) & (k < end)

    return StepFunction(host, traced)


def build_probabilities(resolved: ResolvedSchedule) -> Probabilities:
    return Probabilities(
        meta_mask=linear_ramp(resolved.meta_masking),
        partial_active=partial_window(resolved.partial_masking),
        partial_mask=linear_ramp(resolved.partial_masking.prob),
        null_mask=linear_ramp(resolved.null_masking),
        mix=linear_ramp(resolved.mixing.prob),
    )
