"""A quantity that depends on the update index alone, traced inside the step and exact on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from linnaeus_jax.schedules.resolved import Ramp


@dataclass(frozen=True)
class StepFunction:
    """f(k) in two forms of the same rule.

    Called with a `jax.Array` of int32 (a tracer included) it evaluates `traced`, built from optax combinators:
    float32 of the same shape. Called with a Python or NumPy integer it never touches a device: `host` computes in
    float64, and a scalar comes back as a Python number.
    """

    host: Callable[[np.ndarray], np.ndarray | np.generic]
    traced: Callable[[jax.Array], Any]

    def __call__(self, step: Any) -> Any:
        if isinstance(step, jax.Array):
            value = jnp.asarray(self.traced(step))
            value = value if value.dtype == jnp.bool_ else value.astype(jnp.float32)
            return jnp.broadcast_to(value, step.shape)
        index = np.asarray(step, dtype=np.int64)
        result = np.broadcast_to(self.host(index), index.shape)
        return result.item() if result.ndim == 0 else result


def linear(start: float, end: float, steps: int) -> optax.Schedule:
    """optax.linear_schedule that stays between its ends and is exactly `end` from `steps` on.

    Compiled, the division may become a product with a rounded reciprocal, so that k / steps misses 1 by a rounding.
    """
    inner, low, high = optax.linear_schedule(start, end, steps), min(start, end), max(start, end)
    return optax.join_schedules([lambda k: jnp.clip(inner(k), low, high), optax.constant_schedule(end)], [steps])


def linear_ramp(ramp: Ramp) -> StepFunction:
    """start + (end - start) * k / end_steps below `end_steps`, then exactly `end`; a constant where disabled."""
    if not ramp.enabled or ramp.end_steps <= 0:
        value = ramp.end if ramp.enabled else ramp.disabled_value
        return StepFunction(lambda k: np.float64(value), optax.constant_schedule(value))
    start, end, steps = ramp.start, ramp.end, ramp.end_steps
    low, high = min(start, end), max(start, end)

    def host(k: np.ndarray) -> np.ndarray:
        return np.where(k >= steps, end, np.clip(start + (end - start) * k / steps, low, high))

    return StepFunction(host, linear(start, end, steps))
