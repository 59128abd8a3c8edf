"""From device sums to rows, and what a run remembers on the host."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.metrics.phase import add
from linnaeus_jax.metrics.step_logger import StepMetricsLogger
from linnaeus_jax.metrics.tracker import MetricsTracker
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.run.recorder import LogPoint, NonFiniteError, TrainRecorder, interval_dict
from linnaeus_jax.schedules import OpsSchedule
from linnaeus_jax.schedules.progress import TrainingProgress
from linnaeus_jax.step.placement import fetch
from linnaeus_jax.step.state import IntervalSums
from linnaeus_jax.step.train_step import StepOutputs
from tests.schedules.helpers import make_schedule

TASKS = ("taxa_L10", "taxa_L20")
INTERVALS = {"step": 1, "console": 0, "wandb": 2, "lr": 0, "pipeline": 0}


def sums(loss: float, count: int = 4) -> IntervalSums:
    """Of one update of `count` rows that all have the same loss."""
    zero = IntervalSums.zeros(TASKS, 1)
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
        interval=sums(loss),
        gradnorm={},
        probes=probes or {},
        frames=None,
    )


def point(step: int, loss: float, interval: IntervalSums | None = None, *, probes: tuple = (), **facts) -> LogPoint:
    return LogPoint(step, 0, frozenset({"step", "wandb"}), probes, outputs(loss, **facts), interval or sums(loss))


def make(limit: int = 0) -> TrainRecorder:
    return TrainRecorder(StepMetricsLogger(TASKS, INTERVALS, components=("TEMPORAL",)), limit)


def test_a_log_point_is_held_until_it_is_released_once_with_one_fetch():
    recorder = make()
    before = fetch.calls
    recorder.hold(point(2, 3.0))
    assert fetch.calls == before, "holding reads nothing"
    assert math.isnan(recorder.last_grad_norm)
    released = recorder.release()
    assert fetch.calls == before + 1
    assert released is not None
    assert all(isinstance(leaf, np.ndarray | np.generic) for leaf in jax.tree.leaves(released.outputs))
    assert recorder.last_grad_norm == 6.0
    assert recorder.last_rates == {"default": 0.5}
    assert recorder.release() is None
    assert fetch.calls == before + 1


def test_row_has_the_current_values_and_the_mean_of_the_interval():
    recorder = make()
    recorder.hold(point(2, 3.0, add(sums(1.0), sums(3.0))))
    released = recorder.release()
    assert released is not None
    row = recorder.row(released, mixup_group="taxa_L10", seconds_left=1.0, now=0.0)
    assert row["train/loss"] == 3.0
    assert row["train/step_avg_loss"] == pytest.approx(2.0)
    assert row["train/loss/taxa_L20"] == 1.5
    assert row["train/grad_norm"] == row["gradnorm/total_norm_pre_clip"] == 6.0
    assert row["gradnorm/total_norm_post_clip"] == 1.0
    assert row["train/skipped_updates"] == 7
    assert row["train/lr"] == 0.5
    assert row["schedule/meta_mask_prob"] == 0.25
    assert json.loads(json.dumps(row)) == row, "plain Python values"


def test_probe_results_go_to_the_probe_with_the_0_based_step_and_what_it_logs_to_the_log_point():
    consumed = []

    def consume(*arguments):
        consumed.append(arguments)
        return {"": 1.5, "of/some": 2}

    probe = SimpleNamespace(name="probe/norms", consume=consume)
    recorder = make()
    recorder.hold(point(5, 1.0, probes=(probe,), skipped_in_a_row=0))
    assert recorder._held is not None
    recorder._held.outputs.probes["probe/norms"] = jnp.arange(3)
    released = recorder.release()
    ((step, epoch, values),) = consumed
    assert (step, epoch) == (4, 0)
    np.testing.assert_array_equal(values, [0, 1, 2])
    assert released is not None
    assert released.probe_row == {"probe/norms": 1.5, "probe/norms/of/some": 2}


@pytest.mark.parametrize(("limit", "in_a_row", "stops"), [(0, 99, False), (3, 2, False), (3, 3, True)])
def test_limit_of_non_finite_updates(limit, in_a_row, stops):
    recorder = make(limit)
    recorder.hold(point(9, 1.0, skipped_in_a_row=in_a_row))
    if not stops:
        assert recorder.release() is not None
        return
    with pytest.raises(NonFiniteError, match=r"3 updates in a row .*train.nonfinite_limit=3.* at step 9") as raised:
        recorder.release()
    assert "--debug underflow_overflow" in str(raised.value)


def test_interval_as_a_mapping():
    found = interval_dict(sums(1.0))
    assert set(found) == {"sums", "updates", "grad_norm", "meta_valid", "null_total", "null_included"}


def host_state(resolved, limit: int = 0) -> HostState:
    progress = TrainingProgress(expected_total_steps=resolved.total_steps, expected_epochs=resolved.epochs)
    return HostState(OpsSchedule(resolved, progress), MetricsTracker(), make(limit))


def test_host_state_survives_json_exactly():
    resolved = make_schedule({"train.early_stop.active": True, "train.early_stop.patience_steps": 30}, epochs=3)
    host = host_state(resolved)
    host.progress.start_training_epoch(1)
    for _ in range(3):
        host.progress.advance(micro_batches=2, samples=16)
    host.tracker.update("val", {"loss": 1 / 3, "chain_accuracy": math.nan}, 0, 10)
    host.recorder.hold(point(2, 3.0, sums(1 / 3)))
    host.recorder.release()
    host.ranking = {10: {"epoch": 0, "metric": 0.1}, 20: {"epoch": 1, "metric": None}}
    host.ranking_metric, host.run_id = "val/chain_accuracy", "abc"
    text = json.dumps(host.to_json())
    again = host_state(resolved)
    assert again.load_json(json.loads(text), resolved) == []
    assert json.dumps(again.to_json()) == text
    assert again.ranking == host.ranking
    assert again.recorder.last_grad_norm == 6.0


def test_saved_state_is_a_copy():
    resolved = make_schedule(epochs=3)
    host = host_state(resolved)
    host.ranking[10] = {"epoch": 0, "metric": 0.1}
    saved = host.to_json()
    host.ranking[10]["metric"] = 0.9
    host.schedule.early_stop_state["best"] = 5.0
    assert saved["ranking"]["10"]["metric"] == 0.1
    assert saved["early_stop"].get("best") != 5.0
