"""Rates of the input pipeline belong to one interval, whatever happened before it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.pipeline_stats import PipelineStats
from linnaeus_jax.run.inputs import build_inputs
from tests.tiny import tiny_config


def test_counters_before_an_interval_do_not_enter_its_rates() -> None:
    compiled = PipelineStats(
        batches=1,
        batches_read=3,
        samples=48,
        read_seconds=3.0,
        decode_seconds=3.0,
        wait_seconds=2.0,
        elapsed_seconds=60.0,
    )
    later = replace(
        compiled,
        processed_batch_q=2,
        batches=11,
        batches_read=13,
        samples=208,
        read_seconds=3.5,
        decode_seconds=3.2,
        wait_seconds=2.25,
        elapsed_seconds=61.0,
    )
    row = later.since(compiled).row()
    assert row["pipeline/throughput/prefetch"] == pytest.approx(160)
    assert row["pipeline/throughput/preprocess"] == pytest.approx(160 / 0.2)
    assert row["pipeline/timing/prefetch_times"] == pytest.approx(0.05)
    assert row["pipeline/wait_frac"] == pytest.approx(0.25)
    assert row["pipeline/queue_depths/processed_batch_q"] == 2


def test_a_loader_counts_from_the_last_interval(tmp_path) -> None:
    config = tiny_config(tmp_path)
    with build_inputs(typed(config), devices=1, output_dir=tmp_path).train_loader(0) as loader:
        next(loader)
        time.sleep(0.3)  # as a compilation does
        started = time.perf_counter()
        loader.interval()
        for _ in range(3):
            next(loader)
        found, elapsed = loader.interval(), time.perf_counter() - started
        assert found.batches == 3
        assert 0 < found.elapsed_seconds < elapsed
        assert loader.interval().batches == 0
