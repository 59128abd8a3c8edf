from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.schedules import apply_lr_scaling, build_scheduler
from linnaeus_jax.schedules.learning_rate import learning_rate
from linnaeus_jax.schedules.resolved import LearningRateSpec
from tests.npz import load_npz
from tests.schedules.helpers import make_schedule

_UNSET = {f"lr_scheduler.warmup_{unit}": 0 for unit in ("steps", "fraction", "epochs")}


def schedule_of(case):
    settings = {"data.batch_size": case["effective_batch_size"], **_UNSET}
    settings |= {f"lr_scheduler.{key.lower()}": value for key, value in case["LR_SCHEDULER"].items()}
    settings["optimizer.parameter_groups.enabled"] = settings["lr_scheduler.parameter_groups.enabled"] = True
    for group in case["groups"]:
        settings[f"optimizer.parameter_groups.{group['name']}.lr_multiplier"] = group["LR_MULTIPLIER"]
        for key, value in group["LR_SCHEDULER"].items():
            settings[f"lr_scheduler.parameter_groups.{group['name']}.{key.lower()}"] = value
    epochs = case["total_steps"] // case["steps_per_epoch"]
    return make_schedule(settings, steps_per_epoch=case["steps_per_epoch"], epochs=epochs)


def test_fixture_resolved_and_host(fixtures):
    cases = json.loads((fixtures / "scheduling_lr_cases.json").read_text())
    wanted = load_npz(fixtures / "scheduling_lr.npz")
    assert set(cases) == set(wanted)
    for name, case in cases.items():
        resolved = schedule_of(case)
        assert resolved.total_steps == case["total_steps"]
        specs = {spec.group: spec for spec in resolved.learning_rates}
        schedules = build_scheduler(resolved)
        for expected, row in zip(case["resolved"], wanted[name]):
            spec = specs[expected["group"]]
            for key in ("peak", "min_lr", "warmup_lr"):
                assert getattr(spec, key) == pytest.approx(expected[key], rel=1e-12), (name, key)
            for key in set(expected) - {"group", "peak", "min_lr", "warmup_lr"}:
                assert getattr(spec, key) == expected[key], (name, key)
            rates = schedules[spec.group](np.arange(len(row)))
            assert rates.dtype == np.float64
            np.testing.assert_allclose(rates, row, rtol=1e-12, atol=1e-12 * spec.peak, err_msg=name)
            assert schedules[spec.group](3) == rates[3]
            assert isinstance(schedules[spec.group](3), float)


def test_fixture_traced(fixtures):
    cases = json.loads((fixtures / "scheduling_lr_cases.json").read_text())
    wanted = load_npz(fixtures / "scheduling_lr.npz")
    rows = []
    for name, case in cases.items():
        schedules = build_scheduler(schedule_of(case))
        for expected, row in zip(case["resolved"], wanted[name]):
            rows.append((schedules[expected["group"]], expected["peak"], row, name))
    steps = jnp.arange(max(len(row) for _, _, row, _ in rows), dtype=jnp.int32)
    traced = jax.jit(lambda k: [schedule(k) for schedule, *_ in rows])(steps)
    for values, (_, peak, row, name) in zip(traced, rows):
        assert values.dtype == jnp.float32
        np.testing.assert_allclose(values[: len(row)], row, rtol=0, atol=1e-6 * peak, err_msg=name)


def test_defective_curves_are_not_produced(fixtures):
    defective = load_npz(fixtures / "scheduling_lr_asrun_defective.npz")
    for key in defective:
        name, warmup = key.split("_w")
        settings = {
            "data.batch_size": 1024,
            "lr_scheduler.name": name,
            "lr_scheduler.base_lr": 1.0,
            "lr_scheduler.min_lr": 0.1,
            "lr_scheduler.warmup_lr": 0.01,
            "lr_scheduler.warmup_steps": int(warmup),
            "lr_scheduler.decay_steps": 5,
            "optimizer.parameter_groups.enabled": True,
            "optimizer.parameter_groups.second.lr_multiplier": 0.2,
        }
        schedules = build_scheduler(make_schedule(settings, epochs=2))
        for group, row in zip(("default", "second"), defective[key]):
            rates = schedules[group](np.arange(len(row)))
            assert np.max(np.abs(rates - row)) > 0.01 * row.max(), key
            assert rates[int(warmup)] == pytest.approx(2.0 * (1.0 if group == "default" else 0.2), rel=1e-12)


def test_scaling_fixture(fixtures):
    for case in json.loads((fixtures / "scheduling_resolve.json").read_text())["lr_scaling"]:
        effective = case["per_device_bs"] * case["world_size"] * case["accumulation"]
        assert effective == case["effective_batch_size"]
        factor = apply_lr_scaling(1.0, effective, reference_bs=case["REFERENCE_BS"], rule="linear")
        assert factor == pytest.approx(case["factor"], rel=1e-12)
        base = case["BASE_LR"] * case["LR_MULTIPLIER"]
        peak = apply_lr_scaling(base, effective, reference_bs=case["REFERENCE_BS"], rule="linear")
        assert peak == pytest.approx(case["peak_lr"], rel=1e-12)


def test_square_root_scaling():
    assert apply_lr_scaling(1e-3, 2048, reference_bs=512, rule="sqrt") == pytest.approx(2e-3)
    resolved = make_schedule({"lr_scheduler.scaling": "SQRT", "data.batch_size": 2048}, epochs=2)
    assert resolved.learning_rates[0].peak == pytest.approx(2e-4)


def spec_of(**changes):
    base: dict[str, Any] = {"group": "default", "name": "cosine", "base_lr": 1.0, "multiplier": 1.0, "total_steps": 100}
    base |= {"peak": 1.0, "min_lr": 0.0, "warmup_lr": 0.0, "warmup_steps": 0}
    return LearningRateSpec(**(base | changes))


def test_long_runs_stay_exact():
    """Beyond 2**24 a float32 cannot hold the step: drops stay at their update, curves within the tolerance."""
    drop, total = 3_000_001, 50_000_000
    schedules = [
        learning_rate(spec_of(name="step", decay_rate=0.5, decay_steps=drop, total_steps=total, warmup_steps=7)),
        learning_rate(spec_of(total_steps=total, warmup_steps=20_000_001)),
        learning_rate(spec_of(name="linear", total_steps=total, warmup_steps=20_000_001)),
    ]
    edges = [7 + n * drop for n in range(1, 16)] + [20_000_001, total]
    steps = np.array(sorted({edge + offset for edge in edges for offset in (-1, 0, 1)}), np.int32)
    for schedule, values in zip(schedules, jax.jit(lambda k: [s(k) for s in schedules])(jnp.asarray(steps))):
        np.testing.assert_allclose(values, schedule(steps), rtol=0, atol=1e-6)


def test_random_specs_traced_equals_host():
    rng = np.random.default_rng(0)
    specs = []
    for _ in range(24):
        peak, total = 10 ** rng.uniform(-6, 0), int(rng.integers(2, 300))
        specs.append(
            spec_of(
                name=str(rng.choice(["cosine", "linear", "step", "wsd"])),
                peak=peak,
                min_lr=peak * rng.uniform(0, 1),
                warmup_lr=peak * rng.uniform(0, 1),
                warmup_steps=int(rng.integers(0, total + 3)),
                total_steps=total,
                decay_steps=int(rng.integers(1, total + 1)),
                stable_steps=int(rng.integers(1, total + 1)),
                decay_rate=rng.uniform(0.1, 1),
                decay_type=str(rng.choice(["cosine", "linear"])),
            )
        )
    schedules = [learning_rate(spec) for spec in specs]
    steps = np.arange(320, dtype=np.int32)
    traced = jax.jit(lambda k: [schedule(k) for schedule in schedules])(jnp.asarray(steps))
    for spec, schedule, values in zip(specs, schedules, traced):
        host = schedule(steps)
        np.testing.assert_allclose(values, host, rtol=0, atol=1e-6 * spec.peak, err_msg=str(spec))
        assert host.min() >= 0
        assert host.max() <= spec.peak * (1 + 1e-12)


def test_zero_and_frozen_groups():
    settings = {
        "optimizer.parameter_groups.enabled": True,
        "optimizer.parameter_groups.still.frozen": True,
        "optimizer.parameter_groups.zero.lr_multiplier": 0.0,
    }
    schedules = build_scheduler(make_schedule(settings, epochs=2))
    for group in ("still", "zero"):
        assert schedules[group](5) == 0.0
        assert float(schedules[group](jnp.int32(5))) == 0.0
    assert schedules["default"](19) > 0


def test_step_schedule_without_decay_is_constant():
    resolved = make_schedule({"lr_scheduler.name": "step", "lr_scheduler.decay_steps": 0, **_UNSET}, epochs=2)
    schedule = build_scheduler(resolved)["default"]
    assert schedule(0) == schedule(19) == resolved.learning_rates[0].peak
    assert float(schedule(jnp.int32(19))) == pytest.approx(schedule(19), rel=1e-6)
    assert any("never drops" in warning for warning in resolved.warnings)
