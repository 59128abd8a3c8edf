"""Which values a key of the configuration may have, one row per key, and the errors of those that have others.

A key may contain `*` for the entries of an open node. Types of single values are checked where they are set
(`config.tree`); a model family checks its own keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ml_collections import ConfigDict

from linnaeus_jax.config.derived import value_of
from linnaeus_jax.config.saved import flatten
from linnaeus_jax.data.class_balance import CLASS_BALANCE
from linnaeus_jax.data.preprocessing import INTERPOLATIONS, LEAST_CROP, RESIZE_MODES
from linnaeus_jax.learning.class_weights import METHODS
from linnaeus_jax.learning.gradnorm import RULES
from linnaeus_jax.learning.losses import LOSSES
from linnaeus_jax.learning.task_weights import STRATEGIES
from linnaeus_jax.learning.transforms import OPTIMIZERS
from linnaeus_jax.registry import SCHEDULES, Registry

#: fixed names, or a registry, whose names are looked up when a configuration is checked
Names = Sequence[str] | Mapping[str, Any] | Registry[Any]

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
#: key -> texts it may hold
CHOICES: dict[str, Names] = {
    "experiment.log_level_main": LOG_LEVELS,
    "experiment.log_level_h5data": LOG_LEVELS,
    "experiment.log_level_validation": LOG_LEVELS,
    "experiment.wandb.mode": ("online", "offline", "disabled"),
    "data.resize_mode": RESIZE_MODES,
    "data.interpolation": INTERPOLATIONS,
    "data.sampler.grouped_mode": ("mixed-pairs", "strict-group"),
    "data.sampler.leftovers": ("keep", "drop"),
    "data.sampler.class_balance": CLASS_BALANCE,
    "data.upward_major_mode": ("all-finer", "no-gaps"),
    "train.compute_dtype": ("auto", "float32", "bfloat16"),
    "train.matmul_precision": ("auto", "tensorfloat32", "float32"),
    "train.clip_mode": ("norm", "adaptive"),
    "lr_scheduler.name": SCHEDULES,
    "lr_scheduler.parameter_groups.*.name": SCHEDULES,
    "lr_scheduler.decay_type": ("cosine", "linear"),
    "lr_scheduler.scaling": ("linear", "sqrt"),
    "optimizer.name": OPTIMIZERS,
    "optimizer.parameter_groups.*.optimizer": OPTIMIZERS,
    "loss.grad_weighting.task.type": ("gradnorm", "static"),
    "loss.grad_weighting.task.init_strategy": STRATEGIES,
    "loss.grad_weighting.task.gradnorm_rule": RULES,
    "schedule.step_trigger_mode": ("crossing", "exact"),
}
#: keys that also hold one of these texts in other case
ANY_CASE = ("experiment.log_level_", "optimizer.", "lr_scheduler.", "schedule.step_trigger_mode")
#: key -> interval of the numbers it may hold (None always may)
WITHIN = {
    "env.output.bucket.timeout_seconds": "[1, inf)",
    "data.batch_size": "[1, 1048576]",
    "data.batch_size_per_device": "[1, 1048576]",
    "data.autobatch.target_memory_fraction": "(0, 1]",
    "data.autobatch.min_batch_size": "[1, 1048576]",
    "data.autobatch.max_batch_size": "[1, 1048576]",
    "data.autobatch.device_memory_gb": "[0, inf)",
    "data.img_size": "[32, 4096]",
    "data.crop_fraction": f"[{LEAST_CROP}, 1]",
    "data.num_workers": "[0, 1024]",
    "data.worker_processes": "[0, 1024]",
    "data.meta.components.*.dim": "[0, inf)",
    "data.h5.train_val_split_ratio": "[0, 1]",
    "data.h5.train_val_split_seed": "[0, 4294967295]",
    "data.hybrid.verify_images.max_missing_ratio": "(-inf, 1]",
    "data.hybrid.verify_images.num_workers": "[0, 1024]",
    "data.hybrid.verify_images.chunk_size": "[1, inf)",
    "data.prefetch.mem_cache_size": "[0, inf)",
    "data.prefetch.max_processed_batches": "[1, 1024]",
    "data.prefetch.num_io_threads": "[0, 1024]",
    "data.parent_conflict_limit": "[0, 1]",
    "model.label_smoothing": "[0, 1)",
    "train.epochs": "[1, 100000]",
    "train.seed": "[0, 4294967295]",
    "train.tune_views": "[0, 1000]",
    "train.accumulation_steps": "[0, 65536]",
    "train.clip_grad": "(-inf, inf)",
    "train.nonfinite_limit": "[0, inf)",
    "train.ema.decay": "[0, 1)",
    "train.early_stop.min_delta": "[0, inf)",
    "train.early_stop.max_steps": "[0, inf)",
    "train.early_stop.max_loss": "(-inf, inf)",
    "train.early_stop.min_lr": "(-inf, inf)",
    "train.early_stop.max_grad_norm": "(-inf, inf)",
    "lr_scheduler.base_lr": "[0, inf)",
    "lr_scheduler.reference_bs": "(0, inf)",
    "lr_scheduler.min_lr": "[0, inf)",
    "lr_scheduler.warmup_lr": "[0, inf)",
    "lr_scheduler.decay_rate": "(0, inf)",
    "lr_scheduler.stable_duration_fraction": "[0, 1]",
    "lr_scheduler.decay_duration_fraction": "[0, 1]",
    "lr_scheduler.parameter_groups.*.min_lr": "[0, inf)",
    "lr_scheduler.parameter_groups.*.warmup_lr": "[0, inf)",
    "lr_scheduler.parameter_groups.*.decay_rate": "(0, inf)",
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
    "schedule.checkpoint.keep_top_n": "[0, inf)",
    "schedule.checkpoint.keep_last_n": "[0, inf)",
    "schedule.meta_masking.start_prob": "[0, 1]",
    "schedule.meta_masking.end_prob": "[0, 1]",
    "schedule.meta_masking.partial.start_prob": "[0, 1]",
    "schedule.meta_masking.partial.end_prob": "[0, 1]",
    "schedule.null_masking.start_prob": "[0, 1]",
    "schedule.null_masking.end_prob": "[0, 1]",
    "schedule.mixup.prob.start_prob": "[0, 1]",
    "schedule.mixup.prob.end_prob": "[0, 1]",
    "schedule.mixup.switch_prob": "[0, 1]",
    "schedule.mixup.alpha": "[0, inf)",
    "schedule.mixup.cutmix.alpha": "[0, inf)",
    "schedule.mixup.min_group_size": "[1, inf)",
    "schedule.mixup.mix_block": "[1, inf)",
    "debug.early_exit_after_n_optimizer_steps": "[0, inf)",
    "debug.stall_seconds": "[0, inf)",
    "debug.underflow_overflow.max_frames_to_save": "[1, inf)",
    "debug.underflow_overflow.abort_after_batch_num": "[0, inf)",
}
#: sizes of numbers of every key; float32 holds no larger ones
MAX_INTEGER = 10**12
MAX_FLOAT = 3.4e38
#: upper bounds from here on only keep nonsense away, and are not shown to who is below the lower one
FAR = 1000
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
    choices: Names = ()
    per_task: bool = False
    optional: bool = False


#: key -> items of its tuple
TUPLES = {
    **dict.fromkeys(
        [f"model.convnext_stages.{name}" for name in ("depths", "dims")]
        + [f"model.rope_stages.{name}" for name in ("depths", "num_heads")]
        + [f"model.conv_stages.{name}" for name in ("embed_dims", "out_channels", "depths")]
        + [f"model.attention_stages.{name}" for name in ("dims", "depths", "num_heads")],
        Items(int),
    ),
    **dict.fromkeys([f"model.{name}_stages.stride_seqs" for name in ("conv", "attention")], Items(tuple)),
    "model.trunks": Items(tuple),
    "model.features": Items(str),
    **dict.fromkeys(["model.drop_rate", "model.attn_drop_rate"], Items(float)),
    **dict.fromkeys([f"model.{name}_stages.mlp_ratio" for name in ("rope", "attention")], Items(float, lengths=(1, 2))),
    "experiment.wandb.tags": Items(str),
    "data.task_keys_h5": Items(str),
    "env.plugins": Items(str),
    "data.meta.components.*.columns": Items(str),
    "optimizer.betas": Items(float, lengths=(2, 3), within="[0, 1)"),
    "loss.task_specific.train.funcs": Items(str, choices=LOSSES, per_task=True),
    "loss.task_specific.val.funcs": Items(str, choices=LOSSES, per_task=True),
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
    "schedule.validation.final_epoch.exhaustive_meta_components": Items(str),
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


def expand(config: ConfigDict, key: str) -> Iterator[tuple[str, Any]]:
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
    if high == "inf" or float(high) >= FAR:  # the other bound is far away
        return f"above {low}" if interval[0] == "(" else f"{low} or more"
    return f"within {interval}"


def size_errors(config: ConfigDict, errors: Sequence[str]) -> list[str]:
    """Numbers that are too large for any key, each text beginning with its key, but for those that `errors` name."""
    found = []
    for key, value in flatten(config.to_dict()).items():
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            found.append(f"{key} = {str(value)[:20]}... is out of range; integers are at most {MAX_INTEGER}")
        elif isinstance(value, float) and not abs(value) <= MAX_FLOAT:
            found.append(f"{key} = {value} is out of range; numbers are finite and at most {MAX_FLOAT:g}")
    return [error for error in found if not any(error.partition(" ")[0] in other for other in errors)]


def value_errors(config: ConfigDict) -> Iterator[str]:
    """Numbers out of range and unknown names, each text beginning with its key."""
    for pattern, interval in WITHIN.items():
        for key, value in expand(config, pattern):
            if value is not None and not _inside(value, interval):
                high = interval[1:-1].split(",")[1].strip()
                text = f"at most {high}" if FAR <= float(high) < value else _interval_text(interval)
                yield f"{key} = {value} is out of range; it must be {text}"
    for pattern, choices in CHOICES.items():
        for key, value in expand(config, pattern):
            inherited = "*" in pattern and not value  # of an entry of an open node
            if not inherited and value not in choices and not (key.startswith(ANY_CASE) and value.lower() in choices):
                yield f"{key} = {value!r} is unknown; choose one of {', '.join(choices)}"


def tuple_errors(config: ConfigDict) -> Iterator[tuple[str, str]]:
    """(key, error) of tuples with a wrong number or kind of items."""
    tasks = len(config.data.task_keys_h5)
    for pattern, items in TUPLES.items():
        for key, given in expand(config, pattern):
            value = given if isinstance(given, tuple | list) else (given,)
            kinds = (int, float) if items.kind is float else items.kind
            lengths = {1, tasks} if items.per_task else set(items.lengths)
            if not all(isinstance(x, kinds) and (items.kind is bool or not isinstance(x, bool)) for x in value):
                yield key, f"{key} = {value!r} must be a tuple of {_KIND_NAMES[items.kind]}"
            elif lengths and len(value) not in lengths and not (items.optional and not value):
                counts = " or ".join(map(str, sorted(lengths)))
                each = f", one per task of data.task_keys_h5 = {config.data.task_keys_h5}" if items.per_task else ""
                yield key, f"{key} = {value!r} has {len(value)} items; give {counts}{each}"
            elif wrong := [x for x in value if items.choices and x not in items.choices]:
                yield key, f"{key} holds {wrong[0]!r}, which is unknown; choose among {', '.join(items.choices)}"
            elif wrong := [
                x for x in value if items.kind in (int, float) and not _inside(x, items.within or "(-inf, inf)")
            ]:
                text = _interval_text(items.within or "(-inf, inf)")
                yield key, f"{key} = {value!r} holds {wrong[0]}; each item must be {text}"


def caught(check: Callable[[], object]) -> list[str]:
    """The message, by lines, of what a check of another subpackage raises."""
    try:
        check()
    except ValueError as error:
        return str(error).splitlines()
    return []
