"""Learning rate of every parameter group: scaling of its peak, linear warmup, then a kind of `kinds`.

Linear scaling with the batch size and warmup: Goyal et al., arXiv:1706.02677; square-root scaling: Krizhevsky,
arXiv:1404.5997.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from linnaeus_jax.schedules.resolved import LearningRateSpec, ResolvedSchedule
from linnaeus_jax.schedules.step_function import StepFunction, linear


def apply_lr_scaling(base_lr: float, effective_batch_size: int, *, reference_bs: int, rule: str) -> float:
    """Peak learning rate.

    Args:
      base_lr: rate at `reference_bs`.
      effective_batch_size: rows of one update over all devices and micro-batches.
      rule: "linear" scales by n = effective / reference, "sqrt" by its square root.
    """
    ratio = effective_batch_size / reference_bs
    return base_lr * (ratio if rule == "linear" else math.sqrt(ratio))


def learning_rate(spec: LearningRateSpec) -> StepFunction:
    """Rate of step k: linear warmup, then what the kind says. 0 where the peak is 0."""
    kind, warmup = spec.kind, spec.warmup_steps

    def rule(xp: ModuleType, k: Any) -> Any:
        rate = kind.rate(xp, xp.maximum(k - warmup, 0), spec)
        return xp.where(k < warmup, linear(xp, k, spec.warmup_lr, spec.peak, warmup), rate) if warmup else rate

    return StepFunction(rule if spec.peak else lambda xp, k: 0.0)


def build_scheduler(resolved: ResolvedSchedule) -> dict[str, StepFunction]:
    """One schedule per parameter group, by group name; frozen groups have rate 0."""
    return {spec.group: learning_rate(spec) for spec in resolved.learning_rates}
