"""The most similar of many vectors: exact, a block at a time, on all cores.

One query is compared with pieces that stay in the cache of a core, in threads. Several are multiplied with whole blocks
by one thread, since the library of products has threads of its own, and both at once would wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.parallel import in_order

METRICS = ("cosine", "euclidean")
#: numbers that are float32 at once, which stay in the cache of a core; rows of a block; queries compared at once
_PIECE, _ROWS, _QUERIES = 1 << 18, 1 << 13, 256
#: neighbours beyond those wanted whose distances are computed in float64, since float32 may confuse their order
_MORE = 16
#: columns of a group, of which the largest score stands for all
_GROUP = 16


class Rows(Protocol):
    """Vectors [N, D], float16 or float32: an array, or `vector_files.StoredVectors`."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: Any) -> NDArray[Any]: ...


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The nearest rows of each query, the nearest first.

    Attributes:
      row: int64 [Q, k].
      distance: float64 [Q, k]; cosine: 1 - cosine of the angle, 1 for a vector of zeros.
    """

    row: NDArray[np.int64]
    distance: NDArray[np.float64]


class Nearest:
    """Search among the rows of some vectors, none of which are kept in memory.

    Args:
      rows: float16 or float32 [N, D], finite.
      metric: one of `METRICS`.
      progress: told (rows read, all rows) while the lengths of the vectors are computed.
    """

    def __init__(self, rows: Rows, metric: str = "cosine", progress: Callable[[int, int], None] | None = None) -> None:
        if metric not in METRICS:
            raise ValueError(f"metric is {metric!r}; give one of {', '.join(METRICS)}")
        self._rows, self._cosine = rows, metric == METRICS[0]
        self._count, self._width = (int(size) for size in rows.shape)
        self._squared = np.empty(self._count, np.float32)  # lengths
        for done, part in self._of_blocks(lambda start: self._by_pieces(start, _squares)):
            self._squared[done : done + len(part)] = part
            if progress:
                progress(done + len(part), self._count)

    def __call__(self, queries: NDArray[np.floating], count: int, own: NDArray[np.integer] | None = None) -> Neighbours:
        """The `count` nearest rows of each query, fewer where there are not as many.

        Args:
          queries: [Q, D].
          own: int [Q], a row that is no neighbour of the query, such as itself; -1: none.

        Raises:
          ValueError: queries of another width.
        """
        if queries.ndim != 2 or queries.shape[1] != self._width:
            raise ValueError(f"queries have the shape {list(queries.shape)}; [Q, {self._width}] is needed")
        own = np.full(len(queries), -1) if own is None else own
        count = min(count, self._count - bool((own >= 0).any()))
        found = [
            self._nearest(queries[start : start + _QUERIES], count, own[start : start + _QUERIES])
            for start in range(0, len(queries), _QUERIES)
        ]
        empty = np.zeros((0, count))
        return Neighbours(
            np.concatenate([empty.astype(np.int64), *(rows for rows, _ in found)]),
            np.concatenate([empty, *(distance for _, distance in found)]),
        )

    def _of_blocks(self, work: Callable[[int], Any]) -> Any:
        """(first row, what is made of the block)."""
        starts = range(0, self._count, _ROWS)
        return zip(starts, in_order(work, starts))

    def _by_pieces(self, start: int, make: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> NDArray[np.float32]:
        """What is made of the rows of a block, [..., n]."""
        block, step = self._rows[start : start + _ROWS], max(1, _PIECE // self._width)
        parts = [make(as_float32(block[first : first + step])) for first in range(0, len(block), step)]
        return np.concatenate(parts, axis=-1)

    def _nearest(
        self, queries: NDArray[np.floating], count: int, own: NDArray[np.integer]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        asked = queries.astype(np.float32)
        wanted, every = min(count + _MORE, self._count), np.arange(len(queries))[:, None]

        def one(start: int) -> NDArray[np.float32]:
            return self._by_pieces(start, lambda piece: (piece @ asked[0])[None])

        def several(start: int) -> NDArray[np.float32]:
            return as_float32(self._rows[start : start + _ROWS])

        scores, rows = np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
        for start, part in self._of_blocks(one if len(queries) == 1 else several):
            score = part if len(queries) == 1 else asked @ part.T
            squared = self._squared[start : start + _ROWS]
            if self._cosine:
                score /= np.sqrt(np.where(squared > 0, squared, 1))
            else:
                score -= squared / 2  # the larger the score, the less the distance
            inside = np.flatnonzero((own >= start) & (own < start + len(squared)))
            score[inside, own[inside] - start] = -np.inf
            place = _largest(score, wanted)
            scores = np.concatenate([scores, score[every, place]], axis=1)
            rows = np.concatenate([rows, place + start], axis=1)
            kept = _largest(scores, wanted)
            scores, rows = scores[every, kept], rows[every, kept]
        distance = np.stack([self._distances(q, of) for q, of in zip(queries.astype(np.float64), rows)])
        distance[rows == own[:, None]] = np.inf
        order = np.lexsort((rows, distance), axis=1)[:, :count]
        return rows[every, order], distance[every, order]

    def _distances(self, query: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of a query [D] from some rows, [n]."""
        vectors = self._rows[rows].astype(np.float64)
        if not self._cosine:
            return np.asarray(np.linalg.norm(vectors - query, axis=1))
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
        return np.maximum(1 - (vectors @ query) / np.where(lengths > 0, lengths, 1), 0)


def as_float32(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    """Exactly the numbers of finite vectors, as float32.

    NumPy converts float16 one by one. The bits of a half with 13 zeros behind them are those of the float32 number that
    is 2^112 times smaller, so that whole vectors of the processor do it, about ten times as fast.
    """
    if vectors.dtype != np.float16:
        return np.asarray(vectors, np.float32)
    bits = vectors.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= np.int32(~0x70000000)  # of a negative number its sign, which stands in all bits above
    numbers = bits.view(np.float32)
    numbers *= np.float32(2.0**112)
    return numbers


def _squares(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.einsum("nd,nd->n", vectors, vectors)


def _largest(scores: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Places [Q, at most count] of the largest scores [Q, n] of each query, in no order.

    Of many columns, those in groups of `_GROUP` are looked at whose largest score is among the largest of all groups:
    no other group can hold one of so many.
    """
    (queries, columns), groups = scores.shape, scores.shape[1] // _GROUP
    if columns <= count:
        return np.broadcast_to(np.arange(columns), scores.shape)
    if groups <= count:
        return np.argpartition(scores, -count, axis=1)[:, -count:]
    best = scores[:, : groups * _GROUP].reshape(queries, _GROUP, groups).max(axis=1)
    chosen = np.argpartition(best, -count, axis=1)[:, -count:]
    looked_at = (chosen[:, :, None] + groups * np.arange(_GROUP)).reshape(queries, -1)
    rest = np.broadcast_to(np.arange(groups * _GROUP, columns), (queries, columns - groups * _GROUP))
    looked_at = np.concatenate([looked_at, rest], axis=1)
    place = np.argpartition(np.take_along_axis(scores, looked_at, axis=1), -count, axis=1)[:, -count:]
    return np.take_along_axis(looked_at, place, axis=1)
