"""Buckets of small leaves: back and forth, the same update of every element."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest
from flax.traverse_util import unflatten_dict
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax import backend
from linnaeus_jax.learning.buckets import GATHERED_BELOW, LeafBuckets, as_stored, global_norm
from linnaeus_jax.learning.optimizers import build_optimizer
from linnaeus_jax.registry import OPTIMIZERS
from tests.learning.test_filters import Info
from tests.learning.test_optimizers import by_name
from tests.learning.test_optimizers import settings as optimizer_settings

SHAPES = {
    ("a", "kernel"): (3, 5),
    ("a", "bias"): (5,),
    ("b", "kernel"): (2, 2, 1, 4),
    ("b", "bias"): (4,),
    ("c",): (),
    ("large",): (GATHERED_BELOW,),
}


def tree_of(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return jax.device_put(unflatten_dict({path: np.float32(rng.normal(size=shape)) for path, shape in shapes.items()}))


@given(st.lists(st.sampled_from(["x", "y", None]), min_size=len(SHAPES), max_size=len(SHAPES)))
@settings(max_examples=15, deadline=None)
def test_scatter_is_the_inverse_of_gather(keys):
    buckets = LeafBuckets(SHAPES, {path: key for path, key in zip(SHAPES, keys) if key is not None})
    tree = tree_of(SHAPES)
    gathered = buckets.gather(tree)
    jax.tree.map(np.testing.assert_array_equal, buckets.scatter(gathered), tree)
    held = [path for paths in buckets.paths() for path in paths]
    assert len(held) == len(set(held))
    assert ("large",) not in held
    assert len(jax.tree.leaves(gathered)) == len(SHAPES) - sum(len(paths) - 1 for paths in buckets.paths())
    assert sum(leaf.size for leaf in buckets.leaves(gathered)) == sum(leaf.size for leaf in jax.tree.leaves(tree))
    for key in {"x", "y"}:
        alike = [path for path, found in zip(SHAPES, keys) if found == key and path != ("large",)]
        assert len(alike) < 2 or any(set(alike) == set(paths) for paths in buckets.paths())


def test_leaves_that_are_not_there_stay_away():
    buckets = LeafBuckets(SHAPES, {path: path[0] for path in SHAPES})
    tree = tree_of(SHAPES)
    tree["a"] = {"kernel": None, "bias": None}
    tree["b"] = {"kernel": optax.MaskedNode(), "bias": optax.MaskedNode()}
    gathered = buckets.gather(tree)
    assert len(jax.tree.leaves(gathered)) == len(buckets.leaves(gathered)) == 2
    assert str(jax.tree.structure(buckets.scatter(gathered))) == str(jax.tree.structure(tree))
    assert buckets.gather(None) is buckets.scatter(None) is None


@pytest.mark.tricks
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "lamb"])
def test_the_update_of_gathered_leaves_is_that_of_every_leaf(name, frozen):
    betas = (0.9, 0.999, 0.9999) if name == "ademamix" else (0.9, 0.999)
    parameters = [Info(".".join(path), path, shape) for path, shape in SHAPES.items()]
    groups = {"biases": {"filter": by_name(".bias", match_type="endswith")}}
    groups |= {"still": {"filter": by_name("c", match_type="startswith"), "frozen": True}} if frozen else {}
    section = optimizer_settings(name=name, betas=betas, groups=groups)
    optimizer = build_optimizer(section, parameters)
    buckets = optimizer.buckets
    assert buckets.paths()
    params, rates = tree_of(SHAPES), {group: 0.1 * n for n, group in enumerate(optimizer.lr_multipliers, 1)}
    state = optimizer.transform.init(params)
    trained, _ = optimizer.split_frozen(params)
    gathered_state = buckets.gather_state(state)
    for seed in (1, 2):
        grads, _ = optimizer.split_frozen(tree_of(SHAPES, seed))
        descent, state = optimizer.transform.update(grads, state, trained)
        expected = optimizer.apply_learning_rates(descent, rates)
        found, gathered_state = optimizer.transform.update(
            buckets.gather(grads), gathered_state, buckets.gather(trained)
        )
        found = buckets.scatter(optimizer.apply_learning_rates(found, rates))
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    jax.tree.map(np.testing.assert_array_equal, buckets.scatter_state(gathered_state), state)


@pytest.mark.tricks
@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_leaves_are_gathered_where_that_saves_operations(target):
    parameters = [Info(".".join(path), path, shape) for path, shape in SHAPES.items()]
    tree = tree_of(SHAPES)
    leaves = [np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(tree)]
    with backend.tracing_for(target):
        buckets = build_optimizer(optimizer_settings(), parameters).buckets
        gathered = buckets.leaves(buckets.gather(tree))
        norm = global_norm(gathered)
        sums = str(jax.make_jaxpr(global_norm)(gathered)).count("reduce_sum")
    assert bool(buckets.paths()) == (target == "cpu")
    np.testing.assert_allclose(norm, np.linalg.norm(np.concatenate(leaves)), rtol=1e-6)
    # on a GPU a kernel for each sum: of what is large, and of all that is small together
    large = sum(leaf.size >= GATHERED_BELOW for leaf in leaves)
    assert sums == (large + 1 if target == "gpu" else len(gathered))


@pytest.mark.tricks
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
