from __future__ import annotations

import json
import math
from typing import Any

import pytest

from linnaeus_jax.checks import validate_schedule_config
from linnaeus_jax.config import get_config
from linnaeus_jax.config.typed import typed
from linnaeus_jax.metrics import phases, register
from linnaeus_jax.schedules import OpsSchedule, TrainingProgress
from linnaeus_jax.schedules.early_stop import (
    check,
    initial_state,
    parse_metric_name,
    ranking_key,
    require_measured,
    restore_state,
)
from linnaeus_jax.schedules.resolved import EarlyStopSpec
from tests.plugins import forget_plugins
from tests.schedules.helpers import make_schedule

_TASKS = ("taxa_L10", "taxa_L20")


def spec_of(config):
    metric = parse_metric_name(config["METRIC"])
    limits = {key.lower(): value for key, value in config.items() if key != "METRIC" and value is not None}
    return EarlyStopSpec(
        active=True,
        **metric._asdict(),
        **limits,
    )


def test_fixture(fixtures):
    for case in json.loads((fixtures / "scheduling_earlystop.json").read_text())["cases"]:
        spec = spec_of(case["config"])
        state = initial_state(spec)
        for item, expected in zip(case["checks"], case["expected"]):
            metric = math.nan if item["metric"] == "nan" else item["metric"]
            state, decision = check(
                spec,
                json.loads(json.dumps(state)),
                step=item["step"],
                metric=metric,
                learning_rate=item["lr"],
                grad_norm=item["grad_norm"],
                in_warmup=item["in_warmup"],
            )
            got = {
                "stop": decision.stop,
                "reason": decision.reason,
                "best": state["best"],
                "best_step": state["best_step"],
            }
            assert got == expected, case["config"]


def test_metric_name_fixture(fixtures):
    names = json.loads((fixtures / "scheduling_earlystop.json").read_text())["metric_names"]
    for name, expected in names.items():
        parsed = parse_metric_name(name, tasks=_TASKS, components=("TEMPORAL", "SPATIAL"))
        assert (parsed.phase, parsed.higher_is_better) == (expected["phase"], expected["higher_is_better"]), name
        assert parsed == parse_metric_name(f"{expected['phase']}/{expected['metric']}", tasks=_TASKS), name
        assert parsed.metric == {"taxa_L10/acc1": "acc1_taxa_L10"}.get(expected["metric"], expected["metric"]), name


def test_the_longest_phase_wins():
    """`null/loss_taxa_L10` is a metric of `val`, too."""
    phases.register_phase(phases.Phase("val_null"))
    found = parse_metric_name("val_null/loss_taxa_L10", tasks=_TASKS)
    assert (found.phase, found.metric) == ("val_null", "loss_taxa_L10")


def test_metric_names():
    def parse(name):
        return parse_metric_name(name, tasks=_TASKS, components=("TEMPORAL", "SPATIAL"))

    assert parse("VAL_mask_temporal_SPATIAL_Loss").phase == "val_mask_TEMPORAL_SPATIAL"
    for spelling in ("val_acc1_taxa_L20", "val/acc1/taxa_l20", "val/taxa_L20/acc1"):
        assert (parse(spelling).phase, parse(spelling).metric) == ("val", "acc1_taxa_L20")
    assert parse("val_loss_taxa_L10").is_loss
    assert parse("train/epoch_avg_loss").metric == parse("train_loss").metric == "loss"  # as it is logged
    assert not parse("val_ece").higher_is_better
    assert parse("val_mask_loss") == parse("val_mask_meta/loss")  # as it is logged
    assert parse("val_coverage_at_risk_5_taxa_L20").higher_is_better
    assert not parse("val/null/loss_taxa_L10").is_loss
    assert parse("val/subset/place/wood/acc1_taxa_L10").metric == "subset/place/wood/acc1_taxa_L10"
    wrong = "loss val_ valloss test_loss val_acc1 val_chain_accuracy_taxa_L10 val_mask_X_loss train_ece val_habitat"
    for name in [*wrong.split(), "val/subset/place/wood/acc3_taxa_L10", "val/subset/place/acc1_taxa_L10"]:
        with pytest.raises(ValueError, match="no known metric"):
            parse(name)


def test_registered_metrics_may_be_monitored():
    forget_plugins()
    register("Unsureness", lambda inputs: (inputs.weight[0], inputs.weight[0]), higher_is_better=False, phases=("val",))
    unsureness = parse_metric_name("val_mask_meta/unsureness", tasks=_TASKS)
    assert unsureness == ("val_mask_meta", "Unsureness", False, False)
    with pytest.raises(ValueError, match=r"measures: .* Unsureness, or .*env.plugins may register more$"):
        parse_metric_name("train_unsureness", tasks=_TASKS)  # measured in validation alone


def test_a_subset_must_be_one_of_the_data():
    subsets = {"place": ("wood", "lake")}
    require_measured("subset/place/lake/acc1_taxa_L10", subsets)
    require_measured("loss", subsets)
    with pytest.raises(ValueError, match="there are place/wood, place/lake"):
        require_measured("subset/place/sea/acc1_taxa_L10", subsets)


def test_the_ranking_metric_is_checked_and_normalised():
    config = get_config()
    assert ranking_key(typed(config), ()) == ""
    config.data.task_keys_h5 = _TASKS
    config.schedule.checkpoint.best_metric = "val_acc1/taxa_L20"
    assert ranking_key(typed(config), ()) == "val/acc1_taxa_L20"
    config.schedule.checkpoint.best_metric = "val/acc1_taxa_L99"
    assert any("schedule.checkpoint.best_metric = 'val/acc1_taxa_L99'" in x for x in validate_schedule_config(config))


def test_nan_never_improves_and_exceeds_every_limit():
    spec = EarlyStopSpec(active=True, max_loss=10.0, max_grad_norm=5.0)
    inputs: dict[str, Any] = {"step": 10, "learning_rate": 1.0, "in_warmup": False}
    state, decision = check(spec, initial_state(spec), metric=math.nan, grad_norm=1.0, **inputs)
    assert (decision.reason, state["best"]) == ("max_loss", None)
    assert check(spec, state, metric=None, grad_norm=math.nan, **inputs)[1].reason == "max_grad_norm"
    assert not check(spec, state, metric=None, grad_norm=None, **inputs)[1].stop


@pytest.mark.parametrize(("metric", "counts"), [(0.75, True), (0.8, False), (1.0, False)])
def test_the_least_improvement_is_one(metric, counts):
    spec = EarlyStopSpec(active=True, min_delta=0.25)
    before = initial_state(spec) | {"best": 1.0, "best_step": 100}
    state, _ = check(spec, before, step=120, metric=metric, learning_rate=1.0, grad_norm=1.0, in_warmup=False)
    assert (state["best"], state["best_step"]) == ((metric, 120) if counts else (1.0, 100))


def test_state_survives_and_a_changed_metric_starts_anew():
    spec = EarlyStopSpec(active=True, patience_steps=50)
    saved = initial_state(spec) | {"best": 1.0, "best_step": 100}
    assert restore_state(spec, saved, 120)[0]["best_step"] == 100
    other = EarlyStopSpec(active=True, metric="chain_accuracy", higher_is_better=True, is_loss=False)
    state, warnings = restore_state(other, saved, 120)
    assert (state["best"], state["best_step"]) == (None, 120)
    assert "val/loss to val/chain_accuracy" in warnings[0]


def test_facade():
    settings = {
        "train.early_stop.active": True,
        "train.early_stop.patience_steps": 20,
        "train.early_stop.min_lr": 1e-6,
        "lr_scheduler.warmup_lr": 1e-9,
        "lr_scheduler.warmup_steps": 12,
    }
    progress = TrainingProgress()
    ops = OpsSchedule(make_schedule(settings, epochs=6), progress)
    stopped = []
    for value in (3.0, 2.0, 2.5, 2.5):
        progress.advance(10)
        stopped.append(ops.should_stop_early(value))
    assert stopped == [False, False, False, True]  # update 9 lies in the warmup, whose low rate does not count
    assert ops.stop_reason == "patience"
    other = OpsSchedule(ops.resolved, progress)
    assert other.load_state_dict(json.loads(json.dumps(ops.state_dict()))) == []
    assert other.early_stop_state == ops.early_stop_state


def test_the_rate_is_that_of_the_last_update():
    settings = {
        "train.early_stop.active": True,
        "train.early_stop.min_lr": 1e-6,
        "lr_scheduler.name": "step",
        "lr_scheduler.decay_steps": 10,
        "lr_scheduler.decay_rate": 0.01,
        "lr_scheduler.warmup_fraction": 0.0,
    }
    resolved = make_schedule(settings, epochs=3)
    stopped = [OpsSchedule(resolved, TrainingProgress(global_step=step)).should_stop_early(None) for step in (10, 20)]
    assert stopped == [False, True]


def test_the_first_update_after_the_warmup_counts():
    """Every rate is below the limit; those of the four updates of the warmup are not looked at."""
    early_stop = {"train.early_stop.active": True, "train.early_stop.min_lr": 1.0}
    resolved = make_schedule({**early_stop, "lr_scheduler.warmup_steps": 4}, epochs=3)
    stopped = [OpsSchedule(resolved, TrainingProgress(global_step=step)).should_stop_early(None) for step in (4, 5)]
    assert stopped == [False, True]


def test_frozen_groups_count_nowhere():
    """A frozen group has rate 0 and inherits the warmup; neither may decide."""
    settings = {
        "train.early_stop.active": True,
        "train.early_stop.min_lr": 1e-6,
        "lr_scheduler.warmup_lr": 1e-9,
        "lr_scheduler.min_lr": 1e-9,
        "lr_scheduler.warmup_steps": 30,
        "optimizer.parameter_groups.enabled": True,
        "optimizer.parameter_groups.heads.lr_multiplier": 1.0,
        "optimizer.parameter_groups.default.frozen": True,
        "lr_scheduler.parameter_groups.enabled": True,
        "lr_scheduler.parameter_groups.heads.warmup_steps": 1,
    }
    resolved = make_schedule(settings, epochs=3)
    stopped = [OpsSchedule(resolved, TrainingProgress(global_step=step)).should_stop_early(None) for step in (10, 30)]
    assert stopped == [False, True]  # the heads are past their warmup of 1 update and end below the limit
    settings |= {"optimizer.parameter_groups.heads.frozen": True}
    frozen = OpsSchedule(make_schedule(settings, epochs=3), TrainingProgress(global_step=30))
    assert not frozen.should_stop_early(None)


def test_inactive():
    ops = OpsSchedule(make_schedule(epochs=2), TrainingProgress(global_step=10**6))
    assert not ops.should_stop_early(math.nan, math.inf)
