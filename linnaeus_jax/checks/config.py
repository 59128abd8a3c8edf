"""All that can be said about a configuration without data or devices: every wrong value at once.

Types of single values are the business of whoever sets them (`config.tree`). The tables here say which values a key may
have; a key may contain `*` for the entries of an open node. What a part of the package checks about its own section is
asked for there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ml_collections import ConfigDict

from linnaeus_jax.checks.schedule import validate_schedule_config
from linnaeus_jax.config.derived import value_of
from linnaeus_jax.data.dataset import resolve_sources
from linnaeus_jax.data.metadata import component_layout, component_settings
from linnaeus_jax.data.samplers import SamplerSettings
from linnaeus_jax.data.splits import check_percentiles
from linnaeus_jax.debugging.profiler import schedule_errors
from linnaeus_jax.learning import augmentation
from linnaeus_jax.learning.class_weights import METHODS
from linnaeus_jax.learning.filters import parse_filter
from linnaeus_jax.learning.losses import CRITERIA
from linnaeus_jax.learning.optimizers import OPTIMIZERS
from linnaeus_jax.learning.task_weights import STRATEGIES
from linnaeus_jax.models import model_variants, stage_of
from linnaeus_jax.step.probes import registered_probes
from linnaeus_jax.step.program import model_from_config
from linnaeus_jax.taxonomy.ranks import check_task_order

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
#: key -> texts it may hold, in lower case
CHOICES: dict[str, Sequence[str]] = {
    "experiment.log_level_main": LOG_LEVELS,
    "experiment.log_level_h5data": LOG_LEVELS,
    "experiment.log_level_validation": LOG_LEVELS,
    "experiment.wandb.mode": ("online", "offline", "disabled"),
    "data.sampler.grouped_mode": ("mixed-pairs", "strict-group"),
    "data.sampler.leftovers": ("keep", "drop"),
    "data.upward_major_mode": ("all-finer", "no-gaps"),
    "train.compute_dtype": ("auto", "float32", "bfloat16"),
    "train.clip_mode": ("norm", "adaptive"),
    "model.depthwise_impl": ("auto", "lax", "shift"),
    "model.attn_impl": ("auto", "xla", "cudnn"),
    "model.rope_stages.rope_mode": ("rotary", "cos_only"),
    "model.rope_stages.rope_init": ("random_direction", "rope_vit"),
    "optimizer.name": OPTIMIZERS,
    "optimizer.parameter_groups.*.optimizer": ("", *OPTIMIZERS),
    "loss.grad_weighting.task.type": ("gradnorm", "static"),
    "loss.grad_weighting.task.init_strategy": STRATEGIES,
    "loss.grad_weighting.task.gradnorm_rule": ("mult", "paper"),
}
#: keys whose case does not matter
ANY_CASE = ("experiment.log_level_", "optimizer.")
#: key -> interval of the numbers it may hold (None always may)
WITHIN = {
    "env.output.bucket.timeout_seconds": "[1, inf)",
    "data.batch_size": "[1, inf)",
    "data.batch_size_per_device": "[1, inf)",
    "data.img_size": "[32, inf)",
    "data.num_workers": "[0, inf)",
    "data.worker_processes": "[0, inf)",
    "data.meta.components.*.dim": "[0, inf)",
    "data.h5.train_val_split_ratio": "[0, 1]",
    "data.h5.train_val_split_seed": "[0, 4294967295]",
    "data.hybrid.verify_images.max_missing_ratio": "(-inf, 1]",
    "data.hybrid.verify_images.chunk_size": "[1, inf)",
    "data.prefetch.mem_cache_size": "[0, inf)",
    "data.prefetch.max_processed_batches": "[1, inf)",
    "data.prefetch.num_io_threads": "[0, inf)",
    "data.parent_conflict_limit": "[0, 1]",
    "model.in_chans": "[3, 3]",
    "model.drop_rate": "[0, 1)",
    "model.attn_drop_rate": "[0, 1)",
    "model.drop_path_rate": "[0, 1)",
    "model.label_smoothing": "[0, 1)",
    "model.convnext_stages.layer_scale_init_value": "[0, inf)",
    "model.rope_stages.rope_theta": "(0, inf)",
    "train.epochs": "[1, inf)",
    "train.seed": "[0, inf)",
    "train.accumulation_steps": "[0, inf)",
    "train.clip_grad": "(-inf, inf)",
    "train.nonfinite_limit": "[0, inf)",
    "train.ema.decay": "[0, 1)",
    "optimizer.eps": "(0, inf)",
    "optimizer.momentum": "[0, 1)",
    "optimizer.weight_decay": "[0, inf)",
    "optimizer.alpha": "[0, inf)",
    "optimizer.t_alpha_beta3": "[0, inf)",
    "optimizer.muon.momentum": "[0, 1)",
    "optimizer.muon.ns_steps": "[1, inf)",
    "optimizer.layer_decay": "(0, 1]",
    "optimizer.parameter_groups.*.weight_decay": "[0, inf)",
    "optimizer.parameter_groups.*.lr_multiplier": "[0, inf)",
    "loss.taxonomy_smoothing.alpha": "[0, 1]",
    "loss.taxonomy_smoothing.beta": "[0, inf)",
    "loss.grad_weighting.task.alpha": "[0, inf)",
    "loss.grad_weighting.task.update_interval": "[1, inf)",
    "loss.grad_weighting.task.gradnorm_warmup_steps": "[0, inf)",
    "loss.grad_weighting.task.gradnorm_kappa": "(0, 1]",
    "loss.grad_weighting.task.gradnorm_lr": "(0, inf)",
    "schedule.mixup.alpha": "[0, inf)",
    "schedule.mixup.cutmix.alpha": "[0, inf)",
    "schedule.mixup.min_group_size": "[1, inf)",
    "schedule.mixup.mix_block": "[1, inf)",
    "debug.early_exit_after_n_optimizer_steps": "[0, inf)",
    "debug.underflow_overflow.max_frames_to_save": "[1, inf)",
    "debug.underflow_overflow.abort_after_batch_num": "[0, inf)",
}
#: keys that must hold a text
NOT_EMPTY = (
    "experiment.project",
    "experiment.name",
    "env.output.base_dir",
    "env.output.bucket.executable",
    "data.hybrid.verify_images.report_path",
    "debug.jsonl.dir",
    "debug.profiler.output_dir",
)


@dataclass(frozen=True)
class Items:
    """What a tuple may hold. `lengths` empty: any; `per_task`: one item, or one per task; `optional`: or none."""

    kind: type
    lengths: tuple[int, ...] = ()
    within: str = ""
    choices: Sequence[str] = ()
    per_task: bool = False
    optional: bool = False


_COUNTS = {"kind": int, "within": "[1, inf)", "optional": True}
#: key -> items of its tuple
TUPLES = {
    "experiment.wandb.tags": Items(str),
    "data.task_keys_h5": Items(str),
    "env.plugins": Items(str),
    "data.meta.components.*.columns": Items(str),
    "model.convnext_stages.depths": Items(lengths=(2, 4), **_COUNTS),  # type: ignore[arg-type]
    "model.convnext_stages.dims": Items(lengths=(4,), **_COUNTS),  # type: ignore[arg-type]
    "model.rope_stages.depths": Items(lengths=(2,), **_COUNTS),  # type: ignore[arg-type]
    "model.rope_stages.mlp_ratio": Items(float, lengths=(1, 2), within="(0, inf)"),
    "model.rope_stages.num_heads": Items(lengths=(2,), **_COUNTS),  # type: ignore[arg-type]
    "optimizer.betas": Items(float, lengths=(2, 3), within="[0, 1)"),
    "loss.task_specific.train.funcs": Items(str, choices=CRITERIA, per_task=True),
    "loss.task_specific.val.funcs": Items(str, choices=CRITERIA, per_task=True),
    "loss.taxonomy_smoothing.enabled": Items(bool, per_task=True, optional=True),
    "loss.grad_weighting.class_weights.method": Items(str, choices=METHODS, per_task=True),
    "loss.grad_weighting.class_weights.smoothing_factor": Items(float, within="(0, inf)", per_task=True),
    "loss.grad_weighting.class_weights.cap": Items(float, within="(0, inf)", per_task=True),
    "loss.grad_weighting.class_weights.base": Items(float, within="(0, inf)", per_task=True),
    "loss.grad_weighting.class_weights.log_base": Items(float, within="(1, inf)", per_task=True),
    "loss.grad_weighting.task.init_weights": Items(float, within="[0, inf)", optional=True),
    "aug.mean": Items(float, lengths=(3,)),
    "aug.std": Items(float, lengths=(3,), within="(0, inf)"),
    "aug.random_resized_crop.scale": Items(float, lengths=(2,)),
    "aug.random_resized_crop.ratio": Items(float, lengths=(2,)),
    "aug.random_erase.area_range": Items(float, lengths=(2,)),
    "aug.random_erase.aspect_ratio": Items(float, lengths=(2,)),
    "schedule.validation.partial_mask_meta.whitelist": Items(tuple),
    "schedule.validation.final_epoch.exhaustive_meta_components": Items(str),
    "schedule.meta_masking.partial.whitelist": Items(tuple),
    "schedule.meta_masking.partial.weights": Items(float, within="[0, inf)"),
    "schedule.mixup.cutmix.minmax": Items(float, lengths=(2,), within="[0, 1]", optional=True),
    "schedule.mixup.group_levels": Items(str),
    "schedule.mixup.level_switch_steps": Items(int, within="[1, inf)"),
    "schedule.mixup.level_switch_epochs": Items(int, within="[1, inf)"),
    "schedule.mixup.null_task_keys": Items(str),
    "metrics.taxa_subsets": Items(tuple),
    "metrics.rarity_percentiles": Items(float, within="[0, 100]"),
    "metrics.null_vs_non_null_tasks": Items(str),
    "debug.underflow_overflow.trace_batch_nums": Items(int, within="[0, inf)"),
    "debug.profiler.schedule": Items(int, lengths=(4,), within="[0, inf)"),
}
_KIND_NAMES = {int: "integers", float: "numbers", str: "texts", bool: "True or False", tuple: "tuples"}


def config_errors(config: ConfigDict) -> list[str]:
    """Every problem of the configuration at once, each naming key, value and fix. Touches neither files nor devices."""
    malformed = dict(_tuple_errors(config))
    errors = list(malformed.values())
    errors += [*_choice_errors(config), *_number_errors(config)]
    errors += [f"{key} is empty; give it a value" for key in NOT_EMPTY if not value_of(config, key)]
    checks: tuple[tuple[Callable[[ConfigDict], list[str]], tuple[str, ...]], ...] = (
        (_data_errors, ("data", "metrics", "schedule.mixup")),
        (_model_errors, ("model", "data")),
        (_loss_errors, ("loss.task_specific", "loss.taxonomy_smoothing", "loss.grad_weighting.task", "data")),
        (_optimizer_errors, ("optimizer",)),
        (lambda config: augmentation.validate(config.aug), ("aug",)),
        (_bucket_errors, ()),
        (validate_schedule_config, ("schedule", "data")),
        (lambda config: schedule_errors(config.debug.profiler.schedule), ("debug.profiler",)),
        (_probe_errors, ()),
    )
    for check, sections in checks:  # a section with a malformed tuple cannot be looked at any further
        if not any(key.startswith(f"{section}.") for key in malformed for section in sections):
            errors += check(config)
    return list(dict.fromkeys(errors))


def _probe_errors(config: ConfigDict) -> list[str]:
    try:
        registered_probes(config.debug.get("probes", {}))
    except ValueError as error:
        return [str(error)]
    return []


def _expand(config: ConfigDict, key: str) -> Iterator[tuple[str, Any]]:
    """(key, value) of a key of a table; `*` stands for every entry of an open node that has the rest."""
    node, _, rest = key.partition(".*.")
    if not rest:
        yield key, value_of(config, key)
        return
    section = value_of(config, node)
    for name in section:
        if isinstance(section[name], ConfigDict) and rest in section[name]:
            yield f"{node}.{name}.{rest}", section[name][rest]


def _inside(value: float, interval: str) -> bool:
    low, high = (float(text) for text in interval[1:-1].split(","))
    above = value > low if interval[0] == "(" else value >= low
    return above and (value < high if interval[-1] == ")" else value <= high)


def _interval_text(interval: str) -> str:
    low, high = (text.strip() for text in interval[1:-1].split(","))
    if low == high:
        return low
    if low == "-inf":
        return "finite" if high == "inf" else f"at most {high}"
    if high == "inf":
        return f"above {low}" if interval[0] == "(" else f"{low} or more"
    return f"within {interval}"


def _number_errors(config: ConfigDict) -> Iterator[str]:
    for pattern, interval in WITHIN.items():
        for key, value in _expand(config, pattern):
            if value is not None and not _inside(value, interval):
                yield f"{key} = {value} is out of range; it must be {_interval_text(interval)}"


def _choice_errors(config: ConfigDict) -> Iterator[str]:
    for pattern, choices in CHOICES.items():
        for key, value in _expand(config, pattern):
            if (value.lower() if key.startswith(ANY_CASE) else value) not in choices:
                yield f"{key} = {value!r} is unknown; choose one of {', '.join(filter(None, choices))}"


def _tuple_errors(config: ConfigDict) -> Iterator[tuple[str, str]]:
    """(key, error) of tuples with a wrong number or kind of items."""
    tasks = len(config.data.task_keys_h5)
    for pattern, items in TUPLES.items():
        for key, value in _expand(config, pattern):
            kinds = (int, float) if items.kind is float else items.kind
            lengths = {1, tasks} if items.per_task else set(items.lengths)
            if not all(isinstance(x, kinds) and (items.kind is bool or not isinstance(x, bool)) for x in value):
                yield key, f"{key} = {value!r} must be a tuple of {_KIND_NAMES[items.kind]}"
            elif lengths and len(value) not in lengths and not (items.optional and not value):
                wanted = " or ".join(map(str, sorted(lengths)))
                each = f", one per task of data.task_keys_h5 = {config.data.task_keys_h5}" if items.per_task else ""
                yield key, f"{key} = {value!r} has {len(value)} items; give {wanted}{each}"
            elif wrong := [x for x in value if items.choices and x not in items.choices]:
                yield key, f"{key} holds {wrong[0]!r}, which is unknown; choose among {', '.join(items.choices)}"
            elif wrong := [
                x for x in value if items.kind in (int, float) and not _inside(x, items.within or "(-inf, inf)")
            ]:
                text = _interval_text(items.within or "(-inf, inf)")
                yield key, f"{key} = {value!r} holds {wrong[0]}; each item must be {text}"


def _caught(check: Callable[[], object]) -> list[str]:
    """What a check of another part of the package raises."""
    try:
        check()
    except (ValueError, KeyError, TypeError) as error:
        return str(error.args[0] if error.args else error).splitlines()
    return []


def _bucket_errors(config: ConfigDict) -> list[str]:
    bucket = config.env.output.bucket
    if bucket.enabled and not bucket.remote:
        return ["env.output.bucket.enabled is True but env.output.bucket.remote is empty; name an rclone destination"]
    return []


def _data_errors(config: ConfigDict) -> list[str]:
    data, metrics, tasks = config.data, config.metrics, config.data.task_keys_h5
    errors = _caught(lambda: check_task_order(tasks)) + _caught(lambda: resolve_sources(data))
    errors += _caught(lambda: component_settings(data.meta))
    errors += _caught(lambda: check_percentiles(metrics.rarity_percentiles))
    if all(rows is None or rows >= 1 for rows in (data.batch_size, data.batch_size_per_device)):
        errors += _caught(lambda: SamplerSettings.from_config(config))
    named: dict[str, tuple[str, ...]] = {"schedule.mixup.null_task_keys": config.schedule.mixup.null_task_keys}
    if metrics.track_null_vs_non_null:
        named["metrics.null_vs_non_null_tasks"] = metrics.null_vs_non_null_tasks
    for key, names in named.items():
        if unknown := [name for name in names if name not in tasks]:
            errors.append(f"{key} names {unknown[0]!r}, which is not in data.task_keys_h5 = {tasks}; use its tasks")
    verify = data.hybrid.verify_images
    if verify.enabled and verify.max_missing_ratio < 0 and verify.max_missing_count < 0:
        errors.append(
            f"data.hybrid.verify_images.max_missing_ratio = {verify.max_missing_ratio} and max_missing_count = "
            f"{verify.max_missing_count} switch off both limits; set one to 0 or more, or enabled to False"
        )
    subsets = metrics.taxa_subsets
    for entry in subsets:
        kinds = tuple(map(type, entry))
        if kinds != (str, str, int):
            errors.append(f"metrics.taxa_subsets holds {entry!r}; each entry is (name, task, taxon id)")
    titles = [entry[0] for entry in subsets if entry]
    if len(set(titles)) != len(titles):
        errors.append(f"metrics.taxa_subsets = {subsets!r} uses a name twice; rename one of the entries")
    bounds = config.schedule.mixup.cutmix.minmax
    if bounds and bounds[0] > bounds[1]:
        errors.append(f"schedule.mixup.cutmix.minmax = {bounds} must be (low, high) with low <= high; swap them")
    return errors


def _model_errors(config: ConfigDict) -> list[str]:
    known, model, errors = model_variants(), config.model, []
    if model.type not in known:
        return [f"model.type = {model.type!r} is unknown; choose one of {', '.join(sorted(known))}"]
    if model.variant not in known[model.type]:
        variants = ", ".join(known[model.type])
        errors.append(f"model.variant = {model.variant!r} is unknown for {model.type}; choose one of {variants}")
    if model.img_size is not None and model.img_size != config.data.img_size:
        errors.append(
            f"model.img_size = {model.img_size} differs from data.img_size = {config.data.img_size}; "
            "leave model.img_size unset"
        )
    ranges = [*_number_errors(config), *_choice_errors(config)]
    if errors or any(error.startswith(("model.", "data.img_size")) for error in ranges):
        return errors
    # the builder has the last word; what it would ask the devices for is left out
    trial = config.copy_and_resolve_references()
    trial.train.compute_dtype, trial.model.attn_impl = "float32", "auto"

    def build() -> None:
        tasks = tuple(config.data.task_keys_h5)
        components = component_layout(component_settings(config.data.meta))
        model_from_config(
            trial,
            SimpleNamespace(components=components, tasks=tasks, num_classes=dict.fromkeys(tasks, 2)),  # type: ignore[arg-type]
        )

    return [error if error.startswith(("model.", "data.")) else f"model: {error}" for error in _caught(build)]


def _loss_errors(config: ConfigDict) -> list[str]:
    tasks, loss, errors = tuple(config.data.task_keys_h5), config.loss, []
    smoothed = tuple(loss.taxonomy_smoothing.enabled) or (False,)
    smoothed *= len(tasks) if len(smoothed) == 1 else 1
    for split in ("train", "val"):
        funcs = tuple(loss.task_specific[split].funcs)
        funcs *= len(tasks) if len(funcs) == 1 else 1
        rows = zip(tasks, funcs, smoothed, strict=True)
        if bare := [task for task, name, on in rows if name == "TaxonomyAwareLabelSmoothing" and not on]:
            errors.append(
                f"loss.task_specific.{split}.funcs = {loss.task_specific[split].funcs!r} asks for taxonomy smoothing; "
                f"set loss.taxonomy_smoothing.enabled to True for {', '.join(bare)}"
            )
    weighting = loss.grad_weighting.task
    weights = weighting.init_weights
    if weights and (len(weights) != len(tasks) or not math.fsum(weights) > 0):
        errors.append(
            f"loss.grad_weighting.task.init_weights = {weights!r} must hold one number per task of data.task_keys_h5 = "
            f"{tasks}, not all 0"
        )
    key = "loss.grad_weighting.task.exclude_config"
    return errors + _caught(lambda: parse_filter(weighting.exclude_config, key, stage_of=stage_of))


def _optimizer_errors(config: ConfigDict) -> list[str]:
    settings, groups, errors = config.optimizer, config.optimizer.parameter_groups, []
    names = [name for name in groups if name not in ("enabled", "default")] if groups.enabled else []
    for name in names:
        key = f"optimizer.parameter_groups.{name}.filter"
        errors += _caught(lambda name=name, key=key: parse_filter(groups[name].filter, key, stage_of=stage_of))  # type: ignore[misc]
    used = {settings.name.lower()} | {groups[name].optimizer.lower() for name in (*names, "default") if groups.enabled}
    if "ademamix" in used and len(settings.betas) < 3:
        errors.append(f"optimizer.betas = {settings.betas!r} has {len(settings.betas)} items; ademamix needs 3")
    return errors
