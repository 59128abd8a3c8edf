"""Wrong pairs and confident mistakes against a count by hand, however the rows are split and ordered."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from linnaeus_jax.metrics.judged import PAIRS, ROWS, Mistakes

N = 4000


@pytest.fixture(scope="module")
def phase():
    """row, label, predicted, score of a phase; class 0 is null, half of the rows are right, many are tied at 1.0."""
    rng = np.random.default_rng(0)
    row = rng.permutation(10 * N)[:N].astype(np.int32)
    label, other = rng.integers(0, 9, (2, N)).astype(np.int32)
    predicted = np.where(rng.random(N) < 0.5, label, other)
    probability = np.minimum(rng.random(N) * 1.01, 1).astype(np.float32)
    score = np.where(predicted == label, probability, -probability)
    return row, label, predicted, np.where(label == 0, np.nan, score).astype(np.float32)


@pytest.mark.parametrize("parts", [1, 7, 500])
def test_against_a_count_by_hand(phase, parts):
    row, label, predicted, score = phase
    wrong = (label != 0) & (label != predicted)
    order = np.random.default_rng(parts).permutation(N)
    mistakes = Mistakes()
    for part in np.array_split(order, parts):
        mistakes.add(*(values[part] for values in phase))
    found = mistakes.result()
    counts = Counter(zip(label[wrong].tolist(), predicted[wrong].tolist(), strict=True))
    assert len(found["pairs"]) == PAIRS
    assert [pair["rows"] for pair in found["pairs"]] == sorted(counts.values(), reverse=True)[:PAIRS]
    assert all(counts[pair["label"], pair["predicted"]] == pair["rows"] for pair in found["pairs"])
    assert (score[wrong] == -1).sum() > ROWS  # so that rows break ties
    expected = sorted((float(score[k]), int(row[k]), int(label[k]), int(predicted[k])) for k in np.flatnonzero(wrong))
    assert [tuple(entry.values()) for entry in found["confident"]] == [
        (r, l_, p, -s) for s, r, l_, p in expected[:ROWS]
    ]


def test_without_mistakes():
    mistakes = Mistakes()
    assert mistakes.result() == {"pairs": [], "confident": []}
    mistakes.add(np.arange(3), np.ones(3, int), np.ones(3, int), np.array([0.5, np.nan, 0.0], np.float32))
    assert mistakes.result() == {"pairs": [], "confident": []}
