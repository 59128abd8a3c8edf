"""Batches of many callers: everyone gets their own answers, and nothing else is computed."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

from linnaeus_jax.inference.answers import AnswerOptions
from linnaeus_jax.inference.server.batching import Batcher, BatcherClosed, best_bucket
from linnaeus_jax.reading.metadata import Encoded

OPTIONS = AnswerOptions()


@pytest.mark.parametrize(
    ("seconds", "waiting", "first", "bucket"),
    [
        ({1: 1.0, 8: 7.0, 64: 50.0}, 1, 1, 1),
        ({1: 1.0, 8: 7.0, 64: 50.0}, 15, 1, 8),  # proportional: filling 64 with 15 would take 50
        ({1: 1.0, 8: 7.0, 64: 50.0}, 64, 1, 64),
        ({1: 1.0, 8: 1.1, 64: 1.5}, 15, 1, 64),  # an accelerator that is hardly busy
        ({1: 1.0, 8: 7.0, 64: 50.0}, 15, 10, 64),  # the first caller brings 10
        ({1: 1.0, 8: 7.0, 64: 50.0}, 100, 100, 64),  # more than any batch holds
    ],
)
def test_size_of_a_batch(seconds, waiting, first, bucket):
    assert best_bucket(seconds, waiting, first) == bucket


def rows_of(model, pictures, rows) -> tuple[np.ndarray, Encoded]:
    """Pixels and metadata of some of the pictures."""
    bundle = model.bundle
    meta = np.zeros((len(rows), bundle.encoder.width), np.float32)
    valid = np.zeros((len(rows), len(bundle.encoder.components)), bool)
    return model.read([pictures.pixels[row] for row in rows]), Encoded(meta, valid, [()] * len(rows))


def test_everyone_gets_their_own(model, pictures):
    batches: list[tuple[int, int]] = []
    batcher = Batcher(model, model.answers, on_batch=lambda rows, bucket: batches.append((rows, bucket)))
    expected = model.predict_pixels(*rows_of(model, pictures, range(12)))
    other = model.answers.options(top_k=1, restrict=["Passer domesticus"])
    batcher.start()
    compiled = model.forward.compilations
    answers: dict[int, Any] = {}

    def ask(caller: int) -> None:
        rows = [(caller + k) % 12 for k in range(1 + caller % 3)]
        with batcher.expect_request():
            future = batcher.submit(*rows_of(model, pictures, rows), OPTIONS if caller % 4 else other)
        answers[caller] = rows, future.result(60)

    threads = [threading.Thread(target=ask, args=(caller,)) for caller in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batcher.close()
    assert len(answers) == 24
    for caller, (rows, predictions) in answers.items():
        assert len(predictions) == len(rows)
        for row, prediction in zip(rows, predictions, strict=True):
            if caller % 4:
                assert prediction.path[-1].taxon_id == expected[row].path[-1].taxon_id
                assert prediction.path[0].probability == pytest.approx(expected[row].path[0].probability, abs=1e-5)
            else:
                assert {taxon.taxon_id for taxon in prediction.path} <= {0, 13, 22, 32}
    assert model.forward.compilations == compiled == len(model.forward.buckets)
    assert sum(rows for rows, _ in batches) == sum(1 + caller % 3 for caller in range(24))
    assert not batcher.alive
    with pytest.raises(BatcherClosed):
        batcher.submit(*rows_of(model, pictures, [0]), OPTIONS)


def test_what_is_cancelled_or_fails_disturbs_nobody(model, pictures, monkeypatch):
    batcher = Batcher(model, model.answers)
    batcher.seconds = dict.fromkeys(model.forward.buckets, 1.0)
    jobs = [batcher.submit(*rows_of(model, pictures, [row]), OPTIONS) for row in range(3)]
    jobs[1].cancel()
    dispatch = model.forward.dispatch
    failed: list[int] = []

    def fails_once(*arrays):
        if not failed:
            failed.append(len(arrays[0]))
            raise RuntimeError("out of memory")
        return dispatch(*arrays)

    monkeypatch.setattr(model.forward, "dispatch", fails_once)
    batcher.start_threads()
    with pytest.raises(RuntimeError, match="out of memory"):
        jobs[0].result(60)
    with pytest.raises(CancelledError):
        jobs[1].result(60)
    assert failed == [2]
    with batcher.expect_request():  # it waits for somebody, and its own caller leaves
        batcher.submit(*rows_of(model, pictures, [3]), OPTIONS).cancel()
    while batcher.waiting:
        time.sleep(0.001)
    assert len(batcher.submit(*rows_of(model, pictures, [3]), OPTIONS).result(60)) == 1
    batcher.close()


def test_what_was_submitted_is_answered_at_the_end(model, pictures):
    batcher = Batcher(model, model.answers, wait=60.0)
    batcher.seconds = dict.fromkeys(model.forward.buckets, 1.0)
    batcher.start_threads()
    with batcher.expect_request():  # somebody who never comes
        jobs = [batcher.submit(*rows_of(model, pictures, [row]), OPTIONS) for row in range(3)]
        time.sleep(0.05)
        assert batcher.waiting == 3
        batcher.close()
    assert all(len(job.result(0)) == 1 for job in jobs)
