"""A model over many rows: read by threads ahead of the devices, computed in fixed shapes, finished behind them.

Predictions, evaluation, explanations and `Model.predict` are each a way to read a row and something to make of the
logits. Work that may be interrupted keeps every result as it comes, and later runs over the items that are left
(`prediction_files`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.parallel import cores, in_order
from linnaeus_jax.inference.forward import Forward, Pending
from linnaeus_jax.inference.metadata import Encoded
from linnaeus_jax.inference.paths import Logits
from linnaeus_jax.step.placement import RUN_AHEAD

#: rows that a thread reads before it hands them over
TOGETHER = 4

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Row(Generic[Item]):
    """What was read of an item: pixels uint8 [H, W, 3], or None where there are none; then nothing is computed."""

    item: Item
    pixels: NDArray[np.uint8] | None


AnyRow = TypeVar("AnyRow", bound=Row)  # type: ignore[type-arg]


def run_rows(
    forward: Forward,
    items: Sequence[Item],
    read: Callable[[Item], AnyRow],
    encode: Callable[[list[AnyRow]], Sequence[Encoded]],
    finish: Callable[[list[AnyRow], Sequence[Encoded], list[Logits]], Result],
    *,
    threads: int = 0,
    finishers: int = 1,
) -> Generator[Result, None, None]:
    """What is made of all items, in order, a batch of the largest bucket at a time.

    Memory is bounded by a few batches of pixels and of logits.

    Args:
      read: a row, in a thread; what it raises ends the run.
      encode: metadata of the rows that have pixels. Each one that it gives is computed with the same pixels.
      finish: makes a result, in a thread, of rows that follow each other: all of them, the metadata of those with
        pixels, and their logits for each of these, task -> float32 [n, C]; both are empty where no row has pixels.
      threads: that read; 0: one per core.
      finishers: threads that finish.
    """
    most, threads = forward.buckets[-1], threads or cores()
    few = (items[start : start + TOGETHER] for start in range(0, len(items), TOGETHER))
    ahead = -(-most // TOGETHER) + 2 * threads  # at least a batch is read while the devices compute
    rows = in_order(lambda some: [read(item) for item in some], few, threads=threads, ahead=ahead)

    def start(rows: list[AnyRow]) -> tuple[list[AnyRow], Sequence[Encoded], list[Pending]]:
        seen = [row for row in rows if row.pixels is not None]
        if not seen:
            return rows, (), []
        given, pixels = encode(seen), np.stack([row.pixels for row in seen if row.pixels is not None])
        return rows, given, [forward.dispatch(pixels, each.meta, each.valid) for each in given]

    def end(started: tuple[list[AnyRow], Sequence[Encoded], list[Pending]]) -> Result:
        rows, given, computing = started
        return finish(rows, given, [each.result() for each in computing])

    started = map(start, _batches(itertools.chain.from_iterable(rows), most))
    yield from in_order(end, started, threads=finishers, ahead=RUN_AHEAD + 1)


def by_number(*encoded: Encoded) -> Callable[[list[Row[int]]], list[Encoded]]:
    """What `run_rows` encodes of rows whose metadata are known before, and whose items are their numbers."""
    return lambda rows: [each.take([row.item for row in rows]) for each in encoded]


def _batches(rows: Iterable[AnyRow], most: int) -> Iterator[list[AnyRow]]:
    """Rows that follow each other, `most` of them with pixels."""
    batch: list[AnyRow] = []
    count = 0
    for row in rows:
        batch.append(row)
        count += row.pixels is not None
        if count == most or len(batch) >= 8 * most:  # a folder of unreadable files is reported as it goes
            yield batch
            batch, count = [], 0
    if batch:
        yield batch
