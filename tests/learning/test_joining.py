"""Joined leaves: back and forth, the same update of every element, reductions of every leaf."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import unflatten_dict
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax import backend
from linnaeus_jax.learning.joining import JOINED_BELOW, Joining, as_stored, global_norm, leaf_sizes
from linnaeus_jax.learning.optimizers import build_optimizer
from linnaeus_jax.learning.transforms import is_elementwise
from linnaeus_jax.registry import OPTIMIZERS
from tests.learning.test_filters import Info
from tests.learning.test_optimizers import settings as optimizer_settings

SHAPES = {
    ("a", "kernel"): (3, 5),
    ("a", "bias"): (5,),
    ("b", "kernel"): (2, 2, 1, 4),
    ("b", "bias"): (4,),
    ("c",): (),
    ("large",): (JOINED_BELOW,),
}


def tree_of(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return unflatten_dict({path: jnp.asarray(rng.normal(size=shape), jnp.float32) for path, shape in shapes.items()})


@given(st.lists(st.sampled_from(["x", "y", None]), min_size=len(SHAPES), max_size=len(SHAPES)))
@settings(max_examples=15, deadline=None)
def test_split_is_the_inverse_of_join(keys):
    joining = Joining(SHAPES, {path: key for path, key in zip(SHAPES, keys) if key is not None})
    tree = tree_of(SHAPES)
    joined = joining.join(tree)
    back = joining.split(joined)
    jax.tree.map(np.testing.assert_array_equal, back, tree)
    held = [path for paths in joining.paths().values() for path in paths]
    assert sorted(held) == sorted(SHAPES)
    for key in {"x", "y"}:
        alike = [path for path, found in zip(SHAPES, keys) if found == key and path != ("large",)]
        assert len(alike) < 2 or any(set(alike) == set(paths) for paths in joining.paths().values())


def test_leaves_that_are_not_there_stay_away():
    joining = Joining(SHAPES, {path: path[0] for path in SHAPES})
    tree = tree_of(SHAPES)
    tree["a"] = {"kernel": None, "bias": None}
    tree["b"] = {"kernel": optax.MaskedNode(), "bias": optax.MaskedNode()}
    joined = joining.join(tree)
    assert len(jax.tree.leaves(joined)) == 2
    assert str(jax.tree.structure(joining.split(joined))) == str(jax.tree.structure(tree))
    assert joining.join(None) is joining.split(None) is None


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if is_elementwise(name)])
def test_the_joined_update_is_that_of_every_leaf(name):
    betas = (0.9, 0.999, 0.9999) if name == "ademamix" else (0.9, 0.999)
    parameters = [Info(".".join(path), path, shape) for path, shape in SHAPES.items()]
    optimizer = build_optimizer(optimizer_settings(name=name, betas=betas), parameters)
    joining, joined = optimizer.joining, optimizer.joined
    assert joined is not None
    assert len(joining.paths()) < len(SHAPES)
    params = tree_of(SHAPES)
    state = optimizer.transform.init(params)
    joined_state = joining.join_state(state)
    for seed in (1, 2):
        grads = tree_of(SHAPES, seed)
        descent, state = optimizer.transform.update(grads, state, params)
        expected = optimizer.apply_learning_rates(descent, {"default": 0.1})
        found, joined_state = joined.transform.update(joining.join(grads), joined_state, joining.join(params))
        found = joining.split(joined.apply_learning_rates(found, {"default": 0.1}))
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    jax.tree.map(np.testing.assert_array_equal, joining.split_state(joined_state), state)


@pytest.mark.parametrize(("sizes", "nan", "large"), [([1, 512, 513, 1300, 3], True, True), ([700, 2], False, False)])
def test_sizes_of_leaves(sizes, nan, large):
    rng = np.random.default_rng(0)
    leaves = [rng.normal(size=size).astype(np.float32) for size in sizes]
    if large:
        leaves.insert(1, rng.normal(size=(2, JOINED_BELOW)).astype(np.float32))
    if nan:
        leaves[0][0] = np.nan
    found = leaf_sizes([jnp.asarray(leaf) for leaf in leaves])
    for i, leaf in enumerate(np.abs(leaf.astype(np.float64)) for leaf in leaves):
        assert np.isnan(found["max"][i]) == np.isnan(leaf.max())
        if not np.isnan(leaf.max()):
            np.testing.assert_allclose(found["sum"][i], leaf.sum(), rtol=1e-5)
            np.testing.assert_allclose(found["squares"][i], (leaf**2).sum(), rtol=1e-5)
            assert (found["max"][i], found["min"][i]) == (leaf.max(), leaf.min())


def test_sizes_of_no_leaf():
    assert all(value.shape == (0,) for value in leaf_sizes([]).values())


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_leaves_are_joined_where_that_saves_operations(target):
    parameters = [Info(".".join(path), path, shape) for path, shape in SHAPES.items()]
    tree = tree_of(SHAPES)
    leaves = [np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(tree)]
    with backend.tracing_for(target):
        joining = build_optimizer(optimizer_settings(), parameters).joining
        norm = global_norm(joining.join(tree))
        sums = str(jax.make_jaxpr(global_norm)(joining.join(tree))).count("reduce_sum")
    assert (len(joining.paths()) < len(SHAPES)) == (target == "cpu")
    np.testing.assert_allclose(norm, np.linalg.norm(np.concatenate(leaves)), rtol=1e-6)
    # on a GPU a kernel for each sum: of what is large, and of all that is small together
    large = sum(leaf.size >= JOINED_BELOW for leaf in leaves)
    assert sums == (large + 1 if target == "gpu" else len(joining.paths()))


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_on_a_gpu_gradients_lie_as_parameters_do(target):
    tree = {**tree_of(SHAPES), "frozen": None}
    with backend.tracing_for(target):
        found = as_stored(tree)
        traced = str(jax.make_jaxpr(lambda tree: as_stored(tree))(tree))
    jax.tree.map(np.testing.assert_array_equal, found, tree)
    # a kernel of its own where the gradient of a convolution is turned
    wanted = (len(SHAPES), 1) if target == "gpu" else (0, 0)
    assert (traced.count("layout_constraint["), traced.count("optimization_barrier")) == wanted
