"""Validation of a configuration: each wrong value gives one message with key, value and fix; all come at once."""

from __future__ import annotations

from typing import Any

import pytest

from linnaeus_jax.checks.config import config_errors
from linnaeus_jax.config.defaults import declared
from linnaeus_jax.config.tree import assign
from linnaeus_jax.config.values import leaves
from tests.tiny import tiny_config

GROUP = "optimizer.parameter_groups.biases"
TASKS = ("taxa_L10", "taxa_L20", "taxa_L30")

#: (settings, the part of the message that names key and value, the part that says what to do)
WRONG: list[tuple[dict[str, Any], str, str]] = [
    # ---- choices
    ({"experiment.log_level_main": "LOUD"}, "experiment.log_level_main = 'LOUD'", "choose one of debug, info"),
    ({"experiment.wandb.mode": "sometimes"}, "experiment.wandb.mode = 'sometimes'", "offline"),
    ({"data.sampler.type": "random"}, "data.sampler.type = 'random'", "grouped, standard"),
    ({"data.upward_major_mode": "none"}, "data.upward_major_mode = 'none'", "no-gaps"),
    ({"train.compute_dtype": "float16"}, "train.compute_dtype = 'float16'", "bfloat16"),
    ({"train.clip_mode": "value"}, "train.clip_mode = 'value'", "adaptive"),
    ({"model.attn_impl": "flash"}, "model.attn_impl = 'flash'", "cudnn"),
    ({"model.rope_stages.rope_mode": "axial"}, "model.rope_stages.rope_mode = 'axial'", "cos_only"),
    ({"optimizer.name": "rmsprop"}, "optimizer.name = 'rmsprop'", "adamw"),
    ({f"{GROUP}.optimizer": "rmsprop"}, f"{GROUP}.optimizer = 'rmsprop'", "adamw"),
    ({"loss.grad_weighting.task.gradnorm_rule": "sum"}, "gradnorm_rule = 'sum'", "mult, paper"),
    ({"loss.grad_weighting.class_weights.method": ("median",)}, "method holds 'median'", "capping"),
    ({"loss.task_specific.val.funcs": ("MSE",)}, "loss.task_specific.val.funcs holds 'MSE'", "CrossEntropyLoss"),
    ({"lr_scheduler.name": "sawtooth"}, "lr_scheduler.name = 'sawtooth'", "cosine"),
    ({"schedule.step_trigger_mode": "never"}, "schedule.step_trigger_mode = 'never'", "crossing"),
    ({"aug.autoaug.policy": "wild"}, "aug.autoaug.policy is 'wild'", "randaugment"),
    # ---- ranges
    ({"train.epochs": 0}, "train.epochs = 0", "1 or more"),
    ({"train.seed": -1}, "train.seed = -1", "0 or more"),
    ({"train.epochs": 10**7}, "train.epochs = 10000000 is out of range", "at most 100000"),
    ({"train.seed": 2**32}, "train.seed = 4294967296", "at most 4294967295"),
    ({"train.accumulation_steps": 10**9}, "train.accumulation_steps = 1000000000", "at most 65536"),
    ({"data.img_size": 10**6}, "data.img_size = 1000000", "at most 4096"),
    ({"data.num_workers": 10**6}, "data.num_workers = 1000000", "at most 1024"),
    (
        {"schedule.checkpoint.interval_steps": 10**30},
        "interval_steps = 1000000000000000000000000000000",
        "at most 2147483647",
    ),
    ({"model.convnext_stages.layer_scale_init_value": float("inf")}, "layer_scale_init_value = inf", "finite"),
    ({"lr_scheduler.base_lr": 1e300}, "lr_scheduler.base_lr = 1e+300", "at most 3.4e+38"),
    ({"model.rope_stages.depths": (10**6, 1)}, "depths = (1000000, 1) holds 1000000", "at most 1000"),
    ({"lr_scheduler.stable_duration_fraction": 7.0}, "stable_duration_fraction = 7.0", "within [0, 1]"),
    ({"experiment.name": "../../x"}, "experiment.name = '../../x' becomes a directory", "no '..'"),
    ({"experiment.group": "a\nb"}, "experiment.group = 'a\\nb'", "none of them a line break"),
    ({"experiment.project": "x" * 10**5}, "experiment.project = 'xxx", "at most 120 characters"),
    ({"data.num_workers": -1}, "data.num_workers = -1", "0 or more"),
    ({"data.worker_processes": -1}, "data.worker_processes = -1", "0 or more"),
    ({"data.prefetch.num_io_threads": -1}, "data.prefetch.num_io_threads = -1", "0 or more"),
    ({"data.prefetch.mem_cache_size": -1}, "data.prefetch.mem_cache_size = -1", "0 or more"),
    ({"train.ema.decay": 1.0}, "train.ema.decay = 1.0", "within [0, 1)"),
    ({"train.ema.decay": float("nan")}, "train.ema.decay = nan", "within [0, 1)"),
    ({"data.batch_size": 0}, "data.batch_size = 0", "1 or more"),
    ({"data.batch_size": None, "data.batch_size_per_device": 0}, "data.batch_size_per_device = 0", "1 or more"),
    ({"data.batch_size_per_device": 8}, "data.batch_size_per_device = 8 are both given", "set one of them to None"),
    ({"data.h5.train_val_split_ratio": 1.5}, "data.h5.train_val_split_ratio = 1.5", "within [0, 1]"),
    ({"data.h5.train_val_split_seed": -3}, "data.h5.train_val_split_seed = -3", "0 or more"),
    ({"data.hybrid.verify_images.chunk_size": 0}, "verify_images.chunk_size = 0", "1 or more"),
    ({"data.prefetch.max_processed_batches": 0}, "data.prefetch.max_processed_batches = 0", "1 or more"),
    ({"data.meta.components.SPATIAL.dim": -1}, "data.meta.components.SPATIAL.dim = -1", "0 or more"),
    ({"model.drop_path_rate": 1.0}, "model.drop_path_rate = 1.0", "within [0, 1)"),
    ({"model.label_smoothing": 1.0}, "model.label_smoothing = 1.0", "within [0, 1)"),
    ({"model.rope_stages.rope_theta": 0.0}, "model.rope_stages.rope_theta = 0.0", "above 0"),
    ({"optimizer.eps": 0.0}, "optimizer.eps = 0.0", "above 0"),
    ({"optimizer.weight_decay": -0.1}, "optimizer.weight_decay = -0.1", "0 or more"),
    ({"optimizer.layer_decay": 0.0}, "optimizer.layer_decay = 0.0", "within (0, 1]"),
    ({"optimizer.muon.ns_steps": 0}, "optimizer.muon.ns_steps = 0", "1 or more"),
    ({f"{GROUP}.weight_decay": -1.0}, f"{GROUP}.weight_decay = -1.0", "0 or more"),
    ({"loss.taxonomy_smoothing.alpha": 1.5}, "loss.taxonomy_smoothing.alpha = 1.5", "within [0, 1]"),
    ({"loss.taxonomy_smoothing.beta": -1.0}, "loss.taxonomy_smoothing.beta = -1.0", "0 or more"),
    ({"loss.grad_weighting.task.gradnorm_kappa": 0.0}, "gradnorm_kappa = 0.0", "within (0, 1]"),
    ({"loss.grad_weighting.class_weights.log_base": (1.0,)}, "log_base = (1.0,)", "above 1"),
    ({"aug.color_jitter": -0.1}, "aug.color_jitter = -0.1", "0 or more"),
    ({"aug.hflip_prob": 2.0}, "aug.hflip_prob = 2.0", "within [0, 1]"),
    ({"aug.random_resized_crop.scale": (0.9, 0.5)}, "aug.random_resized_crop.scale is (0.9, 0.5)", "low <= high"),
    ({"schedule.mixup.min_group_size": 0}, "schedule.mixup.min_group_size = 0", "1 or more"),
    ({"schedule.mixup.cutmix.minmax": (0.5, 0.2)}, "schedule.mixup.cutmix.minmax = (0.5, 0.2)", "low <= high"),
    ({"schedule.checkpoint.keep_top_n": -1}, "schedule.checkpoint.keep_top_n = -1", "0 or more"),
    ({"schedule.null_masking.end_prob": 1.5}, "schedule.null_masking.end_prob = 1.5", "[0, 1]"),
    ({"metrics.rarity_percentiles": (50, 10)}, "metrics.rarity_percentiles = (50, 10)", "rise strictly"),
    ({"debug.underflow_overflow.max_frames_to_save": 0}, "max_frames_to_save = 0", "1 or more"),
    ({"debug.early_exit_after_n_optimizer_steps": -1}, "debug.early_exit_after_n_optimizer_steps = -1", "0 or more"),
    # ---- tuples
    ({"experiment.wandb.tags": (1, 2)}, "experiment.wandb.tags = (1, 2)", "texts"),
    ({"optimizer.betas": (0.9,)}, "optimizer.betas = (0.9,) has 1 items", "give 2 or 3"),
    ({"optimizer.betas": (True, 0.9)}, "optimizer.betas = (True, 0.9)", "a tuple of numbers"),
    ({"optimizer.betas": (0.9, 1.0)}, "optimizer.betas = (0.9, 1.0) holds 1.0", "within [0, 1)"),
    ({"optimizer.name": "ademamix", "optimizer.betas": (0.9, 0.99)}, "optimizer.betas = (0.9, 0.99)", "need 3 numbers"),
    ({"model.convnext_stages.dims": (8, 16)}, "model.convnext_stages.dims = (8, 16)", "must be 4 integers"),
    ({"model.rope_stages.depths": ({1: 2},)}, "model.rope_stages.depths = ({1: 2},)", "a tuple of integers"),
    ({"model.rope_stages.mlp_ratio": ()}, "model.rope_stages.mlp_ratio = () has 0 items", "give 1 or 2"),
    ({"model.drop_rate": ({1: 2},)}, "model.drop_rate = ({1: 2},)", "a tuple of numbers"),
    ({"model.rope_stages.depths": (1, 0)}, "model.rope_stages.depths = (1, 0) holds 0", "1 or more"),
    ({"debug.profiler.schedule": (1, 1, 3)}, "debug.profiler.schedule = (1, 1, 3)", "give 4"),
    ({"debug.profiler.schedule": (1, 1, 0, 2)}, "debug.profiler.schedule = (1, 1, 0, 2)", "active >= 1"),
    ({"debug.underflow_overflow.trace_batch_nums": ("a",)}, "trace_batch_nums = ('a',)", "integers"),
    ({"loss.taxonomy_smoothing.enabled": (True, False)}, "loss.taxonomy_smoothing.enabled = (True, False)", "1 or 3"),
    ({"loss.taxonomy_smoothing.enabled": (1,)}, "loss.taxonomy_smoothing.enabled = (1,)", "True or False"),
    ({"loss.grad_weighting.class_weights.cap": (1.0, 2.0)}, "class_weights.cap = (1.0, 2.0)", "one per task"),
    ({"loss.grad_weighting.task.init_weights": (1.0,)}, "init_weights = (1.0,)", "one number per task"),
    ({"loss.grad_weighting.task.init_weights": (0, 0, 0)}, "init_weights = (0, 0, 0)", "not all 0"),
    ({"aug.std": (0.2, 0.2)}, "aug.std = (0.2, 0.2)", "give 3"),
    ({"aug.std": (0.2, 0.2, 0.0)}, "aug.std = (0.2, 0.2, 0.0)", "within [1e-6, 1]"),
    ({"metrics.taxa_subsets": (("all", "taxa_L30"),)}, "metrics.taxa_subsets holds ('all', 'taxa_L30')", "taxon id"),
    ({"metrics.taxa_subsets": (("a/b", "taxa_L30", 1),)}, "holds ('a/b', 'taxa_L30', 1)", "cannot hold '/'"),
    ({"metrics.taxa_subsets": (("a", "taxa_L30", 0),)}, "holds ('a', 'taxa_L30', 0)", "1 or more"),
    # ---- names and combinations
    ({"data.h5.labels_path": ""}, "no labels file", "set data.h5.labels_path"),
    ({"data.h5.images_path": ""}, "data.h5.images_path is empty", "set it"),
    ({"data.h5.train_labels_path": "x.h5"}, "data.h5.train_labels_path exclude each other", "empty one"),
    ({"data.task_keys_h5": ("taxa_L20", "taxa_L10")}, "data.task_keys_h5 = ('taxa_L20', 'taxa_L10')", "finest first"),
    ({"data.task_keys_h5": ()}, "data.task_keys_h5 is empty", "name at least one"),
    ({"data.batch_size": 15}, "data.batch_size is 15", "even number"),
    ({"schedule.mixup.mix_block": 6}, "schedule.mixup.mix_block is 6", "divide data.batch_size"),
    ({"data.meta.components.SPATIAL.idx": 0}, "data.meta.components.SPATIAL.idx", "give each its own"),
    ({"data.meta.components.SPATIAL.source": ""}, "data.meta.components.SPATIAL is enabled", "set its source"),
    (
        {
            "data.hybrid.verify_images.enabled": True,
            "data.hybrid.verify_images.max_missing_ratio": -1.0,
            "data.hybrid.verify_images.max_missing_count": -1,
        },
        "max_missing_ratio = -1.0",
        "set one to 0 or more",
    ),
    (
        {"schedule.mixup.null_task_keys": ("taxa_L40",)},
        "schedule.mixup.null_task_keys names 'taxa_L40'",
        "use its tasks",
    ),
    (
        {"metrics.track_null_vs_non_null": True, "metrics.null_vs_non_null_tasks": ("taxa_L40",)},
        "metrics.null_vs_non_null_tasks names 'taxa_L40'",
        "use its tasks",
    ),
    ({"model.type": "mFormerV9"}, "model.type = 'mFormerV9'", "mFormerV1"),
    ({"model.variant": "huge"}, "model.variant = 'huge'", "tiny"),
    ({"model.rope_stages.num_heads": (3, 1)}, "model.rope_stages.num_heads = (3, 1)", "multiple of 2"),
    (
        {"model.classification.heads.taxa_L40.type": "Linear"},
        "model.classification.heads names 'taxa_L40'",
        "tasks are",
    ),
    ({"model.classification.heads.taxa_L10.type": "Deep"}, "taxa_L10.type = 'Deep'", "choose one of Linear"),
    (
        {"loss.task_specific.train.funcs": ("TaxonomyAwareLabelSmoothing",)},
        "loss.task_specific.train.funcs",
        "set loss.taxonomy_smoothing.enabled",
    ),
    (
        {"loss.grad_weighting.task.exclude_config": {"type": "nam", "patterns": ("head",)}},
        "loss.grad_weighting.task.exclude_config.type = 'nam'",
        "did you mean 'name'",
    ),
    (
        {f"{GROUP}.filter": {"type": "name"}, "optimizer.parameter_groups.enabled": True},
        f"{GROUP}.filter.patterns is missing",
        "needs it",
    ),
    (
        {"train.early_stop.active": True, "train.early_stop.metric": "val_accuracy"},
        "train.early_stop.metric = 'val_accuracy'",
        "write <phase>_<metric>",
    ),
    ({"train.early_stop.max_loss": float("inf")}, "train.early_stop.max_loss = inf", "must be finite"),
    ({"env.output.bucket.enabled": True}, "env.output.bucket.remote is empty", "name an rclone destination"),
    ({"experiment.name": ""}, "experiment.name is empty", "give it a value"),
    (
        {"lr_scheduler.warmup_steps": 5, "lr_scheduler.warmup_fraction": 0.1},
        "lr_scheduler.warmup_steps = 5 and lr_scheduler.warmup_fraction = 0.1",
        "keep one of them",
    ),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def errors_of(data, settings):
    config = tiny_config(data)
    for key, value in settings.items():
        assign(config, tuple(key.split(".")), value)
    return config_errors(config)


@pytest.mark.parametrize(("settings", "names", "fix"), WRONG, ids=[" ".join(settings) for settings, _, _ in WRONG])
def test_message_names_key_value_and_fix(data, settings, names, fix):
    errors = errors_of(data, settings)
    assert any(names in error and fix in error for error in errors), errors
    assert len(errors) <= 2, errors
    assert all("\n" not in error for error in errors)


def test_right_values_give_no_message(data):
    assert errors_of(data, {}) == []
    assert errors_of(data, {"experiment.log_level_main": "debug", "optimizer.name": "AdamW"}) == []
    bounds = {"schedule.mixup.cutmix.minmax": (0.3, 0.3), "schedule.validation.interval_fraction": 1.0}
    assert errors_of(data, bounds | {"schedule.validation.interval_epochs": None}) == []
    smoothed: dict[str, object] = {"loss.task_specific.train.funcs": ("TaxonomyAwareLabelSmoothing",)}
    assert errors_of(data, smoothed | {"loss.taxonomy_smoothing.enabled": (True,)}) == []
    smoothed = {"loss.task_specific.val.funcs": ("TaxonomyAwareLabelSmoothing", *("CrossEntropyLoss",) * 2)}
    assert errors_of(data, smoothed | {"loss.taxonomy_smoothing.enabled": (True, False, False)}) == []
    always = {"loss.grad_weighting.task.type": "gradnorm", "loss.grad_weighting.task.update_interval": 1}
    assert errors_of(data, always) == []
    assert errors_of(data, {"metrics.taxa_subsets": (("first", "taxa_L30", 1),)}) == []
    verified = {"data.hybrid.verify_images.enabled": True}
    for ratio, count in ((0.0, -1), (-1.0, 0)):
        limits = {"max_missing_ratio": ratio, "max_missing_count": count}
        limits = {f"data.hybrid.verify_images.{name}": value for name, value in limits.items()}
        assert not [each for each in errors_of(data, verified | limits) if "switch off both limits" in each]


def test_everything_wrong_is_said_at_once(data):
    settings = {"train.epochs": 0, "aug.std": (1.0,), "optimizer.betas": ("a", "b"), "model.variant": "huge"}
    settings |= {"data.h5.labels_path": "", "lr_scheduler.decay_type": "odd", "debug.profiler.schedule": (1,)}
    text = "\n".join(errors_of(data, settings))
    for key in settings:
        assert key in text, key


def test_every_declared_key_is_found_in_a_config(data):
    config = tiny_config(data)
    assign(config, ("optimizer", "parameter_groups", "biases", "lr_multiplier"), 1.0)
    assign(config, ("lr_scheduler", "parameter_groups", "biases", "name"), "linear")
    assign(config, ("model", "classification", "heads", "taxa_L10", "type"), "ConditionalClassifier")
    found = [rule for _, rule, _ in leaves(config)]
    for key, rule in declared().items():
        assert rule in found, key
        assert not isinstance(rule.choices, str) or rule.names(), key
