"""Linear classifiers of features, chosen out of folds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.learning import regression
from linnaeus_jax.learning.regression import fit_ranks, regression_products, regressions, stratified_folds

RANKS = {"fine": 7, "coarse": 3}
PARENT = np.array([0, 0, 1, 1, 2, 2, 2])


def drawn(rows=240, width=12, seed=0, apart=1.5):
    """Features that are of different size and off zero; no row is of class 6, and some have no fine label, or none."""
    rng = np.random.default_rng(seed)
    fine = rng.integers(0, 6, rows)
    means = apart * np.random.default_rng(9).normal(size=(6, width))
    x = (means[fine] + rng.normal(size=(rows, width))) * np.geomspace(0.01, 100, width) + 7
    label = np.stack([fine, PARENT[fine]], axis=1)
    label[::9, 0] = -1
    label[::27] = -1
    return x.astype(np.float32), label, fine


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-3, 6), max_size=60), st.integers(2, 7), st.integers(0, 3))
def test_the_rows_of_a_class_lie_evenly_in_as_many_folds_as_they_can(fine, folds, seed):
    fine = np.array(fine, np.int64)  # -1 to -3: of a coarse class alone
    label = np.stack([np.maximum(fine, -1), np.where(fine < 0, -fine - 1, PARENT[fine])], axis=1)
    fold = stratified_folds(label, folds, seed)
    assert fold.shape == fine.shape
    for column in label.T:
        for one in np.unique(column[column >= 0]):
            counts = np.bincount(fold[column == one], minlength=folds)
            assert counts.max() - counts.min() <= 1
    np.testing.assert_array_equal(fold, stratified_folds(label, folds, seed))


def test_rows_of_a_group_lie_in_one_fold():
    label = np.stack([np.arange(60) // 10, np.arange(60) // 20], axis=1)
    group = np.arange(60) // 2 % 25 + 7  # the last ten rows are of the first groups, too
    fold = stratified_folds(label, 5, 0, group)
    assert all(len(np.unique(fold[group == one])) == 1 for one in np.unique(group))
    counts = np.bincount(fold[:50], minlength=5)
    assert counts.max() - counts.min() <= 2
    np.testing.assert_array_equal(stratified_folds(label, 5, 3, np.arange(60)), stratified_folds(label, 5, 3))


def test_logits_out_of_as_many_folds_as_are_wanted_know_nothing_of_their_group():
    """Labels without any sense are learned by heart, except of what no other group has."""
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(40, 60)), 2, axis=0).astype(np.float32)
    label = np.repeat(rng.integers(0, 2, (40, 1)), 2, axis=0)
    alone, together = (
        fit_ranks(x, label, {"fine": 2}, folds=8, group_N=group)["fine"].accuracy
        for group in (None, np.arange(80) // 2)
    )
    assert alone > 0.9
    assert together < 0.75


@pytest.mark.parametrize("weights", ["rows", "some", "uneven"])
def test_the_search_ends_where_the_gradient_is_zero(weights):
    """For every line of weights and every rank, of 1,100 rows, which are more than are looked at together."""
    x, label, _ = drawn(1100 if weights == "rows" else 90, 8)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    rng = np.random.default_rng(1)
    lines = {"rows": np.ones(len(x)), "some": rng.random(len(x)) < 0.7, "uneven": rng.uniform(0.1, 3, len(x))}
    weight = np.stack([lines[weights], np.ones(len(x))]).astype(np.float32)
    (fits,) = regressions(x, label, weight, RANKS, (0.3,), 400)
    for column, (rank, count) in enumerate(RANKS.items()):
        known = label[:, column] >= 0
        for w, (kernel, bias) in zip(weight[:, known], fits[rank], strict=True):
            present = np.arange(6 if rank == "fine" else 3)
            assert kernel.shape == (8, count)
            logits = x[known].astype(np.float64) @ kernel[:, present] + bias[present]
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p = (p / p.sum(axis=1, keepdims=True) - np.eye(len(present))[label[known, column]]) * w[:, None]
            np.testing.assert_allclose(kernel[:, present] + 0.3 * x[known].T @ p, 0, atol=5e-3 * len(x) / 90)
            np.testing.assert_allclose(0.3 * p.sum(axis=0), 0, atol=5e-3 * len(x) / 90)
            if count > len(present):  # no row is of it
                np.testing.assert_array_equal(kernel[:, len(present) :], 0)
                assert (bias[6] <= np.log(np.exp(logits).sum(axis=1)) + np.log(0.5 / w.sum()) + 1e-4).all()


def test_a_rank_of_more_classes_than_two_bytes_count():
    """The last ones alone have rows, some of them no part in the rank."""
    x = np.eye(3, dtype=np.float32)[np.arange(90) % 3]
    label = np.where(np.arange(90) < 81, 39_997 + np.arange(90) % 3, -1)[:, None]
    (fits,) = regressions(x, label, np.ones((1, 90), np.float32), {"fine": 40_000}, (0.1,), 30)
    ((kernel, bias),) = fits["fine"]
    np.testing.assert_array_equal((np.eye(3) @ kernel + bias).argmax(axis=1), [39_997, 39_998, 39_999])


def test_a_row_counts_the_same_however_many_views_it_has(monkeypatch):
    """Equal views change nothing, for either kind."""
    monkeypatch.setattr(regression, "ITERATIONS", 200)
    x, label, _ = drawn(120)
    row = np.concatenate([np.arange(120), np.repeat(np.arange(40), 3)])
    once, thrice = (fit_ranks(x[rows], label, RANKS, rows) for rows in (np.arange(120), row))
    for rank in RANKS:
        assert once[rank].kind == thrice[rank].kind
        np.testing.assert_allclose(once[rank].logits, thrice[rank].logits, atol=0.05)
        assert (once[rank].logits.argmax(axis=1) == thrice[rank].logits.argmax(axis=1)).mean() > 0.97


@pytest.mark.parametrize("strengths", [(0.3,), ()])
def test_some_rows_are_fitted_to_as_if_there_were_no_others(strengths, monkeypatch):
    """By either kind; the scale of the logits is that of all rows."""
    monkeypatch.setattr(regression, "STRENGTHS", strengths)
    monkeypatch.setattr(regression, "ITERATIONS", 60)
    x, label, _ = drawn(240, apart=0.8)
    some = np.arange(240) < 160
    both = fit_ranks(x, label, RANKS, None, [np.ones(240, bool), some])
    alone = fit_ranks(x[some], label[some], RANKS, None, [np.ones(160, bool)])
    assert any("regression" in fit.kind for fit in both.values()) == bool(strengths)
    for rank in RANKS:
        if both[rank].kind != alone[rank].kind:
            continue
        ours, theirs = (x @ kernel + bias for kernel, bias in (both[rank].fits[1], alone[rank].fits[0]))
        assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > (0.995 if strengths else 0.9999)
        assert not np.allclose(both[rank].fits[1][0], both[rank].fits[0][0], rtol=1e-3)


def test_logits_of_a_row_are_those_of_the_map_that_was_not_fitted_to_it():
    rng = np.random.default_rng(0)
    x, fold = rng.normal(size=(40, 5)).astype(np.float32), rng.integers(0, 3, 40)
    maps = [(rng.normal(size=(5, 4)).astype(np.float32), rng.normal(size=4).astype(np.float32)) for _ in range(3)]
    expected = [row @ maps[number][0] + maps[number][1] for row, number in zip(x, fold, strict=True)]
    np.testing.assert_allclose(regression._out_of_fold(x, fold, maps), expected, rtol=1e-5, atol=1e-6)


def test_maps_are_of_raw_features_and_logits_of_rows_that_were_not_fitted_to():
    x, label, fine = drawn()
    fits = fit_ranks(x, label, RANKS, None, [np.ones(len(x), bool)])
    others, _, theirs = drawn(seed=1)
    for rank, truth in (("fine", theirs), ("coarse", PARENT[theirs])):
        fit = fits[rank]
        ((kernel, bias),) = fit.fits
        assert (kernel.dtype, kernel.shape, fit.logits.shape) == (np.float32, (12, RANKS[rank]), (len(x), RANKS[rank]))
        predicted = (others @ kernel + bias).argmax(axis=1)
        assert (predicted == truth).mean() == pytest.approx(fit.accuracy, abs=0.08)
        assert np.isfinite(fit.logits).all()
        assert 6 not in predicted
    chance = np.random.default_rng(3).permutation(fine)[:, None]
    noise = fit_ranks(x, chance, {"fine": 7})["fine"]
    assert noise.accuracy < 0.3  # 0.6 and more for the rows that it was fitted to


@pytest.mark.parametrize("kind", ["discriminants", "regression"])
def test_what_is_better_out_of_folds_is_taken(kind, monkeypatch):
    """Discriminants where noise is common to all features and the penalty leaves nothing but the means of classes.
    Beyond the limit nothing but discriminants is tried."""
    x, label, _ = drawn(apart=0.8)
    if kind == "discriminants":
        x = (x - 7) / np.geomspace(0.01, 100, x.shape[1]).astype(np.float32)
        x += 4 * np.random.default_rng(4).normal(size=(len(x), 1)).astype(np.float32)
        monkeypatch.setattr(regression, "STRENGTHS", (1e-5,))
    assert kind in fit_ranks(x, label, RANKS)["fine"].kind
    monkeypatch.setattr(regression, "MOST_PRODUCTS", 0.9 * regression_products(len(x), x.shape[1], RANKS, 5))
    assert fit_ranks(x, label, RANKS)["fine"].kind == regression.DISCRIMINANTS


@pytest.mark.parametrize("case", ["one class", "no label", "equal features", "rare", "constant feature"])
def test_data_with_little_in_them(case):
    x, label, _ = drawn(40)
    if case == "equal features":
        assert fit_ranks(np.ones_like(x), label, RANKS) == {}
        return
    if case == "constant feature":
        x[:, 3] = 5.0
    elif case == "rare":  # in some folds no row of them is left
        label[:, 0] = np.where(np.arange(40) < 2, np.arange(40), -1)
    else:
        label[:, 0] = 2 if case == "one class" else -1
    fits = fit_ranks(x, label, RANKS, None, [np.ones(len(x), bool)])
    assert list(fits) == (["coarse"] if case in ("one class", "no label") else ["fine", "coarse"])
    assert all(np.isfinite(fit.logits).all() and np.isfinite(fit.fits[0][0]).all() for fit in fits.values())
