from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

from linnaeus_jax.schedules import apply_lr_scaling, build_scheduler
from linnaeus_jax.schedules.learning_rate import learning_rate
from linnaeus_jax.schedules.resolved import LearningRateSpec
from linnaeus_jax.schedules.values import on_host
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


def test_fixture(fixtures):
    cases = json.loads((fixtures / "scheduling_lr_cases.json").read_text())
    wanted = load_npz(fixtures / "scheduling_lr.npz")
    assert set(cases) == set(wanted)
    for name, case in cases.items():
        resolved = schedule_of(case)
        assert resolved.total_steps == case["total_steps"]
        specs = {spec.group: spec for spec in resolved.learning_rates}
        rates = on_host(build_scheduler(resolved))(np.arange(max(map(len, wanted[name]))))
        for expected, row in zip(case["resolved"], wanted[name]):
            spec = specs[expected["group"]]
            for key in ("peak", "min_lr", "warmup_lr"):
                assert getattr(spec, key) == pytest.approx(expected[key], rel=1e-12), (name, key)
            for key in set(expected) - {"group", "peak", "min_lr", "warmup_lr"}:
                assert getattr(spec, key) == expected[key], (name, key)
            found = rates[spec.group][: len(row)]
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, row, rtol=0, atol=1e-6 * spec.peak, err_msg=name)


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
        found = on_host(build_scheduler(make_schedule(settings, epochs=2)))(np.arange(defective[key].shape[1]))
        for group, row in zip(("default", "second"), defective[key]):
            rates = found[group]
            assert np.max(np.abs(rates - row)) > 0.01 * row.max(), key
            assert rates[int(warmup)] == pytest.approx(2.0 * (1.0 if group == "default" else 0.2), rel=1e-6)


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
    drop, total, warmup = 3_000_001, 50_000_000, 20_000_001
    specs = {
        "step": spec_of(name="step", decay_rate=0.5, decay_steps=drop, total_steps=total, warmup_steps=7),
        "cosine": spec_of(total_steps=total, warmup_steps=warmup),
        "linear": spec_of(name="linear", total_steps=total, warmup_steps=warmup),
    }
    edges = [7 + n * drop for n in range(1, 16)] + [warmup, total]
    steps = np.array(sorted({edge + offset for edge in edges for offset in (-1, 0, 1)}))
    found = on_host({name: learning_rate(spec) for name, spec in specs.items()})(steps)
    np.testing.assert_array_equal(found["step"], np.float32(0.5) ** ((steps - 7) // drop))
    after = np.clip((steps - warmup) / (total - warmup), 0, 1)
    for name, curve in (("cosine", 0.5 * (1 + np.cos(np.pi * after))), ("linear", 1 - after)):
        expected = np.where(steps < warmup, steps / warmup, curve)
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-6)


def reference(spec, k):
    """The rate of update k by the formulas of the specification, in float64."""
    if k < spec.warmup_steps:
        return spec.warmup_lr + (spec.peak - spec.warmup_lr) * k / spec.warmup_steps
    k -= spec.warmup_steps
    if spec.name == "step":
        return spec.peak * spec.decay_rate ** (k // spec.decay_steps)
    linear, length = spec.name == "linear", spec.decay_span
    if spec.name == "wsd":
        linear, length, k = spec.decay_type == "linear", spec.decay_steps, max(0, k - spec.stable_steps + 1)
    share = min(k, length) / length
    share = share if linear else 0.5 * (1 - np.cos(np.pi * share))
    return spec.peak + (spec.min_lr - spec.peak) * share


def test_random_specs():
    rng = np.random.default_rng(0)
    specs = []
    for _ in range(60):
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
    found = on_host({str(index): learning_rate(spec) for index, spec in enumerate(specs)})(np.arange(320))
    for spec, rates in zip(specs, found.values()):
        expected = [reference(spec, k) for k in range(320)]
        np.testing.assert_allclose(rates, expected, rtol=0, atol=5e-7 * spec.peak, err_msg=str(spec))
        assert rates.min() >= 0


def test_printed_and_applied_rates_are_the_same_numbers():
    """The dry run compiles what the update traces: not one bit differs, as users compile; XLA without optimizations
    joins a product and a sum in arrays alone."""
    program = """
import jax, numpy as np
from linnaeus_jax.schedules.values import on_host
from tests.schedules.test_learning_rate import learning_rate, spec_of
schedule = learning_rate(spec_of(name="wsd", warmup_steps=7, stable_steps=20, decay_steps=60, peak=3e-4))
shown = on_host({"default": schedule})(np.arange(100))["default"]
applied = jax.jit(lambda k: schedule(k))
np.testing.assert_array_equal(shown, [applied(k) for k in range(100)])
"""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, cwd=Path(__file__).parents[2])


def test_any_optimizer_of_optax_takes_a_schedule():
    schedule = learning_rate(spec_of(name="wsd", warmup_steps=7, stable_steps=20, decay_steps=60, peak=3e-4))
    transform = optax.inject_hyperparams(optax.sgd)(learning_rate=schedule)
    assert transform.init(np.zeros(2)).hyperparams["learning_rate"] == on_host({"default": schedule})(0)["default"]


def test_zero_and_frozen_groups():
    settings = {
        "optimizer.parameter_groups.enabled": True,
        "optimizer.parameter_groups.still.frozen": True,
        "optimizer.parameter_groups.zero.lr_multiplier": 0.0,
    }
    rates = on_host(build_scheduler(make_schedule(settings, epochs=2)))(19)
    assert rates["still"] == rates["zero"] == 0.0 < rates["default"]


def test_step_schedule_without_decay_is_constant():
    resolved = make_schedule({"lr_scheduler.name": "step", "lr_scheduler.decay_steps": 0, **_UNSET}, epochs=2)
    rates = on_host(build_scheduler(resolved))(np.array([0, 19]))["default"]
    np.testing.assert_array_equal(rates, np.float32(resolved.learning_rates[0].peak))
    assert any("never drops" in warning for warning in resolved.warnings)


@pytest.mark.parametrize("name", ["cosine", "linear", "step", "wsd"])
def test_a_group_that_is_delayed_has_the_course_of_a_run_that_begins_later(name):
    settings = {
        "lr_scheduler.name": name,
        "lr_scheduler.warmup_steps": 5,
        "lr_scheduler.min_lr": 0.0,  # the default is above the peak of these few rows
        "lr_scheduler.decay_steps": 20,
        "optimizer.parameter_groups.enabled": True,
        "optimizer.parameter_groups.trunk.lr_multiplier": 0.5,
        "lr_scheduler.parameter_groups.enabled": True,
        "lr_scheduler.parameter_groups.trunk.delay_epochs": 3.0,
    }
    resolved = make_schedule(settings, epochs=10)
    trunk, default = resolved.learning_rates
    assert (trunk.delay_steps, trunk.decay_span, default.delay_steps) == (30, 65, 0)
    later = make_schedule({**settings, "lr_scheduler.parameter_groups.trunk.delay_epochs": 0.0}, epochs=7)
    rates = on_host(build_scheduler(resolved))(np.arange(100))["trunk"]
    assert not rates[:30].any()
    course = on_host(build_scheduler(later))(np.arange(70))["trunk"]
    np.testing.assert_allclose(rates[30:], course, rtol=0, atol=1e-6 * trunk.peak)
    assert trunk.phases()[:2] == (("delay", 0, 29), ("warmup", 30, 34))
    assert trunk.phases()[-1][2] == 99
    assert trunk.drops() == tuple(drop + 30 for drop in later.learning_rates[0].drops())


def test_a_group_whose_delay_takes_the_whole_run_is_told():
    settings = {
        "lr_scheduler.parameter_groups.enabled": True,
        "lr_scheduler.parameter_groups.default.delay_fraction": 1.0,
    }
    resolved = make_schedule(settings, epochs=10)
    assert any("its delay takes 100 of 100 updates, so it never trains" in text for text in resolved.warnings)
    assert not on_host(build_scheduler(resolved))(np.arange(100))["default"].any()
