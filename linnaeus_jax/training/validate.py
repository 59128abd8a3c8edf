"""All that can be said about a configuration without data or devices."""

from __future__ import annotations

from ml_collections import ConfigDict

from linnaeus_jax.learning import augmentation
from linnaeus_jax.learning.losses import CRITERIA
from linnaeus_jax.models import model_variants
from linnaeus_jax.schedules.resolve import validate_schedule_config
from linnaeus_jax.training.remote_sync import bucket_errors

#: key -> values it may have
CHOICES = {
    "experiment.wandb.mode": ("online", "offline", "disabled"),
    "data.sampler.type": ("grouped", "standard"),
    "data.sampler.grouped_mode": ("mixed-pairs", "strict-group"),
    "data.sampler.leftovers": ("keep", "drop"),
    "data.upward_major_mode": ("all-finer", "no-gaps"),
    "train.compute_dtype": ("auto", "float32", "bfloat16"),
    "train.clip_mode": ("norm", "adaptive"),
    "model.depthwise_impl": ("auto", "lax", "shift"),
    "model.attn_impl": ("auto", "xla", "cudnn"),
    "model.rope_stages.rope_mode": ("rotary", "cos_only"),
    "model.rope_stages.rope_init": ("random_direction", "rope_vit"),
    "loss.grad_weighting.task.type": ("gradnorm", "static"),
    "loss.grad_weighting.task.init_strategy": ("inverse_density", "class_complexity"),
    "loss.grad_weighting.task.gradnorm_rule": ("mult", "paper"),
}
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
#: key -> smallest value
AT_LEAST = {
    "data.batch_size": 1,
    "data.img_size": 32,
    "data.num_workers": 0,
    "data.prefetch.mem_cache_size": 0,
    "data.prefetch.max_processed_batches": 1,
    "data.prefetch.num_io_threads": 0,
    "train.epochs": 1,
    "train.accumulation_steps": 0,
    "train.nonfinite_limit": 0,
    "train.seed": 0,
    "env.output.bucket.timeout_seconds": 1,
}
#: key -> closed range
WITHIN = {
    "data.h5.train_val_split_ratio": (0.0, 1.0),
    "data.parent_conflict_limit": (0.0, 1.0),
    "train.ema.decay": (0.0, 1.0),
    "model.label_smoothing": (0.0, 1.0),
}


def lookup(config: ConfigDict, key: str) -> object:
    node = config
    for part in key.split("."):
        node = node[part]
    return node


def config_errors(config: ConfigDict) -> list[str]:
    """Every problem of the configuration at once, each naming key, value and fix."""
    errors = []
    for key, choices in CHOICES.items():
        value = lookup(config, key)
        if value not in choices:
            errors.append(f"{key} = {value!r} is unknown; choose one of {', '.join(choices)}")
    for name in ("log_level_main", "log_level_h5data", "log_level_validation"):
        value = config.experiment[name]
        if value.upper() not in LOG_LEVELS:
            errors.append(f"experiment.{name} = {value!r} is unknown; choose one of {', '.join(LOG_LEVELS)}")
    for key, smallest in AT_LEAST.items():
        value = lookup(config, key)
        if value < smallest:  # type: ignore[operator]
            errors.append(f"{key} = {value} is too small; set it to {smallest} or more")
    for key, (low, high) in WITHIN.items():
        value = lookup(config, key)
        if not low <= value <= high:  # type: ignore[operator]
            errors.append(f"{key} = {value} is out of range; set it within [{low:g}, {high:g}]")
    errors += _model_errors(config)
    for split in ("train", "val"):
        for name in config.loss.task_specific[split].funcs:
            if name not in CRITERIA:
                errors.append(f"loss.task_specific.{split}.funcs holds {name!r}; choose among {', '.join(CRITERIA)}")
    errors += augmentation.validate(config.aug)
    errors += bucket_errors(config.env.output.bucket)
    errors += validate_schedule_config(config)
    return list(dict.fromkeys(errors))


def _model_errors(config: ConfigDict) -> list[str]:
    known = model_variants()
    model = config.model
    if model.type not in known:
        return [f"model.type = {model.type!r} is unknown; choose one of {', '.join(sorted(known))}"]
    errors = []
    if model.variant not in known[model.type]:
        errors.append(
            f"model.variant = {model.variant!r} is unknown for {model.type}; "
            f"choose one of {', '.join(known[model.type])}"
        )
    if model.in_chans != 3:
        errors.append(f"model.in_chans = {model.in_chans}, but images are RGB; set it to 3")
    size = model.img_size
    if size is not None and size != config.data.img_size:
        errors.append(
            f"model.img_size = {size} differs from data.img_size = {config.data.img_size}; leave model.img_size unset"
        )
    return errors
