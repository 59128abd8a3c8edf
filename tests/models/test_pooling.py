"""The maximum over windows in the form of accelerators, run here on the CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax import backend
from linnaeus_jax.models.layers import max_pool


@pytest.mark.parametrize("shape", [(2, 6, 6, 3), (1, 7, 4, 2), (2, 1, 5, 1), (1, 2, 3, 1)])
def test_values_and_gradients_are_those_of_the_plain_form(shape: tuple[int, ...]) -> None:
    """Few different values: many windows have several that are the largest."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(-1, 2, shape), jnp.float32)
    found = []
    for name in ("cpu", "gpu"):
        with backend.tracing_for(name):
            out, pullback = jax.vjp(max_pool, x)
        cotangent = jnp.asarray(rng.permutation(out.size).reshape(out.shape) + 1.0)
        rng = np.random.default_rng(0)
        rng.integers(-1, 2, shape)
        found.append((out, *pullback(cotangent)))
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_infinities_are_values_and_nan_is_passed_on() -> None:
    x = jnp.full((1, 4, 4, 1), -jnp.inf).at[0, 3, 3, 0].set(jnp.nan)
    with backend.tracing_for("gpu"):
        out, _ = jax.vjp(max_pool, x)
    np.testing.assert_array_equal(out[0, ..., 0], [[-jnp.inf, -jnp.inf], [-jnp.inf, jnp.nan]])
