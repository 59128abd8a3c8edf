"""Learning rate of every parameter group: scaling of its peak, then the schedule of its kind (`kinds.py`).

Linear scaling with the batch size and warmup: Goyal et al., arXiv:1706.02677; square-root scaling: Krizhevsky,
arXiv:1404.5997.
"""

from __future__ import annotations

import dataclasses
import math

import optax

from linnaeus_jax.schedules.resolved import LearningRateSpec, ResolvedSchedule


def apply_lr_scaling(base_lr: float, effective_batch_size: int, *, reference_bs: int, rule: str) -> float:
    """Peak learning rate.

    Args:
      base_lr: rate at `reference_bs`.
      effective_batch_size: rows of one update over all devices and micro-batches.
      rule: "linear" scales by n = effective / reference, "sqrt" by its square root.
    """
    ratio = effective_batch_size / reference_bs
    return base_lr * (ratio if rule == "linear" else math.sqrt(ratio))


def learning_rate(spec: LearningRateSpec) -> optax.Schedule:
    """Rate of each step: 0 in the delay, then the schedule of the group's kind, or 0 where the peak is 0."""
    still = optax.constant_schedule(0.0)
    if not spec.peak:
        return still
    whole, delay = spec.total_steps, spec.delay_steps
    course = dataclasses.replace(spec, delay_steps=0, total_steps=max(1, whole - delay))
    schedule: optax.Schedule = spec.kind(course)
    return optax.join_schedules([still, schedule], [delay]) if delay else schedule


def build_scheduler(resolved: ResolvedSchedule) -> dict[str, optax.Schedule]:
    """One schedule per parameter group, by group name; frozen groups have rate 0."""
    return {spec.group: learning_rate(spec) for spec in resolved.learning_rates}
