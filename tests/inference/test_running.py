"""A model over many rows, with a forward pass that says which rows it saw with which metadata."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from linnaeus_jax.inference.running import by_number, run_rows
from linnaeus_jax.reading.metadata import Encoded


def numbered(rows: int) -> Encoded:
    """Metadata that hold the number of the row, and 1; one component, known in every second row."""
    meta = np.stack([np.arange(rows), np.ones(rows)], axis=1).astype(np.float32)
    return Encoded(meta, (np.arange(rows) % 2 == 0)[:, None], [(f"row {row}",) for row in range(rows)])


def forward(most: int) -> Any:
    """Logits are the first pixel and the first number of the metadata."""

    def dispatch(image: np.ndarray, meta: np.ndarray, valid: np.ndarray) -> Any:
        assert len(image) == len(meta) == len(valid) <= most
        logits = np.stack([image[:, 0, 0, 0].astype(np.float32), meta[:, 0]], axis=1)
        return SimpleNamespace(result=lambda: {"task": logits})

    return SimpleNamespace(buckets=(1, most), dispatch=dispatch)


def read(number: int) -> tuple[int, np.ndarray]:
    return number, np.full((2, 2, 3), number, np.uint8)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rows", [0, 1, 5, 8, 21])
def test_all_rows_in_order_with_every_metadata(rows, threads):
    known = numbered(rows)

    def finish(numbers: list[int], given: Any, logits: Any) -> Any:
        assert given[0].notes == [(f"row {number}",) for number in numbers]
        assert not given[1].valid.any()
        return numbers, [each["task"] for each in logits]

    encode = by_number(known, known.without())
    parts = list(run_rows(forward(5), range(rows), read, encode, finish, threads=threads, finishers=2))
    assert [len(numbers) for numbers, _ in parts] == [5] * (rows // 5) + [rows % 5] * (rows % 5 > 0)
    assert [number for numbers, _ in parts for number in numbers] == list(range(rows))
    for numbers, (shown, hidden) in parts:
        np.testing.assert_array_equal(shown, np.stack([numbers, numbers], axis=1))
        np.testing.assert_array_equal(hidden, np.stack([numbers, np.zeros(len(numbers))], axis=1))


def test_rows_without_pixels_are_handed_on_and_not_computed():
    def odd(number: int) -> tuple[int, np.ndarray | None]:
        return read(number) if number % 2 else (number, None)

    def finish(numbers: list[int], given: Any, logits: Any) -> Any:
        return numbers, [z["task"][:, 0].tolist() for z in logits]

    known = by_number(numbered(12))
    parts = list(run_rows(forward(4), range(12), odd, known, finish))
    assert parts == [(list(range(8)), [[1, 3, 5, 7]]), ([8, 9, 10, 11], [[9, 11]])]
    nothing = list(run_rows(forward(1), range(11), lambda number: (number, None), known, finish))
    assert nothing == [(list(range(8)), []), ([8, 9, 10], [])]


def test_a_row_that_cannot_be_read_ends_it_after_the_batches_before():
    def failing(number: int) -> tuple[int, np.ndarray]:
        if number == 9:
            raise ValueError("row 9")
        return read(number)

    done: list[int] = []
    with pytest.raises(ValueError, match="row 9"):
        done.extend(run_rows(forward(2), range(40), failing, by_number(numbered(40)), lambda numbers, *_: numbers[0]))
    assert done == sorted(done)


def test_whoever_stops_early_ends_the_threads():
    before = threading.active_count()
    results = run_rows(forward(2), range(1000), read, by_number(numbered(1000)), lambda numbers, *_: numbers[0])
    assert [next(results), next(results)] == [0, 2]
    results.close()
    for _ in range(100):
        if threading.active_count() == before:
            break
        time.sleep(0.02)
    assert threading.active_count() == before
