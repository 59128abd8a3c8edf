"""What simple models tell of classes."""

from __future__ import annotations

import numpy as np
import pytest

from linnaeus_jax.data.baselines import commonest_share, histograms, kernel_accuracies, square_roots, standardised


def test_the_commonest_class_is_that_of_training_and_rows_without_a_label_do_not_count():
    assert commonest_share([500, 60, 70], [900, 70, 30], null=0) == 30.0
    assert commonest_share([500, 60, 70], [900, 70, 30]) == 90.0
    assert commonest_share([5, 0], [9, 0], null=0) is None


def test_a_histogram_has_a_share_for_every_colour():
    images = np.zeros((2, 4, 4, 3), np.uint8)
    images[1, :2] = (255, 0, 40)
    found = histograms(images)
    assert found.shape == (2, 512)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert found[0, 0] == 1
    assert found[1, 0] == found[1, 7 * 64 + 1] == 0.5


@pytest.mark.parametrize("gaussian", [True, False])
def test_classes_that_can_be_told_apart_are(gaussian):
    """At every rank, whatever the other rank lacks, and rows without a label do not count."""
    rng = np.random.default_rng(0)
    fine = rng.integers(3, 9, 200)  # of classes 0 to 9 some have no row
    x = rng.normal(size=(200, 20)).astype(np.float32) * 0.1
    x[np.arange(200), fine] += 3
    label = np.stack([np.where(rng.random(200) < 0.2, -1, fine), fine // 3], axis=1)
    train, val = standardised(x[:150], x[150:])
    pairs = {"fine": (label[:150, 0], label[150:, 0]), "coarse": (label[:150, 1], label[150:, 1])}
    assert kernel_accuracies(train, val, pairs, gaussian=gaussian) == {"fine": 100.0, "coarse": 100.0}
    missing = np.full(150, -1)
    assert kernel_accuracies(train, val, {**pairs, "none": (missing, label[150:, 0])}).keys() == pairs.keys()
    assert kernel_accuracies(train, val, {**pairs, "none": (label[:150, 0], missing[:50])}).keys() == pairs.keys()
    unseen = np.where(label[150:, 0] == 3, 1, label[150:, 0])  # a class without training rows is never right
    assert kernel_accuracies(train, val, {"fine": (label[:150, 0], unseen)})["fine"] < 100


@pytest.mark.parametrize("gaussian", [True, False])
def test_it_is_kernel_ridge_regression(gaussian):
    """Beside every pair of rows taken by itself, far from the origin."""
    rng = np.random.default_rng(0)
    train, val = (rng.normal(size=(count, 4)) + [0, 3, 1, -2] for count in (60, 500))
    label, truth = rng.integers(0, 3, 60), rng.integers(0, 3, 500)
    spread = np.mean([np.sum((a - b) ** 2) for a in train for b in train])
    kernel = (lambda a, b: np.exp(-np.sum((a - b) ** 2) / spread)) if gaussian else (lambda a, b: a @ b / spread)
    gram, cross = (np.array([[kernel(a, b) for b in train] for a in rows]) for rows in (train, val))
    answers = (cross @ np.linalg.solve(gram + 0.05 * np.eye(60), np.eye(3)[label])).argmax(axis=1)
    pair = {"one": (label, truth)}
    found = kernel_accuracies(train.astype(np.float32), val.astype(np.float32), pair, gaussian=gaussian)
    assert found == {"one": pytest.approx(100 * (answers == truth).mean(), abs=0.41)}  # two rows may be ties


def test_vectors_of_nothing_and_of_any_sign_are_used():
    roots = square_roots(np.array([[0, 0], [-4, 9], [1e-30, 0]], np.float16))
    assert np.isfinite(roots).all()
    np.testing.assert_allclose(roots[1], np.array([-2, 3]) / 13**0.5, rtol=1e-6)
    same = np.ones((10, 3), np.float32)
    label = np.arange(10) % 2
    assert 0 <= kernel_accuracies(same, same, {"one": (label, label)})["one"] <= 100


def test_square_roots_keep_signs_and_have_length_1_in_each_row():
    x = np.random.default_rng(0).normal(size=(5, 7)) * np.array([[1e-3], [1.0], [50.0], [2.0], [0.0]])
    roots = square_roots(x)
    np.testing.assert_allclose((roots**2).sum(axis=1), [1, 1, 1, 1, 0], atol=1e-6)
    np.testing.assert_allclose(roots[:4] ** 2, np.abs(x[:4]) / np.abs(x[:4]).sum(axis=1, keepdims=True), atol=1e-6)
    np.testing.assert_array_equal(np.sign(roots[:4]), np.sign(x[:4]))
