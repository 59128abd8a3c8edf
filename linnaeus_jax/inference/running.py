"""A model over many rows: read by threads ahead of the devices, computed in fixed shapes, finished behind them.

Predictions, evaluation, explanations and `Model.predict` are each a way to read a row and something to make of the
logits. Work that may be interrupted keeps every result as it comes, and later runs over the items that are left
(`files/unfinished`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.parallel import in_order
from linnaeus_jax.inference.forward import Forward, Pending
from linnaeus_jax.inference.paths import Logits
from linnaeus_jax.reading.metadata import Encoded
from linnaeus_jax.step.placement import RUN_AHEAD
from linnaeus_jax.system import usable_cores

#: rows that a thread reads before it hands them over
TOGETHER = 4

Item = TypeVar("Item")
Said = TypeVar("Said")
Result = TypeVar("Result")
Pixels = NDArray[np.uint8]
Rows = list[tuple[Said, Pixels | None]]


def run_rows(
    forward: Forward,
    items: Sequence[Item],
    read: Callable[[Item], tuple[Said, Pixels | None]],
    encode: Callable[[list[Said]], Sequence[Encoded]],
    finish: Callable[[list[Said], Sequence[Encoded], list[Logits]], Result],
    *,
    threads: int = 0,
    finishers: int = 1,
) -> Generator[Result, None, None]:
    """What is made of all items, in order, a batch of the largest bucket at a time.

    Memory is bounded by a few batches of pixels and of logits.

    Args:
      read: what is to be said of an item, and its pixels uint8 [H, W, 3], or of all items [views, H, W, 3], in a
        thread; without pixels nothing is computed. What it raises ends the run.
      encode: metadata of the rows that have pixels. Each one that it gives is computed with the same pixels.
      finish: makes a result, in a thread, of what was said of rows that follow each other, of the metadata of those
        with pixels and of their logits for each of these, and of it for each view, task -> float32 [n, C]; both are
        empty without any pixels.
      threads: that read; 0: one per core.
      finishers: threads that finish.
    """
    most, threads = forward.buckets[-1], threads or usable_cores()
    few = (items[start : start + TOGETHER] for start in range(0, len(items), TOGETHER))
    ahead = -(-most // TOGETHER) + 2 * threads  # at least a batch is read while the devices compute
    rows = in_order(lambda some: [read(item) for item in some], few, threads=threads, ahead=ahead)

    def start(rows: Rows[Said]) -> tuple[list[Said], Sequence[Encoded], list[Pending]]:
        said, pixels = [each for each, _ in rows], [each for _, each in rows if each is not None]
        if not pixels:
            return said, (), []
        given, stacked = encode([each for each, seen in rows if seen is not None]), np.stack(pixels)
        views = [stacked] if stacked.ndim == 4 else [stacked[:, view] for view in range(stacked.shape[1])]
        return said, given, [forward.dispatch(view, each.meta, each.valid) for each in given for view in views]

    def end(started: tuple[list[Said], Sequence[Encoded], list[Pending]]) -> Result:
        said, given, computing = started
        return finish(said, given, [each.result() for each in computing])

    started = map(start, _batches(itertools.chain.from_iterable(rows), most))
    yield from in_order(end, started, threads=finishers, ahead=RUN_AHEAD + 1)


def by_number(*encoded: Encoded) -> Callable[[list[int]], list[Encoded]]:
    """What `run_rows` encodes where numbers are said of rows, and the metadata of all of them are known before."""
    return lambda numbers: [each.take(numbers) for each in encoded]


def _batches(rows: Iterable[tuple[Said, Pixels | None]], most: int) -> Iterator[Rows[Said]]:
    """Rows that follow each other, `most` of them with pixels."""
    batch: Rows[Said] = []
    count = 0
    for row in rows:
        batch.append(row)
        count += row[1] is not None
        if count == most or len(batch) >= 8 * most:  # a folder of unreadable files is reported as it goes
            yield batch
            batch, count = [], 0
    if batch:
        yield batch
