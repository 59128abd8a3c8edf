from __future__ import annotations

import json

import numpy as np
import pytest

from linnaeus_jax.schedules import OpsSchedule, TrainingProgress
from linnaeus_jax.schedules.learning_rate import learning_rate
from linnaeus_jax.schedules.probabilities import build_probabilities, ramp_schedule
from linnaeus_jax.schedules.resolved import Ramp
from linnaeus_jax.schedules.summary import schedule_summary
from linnaeus_jax.schedules.values import on_host
from tests.npz import load_npz
from tests.schedules.helpers import make_schedule
from tests.schedules.test_learning_rate import spec_of

_NODES = {
    "META_MASKING": "schedule.meta_masking",
    "PARTIAL": "schedule.meta_masking.partial",
    "NULL_MASKING": "schedule.null_masking",
    "MIX_PROB": "schedule.mixup.prob",
}


def schedule_of(case):
    settings = {}
    for name, node in _NODES.items():
        settings[f"{node}.enabled"] = case[name] is not None
        settings |= {f"{node}.{key.lower()}": value for key, value in (case[name] or {}).items()}
    return make_schedule(settings, steps_per_epoch=10, epochs=case["total_steps"] // 10)


def test_fixture(fixtures):
    cases = json.loads((fixtures / "scheduling_prob_cases.json").read_text())
    wanted = load_npz(fixtures / "scheduling_prob.npz")
    members = {
        "meta": "meta_mask",
        "partial_active": "partial_active",
        "partial_prob": "partial_mask",
        "null": "null_mask",
        "mix": "mix",
    }
    for name, case in cases.items():
        resolved = schedule_of(case)
        found = on_host(vars(build_probabilities(resolved)))(wanted[f"{name}__t"])
        for key, member in members.items():
            expected = wanted[f"{name}__{key}"]
            assert found[member].dtype == (np.bool_ if expected.dtype == bool else np.float32)
            np.testing.assert_allclose(found[member], expected, rtol=0, atol=1e-6, err_msg=f"{name} {key}")
        lengths = case["resolved"]
        if case["PARTIAL"]:
            assert resolved.partial_masking.start_steps == lengths["partial_start_steps"]
            assert resolved.partial_masking.end_steps == lengths["partial_end_steps"]
            assert resolved.partial_masking.prob.end_steps == lengths["partial_prob_end_steps"]
        if case["NULL_MASKING"]:
            assert resolved.null_masking.end_steps == lengths["null_end_steps"]


def test_ends_not_defined():
    resolved = make_schedule(
        {
            "schedule.null_masking.enabled": True,
            "schedule.null_masking.end_steps": 0,
            "schedule.mixup.prob.enabled": True,
        },
        epochs=3,
    )
    assert resolved.meta_masking.end_steps == resolved.null_masking.end_steps == 5000
    assert sum("ramp ends after 5000" in warning for warning in resolved.warnings) == 2
    assert any("from the start" in warning for warning in resolved.warnings)
    assert OpsSchedule(resolved).get_mixup_prob(0) == pytest.approx(0.2)


def test_partial_probability_falls_back_to_the_end_of_full_masking():
    settings = {
        "schedule.meta_masking.end_steps": 12,
        "schedule.meta_masking.partial.enabled": True,
        "schedule.meta_masking.partial.prob_end_fraction": 0,
    }
    assert make_schedule(settings, epochs=3).partial_masking.prob.end_steps == 12


def test_partial_masking_works_without_full_masking():
    settings = {"schedule.meta_masking.enabled": False, "schedule.meta_masking.partial.enabled": True}
    ops = OpsSchedule(make_schedule(settings | {"schedule.meta_masking.partial.end_steps": 25}, epochs=3))
    assert ops.get_meta_mask_prob(4) == 0.0
    assert ops.get_partial_mask_enabled(4) is True
    assert ops.get_partial_mask_prob(30) == pytest.approx(0.7)
    logged = on_host(ops.probabilities.by_name())(np.array([24, 25]))["partial_mask_prob"]
    assert (logged > 0).tolist() == [True, False], "what is logged is what acts"


def test_mixing_is_off_where_neither_kind_is_enabled():
    ops = OpsSchedule(make_schedule({"schedule.mixup.enabled": False}, epochs=3))
    assert ops.get_mixup_prob(0) == 0.0


@pytest.mark.parametrize(
    ("phase1", "enabled", "probabilities", "said"),
    [
        (False, False, [1.0, 1.0], "off (constant 1)"),
        (False, True, [0.0, 1.0], "0 -> 1 at"),
        (True, False, [0.0, 0.0], "off (constant 0)"),
        (True, True, [0.0, 0.0], "off (constant 0)"),  # which counts before the schedule's key
    ],
)
def test_which_null_labels_count(phase1, enabled, probabilities, said):
    """What is logged and said is what the training loss does."""
    keys = {"train.phase1_mask_null_loss": phase1, "schedule.null_masking.enabled": enabled}
    resolved = make_schedule(keys | {"schedule.null_masking.end_steps": 20}, epochs=3)
    assert [OpsSchedule(resolved).get_null_mask_prob(step) for step in (0, 20)] == probabilities
    assert f"null_masking            {said}" in schedule_summary(resolved)


def test_facade_follows_the_progress():
    overrides = {"schedule.meta_masking.end_steps": 20, "loss.grad_weighting.task.gradnorm_enabled": False}
    resolved = make_schedule(overrides, epochs=3)
    progress = TrainingProgress(global_step=5)
    ops = OpsSchedule(resolved, progress)
    assert ops.get_meta_mask_prob() == pytest.approx(0.75)
    assert ops.get_null_mask_prob() == 1.0
    progress.advance(15)
    assert ops.get_meta_mask_prob() == 0.0
    assert ops.get_lr() == {"default": pytest.approx(float(ops.learning_rates["default"](20)))}
    assert not ops.should_update_gradnorm(0)


def test_ramps_stay_between_their_ends():
    """Compiled, a division becomes a product with a rounded reciprocal: a probability of -7e-9 after the ramp."""
    ramps = [
        Ramp(enabled=True, start=start, end=end, end_steps=steps)
        for start, end in ((1.0, 0.0), (0.01, 0.7), (0.7, 0.0), (1.0, 0.05))
        for steps in (0, 3, 9, 27, 54, 93, 300)
    ]
    schedules = {str(index): ramp_schedule(ramp) for index, ramp in enumerate(ramps)}
    schedules["wsd"] = learning_rate(spec_of(name="wsd", decay_type="linear", stable_steps=3, decay_steps=9))
    ends = [(ramp.start, ramp.end, ramp.end_steps) for ramp in ramps] + [(1.0, 0.0, 11)]
    for found, (start, end, last) in zip(on_host(schedules)(np.arange(310)).values(), ends, strict=True):
        assert found.min() >= 0
        assert found.max() <= 1
        assert np.all(np.abs(found - np.clip(found, min(start, end), max(start, end))) <= 6e-8)  # a rounding of 0.7
        np.testing.assert_array_equal(found[last:], np.float32(end))
