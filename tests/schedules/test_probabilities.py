from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.schedules import OpsSchedule, TrainingProgress
from linnaeus_jax.schedules.learning_rate import learning_rate
from linnaeus_jax.schedules.probabilities import build_probabilities
from linnaeus_jax.schedules.resolved import Ramp
from linnaeus_jax.schedules.step_function import linear_ramp
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
    rows = []
    for name, case in cases.items():
        resolved = schedule_of(case)
        probabilities = build_probabilities(resolved)
        for key, member in members.items():
            function = getattr(probabilities, member)
            steps, expected = wanted[f"{name}__t"], wanted[f"{name}__{key}"]
            host = function(steps)
            np.testing.assert_allclose(host, expected, rtol=1e-12, atol=1e-15, err_msg=f"{name} {key}")
            assert host.dtype == expected.dtype
            rows.append((function, steps, expected))
        found = case["resolved"]
        if case["PARTIAL"]:
            assert resolved.partial_masking.start_steps == found["partial_start_steps"]
            assert resolved.partial_masking.end_steps == found["partial_end_steps"]
            assert resolved.partial_masking.prob.end_steps == found["partial_prob_end_steps"]
        if case["NULL_MASKING"]:
            assert resolved.null_masking.end_steps == found["null_end_steps"]
    inputs = [jnp.asarray(steps, jnp.int32) for _, steps, _ in rows]
    traced = jax.jit(lambda inputs: [function(k) for (function, *_), k in zip(rows, inputs)])(inputs)
    for values, (_, _, expected) in zip(traced, rows):
        assert values.dtype == (jnp.bool_ if expected.dtype == bool else jnp.float32)
        assert values.shape == expected.shape
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6)


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
    assert OpsSchedule(resolved).get_mixup_prob(0) == 0.2


def test_partial_probability_falls_back_to_the_end_of_full_masking():
    settings = {
        "schedule.meta_masking.end_steps": 12,
        "schedule.meta_masking.partial.enabled": True,
        "schedule.meta_masking.partial.prob_end_fraction": 0,
    }
    assert make_schedule(settings, epochs=3).partial_masking.prob.end_steps == 12


def test_partial_masking_works_without_full_masking():
    settings = {"schedule.meta_masking.enabled": False, "schedule.meta_masking.partial.enabled": True}
    ops = OpsSchedule(make_schedule(settings, epochs=3))
    assert ops.get_meta_mask_prob(4) == 0.0
    assert ops.get_partial_mask_enabled(4) is True
    assert ops.get_partial_mask_prob(30) == 0.7


def test_mixing_is_off_where_neither_kind_is_enabled():
    ops = OpsSchedule(make_schedule({"schedule.mixup.enabled": False}, epochs=3))
    assert ops.get_mixup_prob(0) == 0.0


def test_facade_follows_the_progress():
    overrides = {"schedule.meta_masking.end_steps": 20, "loss.grad_weighting.task.gradnorm_enabled": False}
    resolved = make_schedule(overrides, epochs=3)
    progress = TrainingProgress(global_step=5)
    ops = OpsSchedule(resolved, progress)
    assert ops.get_meta_mask_prob() == pytest.approx(0.75)
    assert ops.get_null_mask_prob() == 1.0
    progress.advance(15)
    assert ops.get_meta_mask_prob() == 0.0
    assert ops.get_lr() == {"default": ops.learning_rates["default"](20)}
    assert not ops.should_update_gradnorm(0)


def test_ramps_stay_between_their_ends():
    """Compiled, a division becomes a product with a rounded reciprocal: a probability of -7e-9 after the ramp."""
    ramps = [
        Ramp(enabled=True, start=start, end=end, end_steps=steps)
        for start, end in ((1.0, 0.0), (0.01, 0.7), (0.7, 0.0), (1.0, 0.05))
        for steps in (3, 9, 27, 54, 93, 300)
    ]
    functions = [linear_ramp(ramp) for ramp in ramps]
    functions.append(learning_rate(spec_of(name="wsd", decay_type="linear", stable_steps=3, decay_steps=9)))
    steps = jnp.arange(310, dtype=jnp.int32)
    traced = jax.jit(lambda k: [function(k) for function in functions])(steps)
    ends = [(ramp.start, ramp.end, ramp.end_steps) for ramp in ramps] + [(1.0, 0.0, 11)]
    for function, values, (start, end, last) in zip(functions, traced, ends, strict=True):
        for found, kind in ((np.asarray(values), np.float32), (function(np.arange(310)), np.float64)):
            assert found.min() >= kind(min(start, end))
            assert found.max() <= kind(max(start, end))
            np.testing.assert_array_equal(found[last:], kind(end))
