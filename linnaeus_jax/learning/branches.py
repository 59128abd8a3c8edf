"""One decision about conditionals inside an update, for all backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from linnaeus_jax import backend

T = TypeVar("T")


def computed_if(condition: jax.Array, compute: Callable[[T], T], otherwise: T, *, store: bool = False) -> T:
    """`compute(otherwise)` where `condition`, else `otherwise`.

    On a CPU in a branch, which saves the work and is compiled alike whatever surrounds it. On a GPU both are there and
    one is selected: XLA keeps a conditional on the device only within a command buffer, which holds it if everything in
    its branches can be captured (openxla/xla#23427); else the host waits for the condition in every update. The results
    of a branch are copied into donated buffers, too, those of a selection are written there. A conditional remains for
    what is due once in many updates, see `step/probes.measure`.

    Args:
      condition: bool [].
      compute: pure, of a pytree to one of the same structure, shapes and dtypes.
      store: `otherwise` is costly, and is not computed again by each of its readers.
    """
    if backend.SELECTED.here():
        otherwise = jax.lax.optimization_barrier(otherwise) if store else otherwise
        return jax.tree.map(lambda new, old: jnp.where(condition, new, old), compute(otherwise), otherwise)
    chosen: T = jax.lax.cond(condition, compute, lambda same: same, otherwise)
    return chosen
