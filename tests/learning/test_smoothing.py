from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from linnaeus_jax.learning.losses import make_criterion
from linnaeus_jax.learning.smoothing import TaxonomySmoothing, smoothing_matrix
from tests.npz import load_npz

TREES = {"A": 3, "B": 2, "C": 4}


def sparse_rows(smoothing: TaxonomySmoothing) -> np.ndarray:
    """The matrix that the loss uses."""
    mass = jax.jit(smoothing.spread_mass)(jnp.arange(smoothing.num_classes))
    mass = np.broadcast_to(mass, (smoothing.num_classes,) * 2)
    return mass + np.diag(smoothing.label_mass)


def parents_of(archive, tree: str) -> list[np.ndarray]:
    return [archive[f"{tree}/parent_{level}"] for level in range(TREES[tree])]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("setting", ["a10b1", "a20b05", "a10b2nr"])
def test_fixture_matrices(fixtures, tree, setting):
    archive = load_npz(fixtures / "learning_smoothing.npz")
    alpha, beta, _ = archive[f"setting/{setting}"]  # the third, uniform roots or not, changes nothing in a tree
    for level in range(TREES[tree]):
        smoothing = TaxonomySmoothing.from_parents(parents_of(archive, tree), level, alpha=alpha, beta=beta)
        want = archive[f"{tree}/{setting}/mat_{level}"]
        np.testing.assert_array_equal(smoothing.distance_matrix(), archive[f"{tree}/dist_{level}"])
        np.testing.assert_allclose(smoothing.dense_matrix(), want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(sparse_rows(smoothing), want, rtol=1e-5, atol=1e-6)


def test_free_standing_distances(fixtures):
    archive = load_npz(fixtures / "learning_smoothing.npz")
    matrix = smoothing_matrix(archive["free/dist"], alpha=0.15, beta=0.8)
    np.testing.assert_allclose(matrix, archive["free/mat_uniform0"], rtol=1e-5, atol=1e-6)


@st.composite
def forests(draw):
    """Random parent arrays, fine to coarse, orphans at every rank."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    links = [draw(st.lists(st.integers(-1, b - 1), min_size=a, max_size=a)) for a, b in itertools.pairwise(sizes)]
    return [np.asarray(link, np.int32) for link in [*links, [-1] * sizes[-1]]]


@settings(max_examples=100, deadline=None)
@given(forests(), st.floats(0.0, 1.0), st.floats(0.0, 8.0))
@example([np.array([0, 0, 1]), np.array([0, 1]), np.array([0, 0]), np.array([-1])], 0.2, 2.0)  # 2 has no sibling
def test_any_forest_rows_are_distributions_equal_to_the_dense_form(parents, alpha, beta):
    for level in range(len(parents)):
        smoothing = TaxonomySmoothing.from_parents(parents, level, alpha=alpha, beta=beta)
        # as spread_mass, in NumPy: the shapes are new in every example
        related = smoothing.ancestors[:, None, :] == smoothing.ancestors[None, :, :]
        rows = np.einsum("ijk,ik->ij", related, smoothing.subtree_mass) + smoothing.uniform_mass[:, None]
        rows += np.diag(smoothing.label_mass)
        np.testing.assert_allclose(rows.sum(axis=1), 1.0, atol=1e-6)
        assert rows.min() >= -1e-6
        np.testing.assert_allclose(rows, smoothing.dense_matrix(), rtol=1e-5, atol=1e-6)


def test_kinship_decides_and_null_receives_nothing():
    parents = [np.array([-1, 0, 0, 1]), np.array([0, 0]), np.array([-1])]
    matrix = TaxonomySmoothing.from_parents(parents, alpha=0.2, beta=0.5).dense_matrix()
    weights = np.exp(-0.5 * np.array([2.0, 4.0]))  # sibling, cousin
    np.testing.assert_allclose(matrix[1], [0.0, 0.8, *(0.2 * weights / weights.sum())], rtol=1e-6)
    np.testing.assert_allclose(matrix[0], [0.8, 0.2 / 3, 0.2 / 3, 0.2 / 3], rtol=1e-6)
    smoothing = TaxonomySmoothing.from_parents(parents, alpha=0.2, beta=0.5)
    np.testing.assert_array_equal(smoothing.dense_matrix(rows=2), matrix[:2])
    np.testing.assert_array_equal(smoothing.distance_matrix(rows=2), smoothing.distance_matrix()[:2])


def test_one_class_is_certain():
    smoothing = TaxonomySmoothing.from_parents([np.array([-1])], alpha=0.1, beta=1.0, fallback_to_uniform=False)
    np.testing.assert_array_equal(sparse_rows(smoothing), [[1.0]])
    np.testing.assert_array_equal(smoothing_matrix(np.zeros((1, 1)), alpha=0.1, beta=1.0), [[1.0]])


def test_a_rank_without_parents_needs_the_fallback():
    with pytest.raises(ValueError, match="none of its 2 classes has a parent"):
        TaxonomySmoothing.from_parents([np.array([-1, -1])], alpha=0.1, beta=1.0, fallback_to_uniform=False)


@pytest.mark.parametrize("fallback", [True, False])
@pytest.mark.parametrize(
    ("parents", "row"),
    [
        ([np.array([-1, 0, 0]), np.array([-1])], 0),  # the null class
        ([np.array([0, 1, 1]), np.array([-1, -1])], 0),  # an only child
        ([np.array([0, -1]), np.array([-1])], 1),  # nobody is related
    ],
)
def test_a_class_without_relatives_is_uniform_whatever_the_fallback(parents, row, fallback):
    smoothing = TaxonomySmoothing.from_parents(parents, alpha=0.2, beta=1.0, fallback_to_uniform=fallback)
    classes = smoothing.num_classes
    want = np.where(np.arange(classes) == row, 0.8, 0.2 / (classes - 1))
    np.testing.assert_allclose(sparse_rows(smoothing)[row], want, rtol=1e-6)


def test_fifty_thousand_classes_need_no_square_matrix():
    classes, batch = 50_000, 4
    rng = np.random.default_rng(0)
    sizes = (classes, 12_000, 2_000, 300)
    parents = [rng.integers(0, b, size=a) for a, b in itertools.pairwise(sizes)] + [np.full(sizes[-1], -1)]
    smoothing = TaxonomySmoothing.from_parents(parents, alpha=0.1, beta=1.0)
    criterion = make_criterion("TaxonomyAwareLabelSmoothing", num_classes=classes, smoothing=smoothing)
    logits = jnp.asarray(rng.normal(size=(batch, classes)), jnp.float32)
    label = jnp.asarray(rng.integers(0, classes, size=batch), jnp.int32)
    lam = jnp.full(batch, 0.3)
    step = jax.jit(jax.value_and_grad(lambda x: jnp.sum(criterion(x, label, label[::-1], lam))))
    compiled = step.lower(logits).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 8 * logits.nbytes
    loss, gradient = compiled(logits)
    assert np.isfinite(loss)
    np.testing.assert_allclose(np.sum(gradient, axis=1), 0.0, atol=1e-4)
