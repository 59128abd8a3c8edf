from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import pytest

from linnaeus_jax.metrics.phases import masking
from linnaeus_jax.metrics.step_logger import log_due
from linnaeus_jax.schedules.triggers import (
    Stage,
    due_at_epoch_end,
    exhaustive_combos,
    firing_epochs,
    gradnorm_due,
)
from tests.schedules.helpers import make_schedule

_KINDS = {
    Stage.VALIDATION_NORMAL: "schedule.validation.interval",
    Stage.VALIDATION_MASK_META: "schedule.validation.mask_meta_interval",
    Stage.VALIDATION_PARTIAL_MASK_META: "schedule.validation.partial_mask_meta.interval",
    "CHECKPOINT": "schedule.checkpoint.interval",
}
_PLAIN = {
    "schedule.validation.at_end": False,
    "schedule.checkpoint.at_end": False,
    "schedule.validation.partial_mask_meta.enabled": True,
    "schedule.validation.partial_mask_meta.whitelist": (("TEMPORAL",),),
}


def schedule_of(case, mode, **extra):
    settings = dict(_PLAIN) | {"schedule.step_trigger_mode": mode} | extra
    for prefix in _KINDS.values():
        settings[f"{prefix}_epochs"] = 0
        settings[f"{prefix}_{case['kind']}"] = case["value"]
    return make_schedule(settings, steps_per_epoch=case["steps_per_epoch"], epochs=case["epochs"])


@pytest.mark.parametrize("mode", ["crossing", "exact"])
def test_interval_fixture(fixtures, mode):
    for case in json.loads((fixtures / "scheduling_triggers.json").read_text())["intervals"]:
        resolved = schedule_of(case, mode)
        fired = firing_epochs(resolved)
        for kind in _KINDS:
            assert list(fired[kind]) == case[f"fire_{mode}"], (case, kind)
        assert resolved.checkpoint.interval.steps == case["resolved_step_interval"]


@pytest.mark.parametrize("mode", ["crossing", "exact"])
def test_exhaustive_fixture(fixtures, mode):
    final = "schedule.validation.final_epoch"
    for case in json.loads((fixtures / "scheduling_triggers.json").read_text())["with_exhaustive_final"]:
        resolved = schedule_of(
            case,
            mode,
            **{
                f"{final}.exhaustive_partial_meta_validation": True,
                f"{final}.exhaustive_meta_components": ("TEMPORAL", "SPATIAL"),
            },
        )
        fired = firing_epochs(resolved)
        assert list(fired[Stage.VALIDATION_NORMAL]) == case[f"fire_{mode}"]
        assert list(fired[Stage.VALIDATION_PARTIAL_MASK_META]) == case[f"partial_fire_{mode}"]
        assert list(fired[Stage.VALIDATION_EXHAUSTIVE]) == case["exhaustive_epochs"]


def test_combination_fixture(fixtures):
    for case in json.loads((fixtures / "scheduling_triggers.json").read_text())["exhaustive_combos"].values():
        combos = exhaustive_combos(case["components"])
        assert [list(combo) for combo in combos] == case["combos"]
        assert [masking(combo).name for combo in combos] == case["phases"]


def test_gradnorm_fixture(fixtures):
    for case in json.loads((fixtures / "scheduling_triggers.json").read_text())["gradnorm"]:
        steps = range(case["n_updates"])
        fired = [k for k in steps if gradnorm_due(k, case["warmup"], case["interval"])]
        assert fired == case["fire_at_pre_increment_step"]
    traced = jax.jit(lambda k: gradnorm_due(k, 15, 10))(jnp.arange(60))
    assert jnp.flatnonzero(traced).tolist() == [20, 30, 40, 50]


def test_log_intervals():
    assert [k for k in range(1, 11) if log_due(k, 5)] == [5, 10]
    assert not log_due(5, 0)


def test_phases_are_named_once_and_in_canonical_order():
    settings = dict(_PLAIN)
    settings["schedule.validation.partial_mask_meta.whitelist"] = (("SPATIAL", "TEMPORAL"), ("SPATIAL",))
    settings["schedule.validation.partial_mask_meta.interval_epochs"] = 1
    resolved = make_schedule(settings, epochs=3)
    due = due_at_epoch_end(resolved, 0, 10, 0)
    assert [phase.name for phase in due.phases] == [
        "val",
        "val_mask_meta",
        "val_mask_TEMPORAL_SPATIAL",
        "val_mask_SPATIAL",
    ]
    assert [phase.masked for phase in due.phases] == [(), None, ("TEMPORAL", "SPATIAL"), ("SPATIAL",)]
    assert [phase.index for phase in due.phases] == [0, 0, 0, 1]


def test_the_end_of_the_run():
    final = "schedule.validation.final_epoch"
    settings = {
        "schedule.validation.interval_epochs": 0,
        "schedule.validation.mask_meta_interval_epochs": 0,
        "schedule.checkpoint.interval_epochs": 4,
        f"{final}.exhaustive_partial_meta_validation": True,
        f"{final}.exhaustive_meta_components": ("SPATIAL", "TEMPORAL"),
    }
    resolved = make_schedule(settings, epochs=6)
    fired = firing_epochs(resolved)
    assert fired[Stage.VALIDATION_NORMAL] == (5,)
    assert fired["CHECKPOINT"] == (4, 5)
    assert not due_at_epoch_end(resolved, 2, 30, 20).save
    early = due_at_epoch_end(resolved, 2, 30, 20, is_last=True)
    assert early.save
    assert early.checkpoint
    names = ["val_mask_TEMPORAL", "val_mask_SPATIAL", "val_mask_TEMPORAL_SPATIAL"]
    assert [phase.name for phase in early.phases] == ["val", *names]


def test_a_validation_is_preceded_by_a_checkpoint():
    resolved = make_schedule({"schedule.checkpoint.interval_epochs": 4}, epochs=6)
    due = due_at_epoch_end(resolved, 1, 20, 10)
    assert not due.checkpoint
    assert due.save
