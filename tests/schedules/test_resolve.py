from __future__ import annotations

import json

import pytest

from linnaeus_jax.checks import validate_schedule_config
from linnaeus_jax.config import load_config
from linnaeus_jax.config.derived import active_components
from linnaeus_jax.config.section import Duration
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.metadata import component_settings
from linnaeus_jax.schedules import ResolvedSchedule, resolve_all_schedule_params
from linnaeus_jax.schedules.level_switching import level_of_epoch, level_switch_errors
from tests.schedules.helpers import make_config, make_schedule


def test_fraction_fixture(fixtures):
    for case in json.loads((fixtures / "scheduling_resolve.json").read_text())["fractions"]:
        assert Duration("fraction", case["fraction"]).steps((case["total"],)) == case["steps"], case


def test_step_accounting_fixture(fixtures):
    for case in json.loads((fixtures / "scheduling_resolve.json").read_text())["step_accounting"]:
        config = make_config({"train.epochs": case["epochs"], "train.accumulation_steps": case["ACCUMULATION_STEPS"]})
        resolved = resolve_all_schedule_params(
            typed(config),
            steps_per_epoch=case["optimizer_steps_per_epoch"],
            dataset_size=1000,
            micro_batches_per_epoch=case["micro_batches_per_epoch"],
            devices=4,
        )
        assert resolved.total_steps == case["total_steps"]
        assert list(resolved.totals.boundaries) == case["global_step_at_epoch_boundaries"]
        assert len(case["micro_batches_per_update_epoch0"]) == resolved.totals.steps_per_epoch[0]
        assert resolved.totals.effective_batch_size == 64 * max(1, case["ACCUMULATION_STEPS"])


#: key named by the warning that a row of the validation fixture expects
_WARNING_OF = {
    "schedule.validation.interval_epochs": "schedule.validation.interval_",
    "schedule.validation.mask_meta_interval_epochs": "mask_meta_interval",
    "schedule.checkpoint.interval_epochs": "schedule.checkpoint.interval",
    "lr_scheduler.reference_bs": "lr_scheduler.reference_bs",
    "lr_scheduler.name": "stable_duration_fraction",
}


def test_validation_fixture(fixtures):
    for case in json.loads((fixtures / "scheduling_validation.json").read_text()):
        settings = {key.lower().replace("schedule.mix.", "schedule.mixup."): v for key, v in case["explicit"].items()}
        if any("level_switch" in key for key in settings):
            settings["schedule.mixup.group_levels"] = ("taxa_L20", "taxa_L10")  # a switch needs a second level
        errors = validate_schedule_config(make_config(settings))
        if case["expect"] == "error":
            assert errors, case
            assert any(key.rsplit(".", 1)[0] in error for error in errors for key in settings), errors
            continue
        assert not errors, case
        warnings = make_schedule(settings, steps_per_epoch=100, epochs=20).warnings
        if case["expect"] == "warning":
            assert any(_WARNING_OF[next(iter(settings))] in warning for warning in warnings), (case, warnings)


def test_all_errors_at_once_with_key_value_and_fix():
    config = make_config(
        {
            "lr_scheduler.name": "foo",
            "schedule.validation.interval_steps": 10,
            "schedule.validation.interval_fraction": 0.5,
            "schedule.checkpoint.interval_fraction": 1.5,
            "schedule.null_masking.start_prob": -0.5,
            "schedule.checkpoint.interval_steps": -3,
            "lr_scheduler.parameter_groups.heads.warmup_steps": 3,
            "lr_scheduler.parameter_groups.heads.warmup_fraction": 0.5,
            "train.early_stop.active": True,
            "train.early_stop.metric": "val_happiness",
            "train.epochs": 0,
        }
    )
    errors = validate_schedule_config(config)
    for text in (
        "lr_scheduler.name = 'foo'",
        "schedule.validation.interval_steps = 10 and schedule.validation.interval_fraction = 0.5",
        "schedule.checkpoint.interval_fraction = 1.5 must lie in (0, 1]",
        "schedule.null_masking.start_prob = -0.5",
        "schedule.checkpoint.interval_steps = -3",
        "lr_scheduler.parameter_groups.heads.warmup_steps = 3",
        "train.early_stop.metric = 'val_happiness'",
        "train.epochs = 0",
    ):
        assert any(text in error for error in errors), text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"schedule.meta_masking.partial.enabled": True, "schedule.meta_masking.partial.whitelist": (("X",),)}, "'X'"),
        (
            {
                "schedule.validation.partial_mask_meta.enabled": True,
                "schedule.validation.partial_mask_meta.whitelist": (("ELEVATION",),),
            },
            "data.meta.components.ELEVATION.enabled = True",
        ),
        ({"schedule.validation.partial_mask_meta.whitelist": ("TEMPORAL",)}, "tuple of component names"),
        ({"schedule.meta_masking.partial.whitelist": (("A", "B"), ("B", "A"))}, "twice"),
        (
            {"schedule.meta_masking.partial.whitelist": (("A",),), "schedule.meta_masking.partial.weights": (0.0,)},
            "positive sum",
        ),
        ({"schedule.mixup.level_switch_steps": (5,)}, "1 switches for 1 group levels"),
        ({"schedule.mixup.group_levels": ("taxa_L5",)}, "taxa_L5"),
        ({"lr_scheduler.decay_duration_fraction": -0.1}, "decay_duration_fraction = -0.1"),
        ({"schedule.step_trigger_mode": "sometimes"}, "crossing, exact"),
        ({"optimizer.parameter_groups.enabled": True, "optimizer.parameter_groups.g.lr_multiplier": -1.0}, "groups.g"),
        ({"schedule.checkpoint.keep_top_n": -1}, "keep_top_n = -1"),
        ({"schedule.meta_masking.partial.enabled": True}, "schedule.meta_masking.partial.whitelist is empty"),
        ({"schedule.validation.partial_mask_meta.enabled": True}, "partial_mask_meta.whitelist is empty"),
        (
            {"lr_scheduler.parameter_groups.enabled": True, "lr_scheduler.parameter_groups.heads.min_lr": 1e-7},
            "heads matches no optimizer group",
        ),
    ],
)
def test_errors(settings, text):
    errors = validate_schedule_config(make_config(settings))
    assert len(errors) == 1
    assert text in errors[0]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"schedule.validation.interval_steps": 500}, "interval_steps = 500 never fires"),
        ({"schedule.validation.interval_epochs": 10}, "interval_epochs = 10 never fires"),
        (
            {"schedule.validation.interval_steps": 7, "schedule.step_trigger_mode": "exact", "train.epochs": 6},
            "interval_steps = 7 never fires",
        ),
        ({"data.sampler.type": "standard"}, "nothing is mixed"),
        ({"schedule.validation.interval_steps": 26}, "over a quarter"),
        (
            {"schedule.validation.interval_epochs": 4, "schedule.validation.at_end": False},
            "final epoch has no validation",
        ),
        (
            {
                "schedule.checkpoint.interval_epochs": 4,
                "schedule.checkpoint.at_end": False,
                "schedule.validation.interval_epochs": 4,  # a validation would save, too
                "schedule.validation.mask_meta_interval_epochs": 4,
                "schedule.validation.at_end": False,
            },
            "final epoch has no checkpoint",
        ),
        ({"schedule.validation.interval_steps": 7, "schedule.checkpoint.interval_epochs": 2}, "is given in epochs"),
        ({"schedule.validation.interval_fraction": 0.09}, "is only 9 updates"),
        ({"lr_scheduler.warmup_fraction": 0.5}, "half of the run"),
        ({"lr_scheduler.warmup_steps": 100}, "only the ramp is seen"),
        ({"lr_scheduler.min_lr": 1.0}, "min_lr = 1.0 is lowered"),
        ({"schedule.meta_masking.end_steps": 101}, "ends at update 101, beyond"),
        (
            {
                "schedule.meta_masking.partial.enabled": True,
                "schedule.meta_masking.partial.start_steps": 40,
                "schedule.meta_masking.partial.end_steps": 40,
            },
            "40 to 40, is empty",
        ),
        (
            {
                "schedule.validation.partial_mask_meta.enabled": True,
                "schedule.validation.partial_mask_meta.whitelist": (("TEMPORAL",),),
            },
            "without an interval",
        ),
        ({"train.early_stop.active": True, "train.early_stop.patience_steps": 9}, "shorter than the 10 updates"),
        (
            {
                "train.early_stop.active": True,
                "train.early_stop.patience_steps": 39,
                "schedule.validation.interval_epochs": 3,  # the first one is after four
            },
            "shorter than the 40 updates",
        ),
        ({"train.early_stop.active": True, "train.early_stop.max_steps": 101}, "beyond the 100 updates"),
        ({"train.early_stop.active": True, "train.early_stop.metric": "val_mask_SPATIAL_loss"}, "never run"),
        (
            {
                "train.early_stop.active": True,
                "train.early_stop.metric": "val_acc1_taxa_L10",
                "train.early_stop.max_loss": 3,
            },
            "no effect",
        ),
        (
            {"loss.grad_weighting.task.gradnorm_enabled": True, "loss.grad_weighting.task.update_interval": 50},
            "divergence may stay hidden",
        ),
        ({"lr_scheduler.name": "wsd", "lr_scheduler.decay_duration_fraction": 0.5}, "before lr_scheduler.min_lr"),
        ({"schedule.mixup.group_levels": ("taxa_L20", "taxa_L10")}, "taxa_L10 is used in no epoch; name switches"),
        ({"lr_scheduler.warmup_steps": 9}, "group 'default': warmup takes 9 updates, fewer than 10, up to a rate of"),
        ({"lr_scheduler.reference_bs": 8, "data.batch_size": 40}, "multiplied by 5 (linear scaling from 8 to 40 rows)"),
        ({"schedule.metrics.console_interval": 101}, "console (every 101), pipeline (every 250) records nothing"),
    ],
)
def test_warnings(settings, text):
    warnings = make_schedule({"train.epochs": 10} | settings).warnings
    assert any(text in warning for warning in warnings), warnings


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"schedule.validation.interval_steps": 25}, "over a quarter"),
        ({"lr_scheduler.warmup_steps": 49}, "half of the run"),
        ({"lr_scheduler.warmup_steps": 99}, "only the ramp is seen"),
        ({"lr_scheduler.warmup_steps": 10}, "fewer than 10"),
        ({"lr_scheduler.reference_bs": 8, "data.batch_size": 32}, "multiplied by"),
        ({"schedule.meta_masking.end_steps": 100}, "schedule.meta_masking ends"),
        (
            {
                "schedule.meta_masking.partial.enabled": True,
                "schedule.meta_masking.partial.start_steps": 39,
                "schedule.meta_masking.partial.end_steps": 40,
            },
            "is empty",
        ),
        ({"train.early_stop.active": True, "train.early_stop.patience_steps": 10}, "shorter than"),
        ({"train.early_stop.active": True, "train.early_stop.max_steps": 100}, "max_steps = 100 is beyond"),
        (
            {"loss.grad_weighting.task.gradnorm_enabled": True, "loss.grad_weighting.task.update_interval": 51},
            "divergence may stay hidden",
        ),
        ({"schedule.metrics.console_interval": 100}, "console (every"),
        ({"schedule.validation.interval_fraction": 0.1}, "is only"),
    ],
)
def test_no_warning_just_before(settings, text):
    warnings = make_schedule({"train.epochs": 10} | settings).warnings
    assert not any(text in warning for warning in warnings), warnings


def test_a_batch_as_large_as_the_data_is_said():
    settings = {"data.batch_size": 500, "lr_scheduler.reference_bs": 125, "lr_scheduler.warmup_steps": 10}
    (text,) = [text for text in make_schedule(settings, steps_per_epoch=3).warnings if "rows, so an epoch" in text]
    assert text.startswith(
        "an update takes 500 of 1000 training rows, so an epoch has 3 of them; updates of at most 250"
    )
    warnings = make_schedule(settings, steps_per_epoch=4).warnings
    assert not [text for text in warnings if "so an epoch" in text or "multiplied" in text or "fewer than 10" in text]
    flat = {"lr_scheduler.warmup_steps": 9, "lr_scheduler.base_lr": 1e-3, "lr_scheduler.warmup_lr": 5e-4}
    assert not [text for text in make_schedule(flat).warnings if "fewer than 10" in text], "it hardly rises"


def test_a_rate_of_zero_is_said_and_is_none_of_a_wrong_one():
    settings = {"lr_scheduler.base_lr": 0.0, "lr_scheduler.warmup_lr": 0.0, "lr_scheduler.min_lr": 0.0}
    warnings = make_schedule(settings).warnings
    assert any("every learning rate is 0" in text for text in warnings)
    assert not [text for text in warnings if "negative or not finite" in text]


def test_checkpoints_are_not_ranked_by_a_phase_that_never_runs():
    with pytest.raises(ValueError, match=r"best_metric = .* is of phase val_mask_SPATIAL, which never runs"):
        make_schedule({"schedule.checkpoint.best_metric": "val_mask_SPATIAL_loss"})
    make_schedule({"schedule.checkpoint.best_metric": "val/loss"})


def test_a_single_choice_never_meets_a_default():
    settings = {
        "lr_scheduler.warmup_fraction": 0.1,
        "schedule.validation.interval_steps": 25,
        "schedule.checkpoint.interval_fraction": 0.5,
        "schedule.metrics.lr_fraction": 0.5,
        "schedule.metrics.step_interval": 7,
        "schedule.metrics.pipeline_interval": -1,
        "schedule.mixup.prob.end_fraction": 0.4,
        "train.early_stop.active": True,
    }
    resolved = make_schedule(settings, epochs=10)
    assert resolved.learning_rates[0].warmup_steps == 10
    assert (resolved.validation.normal.unit, resolved.validation.normal.steps) == ("steps", 25)
    assert (resolved.checkpoint.interval.unit, resolved.checkpoint.interval.steps) == ("fraction", 50)
    assert resolved.validation.mask_meta.unit == "epochs"
    assert resolved.logging == {"step": 7, "console": 100, "wandb": 7, "lr": 50, "pipeline": 0}
    assert resolved.early_stop.patience_steps == 2000
    settings |= {"train.early_stop.patience_epochs": 1.5, "schedule.metrics.wandb_interval": 0}
    resolved = make_schedule(settings, epochs=10)
    assert resolved.early_stop.patience_steps == 15
    assert resolved.logging["wandb"] == 0
    settings |= {"train.early_stop.patience_epochs": 0}
    assert make_schedule(settings, epochs=10).early_stop.patience_steps is None


def test_defaults_live_here_and_the_config_is_not_changed():
    config = make_config({"train.epochs": 300})
    before = str(config)
    resolved = resolve_all_schedule_params(
        typed(config), steps_per_epoch=100, dataset_size=6400, micro_batches_per_epoch=[100] * 300
    )
    assert str(config) == before
    assert resolved.learning_rates[0].warmup_steps == 500
    assert resolved.null_masking.end_steps == 15000
    assert resolved.partial_masking.prob.end_steps == 15000
    assert resolved.validation.normal.value == resolved.validation.mask_meta.value == 1
    assert not resolved.validation.normal.explicit


def test_wrong_counts():
    config = make_config({"train.epochs": 2, "train.accumulation_steps": 4})
    with pytest.raises(ValueError, match="is the training set empty"):
        resolve_all_schedule_params(typed(config), steps_per_epoch=0, dataset_size=1, micro_batches_per_epoch=0)


@pytest.mark.parametrize(
    ("accumulation", "steps", "parts", "right"),
    [
        (1, 10, 11, 11),
        (1, 11, 10, 10),
        (4, 10, 10, 3),
        (4, 3, 13, 4),
        (4, [3, 3], [10, 8], 2),
        (0, 10, 20, 20),
    ],
)
def test_updates_that_contradict_the_micro_batches(accumulation, steps, parts, right):
    config = typed(make_config({"train.epochs": 2, "train.accumulation_steps": accumulation}))
    with pytest.raises(ValueError, match=rf"contradicts micro_batches_per_epoch = .*they are {right} updates"):
        resolve_all_schedule_params(config, steps_per_epoch=steps, dataset_size=100, micro_batches_per_epoch=parts)
    if isinstance(steps, list):  # epochs that are finished may have had another accumulation
        resolve_all_schedule_params(
            config, steps_per_epoch=[9, right], dataset_size=100, micro_batches_per_epoch=parts, past_epochs=1
        )
    with pytest.raises(ValueError, match="has 3 numbers for 2 epochs"):
        resolve_all_schedule_params(config, steps_per_epoch=[1] * 3, dataset_size=100, micro_batches_per_epoch=1)


def test_the_last_update_of_an_epoch_may_be_short():
    config = make_config({"train.epochs": 2, "train.accumulation_steps": 4})
    resolved = resolve_all_schedule_params(
        typed(config), steps_per_epoch=[3, 2], dataset_size=100, micro_batches_per_epoch=[9, 8]
    )
    assert resolved.totals.steps_per_epoch == (3, 2)


def test_epochs_to_steps():
    assert Duration("epochs", 2.3).steps((10, 10, 10)) == int(2.3 * 10)
    assert Duration("epochs", 1.5).steps((10, 20)) == 20
    assert Duration("epochs", 3.0).steps((10, 20)) == 50


def test_round_trip_through_json():
    settings = {
        "schedule.meta_masking.partial.enabled": True,
        "schedule.meta_masking.partial.whitelist": (("TEMPORAL",), ("SPATIAL", "TEMPORAL")),
        "train.early_stop.active": True,
        "lr_scheduler.name": "wsd",
    }
    resolved = make_schedule(settings, epochs=4)
    assert ResolvedSchedule.from_dict(json.loads(json.dumps(resolved.to_dict()))) == resolved


def test_level_switching():
    updates = {"a": 10, "b": 7, "c": 5}

    def levels(ranks, steps, epochs, total):
        return "".join(level_of_epoch(ranks, steps, epochs, total, lambda epoch, level: updates[level]))

    assert levels("abc", (15, 24), (), 6) == "aabccc"
    assert levels("ab", (10,), (), 3) == "abb"
    assert levels("abc", (), (2, 3), 5) == "aabcc"
    assert levels("ab", (), (), 2) == "aa"
    for ranks, steps, epochs, text in (
        ("ab", (5, 6), (), "one switch fewer than levels"),
        ("abc", (6, 6), (), "rise strictly"),
        ("ab", (5,), (1,), "exclude each other"),
    ):
        assert any(text in error for error in level_switch_errors(ranks, steps, epochs))


def test_levels_of_a_resolved_schedule():
    settings = {"schedule.mixup.group_levels": ("taxa_L20", "taxa_L10"), "schedule.mixup.level_switch_steps": (12,)}
    resolved = make_schedule(settings, steps_per_epoch=(10, 10, 6, 6), epochs=4)
    assert resolved.mixing.level_of_epoch == ("taxa_L20", "taxa_L20", "taxa_L10", "taxa_L10")
    assert resolved.total_steps == 32
    assert resolved.totals.epoch_at(23) == pytest.approx(2.5)


def test_no_metadata_means_no_masked_validation():
    resolved = make_schedule({"data.meta.active": False}, epochs=3)
    assert resolved.validation.mask_meta.unit == "off"
    assert not any("mask-meta" in warning for warning in resolved.warnings)


def test_a_component_is_in_use_by_one_rule():
    """Enabled with idx >= 0: else the last boundary asked for a component that the data do not have."""
    final = "schedule.validation.final_epoch"
    settings = {
        "data.meta.components.SPATIAL.idx": -1,
        f"{final}.exhaustive_partial_meta_validation": True,
        f"{final}.exhaustive_meta_components": ("TEMPORAL", "SPATIAL"),
    }
    (error,) = validate_schedule_config(make_config(settings))
    assert "names 'SPATIAL', but the components in use are TEMPORAL" in error
    config = make_config(settings | {"data.meta.components.TEMPORAL.idx": 3, "data.meta.components.SPATIAL.idx": 1})
    meta = typed(config).data.meta
    assert active_components(meta) == ("SPATIAL", "TEMPORAL") == tuple(item.name for item in component_settings(meta))
    none = make_schedule({f"data.meta.components.{name}.idx": -1 for name in ("TEMPORAL", "SPATIAL")}, epochs=3)
    assert none.validation.mask_meta.unit == "off"


@pytest.mark.parametrize("zero", [0, None])
def test_durations_of_a_group_default_to_the_global_ones(zero):
    groups = {
        "optimizer.parameter_groups.enabled": True,
        "optimizer.parameter_groups.heads.lr_multiplier": 2.0,
        "lr_scheduler.parameter_groups.enabled": True,
        "lr_scheduler.parameter_groups.heads.name": "step",
        "lr_scheduler.parameter_groups.heads.warmup_steps": zero,
        "lr_scheduler.parameter_groups.heads.decay_steps": zero,
        "lr_scheduler.warmup_steps": 7,
        "lr_scheduler.decay_steps": 30,
    }
    heads, default = make_schedule(groups, epochs=10).learning_rates
    assert heads.group == "heads"
    assert (heads.warmup_steps, default.warmup_steps, heads.decay_steps) == (7, 7, 30)
    groups |= {"lr_scheduler.parameter_groups.heads.warmup_steps": 3}
    assert make_schedule(groups, epochs=10).learning_rates[0].warmup_steps == 3


@pytest.mark.parametrize("settings", [{"schedule.mixup.prob.enabled": False}, {"schedule.mixup.enabled": False}])
def test_levels_may_be_empty_where_nothing_is_mixed(settings):
    settings = settings | {"schedule.mixup.group_levels": ()}
    assert validate_schedule_config(make_config(settings)) == []
    assert make_schedule(settings, epochs=2).mixing.level_of_epoch == ("taxa_L10", "taxa_L10")
    (error,) = validate_schedule_config(make_config({"schedule.mixup.group_levels": ()}))
    assert "schedule.mixup.group_levels is empty" in error


def test_a_checkpoint_before_a_validation_is_one():
    """The final epoch is validated, so its state is saved; nothing to warn of."""
    at_end = {"schedule.checkpoint.at_end": False, "train.epochs": 10}
    warnings = make_schedule(at_end | {"schedule.checkpoint.interval_epochs": 4}).warnings
    assert not any("final epoch has no" in warning for warning in warnings)
    (warning,) = [
        text for text in make_schedule(at_end | {"schedule.checkpoint.interval_epochs": 0}).warnings if "checkp" in text
    ]
    assert "before every validation only" in warning


def test_rates_of_the_shipped_configs_move(pytestconfig):
    """No group of a shipped config starts at or below its own floor."""
    for path in sorted((pytestconfig.rootpath / "configs").glob("*.py")):
        if path.stem == "yaml":
            continue
        config, _ = load_config([f"--config={path}"])
        resolved = resolve_all_schedule_params(
            typed(config), steps_per_epoch=100, dataset_size=6400, micro_batches_per_epoch=100
        )
        assert not any("is lowered to the peak" in warning for warning in resolved.warnings), path
        for spec in resolved.learning_rates:
            assert spec.peak > 2 * max(spec.min_lr, spec.warmup_lr), (path.stem, spec)
