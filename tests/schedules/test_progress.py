from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from linnaeus_jax.files import write_json
from linnaeus_jax.schedules import OpsSchedule, TrainingProgress
from linnaeus_jax.schedules.triggers import Stage, due_at_epoch_end
from tests.schedules.helpers import make_schedule

_PREFIX = {
    "VALIDATION_NORMAL": "schedule.validation.interval",
    "VALIDATION_MASK_META": "schedule.validation.mask_meta_interval",
    "VALIDATION_PARTIAL_MASK_META": "schedule.validation.partial_mask_meta.interval",
}
_WHITELIST = (("TEMPORAL",), ("SPATIAL",), ("TEMPORAL", "SPATIAL"))


def test_state_machine_fixture(fixtures):
    for sequence in json.loads((fixtures / "scheduling_progress.json").read_text()):
        progress = TrainingProgress(expected_total_steps=120)
        operations: dict[str, Callable[..., None]] = {
            "epoch": progress.start_training_epoch,
            "step": progress.advance,
            "schedule": progress.schedule_validation,
            "start": progress.start_validation,
            "complete": progress.complete_validation,
        }
        for item in sequence:
            name, *arguments = item["op"]
            operations[name](*arguments)
            state = progress.state_dict()
            assert {key: state[key] for key in item["state"]} == item["state"], item["op"]


def resume_schedule(case):
    settings = {
        "schedule.validation.at_end": False,
        "schedule.validation.partial_mask_meta.enabled": case["whitelist_len"] > 0,
        "schedule.validation.partial_mask_meta.whitelist": _WHITELIST[: case["whitelist_len"]],
    }
    for stage, prefix in _PREFIX.items():
        unit, value = case["intervals"].get(stage, ("epochs", 0))
        settings[f"{prefix}_{unit}"] = value
    return make_schedule(settings, steps_per_epoch=case["steps_per_epoch"], epochs=case["epochs"])


def test_resume_fixture(fixtures):
    """What a restarted run has to do, from its stored progress and the schedule alone."""
    for case in json.loads((fixtures / "scheduling_resume.json").read_text()):
        expected, progress = case["expected"], TrainingProgress()
        previous = case["state"]["current_epoch"] * case["steps_per_epoch"]
        progress.load_state_dict(progress.state_dict() | case["state"] | {"last_boundary_step": previous})
        ops = OpsSchedule(resume_schedule(case), progress)
        if case["skip_validation"]:
            progress.drop_validations()
            assert (progress.pending_validations, progress.current_stage) == (expected["run"], "TRAINING")
        elif progress.epoch_complete:
            due = [stage.value for stage in ops.due().stages]
            assert [stage for stage in due if stage not in progress.completed_validations] == expected["run"]
            assert progress.partial_validation_indices == expected["partial_indices"]
        assert (progress.global_step >= ops.resolved.total_steps) == expected["training_finished"]
        completed = progress.epoch_complete
        assert progress.enter_epoch(expected["next_epoch"]) == completed
        assert progress.current_epoch == expected["next_epoch"]


def test_scheduling_twice_and_training_are_ignored():
    progress = TrainingProgress()
    progress.schedule_validation("TRAINING")
    for _ in range(2):
        progress.schedule_validation("VALIDATION_PARTIAL_MASK_META", 1)
    assert progress.pending_validations == ["VALIDATION_PARTIAL_MASK_META"]
    assert progress.partial_validation_indices == [1]
    with pytest.raises(ValueError, match="VALIDATION_FOO"):
        progress.schedule_validation("VALIDATION_FOO")


def test_one_pass_completes_everything_due():
    settings = {
        "schedule.validation.partial_mask_meta.enabled": True,
        "schedule.validation.partial_mask_meta.interval_epochs": 1,
        "schedule.validation.partial_mask_meta.whitelist": _WHITELIST,
    }
    resolved = make_schedule(settings, epochs=3)
    progress = TrainingProgress()
    progress.start_training_epoch(0)
    progress.advance(10, micro_batches=20, samples=640)
    progress.epoch_complete = True
    progress.schedule_due(OpsSchedule(resolved, progress).due())
    assert progress.partial_validation_indices == [0, 1, 2]
    assert progress.pending_validations == list(_PREFIX)
    progress.complete_all()
    assert (progress.current_stage, progress.pending_validations) == ("TRAINING", [])
    assert progress.completed_validations == list(_PREFIX)
    progress.start_training_epoch(1)
    assert (progress.last_boundary_step, progress.epoch_complete) == (10, False)
    assert (progress.micro_step, progress.samples_seen) == (20, 640)


def test_state_is_a_copy_and_is_checked():
    progress = TrainingProgress()
    state = progress.state_dict()
    progress.schedule_validation("VALIDATION_NORMAL")
    assert state["pending_validations"] == []
    progress.load_state_dict(state)
    state["pending_validations"].append("VALIDATION_NORMAL")
    assert progress.pending_validations == []
    progress.load_state_dict(state | {"consistency_warnings_given": 2})  # written by earlier versions
    assert "consistency_warnings_given" not in progress.state_dict()
    with pytest.raises(ValueError, match="schema_version 7"):
        progress.load_state_dict(state | {"schema_version": 7})
    with pytest.raises(ValueError, match="surprise"):
        progress.load_state_dict(state | {"surprise": 1})
    with pytest.raises(ValueError, match="NOWHERE"):
        progress.load_state_dict(state | {"current_stage": "NOWHERE"})


def test_save_is_atomic_and_exact(tmp_path):
    path = tmp_path / "progress.json"
    progress = TrainingProgress(global_step=7, pending_validations=["VALIDATION_NORMAL"])
    write_json(path, progress.state_dict())
    restored = TrainingProgress()
    restored.load_state_dict(json.loads(path.read_text()))
    assert restored == progress
    progress.advance(3)
    write_json(path, progress.state_dict())
    assert json.loads(path.read_text())["global_step"] == 10
    assert [entry.name for entry in tmp_path.iterdir()] == ["progress.json"]


def test_skipping_validations_clears_them():
    progress = TrainingProgress(current_stage="VALIDATION_NORMAL", pending_validations=["VALIDATION_NORMAL"])
    progress.drop_validations()
    assert (progress.current_stage, progress.pending_validations) == ("TRAINING", [])


def test_due_takes_the_stored_boundary():
    resolved = make_schedule({"schedule.validation.interval_steps": 25}, epochs=6)
    ops = OpsSchedule(resolved, TrainingProgress(current_epoch=2, global_step=30, last_boundary_step=20))
    assert ops.due().stages == (Stage.VALIDATION_NORMAL, Stage.VALIDATION_MASK_META)
    assert ops.due().save
    assert due_at_epoch_end(resolved, 2, 30, 29).stages == (Stage.VALIDATION_MASK_META,)


def test_an_early_end_adds_what_the_last_epoch_would_have():
    final = "schedule.validation.final_epoch"
    settings = {
        "schedule.validation.interval_steps": 20,
        "schedule.validation.mask_meta_interval_epochs": 0,
        "schedule.checkpoint.interval_epochs": 0,
        f"{final}.exhaustive_partial_meta_validation": True,
        f"{final}.exhaustive_meta_components": ("TEMPORAL",),
    }
    ops = OpsSchedule(make_schedule(settings, epochs=6), TrainingProgress(current_epoch=0, global_step=10))
    assert ops.due().stages == ()
    closing = ops.due_at_early_stop()
    assert closing.stages == (Stage.VALIDATION_NORMAL, Stage.VALIDATION_EXHAUSTIVE)
    assert closing.checkpoint


def test_epochs_of_another_length_after_a_resume():
    """Saved after 13 of 30 updates, in epoch 1; with epochs of 5 updates that is epoch 2, and the length is new."""
    progress = TrainingProgress(expected_total_steps=30, expected_epochs=3)
    assert progress.enter_epoch(0)
    progress.advance(10)
    assert not progress.enter_epoch(0)
    progress.epoch_complete = True
    assert progress.enter_epoch(1)
    progress.advance(3)
    assert not progress.enter_epoch(1)
    assert progress.replan(make_schedule(epochs=3)) == []
    (warning,) = progress.replan(make_schedule(epochs=4, steps_per_epoch=5))
    assert "planned for 30 updates and now for 20" in warning
    assert (progress.expected_total_steps, progress.expected_epochs) == (20, 4)
    assert progress.enter_epoch(2)
    assert (progress.current_epoch, progress.last_boundary_step) == (2, 10)
    progress.advance(2)
    progress.epoch_complete = True
    assert progress.enter_epoch(2), "epochs are longer again, and the next update is of the epoch that was over"
    assert progress.last_boundary_step == 15
