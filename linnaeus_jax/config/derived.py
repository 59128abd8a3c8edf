"""What several subpackages derive from the configuration, each rule once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ml_collections import ConfigDict

from linnaeus_jax.config.typed import Config
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.registry import MODELS
from linnaeus_jax.system import file_name

#: `data.batch_size` where neither key of a batch size is given
DEFAULT_BATCH_SIZE = 64
#: group of the parameters that stored inputs have passed already
STORED_GROUP = "stored"
#: null labels that do not train: none of them, each with a probability that changes, or all
NullMasking = Literal["off", "scheduled", "always"]


def active_components(meta: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the components of `data.meta` that are enabled with `idx` >= 0, by ascending `idx`.

    None where `data.meta.active` is False.
    """
    components = meta["components"]
    used = [name for name in components if components[name]["enabled"] and components[name]["idx"] >= 0]
    return tuple(sorted(used, key=lambda name: (components[name]["idx"], name))) if meta["active"] else ()


def architecture(config: Config) -> str:
    """Name of the model: its family and, where the family has any, its variant."""
    model = config.model
    return f"{model.type}_{model.variant}" if MODELS[model.type].variants else str(model.type)


def global_batch_size(config: Config, devices: int) -> int:
    """Rows of one micro-batch over all devices of all processes.

    Raises:
      ValueError: both `data.batch_size` and `data.batch_size_per_device` are given.
    """
    whole, share = config.data.batch_size, config.data.batch_size_per_device
    if share is None:
        return DEFAULT_BATCH_SIZE if whole is None else whole
    if whole is not None:
        raise InputError(
            f"data.batch_size = {whole} (rows over all devices) and data.batch_size_per_device = {share} are both "
            "given; set one of them to None"
        )
    return share * devices


def forms_groups(sampler: str) -> bool:
    """Whether the sampler of that name gives rows a partner of their group; without one, nothing is mixed."""
    return sampler == "grouped"


def wants_mixing(config: Config) -> bool:
    """Whether the three switches of mixing are on."""
    mixup = config.schedule.mixup
    return mixup.prob.enabled and (mixup.enabled or mixup.cutmix.enabled)


def mixes(config: Config) -> bool:
    """Whether pictures are ever mixed in training."""
    return wants_mixing(config) and forms_groups(config.data.sampler.type)


def null_masking(config: Config) -> NullMasking:
    """Which null labels the training loss leaves out; `train.phase1_mask_null_loss` counts before the schedule."""
    if config.train.phase1_mask_null_loss:
        return "always"
    return "scheduled" if config.schedule.null_masking.enabled else "off"


def stores_inputs(config: Config) -> bool:
    """Whether what the first blocks make of the pictures is stored, and the rest trains on it."""
    return bool(config.train.tune != "full")


def gradnorm_enabled(config: Config) -> bool:
    """Whether GradNorm moves the task weights."""
    task = config.loss.grad_weighting.task
    return bool(task.gradnorm_enabled) and task.type == "gradnorm"


def default_workdir(config: Config | ConfigDict) -> Path:
    """The directory of a run without --workdir: `<env.output.base_dir>/<project>/<group>/<name>`.

    Characters that some system refuses in a name are replaced, unless an earlier version has made that directory.
    """
    base, names = Path(config.env.output.base_dir), config.experiment
    parts = [part for name in (names.project, names.group, names.name) for part in name.split("/") if part]
    return earlier if (earlier := base.joinpath(*parts)).is_dir() else base.joinpath(*map(file_name, parts))
