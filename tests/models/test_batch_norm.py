"""BatchNorm in the form of accelerators: one pass for the moments, a gradient of its own; run here on the CPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.traffic import operations
from linnaeus_jax import backend
from linnaeus_jax.models.batch_norm import one_pass_moments
from linnaeus_jax.models.layers import BatchNorm2d

SHAPE = (4, 3, 5, 2)
compiled_moments = jax.jit(one_pass_moments)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    offset=st.sampled_from([0.0, -3.0, 1e3, -1e4, 3e6]),
    of_rows=st.sampled_from([0.0, 10.0]),
    size=st.sampled_from([1e-3, 1.0, 1e3]),
    weights=st.none() | st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=4, max_size=4),
)
def test_moments_of_one_pass_are_those_of_two(
    seed: int, offset: float, of_rows: float, size: float, weights: list[float] | None
) -> None:
    """Also where the mean is large against the deviations, and where rows that do not count are far away."""
    rng = np.random.default_rng(seed)
    row_offsets = offset + of_rows * rng.normal(size=(4, 1, 1, 2))
    x = np.asarray((rng.normal(size=SHAPE) + row_offsets) * size, np.float32)
    counts = np.full(4, True) if weights is None else np.asarray(weights) > 0
    x[~counts] *= 1e6
    mean, variance, count = compiled_moments(x, None if weights is None else np.array(weights, np.float32))
    assert count == counts.sum() * 15
    values = x[counts].reshape(-1, 2).astype(np.float64) if counts.any() else np.zeros((1, 2))
    np.testing.assert_allclose(mean, values.mean(axis=0), rtol=1e-6, atol=1e-6 * size)
    rounding = 1e-7 * np.abs(values).max()  # of each row's mean
    np.testing.assert_allclose(variance, values.var(axis=0), rtol=1e-5, atol=rounding * (values.std() + rounding))


def test_a_constant_map_has_no_variance_and_no_row_none_at_all() -> None:
    mean, variance, _ = compiled_moments(np.full(SHAPE, 1e6 + 1, np.float32), None)
    np.testing.assert_array_equal(mean, 1e6 + 1)
    np.testing.assert_array_equal(variance, 0.0)
    mean, variance, count = compiled_moments(np.full(SHAPE, np.inf, np.float32), np.zeros(4, np.float32))
    np.testing.assert_array_equal([*mean, *variance, count], 0.0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_values_and_gradients_are_those_of_the_plain_form(weighted: bool, offset: float) -> None:
    rng = np.random.default_rng(1)
    x, cotangent = (rng.normal(size=SHAPE).astype(np.float32) for _ in range(2))
    weight = np.array([1.0, 0.0, 2.0, 1.0], np.float32) if weighted else None
    params = {"scale": np.array([1.5, -0.5], np.float32), "bias": np.array([0.1, 0.2], np.float32)}
    state = {"running_mean": np.array([0.5, -1.0], np.float32), "running_var": np.array([2.0, 0.25], np.float32)}

    def run(params: Any, x: jax.Array) -> Any:
        variables = {"params": params, "batch_stats": state}
        out, new = BatchNorm2d().apply(variables, x, train=True, row_weight_B=weight, mutable=["batch_stats"])
        return out, new

    @jax.jit
    def forms(params: Any, x: jax.Array, cotangent: jax.Array) -> list[Any]:
        found = []
        for name in ("cpu", "gpu"):
            with backend.tracing_for(name):
                out, pullback, new = jax.vjp(run, params, x, has_aux=True)
                found.append((out, new, pullback(cotangent)))
        return found

    found = forms(params, x + np.float32(offset), cotangent)
    for one, other in zip(jax.tree.leaves(found[1]), jax.tree.leaves(found[0]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5 if offset == 0 else 2e-4, atol=1e-5 if offset == 0 else 1e-4)


@pytest.mark.tricks
def test_a_map_is_read_once_for_the_moments_and_once_for_the_sums_of_the_gradient() -> None:
    """Two sums each, of which neither waits for the other, so that a compiler makes one pass of them."""
    x = jnp.zeros((4, 8, 8, 2))
    params = {"scale": jnp.ones(2), "bias": jnp.ones(2)}
    state = {"running_mean": jnp.zeros(2), "running_var": jnp.ones(2)}

    def pull(params: Any, x: jax.Array) -> Any:
        def run(params: Any, x: jax.Array) -> jax.Array:
            out: Any = BatchNorm2d().apply({"params": params, "batch_stats": state}, x, train=True)
            return out

        return jax.vjp(run, params, x)[1](x)

    with backend.tracing_for("gpu"):
        jaxpr = jax.make_jaxpr(pull)(params, x).jaxpr
    sums = [found for found in operations(jaxpr) if found.kind == "reduction" and found.bytes > x.nbytes]
    assert len(sums) == 4
