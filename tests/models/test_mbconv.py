"""BatchNorm's moments and the MBConv stages that use it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.models.layers import BatchNorm2d
from linnaeus_jax.models.mbconv import MBConvStage, static_padding


def draws(batch=4):
    return np.random.default_rng(0).normal(1.0, 2.0, size=(batch, 3, 5, 2)).astype(np.float32)


STATE = {"running_mean": jnp.asarray([0.5, -1.0]), "running_var": jnp.asarray([2.0, 0.25])}
VARIABLES = {
    "params": {"scale": jnp.asarray([1.5, -0.5]), "bias": jnp.asarray([0.1, 0.2])},
    "batch_stats": STATE,
}


#: the second row fills up the batch
WEIGHT = jnp.asarray([1.0, 0.0, 1.0, 1.0])


def normalised(x, mean, var, eps=1e-5):
    return (x - np.asarray(mean)) / np.sqrt(np.asarray(var) + eps) * np.asarray([1.5, -0.5]) + np.asarray([0.1, 0.2])


def train_pass(x, **rows):
    out: Any = BatchNorm2d().apply(VARIABLES, x, train=True, mutable=["batch_stats"], **rows)
    return out


def check(found, x, counted):
    out, state = found
    values = x[counted].reshape(-1, 2).astype(np.float64)
    np.testing.assert_allclose(out, normalised(x, values.mean(axis=0), values.var(axis=0)), atol=1e-5)
    moments = {"running_mean": values.mean(axis=0), "running_var": values.var(axis=0, ddof=1)}
    for name, value in moments.items():
        np.testing.assert_allclose(state["batch_stats"][name], 0.9 * STATE[name] + 0.1 * value, atol=1e-6, rtol=1e-6)


def test_moments_of_a_batch_and_running_ones():
    x = draws()
    check(train_pass(x), x, slice(None))
    out: Any = BatchNorm2d(epsilon=0.01).apply(VARIABLES, x, train=False)
    np.testing.assert_allclose(out, normalised(x, STATE["running_mean"], STATE["running_var"], 0.01), atol=1e-5)


def test_rows_of_weight_0_do_not_count():
    x, weight = draws(), jnp.asarray([1.0, 0.0, 1.0, 0.0])
    check(train_pass(x, row_weight_B=weight), x, [0, 2])
    out, state = train_pass(x, row_weight_B=jnp.zeros(4))
    jax.tree.map(np.testing.assert_array_equal, state["batch_stats"], STATE)
    assert np.isfinite(out).all()


def test_a_second_pass_leaves_the_running_moments_alone():
    """As one that measures gradients: the new state is thrown away, or not even asked for."""
    x = draws()
    first, state = train_pass(x)
    second: Any = BatchNorm2d().apply(VARIABLES, x, train=True)
    np.testing.assert_array_equal(first, second)
    check(train_pass(x), x, slice(None))
    assert not np.array_equal(state["batch_stats"]["running_mean"], STATE["running_mean"])


def test_low_precision_is_at_the_border_only():
    low, state = BatchNorm2d(dtype=jnp.bfloat16).apply(
        VARIABLES, jnp.asarray(1000 + draws(), jnp.bfloat16), train=True, mutable=["batch_stats"]
    )
    assert low.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype(jnp.float32)}
    expected = np.asarray(jnp.asarray(1000 + draws(), jnp.bfloat16), np.float64).reshape(-1, 2)
    np.testing.assert_allclose(
        (state["batch_stats"]["running_var"] - 0.9 * STATE["running_var"]) / 0.1,
        expected.var(axis=0, ddof=1),
        rtol=1e-4,
    )


@pytest.mark.parametrize(("size", "stride", "padding"), [(224, 1, (1, 1)), (224, 2, (0, 1)), (45, 2, (1, 1))])
def test_static_padding(size, stride, padding):
    assert static_padding(size, stride) == padding


def run(stage, variables, x, weight):
    """((loss, new state), gradients) of a training step."""
    settings = {"train": True, "rngs": {"drop_path": jax.random.key(2)}, "mutable": ["batch_stats"]}

    def loss(params, state, x, weight):
        out, state = stage.apply({"params": params, **state}, x, (9, 8), row_weight_B=weight, **settings)
        out = out * weight[:, None, None, None]
        return jnp.sum(out * jnp.cos(jnp.arange(out[0].size)).reshape(1, *out.shape[1:])), state

    rest = {"batch_stats": variables["batch_stats"]}
    return jax.jit(jax.value_and_grad(loss, has_aux=True))(variables["params"], rest, x, weight)


@pytest.fixture(scope="module")
def stage():
    """(stage with a strided block and one with drop connect, variables, input, what a training step gives)."""
    plain = MBConvStage(3, (2, 1), drop_rate=0.5)
    x = jnp.asarray(draws())
    variables = jax.jit(lambda key: plain.init(key, x, (9, 8), train=False))(jax.random.key(3))
    return plain, variables, x, run(plain, variables, x, WEIGHT)


def assert_same(ours, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4), ours, expected)


@pytest.mark.slow
def test_recomputation_changes_no_value_and_moves_the_running_moments_once(stage):
    plain, variables, x, expected = stage
    assert_same(run(plain.clone(remat=True), variables, x, WEIGHT), expected)


@pytest.mark.slow
def test_moments_are_those_of_the_batch_over_all_devices(stage):
    plain, variables, x, expected = stage
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")))
    assert len(spread.sharding.device_set) == 2
    assert_same(run(plain, variables, spread, WEIGHT), expected)


def test_padding_rows_have_no_effect(stage):
    plain, variables, x, expected = stage
    assert_same(run(plain, variables, x.at[1].set(7.0), WEIGHT), expected)
