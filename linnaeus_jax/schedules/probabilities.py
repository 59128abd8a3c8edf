"""Scheduled probabilities of masking and mixing, pure functions of the step."""

from __future__ import annotations

from dataclasses import dataclass

import optax

from linnaeus_jax.schedules.resolved import PartialMasking, Ramp, ResolvedSchedule
from linnaeus_jax.schedules.values import linear


@dataclass(frozen=True)
class Probabilities:
    """Each member maps a 0-based step to a probability in [0, 1] (`partial_active`: to a bool)."""

    meta_mask: optax.Schedule  # all metadata of a sample is masked
    partial_active: optax.Schedule  # inside the window of partial masking
    partial_mask: optax.Schedule  # a sample not fully masked loses one combination; without the window gate
    null_mask: optax.Schedule  # a sample with a null label is kept in the loss
    mix: optax.Schedule  # a micro-batch is mixed

    def by_name(self) -> dict[str, optax.Schedule]:
        """The probabilities that are logged, by their logged names; that of partial masking within its window alone."""
        return {
            "meta_mask_prob": self.meta_mask,
            "partial_mask_prob": lambda step: self.partial_mask(step) * self.partial_active(step),
            "mixup_prob": self.mix,
            "null_mask_prob": self.null_mask,
        }


def ramp_schedule(ramp: Ramp) -> optax.Schedule:
    """A linear ramp; a constant where it is disabled."""
    if not ramp.enabled:
        return optax.constant_schedule(ramp.disabled_value)
    return linear(ramp.start, ramp.end, ramp.end_steps)


def partial_window(partial: PartialMasking) -> optax.Schedule:
    """True at start_steps <= k < end_steps: constants joined; False everywhere where partial masking is disabled."""
    if not partial.enabled:
        return optax.constant_schedule(False)
    ends = [partial.start_steps] if partial.end_steps is None else [partial.start_steps, partial.end_steps]
    constants = [optax.constant_schedule(inside) for inside in (False, True, False)]
    return optax.join_schedules(constants[: len(ends) + 1], ends)


def build_probabilities(resolved: ResolvedSchedule) -> Probabilities:
    return Probabilities(
        meta_mask=ramp_schedule(resolved.meta_masking),
        partial_active=partial_window(resolved.partial_masking),
        partial_mask=ramp_schedule(resolved.partial_masking.prob),
        null_mask=ramp_schedule(resolved.null_masking),
        mix=ramp_schedule(resolved.mixing.prob),
    )
