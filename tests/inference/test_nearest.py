"""The search for the nearest vectors, beside distances of all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.inference.files import nearest
from linnaeus_jax.inference.files.nearest import METRICS, Nearest, as_float32


def brute(rows: np.ndarray, queries: np.ndarray, metric: str) -> np.ndarray:
    """All distances, float64 [Q, N], as textbooks have them."""
    x, q = rows.astype(np.float64), queries.astype(np.float64)
    if metric == "euclidean":
        return np.sqrt(((q[:, None] - x[None]) ** 2).sum(axis=2))
    lengths = np.linalg.norm(q, axis=1)[:, None] * np.linalg.norm(x, axis=1)[None]
    return 1 - np.divide(q @ x.T, lengths, out=np.zeros_like(lengths), where=lengths > 0)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 60),
    queries=st.integers(1, 9),
    count=st.integers(1, 12),
    metric=st.sampled_from(METRICS),
    dtype=st.sampled_from([np.float16, np.float32]),
)
def test_neighbours_are_those_of_all_distances(seed, rows, queries, count, metric, dtype):
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 3, (rows, 5)).astype(dtype)
    x[rng.integers(rows)] = 0
    q = rng.normal(0, 3, (queries, 5)).astype(dtype)
    with pytest.MonkeyPatch.context() as patch:  # several pieces, blocks and groups of queries
        patch.setattr(nearest, "_PIECE", 15)
        patch.setattr(nearest, "_ROWS", 21)
        patch.setattr(nearest, "_GROUP", 2)
        patch.setattr(nearest, "_QUERIES", 4)
        patch.setattr(nearest, "_MORE", 2)
        found = Nearest(x, metric)(q, count)
    distances = brute(x, q, metric)
    wanted = np.sort(distances, axis=1)[:, :count]
    assert found.row.shape == found.distance.shape == wanted.shape
    np.testing.assert_allclose(found.distance, wanted, atol=1e-12)
    np.testing.assert_allclose(distances[np.arange(queries)[:, None], found.row], wanted, atol=1e-12)
    assert all(len(set(row)) == len(row) for row in found.row.tolist())


@pytest.mark.parametrize("metric", METRICS)
def test_a_row_is_not_its_own_neighbour(metric):
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    x[7] = x[3]
    search = Nearest(x, metric)
    found = search(x, 3, np.arange(40))
    assert not (found.row == np.arange(40)[:, None]).any()
    assert (found.row[3, 0], found.row[7, 0]) == (7, 3)
    assert found.distance[3, 0] == pytest.approx(0, abs=1e-15)
    assert search(x[:1], 99, np.array([0])).row.shape == (1, 39)
    assert search(x[:1], 99).row.shape == (1, 40)
    assert search(x[:0], 3).row.shape == (0, 3)
    mixed = search(x[:2], 1, np.array([-1, 1]))
    assert mixed.row[0] == 0
    assert mixed.row[1] != 1


def test_near_duplicates_come_in_the_order_of_their_true_distances():
    """Float32 products of long vectors cannot tell them apart."""
    base = np.full(64, 40, np.float32)
    x = np.stack([base + np.float32(1e-5) * step for step in range(12, 0, -1)]).astype(np.float32)
    found = Nearest(x, "euclidean")(base[None], 4)
    distances = brute(x, base[None], "euclidean")[0]
    assert found.distance[0].tolist() == pytest.approx(np.sort(distances)[:4].tolist(), abs=1e-12)


def test_every_half_is_the_same_in_float32():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    assert as_float32(halves).view(np.uint32).tolist() == halves.astype(np.float32).view(np.uint32).tolist()


def test_what_cannot_be_compared():
    x, told = np.ones((3, 2), np.float32), list[tuple[int, int]]()
    with pytest.raises(ValueError, match=r"metric is 'dot'; give one of cosine, euclidean"):
        Nearest(x, "dot")
    with pytest.raises(ValueError, match=r"queries have the shape \[1, 3\]; \[Q, 2\] is needed"):
        Nearest(x, progress=lambda *both: told.append(both))(np.ones((1, 3)), 1)
    assert told == [(3, 3)]
