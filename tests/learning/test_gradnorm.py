from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.learning.gradnorm import (
    combine,
    gradnorm_update,
    init_gradnorm,
    shared_norms,
    task_gradients,
)
from tests.npz import load_npz

RULES: dict[str, dict[str, Any]] = {
    "mult1": {"rule": "mult", "kappa": 1.0},
    "mult05": {"rule": "mult", "kappa": 0.5},
    "paper": {"rule": "paper", "lr": 0.025},
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("scenario", ["decay", "alpha0", "inactive"])
def test_fixture_trajectories(fixtures, scenario, rule):
    archive = load_npz(fixtures / "learning_gradnorm.npz")
    alpha = float(archive[f"{scenario}/alpha"])
    active = jnp.asarray(archive[f"{scenario}/active"])

    def step(state, inputs):
        state, metrics = gradnorm_update(state, *inputs, alpha=alpha, **RULES[rule])
        return state, (state.weights, metrics["target"], metrics["weight_delta"])

    inputs = (jnp.asarray(archive[f"{scenario}/norms"]), jnp.asarray(archive[f"{scenario}/losses"]), active)
    _, (weights, targets, deltas) = jax.lax.scan(step, init_gradnorm(archive[f"{scenario}/w0"]), inputs)
    prefix = f"{scenario}/want_{rule}_"
    want_weights, want_targets = archive[f"{prefix}weights"], archive[f"{prefix}targets"]
    np.testing.assert_allclose(weights, want_weights[1:], rtol=1e-5, atol=1e-6)
    shown = np.isfinite(want_targets)
    np.testing.assert_allclose(np.asarray(targets)[shown], want_targets[shown], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(deltas, np.diff(want_weights, axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.sum(weights, axis=1), archive[f"{scenario}/w0"].sum(), rtol=1e-6)


@pytest.mark.parametrize("rule", ["mult", "paper"])
def test_tasks_that_say_nothing_keep_their_weight(rule):
    state = init_gradnorm([1.0, 1.0, 1.0, 1.0])
    norms = jnp.array([2.0, 0.0, jnp.nan, 1.0])
    losses = jnp.array([1.0, 0.0, jnp.inf, 2.0])
    state, metrics = gradnorm_update(state, norms, losses, jnp.ones(4, bool), alpha=1.0, rule=rule)
    np.testing.assert_array_equal(state.weights[1:3], 1.0)
    np.testing.assert_allclose(jnp.sum(state.weights), 4.0, rtol=1e-6)
    assert state.weights[0] < 1.0 < state.weights[3]
    np.testing.assert_array_equal(state.initialized, [True, False, False, True])
    np.testing.assert_array_equal(metrics["target"][1:3], 0.0)
    idle, metrics = gradnorm_update(state, norms, losses, jnp.zeros(4, bool), alpha=1.0, rule=rule)
    jax.tree.map(np.testing.assert_array_equal, idle, state)
    assert np.isfinite(metrics["avg_norm"])


def test_a_late_task_is_measured_from_its_own_first_update():
    state = init_gradnorm([1.0, 1.0])
    state, _ = gradnorm_update(state, jnp.ones(2), jnp.array([4.0, 9.0]), jnp.array([True, False]), alpha=1.0)
    state, metrics = gradnorm_update(state, jnp.ones(2), jnp.array([2.0, 3.0]), jnp.array([True, True]), alpha=1.0)
    np.testing.assert_array_equal(state.initial_losses, [4.0, 3.0])
    np.testing.assert_allclose(metrics["ratio"], [0.5 / 0.75, 1.0 / 0.75], rtol=1e-6)


def model(params, x):
    hidden = jnp.tanh(x @ params["trunk"])
    return {name: hidden @ params[name] for name in ("fine", "coarse")}


def loss_vector(params, x, count):
    outputs = model(params, x)
    losses = jnp.stack([jnp.sum(jnp.square(value - k)) / count for k, value in enumerate(outputs.values())])
    return losses, {"rows": x.shape[0]}


def close(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)


@pytest.fixture(scope="module")
def network():
    rng = np.random.default_rng(0)
    shapes = {"trunk": (3, 4), "fine": (4, 2), "coarse": (4, 1)}
    params = {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    return params, jnp.asarray(rng.normal(size=(6, 3)), jnp.float32)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_task_gradients_equal_separate_gradients_and_the_weighted_one(network, backend, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    params, x = network
    weights = jnp.array([0.3, 1.7])

    @jax.jit
    def folded(params, x):
        losses, aux, gradients = task_gradients(lambda p: loss_vector(p, x, 6.0), params)
        return losses, aux, gradients, combine(gradients, weights)

    @jax.jit
    def separate(params, x):
        one = [jax.grad(lambda p, k=k: loss_vector(p, x, 6.0)[0][k])(params) for k in range(2)]
        return jax.tree.map(lambda *g: jnp.stack(g), *one), jax.grad(
            lambda p: jnp.sum(weights * loss_vector(p, x, 6.0)[0])
        )(params)

    losses, aux, gradients, total = folded(params, x)
    want_gradients, want_total = separate(params, x)
    assert aux["rows"] == 6
    np.testing.assert_allclose(losses, loss_vector(params, x, 6.0)[0], rtol=1e-6)
    close(gradients, want_gradients)
    close(total, want_total)
    halves = [folded(params, half)[2] for half in (x[:3], x[3:])]
    close(jax.tree.map(lambda a, b: np.asarray(a) + np.asarray(b), *halves), gradients)


def test_shared_norms(network):
    params, x = network
    gradients = jax.jit(lambda p: task_gradients(lambda p: loss_vector(p, x, 6.0), p)[2])(params)
    norms = shared_norms(gradients, {"trunk": True, "fine": False, "coarse": False})
    np.testing.assert_allclose(norms, np.linalg.norm(np.asarray(gradients["trunk"]).reshape(2, -1), axis=1), rtol=1e-6)
    every = shared_norms(gradients, {"trunk": True, "fine": True, "coarse": True})
    flat = np.concatenate([np.asarray(leaf).reshape(2, -1) for leaf in jax.tree.leaves(gradients)], axis=1)
    np.testing.assert_allclose(every, np.linalg.norm(flat, axis=1), rtol=1e-6)
    without_heads = shared_norms(
        {"trunk": gradients["trunk"], "fine": None, "coarse": None}, dict(trunk=True, fine=False, coarse=False)
    )
    np.testing.assert_array_equal(without_heads, norms)


@pytest.mark.parametrize("rule", ["mult", "paper"])
def test_balances_two_tasks_that_static_weights_do_not(rule):
    """Two quadratic bowls around (1, 0) and (0, 1), one 100 times as steep, pull on the same two parameters."""
    steepness, centres = jnp.array([1.0, 100.0]), jnp.eye(2)

    def losses(point):
        return 0.5 * steepness * jnp.sum(jnp.square(point[None, :] - centres), axis=1), None

    def train(adapt):
        def step(carry, _):
            point, state = carry
            values, _, gradients = task_gradients(losses, point)
            moved = point - 0.004 * combine(gradients, state.weights)
            norms = shared_norms(gradients, True)
            new, _ = gradnorm_update(state, norms, values, jnp.ones(2, bool), alpha=1.5, rule=rule, lr=1e-4)
            return (moved, new if adapt else state), None

        (point, state), _ = jax.lax.scan(step, (jnp.zeros(2), init_gradnorm([1.0, 1.0])), length=4000)
        return np.asarray(losses(point)[0] / losses(jnp.zeros(2))[0]), np.asarray(state.weights)

    static, _ = train(False)
    balanced, weights = train(True)
    assert static.max() > 1.5  # the gentle task ends worse than it began
    assert static.min() < 0.01
    assert balanced.max() < 0.6
    assert balanced.max() / balanced.min() < 1.3
    assert weights[0] > 50 * weights[1]
