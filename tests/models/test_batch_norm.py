"""BatchNorm in the form of accelerators: one pass for the moments, a gradient of its own; run here on the CPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax import backend
from linnaeus_jax.models.batch_norm import one_pass_moments
from linnaeus_jax.models.layers import BatchNorm2d, batch_moments

SHAPE = (4, 3, 5, 2)


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
    mean, variance, count = one_pass_moments(jnp.asarray(x), None if weights is None else jnp.asarray(weights))
    assert count == counts.sum() * 15
    values = x[counts].reshape(-1, 2).astype(np.float64) if counts.any() else np.zeros((1, 2))
    np.testing.assert_allclose(mean, values.mean(axis=0), rtol=1e-6, atol=1e-6 * size)
    rounding = 1e-7 * np.abs(values).max()  # of each row's mean
    np.testing.assert_allclose(variance, values.var(axis=0), rtol=1e-5, atol=rounding * (values.std() + rounding))


def test_a_constant_map_has_no_variance_and_no_row_none_at_all() -> None:
    mean, variance, _ = one_pass_moments(jnp.full(SHAPE, 1e6 + 1), None)
    np.testing.assert_array_equal(mean, 1e6 + 1)
    np.testing.assert_array_equal(variance, 0.0)
    mean, variance, count = one_pass_moments(jnp.full(SHAPE, jnp.inf), jnp.zeros(4))
    np.testing.assert_array_equal([*mean, *variance, count], 0.0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_values_and_gradients_are_those_of_the_plain_form(weighted: bool, offset: float) -> None:
    rng = np.random.default_rng(1)
    x, cotangent = (jnp.asarray(rng.normal(size=SHAPE), jnp.float32) for _ in range(2))
    weight = jnp.asarray([1.0, 0.0, 2.0, 1.0]) if weighted else None
    params = {"scale": jnp.asarray([1.5, -0.5]), "bias": jnp.asarray([0.1, 0.2])}
    state = {"running_mean": jnp.asarray([0.5, -1.0]), "running_var": jnp.asarray([2.0, 0.25])}

    def run(params: Any, x: jax.Array) -> Any:
        variables = {"params": params, "batch_stats": state}
        out, new = BatchNorm2d().apply(variables, x, train=True, row_weight_B=weight, mutable=["batch_stats"])
        return out, new

    found = []
    for name in ("cpu", "gpu"):
        with backend.tracing_for(name):
            out, pullback, new = jax.vjp(run, params, x + offset, has_aux=True)
            found.append((out, new, pullback(cotangent)))
    for one, other in zip(jax.tree.leaves(found[1]), jax.tree.leaves(found[0]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5 if offset == 0 else 2e-4, atol=1e-5 if offset == 0 else 1e-4)


def reductions_of_maps(name: str) -> tuple[int, int]:
    """How many sums over a whole map the update of one BatchNorm has, and of how many of them the terms need another."""
    x = jnp.zeros((4, 8, 8, 2))

    def loss(params: Any, x: jax.Array) -> jax.Array:
        out: Any = BatchNorm2d().apply({"params": params, "batch_stats": state}, x, train=True)
        return jnp.sum(out * out)

    params = {"scale": jnp.ones(2), "bias": jnp.ones(2)}
    state = {"running_mean": jnp.zeros(2), "running_var": jnp.ones(2)}
    with backend.tracing_for(name):
        jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(params, x).jaxpr
    depth: dict[Any, int] = {}
    sums = []

    def walk(jaxpr: Any, depths: list[int]) -> list[int]:
        depth.update(zip(jaxpr.invars, depths, strict=True))
        for equation in jaxpr.eqns:
            least = max([depth.get(v, 0) for v in equation.invars if not hasattr(v, "val")], default=0)
            inner = [value for value in equation.params.values() if hasattr(value, "eqns") or hasattr(value, "jaxpr")]
            if inner and equation.primitive.name in ("jit", "pjit", "custom_vjp_call"):
                body = inner[0].jaxpr if hasattr(inner[0], "jaxpr") else inner[0]
                outs = walk(body, [0 if hasattr(v, "val") else depth.get(v, 0) for v in equation.invars])
            else:
                big = equation.invars and getattr(equation.invars[0].aval, "size", 0) == x.size
                level = least + 1 if equation.primitive.name == "reduce_sum" and big else least
                if level > least:
                    sums.append(level)
                outs = [level] * len(equation.outvars)
            depth.update(zip(equation.outvars, outs, strict=True))
        return [0 if hasattr(v, "val") else depth.get(v, 0) for v in jaxpr.outvars]

    walk(jaxpr, [0] * len(jaxpr.invars))
    return len(sums), max(sums)


def test_the_map_is_read_once_for_the_moments_and_once_for_the_sums_of_the_gradient() -> None:
    """Two sums each, that do not wait for one another; the loss adds one. The plain form needs a pass for each moment."""
    assert reductions_of_maps("gpu")[0] == 5
    assert reductions_of_maps("gpu")[1] < reductions_of_maps("cpu")[1]
