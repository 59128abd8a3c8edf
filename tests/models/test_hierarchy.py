"""Gathers by parent and sums over children; path probabilities against a dense recomputation and finite differences."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.models.hierarchy import ParentLinks, gumbel_noise, hard_log_prior, log_prior, path_log_probs

ROWS = 3
#: parents, number of parents: siblings, an only child, orphans first and last, parents without children
TREES = {
    "null, orphan, childless parent": ([-1, 1, 1, 2, 1, 4, -1, 1, 4], 5),
    "every class has a parent": ([0, 1, 1, 0, 2, 1], 3),
    "childless parents, no orphan": ([3, 3, 1, 3], 5),
    "no class has a parent": ([-1, -1, -1], 2),
    "one class": ([0], 1),
}
Tree = tuple[list[int], int]
Pair = tuple[np.ndarray, np.ndarray]
trees = st.integers(1, 3).flatmap(
    lambda count: st.tuples(st.lists(st.integers(-1, count - 1), min_size=1, max_size=6), st.just(count))
)
cheap = settings(max_examples=15, deadline=None, derandomize=True)


def draws(tree: Tree, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits of classes and of parents."""
    rng = np.random.default_rng(seed)
    parents, count = tree
    return rng.normal(size=(ROWS, len(parents))) * 3, rng.normal(size=(ROWS, count)) * 3


def dense_path_log_probs(logits: np.ndarray, parent_logits: np.ndarray, parents: list[int]) -> np.ndarray:
    """The definition, with a matrix between the ranks; complex numbers pass."""
    member = (np.asarray(parents)[None, :] == np.arange(parent_logits.shape[1])[:, None]).astype(float)
    free = (np.asarray(parents) < 0).astype(float)
    weight = np.exp(logits)
    total = weight @ (member + free[None, :]).T
    prob = np.exp(parent_logits) * (total != 0)
    prob = prob / prob.sum(axis=1, keepdims=True)
    share = prob / np.where(total == 0, 1, total)
    return np.log(weight * (share @ (member + free[None, :])))


def values_and_pullbacks(links: ParentLinks, x: jax.Array, y: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
    """Of the sum over children, the gather by parent and the logarithm of the sum of exponentials."""
    found = []
    for function, inputs, cotangent in (
        (links.sum_of_children, x, y),
        (lambda v: links.of_parent(v, 7.0), y, x),
        (links.logsumexp_of_children, x, y),
    ):
        value, pull = jax.vjp(function, inputs)
        found.append((value, pull(cotangent)[0]))
    return found


def paths_and_priors(links: ParentLinks, z: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
    prior = log_prior(jax.nn.softmax(g), links, "neutral"), hard_log_prior(g, links, "epsilon")
    return path_log_probs(z, g, links), *prior


@cheap
@given(trees, st.randoms(use_true_random=False))
def test_of_any_tree(tree, random):
    """Gathers and sums are transposes, paths share out the mass of their parent, orders mean nothing: one program."""
    parents, count = np.asarray(tree[0]), tree[1]
    x, y = (values.astype(np.float32) for values in draws(tree))
    classes, others = np.arange(len(parents)), np.arange(count)
    random.shuffle(classes)
    random.shuffle(others)
    renamed = np.append(np.argsort(others), -1)[parents[classes]]

    @jax.jit
    def run(x: jax.Array, y: jax.Array, shuffled_x: jax.Array, shuffled_y: jax.Array) -> tuple[Any, ...]:
        links = ParentLinks(parents, count)
        plain = paths_and_priors(links, x, y)
        shuffled = paths_and_priors(ParentLinks(renamed, count), shuffled_x, shuffled_y)
        mass = jax.nn.softmax(y), links.sum_of_children(jnp.exp(x))
        return values_and_pullbacks(links, x, y), plain, shuffled, mass

    pairs, plain, shuffled, mass = jax.device_get(run(x, y, x[:, classes], y[:, others]))
    check_transposes(tree, *pairs)
    check_mass(tree, plain[0], *mass)
    for one, other in zip(plain, shuffled, strict=True):
        np.testing.assert_allclose(one[:, classes], other, atol=1e-5)


def check_transposes(tree: Tree, sums: Pair, of_parent: Pair, logsumexp: Pair) -> None:
    parents, count = tree
    x, y = draws(tree)
    member = (np.asarray(parents)[None, :] == np.arange(count)[:, None]).astype(float)
    np.testing.assert_allclose(sums[0], x @ member.T, atol=1e-5)
    np.testing.assert_allclose(sums[1], y @ member, atol=1e-5)
    np.testing.assert_allclose(of_parent[0], y @ member + 7.0 * (np.asarray(parents) < 0), atol=1e-5)
    np.testing.assert_allclose(of_parent[1], x @ member.T, atol=1e-5)
    weight = np.exp(x) @ member.T
    np.testing.assert_allclose(logsumexp[0], np.log(np.where(weight > 0, weight, 1)), atol=1e-5)
    share = np.exp(x) * ((y / np.where(weight > 0, weight, 1)) @ member)
    np.testing.assert_allclose(logsumexp[1], share, atol=1e-5)


def check_mass(tree: Tree, log_probs: np.ndarray, parent_prob: np.ndarray, sums: np.ndarray) -> None:
    parents, count = np.asarray(tree[0]), tree[1]
    logits = draws(tree)[0].astype(np.float32).astype(np.float64)
    prob, parent_prob = np.exp(log_probs.astype(np.float64)), parent_prob.astype(np.float64)
    np.testing.assert_allclose(prob.sum(axis=1), 1, atol=1e-6)
    children = np.stack([prob[:, parents == g].sum(axis=1) for g in range(count)], axis=1)
    free = np.exp(logits)[:, parents < 0].sum(axis=1, keepdims=True)
    total = sums.astype(np.float64) + free
    if (parents < 0).any():
        np.testing.assert_allclose(children + parent_prob * free / total, parent_prob, atol=1e-6)
    else:
        possible = parent_prob * np.isin(np.arange(count), parents)[None]
        np.testing.assert_allclose(children, possible / possible.sum(axis=1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize("name", TREES)
def test_path_log_probs_in_float64(name):
    parents, count = TREES[name]
    logits, parent_logits = draws(TREES[name])
    both, split = np.concatenate([logits, parent_logits], axis=1), len(parents)
    columns, links = both.shape[1], ParentLinks(parents, count)
    weight = np.cos(np.arange(logits.size)).reshape(logits.shape)
    # the definition's gradient: every column moved by an imaginary step
    step = 1e-30
    moved = [both + 1j * step * (np.arange(columns) == column) for column in range(columns)]
    dense = [dense_path_log_probs(x[:, :split], x[:, split:], parents) for x in moved]
    wanted = np.stack([(out.imag / step * weight).sum(axis=1) for out in dense], axis=1)
    # central differences of fourth order: further rows of one batch, without weight in the loss
    h = 1e-3
    moves = np.array([-2, -1, 1, 2])[:, None, None, None] * h * np.eye(columns)[None, :, None, :]
    rows = np.concatenate([both, (both[None, None] + moves).reshape(-1, columns)])

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def outputs(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = path_log_probs(rows[:, :split], rows[:, split:], links)
        return (out[:ROWS] * weight).sum(), out

    with jax.enable_x64(True):
        gradient, out = outputs(jnp.asarray(rows))
        assert out.dtype == jnp.float64
    gradient, out = np.asarray(gradient)[:ROWS], np.asarray(out)
    np.testing.assert_allclose(out[:ROWS], dense_path_log_probs(logits, parent_logits, parents), atol=1e-9, rtol=0)
    np.testing.assert_allclose(gradient, wanted, atol=1e-9, rtol=0)
    slope = np.einsum("s,scbk->bck", np.array([1, -8, 8, -1]) / (12 * h), out[ROWS:].reshape(4, columns, ROWS, split))
    np.testing.assert_allclose(gradient, (slope * weight[:, None, :]).sum(axis=2), atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", TREES)
def test_path_log_probs_of_extreme_logits(name):
    parents, count = TREES[name]
    links, weight = ParentLinks(parents, count), np.cos(np.arange(ROWS * len(parents))).reshape(ROWS, -1)
    loss = jax.jit(jax.value_and_grad(lambda z, g: jnp.mean(path_log_probs(z, g, links) * weight), (0, 1)))
    for sign in (1, -1):
        logits, parent_logits = (np.where(x > 0, sign, -sign).astype(np.float32) * 1e4 for x in draws(TREES[name]))
        value, gradients = loss(logits, parent_logits)
        assert np.isfinite(value)
        assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_gradients_of_several_losses_at_once():
    tree = TREES["null, orphan, childless parent"]
    x, y = (values.astype(np.float32) for values in draws(tree))
    links = ParentLinks(*tree)

    @jax.jit
    def run(x: jax.Array, y: jax.Array, weights: jax.Array) -> tuple[Any, Any]:
        _, pull = jax.vjp(lambda z, g: path_log_probs(z, g, links), x, y)
        return jax.vmap(pull)(weights), pull(x)

    for several, one in zip(*run(x, y, np.stack([x, 2 * x])), strict=True):
        np.testing.assert_allclose(several, np.stack([one, 2 * one]), atol=1e-5)


def test_priors():
    links = ParentLinks([-1, 1, 0, 1], 2)

    def both(prior: Any) -> Any:
        return jax.jit(lambda x: [prior(x, links, orphan_prior) for orphan_prior in ("neutral", "epsilon")])

    prob = np.array([[0.25, 0.75], [1.0, 0.0]], np.float32)
    tiny = np.log(1e-10)
    want = [[0, np.log(0.75), np.log(0.25), np.log(0.75)], [0, tiny, 0, tiny]]
    neutral, epsilon = jax.device_get(both(log_prior)(prob))
    np.testing.assert_allclose(neutral, want, atol=1e-5)
    np.testing.assert_allclose(epsilon[:, 0], tiny, atol=1e-5)
    ties = np.array([[2.0, 2.0], [-1.0, 3.0]], np.float32)  # the first of equals wins
    want = [[0, tiny, 0, tiny], [0, 0, tiny, 0]]
    neutral, epsilon = jax.device_get(both(hard_log_prior)(ties))
    np.testing.assert_allclose(neutral, want, atol=1e-5)
    np.testing.assert_allclose(epsilon[:, 0], tiny, atol=1e-5)


def test_gumbel_noise():
    noise = np.asarray(gumbel_noise(jax.random.key(0), (100, 1000)))
    assert noise.dtype == np.float32
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.02)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.05)


def test_nothing_between_two_ranks():
    """No value of forward and backward pass has more entries than a few times rows x classes."""
    classes, count = 512, 100
    rng = np.random.default_rng(0)
    links = ParentLinks(rng.integers(-1, count, classes), count)

    def loss(z: jax.Array, g: jax.Array) -> jax.Array:
        prior = log_prior(jax.nn.softmax(g), links, "neutral") + hard_log_prior(g, links, "neutral")
        return jnp.sum(path_log_probs(z, g, links) * prior)

    def sizes(jaxpr: Any) -> list[int]:
        found = [var.aval.size for equation in jaxpr.eqns for var in equation.outvars]
        for equation in jaxpr.eqns:
            for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
                inner = getattr(inner, "jaxpr", inner)
                found += sizes(inner) if hasattr(inner, "eqns") else []
        return found

    traced = jax.make_jaxpr(jax.grad(loss, (0, 1)))(jnp.zeros((ROWS, classes)), jnp.zeros((ROWS, count)))
    assert max(sizes(traced.jaxpr)) <= 2 * ROWS * classes


@pytest.mark.parametrize("logit", [100.0, 1000.0, 1e30])
def test_a_class_without_a_parent_that_is_far_ahead_leaves_the_gradients_finite(logit):
    """Its exponential overflows, and it is in no sum: neither NaN nor anything else of it reaches the others."""
    parents, count = TREES["null, orphan, childless parent"]
    orphans = np.asarray(parents) < 0
    x, y = (draw.astype(np.float32) for draw in draws(TREES["null, orphan, childless parent"]))
    links = ParentLinks(parents, count)
    pull = jax.jit(lambda x, y: jax.vjp(links.logsumexp_of_children, x)[1](y)[0])
    far = np.where(orphans[None], np.float32(logit), x)
    np.testing.assert_array_equal(pull(far, y), pull(x, y))
    np.testing.assert_array_equal(pull(far, y)[:, orphans], 0)
