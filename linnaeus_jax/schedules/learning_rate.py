"""Learning rate of update k per parameter group: linear warmup, then cosine, linear, step or warmup-stable-decay.

Cosine annealing: Loshchilov & Hutter, arXiv:1608.03983 (one cycle). Warmup-stable-decay: Hu et al., arXiv:2404.06395.
Linear scaling with the batch size and warmup: Goyal et al., arXiv:1706.02677; square-root scaling: Krizhevsky,
arXiv:1404.5997.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax

from linnaeus_jax.schedules.resolved import LearningRateSpec, ResolvedSchedule
from linnaeus_jax.schedules.step_function import StepFunction, linear


def apply_lr_scaling(
    base_lr: float,
    effective_batch_size: int,
    *,
    reference_bs: int = 512,
    rule: str = "linear",
    multiplier: float = 1.0,
) -> float:
    """Peak learning rate of a group.

    Args:
      base_lr: rate at `reference_bs`.
      effective_batch_size: rows of one update over all devices and micro-batches.
      rule: "linear" scales by n = effective / reference, "sqrt" by its square root.
      multiplier: factor of the parameter group.

    Raises:
      ValueError: unknown rule.
    """
    ratio = effective_batch_size / reference_bs
    if rule not in ("linear", "sqrt"):
        raise ValueError(f"lr_scheduler.scaling = {rule!r} is unknown; use 'linear' or 'sqrt'")
    return base_lr * multiplier * (ratio if rule == "linear" else math.sqrt(ratio))


def _host(spec: LearningRateSpec, k: np.ndarray) -> np.ndarray:
    """The curve in float64; `k` int64 of any shape."""
    peak, low, warmup, span = spec.peak, spec.min_lr, spec.warmup_steps, spec.decay_span
    after = np.maximum(k - warmup, 0)
    progress = np.minimum(after, span) / span
    if spec.name == "wsd":
        progress = np.clip((after + 1 - spec.stable_steps) / spec.decay_steps, 0.0, 1.0)
    if spec.name == "step":
        rate = peak * spec.decay_rate ** (after // spec.decay_steps) if spec.decay_steps else np.full(k.shape, peak)
    elif spec.name == "linear" or (spec.name == "wsd" and spec.decay_type == "linear"):
        rate = peak - (peak - low) * progress
    else:
        rate = low + (peak - low) * (1 + np.cos(np.pi * progress)) / 2
    return np.where(k < warmup, spec.warmup_lr + (peak - spec.warmup_lr) * k / max(1, warmup), rate)


def _traced(spec: LearningRateSpec) -> optax.Schedule:
    """The curve as a combination of optax schedules; counts are subtracted as integers, before any float."""
    if spec.peak == 0:
        return optax.constant_schedule(0.0)

    def decay(kind: str, steps: int) -> optax.Schedule:
        if kind == "linear":
            return linear(spec.peak, spec.min_lr, steps)
        return optax.cosine_decay_schedule(spec.peak, steps, alpha=spec.min_lr / spec.peak)

    def drops(count: jax.Array) -> jax.Array:
        # optax.exponential_decay divides in float32, which misplaces drops beyond 2**24 updates
        return spec.peak * jnp.power(spec.decay_rate, jnp.maximum(count, 0) // spec.decay_steps)

    stable = optax.constant_schedule(spec.peak)
    if spec.name == "step":
        main: optax.Schedule = drops if spec.decay_steps else stable
    elif spec.name == "wsd":
        tail = decay(spec.decay_type, spec.decay_steps)
        # the first update after the stable phase is already one notch below the peak
        main = optax.join_schedules([stable, lambda count: tail(count + 1)], [spec.stable_steps])
    else:
        main = decay(spec.name, spec.decay_span)
    if not spec.warmup_steps:
        return main
    warmup = linear(spec.warmup_lr, spec.peak, spec.warmup_steps)
    return optax.join_schedules([warmup, main], [spec.warmup_steps])


def learning_rate(spec: LearningRateSpec) -> StepFunction:
    """Rate used by update k: float32 for a traced int32 `k`, float64 for a host integer."""
    return StepFunction(lambda k: _host(spec, k), _traced(spec))


def build_scheduler(resolved: ResolvedSchedule) -> dict[str, StepFunction]:
    """One schedule per parameter group, by group name; frozen groups have rate 0."""
    return {spec.group: learning_rate(spec) for spec in resolved.learning_rates}
