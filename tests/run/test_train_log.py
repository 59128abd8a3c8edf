"""From what an update measured to rows, and what a run remembers on the host."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.metrics.phase import add
from linnaeus_jax.metrics.step_logger import StepMetricsLogger
from linnaeus_jax.metrics.tracker import MetricsTracker
from linnaeus_jax.reporting.sinks import Sinks
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.run.train_log import NonFiniteError, TrainLog
from linnaeus_jax.schedules import OpsSchedule
from linnaeus_jax.schedules.progress import TrainingProgress
from linnaeus_jax.step.placement import fetch
from linnaeus_jax.step.state import Statistics
from linnaeus_jax.step.train_step import StepOutputs
from tests.schedules.helpers import make_schedule

TASKS = ("taxa_L10", "taxa_L20")
INTERVALS = {"step": 1, "console": 0, "wandb": 2, "lr": 0, "pipeline": 0}


def sums(loss: float, count: int = 4) -> Statistics:
    """Of one update of `count` rows that all have the same loss."""
    zero = Statistics.zeros(TASKS, 1)
    values = {**zero.sums, "count": jnp.int32(count), "loss_weighted": jnp.float32(loss * count)}
    return zero.replace(sums=values, updates=jnp.int32(1), grad_norm=jnp.float32(2 * loss))


def outputs(loss: float, *, skipped_in_a_row: int = 0, probes: dict | None = None) -> StepOutputs:
    return StepOutputs(
        loss=jnp.float32(loss),
        task_losses=jnp.full(2, loss / 2),
        grad_norm=jnp.float32(2 * loss),
        clipped_norm=jnp.float32(1.0),
        finite=jnp.bool_(True),
        skipped=jnp.int32(7),
        skipped_in_a_row=jnp.int32(skipped_in_a_row),
        learning_rates={"default": jnp.float32(0.5)},
        probabilities={"meta_mask_prob": jnp.float32(0.25)},
        statistics=sums(loss),
        gradnorm={},
        probes=probes or {},
    )


class Rows(Sinks):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__(None)
        self.rows: list[tuple[Any, ...]] = []

    def write(self, *row: Any, **options: Any) -> None:
        self.rows.append(row)


def make(limit: int | None = None, probes: tuple = ()) -> TrainLog:
    logger = StepMetricsLogger(TASKS, INTERVALS, components=("TEMPORAL",))
    experiment: Any = SimpleNamespace(
        config=SimpleNamespace(train=SimpleNamespace(nonfinite_limit=limit)),
        program=SimpleNamespace(settings=SimpleNamespace(probes=probes)),
        resolved=SimpleNamespace(total_steps=9),
        is_coordinator=False,
    )
    host: Any = SimpleNamespace(logger=logger, progress=SimpleNamespace(global_step=0))
    return TrainLog(experiment, host, Rows(), None)  # type: ignore[arg-type]


def defer(log: TrainLog, completed: int, loss: float, interval: Statistics | None = None, **facts: Any) -> None:
    assert log.defer(completed, 0, outputs(loss, **facts), interval or sums(loss), at_end=False)


def test_a_log_point_is_deferred_until_it_is_read_once_with_one_fetch():
    log = make()
    before = fetch.calls
    defer(log, 2, 3.0)
    assert fetch.calls == before, "deferring reads nothing"
    assert math.isnan(log.host.logger.last_grad_norm)
    point = log.fetch()
    assert fetch.calls == before + 1
    assert point is not None
    assert point.streams == {"step", "wandb"}
    assert all(isinstance(leaf, np.ndarray | np.generic) for leaf in jax.tree.leaves(point.outputs))
    assert log.host.logger.last_grad_norm == 6.0
    assert log.host.logger.last_rates == {"default": 0.5}
    assert log.fetch() is None
    assert fetch.calls == before + 1


def test_an_update_where_nothing_is_due_is_no_log_point_but_the_last_of_an_epoch_is():
    log = make()
    log.host.logger.intervals["step"] = 0
    assert not log.defer(1, 0, outputs(1.0), sums(1.0), at_end=False)
    assert log.fetch() is None
    assert log.defer(1, 0, outputs(1.0), sums(1.0), at_end=True)
    measured = log.defer(1, 0, outputs(1.0).replace(gradnorm={"loss": jnp.zeros(2)}), sums(1.0), at_end=False)
    point = log.fetch()
    assert measured
    assert point is not None
    assert point.streams == {"gradnorm"}


def test_row_has_the_current_values_and_the_mean_of_the_interval():
    log = make()
    defer(log, 2, 3.0, add(sums(1.0), sums(3.0)))
    point = log.fetch()
    assert point is not None
    row = log.row(point, "taxa_L10", seconds_left=1.0)
    assert row["train/loss"] == 3.0
    assert row["train/step_avg_loss"] == pytest.approx(2.0)
    assert row["train/loss/taxa_L20"] == 1.5
    assert row["train/grad_norm"] == row["gradnorm/total_norm_pre_clip"] == 6.0
    assert row["gradnorm/total_norm_post_clip"] == 1.0
    assert row["train/skipped_updates"] == 7
    assert row["train/lr"] == 0.5
    assert row["schedule/meta_mask_prob"] == 0.25
    assert json.loads(json.dumps(row)) == row, "plain Python values"


def test_probe_results_go_to_the_probe_with_the_0_based_step_and_what_it_logs_to_the_sinks():
    consumed = []

    def consume(*arguments):
        consumed.append(arguments)
        return {"": 1.5, "of/some": 2}

    log = make(probes=(SimpleNamespace(name="probe/norms", every=4, consume=consume),))
    defer(log, 5, 1.0, probes={"probe/norms": jnp.arange(3)})
    log.fetch()
    ((step, epoch, values),) = consumed
    assert (step, epoch) == (4, 0)
    np.testing.assert_array_equal(values, [0, 1, 2])
    assert isinstance(log.sinks, Rows)
    assert log.sinks.rows == [("probe", 5, 0, {"probe/norms": 1.5, "probe/norms/of/some": 2})]


@pytest.mark.parametrize(("limit", "in_a_row", "stops"), [(None, 99, False), (3, 2, False), (3, 3, True)])
def test_limit_of_non_finite_updates(limit, in_a_row, stops):
    log = make(limit)
    defer(log, 9, 1.0, skipped_in_a_row=in_a_row)
    if not stops:
        assert log.fetch() is not None
        return
    with pytest.raises(NonFiniteError, match=r"3 updates in a row .*train.nonfinite_limit=3.* at step 9") as raised:
        log.fetch()
    assert "--debug underflow_overflow" in str(raised.value)


def test_statistics_as_a_mapping():
    found = vars(sums(1.0))
    assert set(found) == {"sums", "updates", "grad_norm", "meta_valid", "null_total", "null_included"}


def host_state(resolved) -> HostState:
    progress = TrainingProgress(expected_total_steps=resolved.total_steps, expected_epochs=resolved.epochs)
    return HostState(OpsSchedule(resolved, progress), MetricsTracker(), make().host.logger)


def test_host_state_survives_json_exactly():
    resolved = make_schedule({"train.early_stop.active": True, "train.early_stop.patience_steps": 30}, epochs=3)
    host = host_state(resolved)
    host.progress.start_training_epoch(1)
    for _ in range(3):
        host.progress.advance(micro_batches=2, samples=16)
    host.tracker.update("val", {"loss": 1 / 3, "chain_accuracy": math.nan}, 0, 10)
    log = make()
    log.host.logger = host.logger
    defer(log, 2, 3.0, sums(1 / 3))
    log.fetch()
    host.ranking = {10: {"epoch": 0, "metric": 0.1}, 20: {"epoch": 1, "metric": None}}
    host.ranking_metric, host.run_id = "val/chain_accuracy", "abc"
    text = json.dumps(host.to_json())
    again = host_state(resolved)
    assert again.load_json(json.loads(text), resolved) == []
    assert json.dumps(again.to_json()) == text
    assert again.ranking == host.ranking
    assert again.logger.last_grad_norm == 6.0


def test_saved_state_is_a_copy():
    resolved = make_schedule(epochs=3)
    host = host_state(resolved)
    host.ranking[10] = {"epoch": 0, "metric": 0.1}
    saved = host.to_json()
    host.ranking[10]["metric"] = 0.9
    host.schedule.early_stop_state["best"] = 5.0
    assert saved["ranking"]["10"]["metric"] == 0.1
    assert saved["early_stop"].get("best") != 5.0
