"""The table of judged rows, and what is measured on it, against counts by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import jax
import numpy as np
import pytest

from linnaeus_jax.metrics.extras import signed_confidence
from linnaeus_jax.metrics.judged import (
    Judged,
    accuracy,
    coverage_and_risk,
    ece,
    haurc,
    hierarchical_risk_coverage,
    joined,
    nll,
    reliability,
    roll_up,
    roll_up_rows,
)


@pytest.fixture
def judged() -> Judged:
    """Five rows of two ranks, coarse labels known of four; class 0 is null."""
    predicted = np.array([[1, 1], [0, 1], [2, 2], [3, 1], [2, 0]], np.int32)
    label = np.array([[1, 1], [2, 1], [0, 2], [3, 2], [0, 0]], np.int32)
    rng = np.random.default_rng(0)
    return Judged(
        row=np.array([40, 30, 20, 10, 5]),
        label=label,
        known=label > 0,
        predicted=predicted,
        probability=np.array([[0.9, 0.9], [0.8, 0.6], [0.7, 0.8], [0.3, 0.95], [0.5, 0.1]]),
        of_label=np.array([[0.9, 0.9], [0.1, 0.6], [1.0, 0.8], [0.3, 0.05], [1.0, 1.0]]),
        logits={task: rng.normal(size=(5, 4)).astype(np.float32) for task in ("fine", "coarse")},
    )


def test_measures(judged):
    np.testing.assert_allclose(accuracy(judged), [2 / 3, 3 / 4])
    np.testing.assert_allclose(nll(judged), [-np.log([0.9, 0.1, 0.3]).mean(), -np.log([0.9, 0.6, 0.8, 0.05]).mean()])
    np.testing.assert_allclose(ece(judged)[0], (0.1 + 0.8 + 0.7) / 3)
    edge = replace(judged, probability=np.array([[0.2], [0.15], [0.21], [0.19], [0.9]]) * np.ones(2))
    assert reliability(edge, 1)[:, 2].tolist() == [3, 1], "a bin holds its upper end"
    for row in range(5):  # of one row, and of ranks without any
        wanted = np.where(judged.known[row], judged.right[row], np.nan)
        np.testing.assert_array_equal(accuracy(judged.take(np.arange(5) == row)), wanted)
    none = judged.take(np.zeros(5, bool))
    assert none.label.shape == (0, 2)
    assert np.isnan([accuracy(none), nll(none), ece(none)]).all()


def test_scores_are_those_of_validation(judged):
    """A null answer is wrong where the label is known, and no mistake that people are shown."""
    expected = signed_confidence(judged.probability, judged.predicted == judged.label, judged.known)
    np.testing.assert_allclose(judged.score, expected, rtol=1e-6)
    coverage, risk = coverage_and_risk(judged, 0)
    np.testing.assert_allclose(coverage, [1 / 3, 2 / 3, 1])
    np.testing.assert_allclose(risk, [0, 1 / 2, 1 / 3])
    assert judged.mistakes(0, first=1) == {"pairs": [], "confident": []}
    [wrong] = judged.mistakes(0, first=0)["confident"]
    assert wrong == {"row": 30, "label": 2, "predicted": 0, "probability": pytest.approx(0.8)}
    found = judged.mistakes(1, first=1)
    assert found["pairs"] == [{"label": 2, "predicted": 1, "rows": 1}]
    assert [entry["row"] for entry in found["confident"]] == [10]


def test_roll_up_answers_at_the_deepest_rank_that_is_sure():
    judged = Judged(
        row=np.arange(4),
        label=np.array([[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 0]], np.int32),
        known=np.array([[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 0]], bool),
        predicted=np.array([[1, 1, 1], [3, 2, 2], [2, 1, 1], [0, 0, 1]], np.int32),
        probability=np.array([[0.4, 0.8, 0.9], [0.9, 0.9, 0.9], [0.7, 0.8, 0.9], [0.9, 0.9, 0.6]]),
        of_label=np.ones((4, 3)),
    )
    half, sure = roll_up(judged, (0.5, 0.95), first=1)
    # genus right; species wrong; species judged as its genus, right; an order that cannot be judged
    assert (half.shares, half.unanswered) == ((0.5, 0.25, 0.25), 0.0)
    assert half.error == pytest.approx(1 / 3)
    assert sure.unanswered == 1
    assert np.isnan(sure.error)

    shares = (each.to_json(["species", "genus", "order"]) for each in (half, sure))
    cells = roll_up_rows(shares, lambda share: None if share is None else round(100 * share))
    assert cells == [["0.5", 25, 25, 50, 0, 33], ["0.95", 0, 0, 0, 100, None]]


@pytest.mark.parametrize("seed", range(3))
def test_hierarchical_risk_and_coverage_are_those_of_every_threshold(seed):
    """Six species in genera of 3, 2 and 1; probabilities with ties, answers and labels that are missing."""
    rng, above = np.random.default_rng(seed), np.array([0, 1, 1, 1, 2, 2, 3])
    below = [np.array([0, 1, 1, 1, 1, 1, 1]), np.array([0, 3, 2, 1])]
    species, answered = rng.integers(0, 7, 60), rng.integers(0, 7, 60)
    label, predicted = (np.stack([x, above[x]], axis=1).astype(np.int32) for x in (species, answered))
    predicted[:5, 1] = rng.integers(0, 4, 5)  # ranks that contradict each other
    probability = np.sort(rng.integers(0, 8, (60, 2)) / 8, axis=1)
    judged = Judged(np.arange(60), label, label > 0, predicted, probability, np.ones((60, 2)))

    known = judged.take(label[:, 0] > 0)
    expected = [(0.0, 0.0)]
    for threshold in np.unique(probability)[::-1]:
        covered, wrong = [], []
        for row, rank in enumerate(known.deepest(threshold, first=1)):
            taxa = 6 if rank == 2 else below[rank][known.predicted[row, rank]]
            covered.append(1 - np.log(taxa) / np.log(6))
            wrong.append(rank < 2 and not known.right[row, rank])
        expected.append((np.mean(covered), np.mean(wrong)))
    found = np.stack(hierarchical_risk_coverage(judged, below, first=1), axis=1)
    assert {tuple(point) for point in found.round(9)} == {tuple(point) for point in np.round(expected, 9)}
    assert np.all(np.diff(found[:, 0]) >= 0)
    area = sum((x[0] - y[0]) * (x[1] + y[1]) / 2 for y, x in pairwise(expected))
    assert haurc(judged, below, first=1) == pytest.approx(area)
    assert np.isnan(haurc(judged.take(label[:, 0] == 0), below, first=1))

    ragged = replace(judged, known=np.arange(60)[:, None] % 2 == np.arange(2))  # no row has a label at both ranks
    assert np.isnan(haurc(ragged, below, first=1))

    unlabelled = replace(judged, known=(label > 0) & np.array([True, False]))
    flat = replace(judged, predicted=predicted * np.array([1, 0], np.int32))
    assert haurc(unlabelled, below, first=1) == pytest.approx(haurc(flat, below, first=1))


def test_rows_are_taken_and_joined_in_every_column(judged):
    order = np.array([3, 0, 4])
    few = judged.take(order)
    jax.tree.map(np.testing.assert_array_equal, vars(few), jax.tree.map(lambda values: values[order], vars(judged)))
    again = joined([judged.take(np.arange(2)), judged.take(np.arange(2, 5))])
    jax.tree.map(np.testing.assert_array_equal, vars(again), vars(judged))
    bare = replace(judged, logits={})
    assert (joined([bare, bare]).logits, len(joined([bare, bare]).row)) == ({}, 10)
