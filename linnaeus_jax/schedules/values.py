"""What schedules say: traced inside the update, and by the same function compiled for the CPU wherever the host asks.

A schedule is an `optax.Schedule`, a pure function of the 0-based step, joined by optax's combinators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax


def linear(start: float, end: float, steps: int) -> optax.Schedule:
    """`optax.linear_schedule`, exactly `end` from `steps` on.

    Compiled, its division may become a product with a rounded reciprocal, so that the last step misses `end`.
    """
    return optax.join_schedules([optax.linear_schedule(start, end, steps), optax.constant_schedule(end)], [steps])


def values_at(schedules: Mapping[str, optax.Schedule], step: jax.Array) -> dict[str, jax.Array]:
    """Value of each schedule: float32, or bool for a window, of the shape of `step` (int32)."""

    def value(schedule: optax.Schedule) -> jax.Array:
        found = jnp.asarray(schedule(step))
        found = found if found.dtype == jnp.bool_ else found.astype(jnp.float32)
        return jnp.broadcast_to(found, step.shape)

    return {name: value(schedule) for name, schedule in schedules.items()}


def on_host(schedules: Mapping[str, optax.Schedule]) -> Callable[[Any], dict[str, np.ndarray]]:
    """A function of one step or an array of steps that computes `values_at`, compiled for the CPU, as NumPy arrays."""
    compiled = jax.jit(lambda step: values_at(schedules, step))

    def evaluate(steps: Any) -> dict[str, np.ndarray]:
        with on_cpu():
            found = jax.device_get(compiled(np.asarray(steps, np.int32)))
        return {name: found[name] for name in schedules}  # a compiled function returns names in alphabetical order

    return evaluate


def on_cpu() -> contextlib.AbstractContextManager[Any]:
    """Computes on the CPU beside whatever accelerator there is."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS names accelerators alone
        return contextlib.nullcontext()
