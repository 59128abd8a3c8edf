"""Rules that hold for every valid configuration."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linnaeus_jax.schedules import OpsSchedule, TrainingProgress, build_scheduler
from linnaeus_jax.schedules.triggers import Stage, due_at_epoch_end, firing_epochs
from linnaeus_jax.schedules.values import values_at
from tests.schedules.helpers import make_schedule

_FEW = settings(
    max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)


def one_of(prefix, units=("steps", "fraction", "epochs")):
    """Settings of one alternative set: one member, an explicit 0, or nothing."""
    values = {"steps": st.integers(0, 400), "fraction": st.floats(0.001, 1.0), "epochs": st.integers(0, 9)}

    def member(unit):
        return values[unit].map(lambda value: {f"{prefix}_{unit}": value})

    return st.one_of(st.just({}), *map(member, units))


@st.composite
def schedules(draw):
    chosen = {
        "lr_scheduler.name": draw(st.sampled_from(["cosine", "linear", "step", "wsd"])),
        "lr_scheduler.stable_duration_fraction": draw(st.floats(0, 1)),
        "lr_scheduler.decay_duration_fraction": draw(st.floats(0, 1)),
        "schedule.validation.at_end": draw(st.booleans()),
        "schedule.validation.partial_mask_meta.enabled": True,
        "schedule.validation.partial_mask_meta.whitelist": (("TEMPORAL",), ("SPATIAL",)),
        "schedule.validation.final_epoch.exhaustive_partial_meta_validation": draw(st.booleans()),
        "schedule.validation.final_epoch.exhaustive_meta_components": ("TEMPORAL", "SPATIAL"),
        "schedule.step_trigger_mode": draw(st.sampled_from(["crossing", "exact"])),
    }
    for prefix in ("lr_scheduler.warmup", "schedule.validation.interval", "schedule.validation.mask_meta_interval"):
        chosen |= draw(one_of(prefix))
    chosen |= draw(one_of("schedule.checkpoint.interval"))
    chosen |= draw(one_of("schedule.validation.partial_mask_meta.interval"))
    chosen |= draw(one_of("lr_scheduler.decay", ("steps", "fraction")))
    chosen |= draw(one_of("schedule.meta_masking.end", ("steps", "fraction")))
    epochs = draw(st.integers(1, 9))
    if draw(st.booleans()):
        return make_schedule(chosen, steps_per_epoch=draw(st.integers(1, 40)), epochs=epochs)
    return make_schedule(
        chosen, steps_per_epoch=draw(st.lists(st.integers(1, 40), min_size=epochs, max_size=epochs)), epochs=epochs
    )


@_FEW
@given(schedules())
def test_phases_cover_the_run_and_agree_with_the_curve(resolved):
    total = resolved.total_steps
    curves = values_at(build_scheduler(resolved), jnp.arange(9 * 40))
    for spec in resolved.learning_rates:
        phases = spec.phases()
        assert sum(last - first + 1 for _, first, last in phases) == total
        assert [first for _, first, _ in phases] == [0, *(last + 1 for _, _, last in phases[:-1])]
        rates = np.asarray(curves[spec.group])[:total]
        assert rates.min() >= 0
        assert rates.max() <= spec.peak * (1 + 1e-6)
        for name, first, last in phases:
            if name == "stable":
                np.testing.assert_allclose(rates[first : last + 1], spec.peak, rtol=1e-6)
            elif name == "tail":
                np.testing.assert_allclose(rates[first : last + 1], spec.min_lr, rtol=1e-6, atol=1e-7 * spec.peak)
            elif name in ("cosine", "linear", "decay", "step"):
                assert np.all(np.diff(rates[first : last + 1]) <= 1e-6 * spec.peak)
        for drop in spec.drops():
            np.testing.assert_allclose(rates[drop], rates[drop - 1] * spec.decay_rate, rtol=1e-5)


@_FEW
@given(schedules())
def test_each_threshold_is_served_exactly_once(resolved):
    """Crossing: the boundaries that fire are the first ones at or after each multiple of the interval."""
    if resolved.step_trigger_mode == "exact" or resolved.checkpoint.interval.steps == 0:
        return
    ends, every = resolved.totals.boundaries, resolved.checkpoint.interval.steps
    thresholds = range(every, resolved.total_steps + 1, every)
    expected = {next(epoch for epoch, end in enumerate(ends) if end >= threshold) for threshold in thresholds}
    fired = set(firing_epochs(resolved)["CHECKPOINT"])
    assert fired - {resolved.epochs - 1} == expected - {resolved.epochs - 1}
    assert resolved.epochs - 1 in fired  # at_end


@_FEW
@given(schedules(), st.data())
def test_an_end_of_epoch_that_a_kill_cuts_off_is_due_again_as_a_whole(resolved, data):
    """Killed after any of its validations, at any epoch: what follows the restart is due as without the kill."""
    killed_at, completed = data.draw(st.integers(0, resolved.epochs - 1)), data.draw(st.integers(0, 3))
    progress, due_at = TrainingProgress(expected_total_steps=resolved.total_steps), {}
    for epoch in range(resolved.epochs):
        assert progress.enter_epoch(epoch)
        progress.advance(resolved.totals.steps_per_epoch[epoch])
        progress.epoch_complete = True
        due = OpsSchedule(resolved, progress).due()
        progress.schedule_due(due)
        if epoch == killed_at:
            for stage in due.stages[:completed]:
                progress.start_validation(stage)
                progress.complete_validation(stage)
            restored = TrainingProgress()
            restored.load_state_dict(json.loads(json.dumps(progress.state_dict())))
            progress = restored
            assert OpsSchedule(resolved, progress).due() == due
        progress.complete_all()
        assert progress.current_stage == Stage.TRAINING
        assert set(progress.completed_validations) == set(due.stages)
        due_at[epoch] = due.stages
    fired = firing_epochs(resolved)
    assert due_at == {
        epoch: tuple(stage for stage in Stage if epoch in fired.get(stage, ())) for epoch in range(resolved.epochs)
    }


def test_a_boundary_is_idempotent():
    resolved = make_schedule({"schedule.validation.interval_steps": 7}, epochs=5)
    first = due_at_epoch_end(resolved, 1, 20, 10)
    assert first == due_at_epoch_end(resolved, 1, 20, 10)
