"""A quantity that depends on the 0-based step alone, traced inside the update and exact on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.schedules.resolved import Ramp


@dataclass(frozen=True)
class StepFunction:
    """f(k), written once over an array namespace.

    Called with a `jax.Array` of int32 (a tracer included) it computes with `jax.numpy`: float32 or bool of the same
    shape. Called with a Python or NumPy integer it never touches a device: it computes with NumPy in float64, and a
    scalar comes back as a Python number. Both subtract counts as integers, so that no step beyond 2**24 is rounded.
    """

    rule: Callable[[ModuleType, Any], Any]  # of numpy or jax.numpy, and k

    def __call__(self, step: Any) -> Any:
        if isinstance(step, jax.Array):
            value = jnp.asarray(self.rule(jnp, step))
            value = value if value.dtype == jnp.bool_ else value.astype(jnp.float32)
            return jnp.broadcast_to(value, step.shape)
        index = np.asarray(step, dtype=np.int64)
        result = np.broadcast_to(self.rule(np, index), index.shape)
        return result.item() if result.ndim == 0 else result


def linear(xp: ModuleType, k: Any, start: float, end: float, steps: int) -> Any:
    """From `start` at 0 to `end` at `steps`, between them in any rounding, and exactly `end` from there on.

    Compiled, the division may become a product with a rounded reciprocal, so that k / steps misses 1 by a rounding.
    """
    value = (start - end) * (1 - k / steps) + end
    return xp.where(k < steps, xp.clip(value, min(start, end), max(start, end)), end)


def linear_ramp(ramp: Ramp) -> StepFunction:
    """Probability of a ramp; a constant where it is disabled or has no length."""
    if not ramp.enabled or ramp.end_steps <= 0:
        value = ramp.end if ramp.enabled else ramp.disabled_value
        return StepFunction(lambda xp, k: value)
    return StepFunction(lambda xp, k: linear(xp, k, ramp.start, ramp.end, ramp.end_steps))
