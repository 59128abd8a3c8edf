"""Linear discriminants of features, in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from linnaeus_jax.learning import discriminant
from linnaeus_jax.learning.discriminant import FeatureSums, best_scale, fitted

RANKS = {"fine": 4, "coarse": 2}


def drawn(rows=400, width=6, seed=0, apart=2.0):
    """Features of three classes, of which no row is of class 3, whose noise is correlated; labels [N, 2]."""
    rng = np.random.default_rng(seed)
    fine = rng.integers(0, 3, rows)
    mixing = np.eye(width) + 3 * np.outer(np.ones(width), np.ones(width)) / width
    means = apart * np.random.default_rng(9).normal(size=(3, width))
    x = means[fine] + rng.normal(size=(rows, width)) @ mixing
    return (5 + x).astype(np.float32), np.stack([fine, fine // 2], axis=1)


def sums_of(x, label, step=7):
    sums = FeatureSums(RANKS, x.shape[1])
    for first in range(0, len(x), step):
        sums.add(x[first : first + step], label[first : first + step])
    return sums


def test_discriminants_are_those_of_the_definition_and_rows_come_in_any_pieces():
    x, label = drawn()
    kernel, bias = sums_of(x, label).discriminants("fine")
    means = np.stack([x[label[:, 0] == one].mean(axis=0) for one in range(3)]).astype(np.float64)
    residual = x - means[label[:, 0]]
    within = residual.T @ residual / len(x)
    shrunk = (1 - discriminant.SHRINKAGE) * within
    shrunk += discriminant.SHRINKAGE * np.trace(within) / len(within) * np.eye(len(within))
    inverse, share = np.linalg.inv(shrunk), np.bincount(label[:, 0]) / len(x)
    quadratic = [
        np.log(share[one]) - 0.5 * np.einsum("ni,ij,nj->n", x - means[one], inverse, x - means[one]) for one in range(3)
    ]
    logits = x @ kernel + bias
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], quadratic[1] - quadratic[0], atol=1e-3)
    np.testing.assert_allclose(logits[:, 2] - logits[:, 0], quadratic[2] - quadratic[0], atol=1e-3)
    whole = sums_of(x[:150], label[:150]) + sums_of(x[150:], label[150:], step=400)
    np.testing.assert_allclose(whole.discriminants("fine")[0], kernel, rtol=1e-3, atol=1e-5)


def test_a_class_without_rows_is_unlikely_and_rows_without_a_label_give_no_mean():
    x, label = drawn()
    blanked = label.copy()
    blanked[::2, 0] = -1
    for labels in (label, blanked):
        kernel, bias = sums_of(x, labels).discriminants("fine")
        assert np.isfinite(kernel).all()
        assert np.isfinite(bias).all()
        best = (x @ kernel + bias).argmax(axis=1)
        assert (best == label[:, 0]).mean() > 0.9
        assert 3 not in best


@pytest.mark.parametrize("label", [-1, 0])
def test_without_two_classes_or_any_difference_there_are_none(label):
    x, _ = drawn(40)
    one = np.full((40, 2), label)
    assert sums_of(x, one).discriminants("fine") is None
    constant = np.ones_like(x)
    assert sums_of(constant, drawn(40)[1]).discriminants("fine") is None
    assert fitted([sums_of(x, one)] * 2, (x, one)) == {}


def test_the_scale_is_that_of_other_rows():
    """With many features for few rows a map is far too sure of the rows that it was computed from."""
    (x, label), (others, theirs) = drawn(60, 40, apart=0.2), drawn(60, 40, seed=1, apart=0.2)
    affine = sums_of(x, label).discriminants("fine")
    assert best_scale(others @ affine[0] + affine[1], theirs[:, 0]) < best_scale(x @ affine[0] + affine[1], label[:, 0])
    assert best_scale(others @ affine[0], np.full(60, -1)) == 1.0
    kernel, _ = fitted([sums_of(x, label), sums_of(others, theirs)], (others, theirs))["fine"]
    both = (sums_of(x, label) + sums_of(others, theirs)).discriminants("fine")[0]
    np.testing.assert_allclose(kernel, both * best_scale(others @ affine[0] + affine[1], theirs[:, 0]), rtol=1e-5)
