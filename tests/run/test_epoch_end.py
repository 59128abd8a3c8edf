"""Order and outcome of what the end of an epoch does, with checkpoints and rows made of lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from linnaeus_jax.metrics.phases import Phase
from linnaeus_jax.metrics.tracker import MetricsTracker
from linnaeus_jax.run.epoch_end import EpochEnd
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.run.retention import preserved, retention_policy
from linnaeus_jax.schedules import OpsSchedule
from linnaeus_jax.schedules.progress import TrainingProgress
from tests.schedules.helpers import make_schedule

STEPS = 10
STATE: Any = None  # nothing here looks at an array


class World(EpochEnd):
    """Remembers what is done outside of the state, in order, and the checkpoints as Orbax would keep them."""

    def __init__(self, settings: dict[str, Any], accuracy: dict[int, float], epochs: int = 6, rows: int = 50) -> None:
        settings = {"schedule.validation.mask_meta_interval_epochs": 100, **settings}
        self.resolved = make_schedule(settings, steps_per_epoch=STEPS, epochs=epochs)
        logger: Any = SimpleNamespace(
            epoch_samples=lambda: 7, finish_epoch=lambda: {"loss": 1.0}, last_rates={"default": 0.1}, last_grad_norm=1.0
        )
        progress = TrainingProgress(expected_total_steps=self.resolved.total_steps)
        self.host = HostState(OpsSchedule(self.resolved, progress), MetricsTracker(), logger)
        self.accuracy = accuracy
        self.actions: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.measured: list[int] = []  # updates after which training rows were
        self.checkpoints: list[int] = []
        self.dropped: set[int] = set()
        checkpoint = self.resolved.checkpoint
        self.policy = retention_policy(lambda: self.host.ranking, checkpoint.keep_top_n, checkpoint.keep_last_n)
        self.best_metric, self.validation_rows = "", rows

    @property
    def step(self) -> int:
        return self.host.progress.global_step

    def save(self, state: Any) -> None:
        assert self.step not in self.checkpoints, "saved twice"
        self.actions.append("save")
        self._ask([*self.checkpoints, self.step])

    def evaluate(self, state: Any, phases: Sequence[Phase]) -> dict[str, dict[str, float]]:
        names = [phase.name for phase in phases]
        self.actions.append("evaluate " + " ".join(names))
        return {name: {"chain_accuracy": self.accuracy[self.step], "loss": 1.0} for name in names}

    def measure_training(self, state: Any, validated: Any) -> None:
        self.measured.append(self.step)

    def write_row(self, row: dict[str, Any], due: Any, state: Any) -> None:
        self.actions.append("row")
        self.rows.append(row)

    def retain(self) -> list[int]:
        self.actions.append("retain")
        self._ask(self.checkpoints)
        dropped, self.dropped = sorted(self.dropped), set()
        return dropped

    def write_progress(self) -> None:
        self.actions.append("progress")

    def mark_finished(self) -> None:
        self.actions.append("finish")

    def _ask(self, steps: list[int]) -> None:
        self.checkpoints = preserved(self.policy, steps)
        self.dropped |= set(steps) - set(self.checkpoints)

    def epoch(self, epoch: int, **arguments: Any) -> bool:
        """Trains an epoch and ends it."""
        self.host.progress.start_training_epoch(epoch)
        for _ in range(STEPS):
            self.host.progress.advance(micro_batches=1, samples=16)
        self.actions.clear()
        return self.run(STATE, **arguments)

    def run_all(self) -> int:
        """Epochs until the end."""
        return next(epoch + 1 for epoch in range(100) if self.epoch(epoch))


EVERY_SECOND = {
    "schedule.validation.interval_epochs": 2,
    "schedule.checkpoint.interval_epochs": 2,
    "schedule.checkpoint.keep_top_n": 1,
    "schedule.checkpoint.keep_last_n": 1,
}
STOP_AT_40 = {**EVERY_SECOND, "train.early_stop.active": True, "train.early_stop.max_steps": 40}


def test_order_of_the_hooks():
    world = World({"schedule.validation.interval_epochs": 1, "schedule.checkpoint.interval_epochs": 1}, {10: 0.5})
    assert not world.epoch(0, train_seconds=2.0)
    assert [action for action in world.actions if action != "progress"] == [
        "save",
        "evaluate val",
        "retain",
        "row",
        "finish",
    ]
    assert world.rows[0]["val/chain_accuracy"] == 0.5
    assert world.host.ranking == {10: {"epoch": 0, "metric": 0.5}}
    assert not world.host.progress.pending_validations


def test_nothing_due_only_writes_a_row():
    world = World(EVERY_SECOND, {})
    assert not world.epoch(0)
    assert [action for action in world.actions if action != "progress"] == ["row"]


@pytest.mark.parametrize(
    ("accuracy", "kept"),
    [({30: 0.5, 40: 0.9}, [40]), ({30: 0.5, 40: 0.1}, [30, 40]), ({30: 0.5, 40: math.nan}, [30, 40])],
)
def test_closing_checkpoint_of_an_early_stop_is_ranked_and_retained(accuracy, kept):
    world = World(STOP_AT_40, accuracy)
    assert world.run_all() == 4
    assert world.checkpoints == kept
    assert sorted(world.host.ranking) == kept
    value = accuracy[40]
    assert world.host.ranking[40] == {"epoch": 3, "metric": None if math.isnan(value) else value}
    assert world.rows[-1]["early_stop/reason"].startswith("max_steps")
    closing = [action for action in world.actions if action != "progress"]
    assert closing == ["save", "evaluate val", "retain", "row", "finish"]


def test_checkpoint_saved_before_its_closing_validation_is_ranked_after_it():
    settings = {**STOP_AT_40, "schedule.checkpoint.interval_epochs": 1}
    world = World(settings, {30: 0.5, 40: 0.9})
    world.run_all()
    assert world.checkpoints == [40]


def test_hooks_that_were_killed_are_rerun_without_a_second_save():
    world = World(STOP_AT_40, {30: 0.5, 40: 0.9})
    for epoch in range(3):
        world.epoch(epoch)

    with mock.patch.object(world, "evaluate", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        world.epoch(3)
    assert world.run(STATE, rerun=True)
    assert world.checkpoints == [40]


def test_retained_index_forgets_what_is_deleted():
    settings = {**EVERY_SECOND, "schedule.validation.interval_epochs": 1, "schedule.checkpoint.interval_epochs": 1}
    world = World(settings, {10: 0.1, 20: 0.9, 30: 0.2, 40: 0.3, 50: 0.4, 60: 0.5})
    assert world.run_all() == 6
    assert world.checkpoints == [20, 60]
    assert sorted(world.host.ranking) == [20, 60]


def test_skipped_validation_is_dropped_and_without_rows_there_is_none():
    world = World({"schedule.validation.interval_epochs": 1}, {10: 0.5})
    world.epoch(0)
    world.actions.clear()
    world.run(STATE, rerun=True, skip_validation=True)
    assert not any(action.startswith("evaluate") or action == "save" for action in world.actions)
    without = World({"schedule.validation.interval_epochs": 1}, {}, rows=0)
    assert not without.epoch(0)
    assert not any(action.startswith("evaluate") for action in without.actions)


def test_a_checkpoint_without_a_validation_is_not_ranked_by_an_older_one():
    settings = {
        "schedule.validation.interval_epochs": 2,
        "schedule.checkpoint.interval_epochs": 1,
        "schedule.checkpoint.keep_top_n": 5,
        "schedule.checkpoint.keep_last_n": 1,
    }
    world = World(settings, {30: 0.9, 50: 0.4, 60: 0.5})
    for epoch in range(4):
        world.epoch(epoch)
    ranked = {step: entry for step, entry in world.host.ranking.items() if entry["metric"] is not None}
    assert ranked == {30: {"epoch": 2, "metric": 0.9}}, "nothing was measured at 40"


@pytest.mark.parametrize(
    ("accuracy", "epochs"),
    [({30: 0.5, 50: 0.6, 60: 0.7}, 6), ({30: 0.5, 50: 0.4, 60: 0.7}, 5)],
    ids=["better", "worse"],
)
def test_early_stop_judges_what_was_just_measured(accuracy, epochs):
    """Between validations nothing is judged: the last value would count as one that does not improve."""
    settings = {
        **EVERY_SECOND,
        "train.early_stop.active": True,
        "train.early_stop.metric": "val_chain_accuracy",
        "train.early_stop.patience_steps": 10,
    }
    assert World(settings, accuracy).run_all() == epochs
    # nor is a metric that is absent from its phase, as the loss of an epoch whose updates were all skipped
    world = World(settings | {"train.early_stop.metric": "train_loss"}, dict.fromkeys(range(70), 0.5))
    means = [{"loss": 1.0}, {}, {"loss": 0.5}, {"loss": 0.5}]
    with mock.patch.object(world.host.logger, "finish_epoch", side_effect=means):
        assert world.run_all() == 4


def test_training_rows_are_measured_where_the_run_ends_and_was_validated():
    world = World({"schedule.validation.interval_epochs": 4}, dict.fromkeys(range(10, 70, 10), 0.5))
    world.run_all()
    assert world.measured == [60]
