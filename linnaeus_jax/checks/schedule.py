"""Contradictions and values out of range in what the schedule reads of a configuration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any

from ml_collections import ConfigDict

from linnaeus_jax.config.derived import active_components, gradnorm_enabled, value_of
from linnaeus_jax.schedules.alternatives import all_sets, set_errors
from linnaeus_jax.schedules.early_stop import parse_metric_name, ranking_key
from linnaeus_jax.schedules.level_switching import configured_levels, level_switch_errors

LR_NAMES = ("cosine", "linear", "step", "wsd")
DECAY_TYPES = ("cosine", "linear")
TRIGGER_MODES = ("crossing", "exact")
_PROBABILITIES = (
    "schedule.meta_masking.start_prob",
    "schedule.meta_masking.end_prob",
    "schedule.meta_masking.partial.start_prob",
    "schedule.meta_masking.partial.end_prob",
    "schedule.null_masking.start_prob",
    "schedule.null_masking.end_prob",
    "schedule.mixup.prob.start_prob",
    "schedule.mixup.prob.end_prob",
    "schedule.mixup.switch_prob",
)
_POSITIVE = (
    "train.epochs",
    "lr_scheduler.reference_bs",
    "lr_scheduler.decay_rate",
)
_NOT_NEGATIVE = (
    "train.accumulation_steps",
    "lr_scheduler.base_lr",
    "lr_scheduler.min_lr",
    "lr_scheduler.warmup_lr",
    "lr_scheduler.stable_duration_fraction",
    "lr_scheduler.decay_duration_fraction",
    "schedule.checkpoint.keep_top_n",
    "schedule.checkpoint.keep_last_n",
    "train.early_stop.min_delta",
    "train.early_stop.max_steps",
)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(float(value))


def _number_errors(config: ConfigDict) -> Iterator[str]:
    for path in _POSITIVE:
        if not (_is_number(value_of(config, path)) and value_of(config, path) > 0):
            yield f"{path} = {value_of(config, path)!r} must be a number above 0"
    for path in _NOT_NEGATIVE:
        value = value_of(config, path)
        if value is not None and not (_is_number(value) and value >= 0):
            yield f"{path} = {value!r} must be a number, 0 or above"
    for path in _PROBABILITIES:
        value = value_of(config, path)
        if not (_is_number(value) and 0 <= value <= 1):
            yield f"{path} = {value!r} is a probability and must lie in [0, 1]"


def _choice_errors(config: ConfigDict) -> Iterator[str]:
    scheduler = config.lr_scheduler
    choices = {
        "lr_scheduler.name": (scheduler.name, LR_NAMES),
        "lr_scheduler.decay_type": (scheduler.decay_type, DECAY_TYPES),
        "lr_scheduler.scaling": (scheduler.scaling, ("linear", "sqrt")),
        "schedule.step_trigger_mode": (config.schedule.step_trigger_mode, TRIGGER_MODES),
    }
    for group in scheduler.parameter_groups:
        if group == "enabled":
            continue
        node, path = scheduler.parameter_groups[group], f"lr_scheduler.parameter_groups.{group}"
        if node.get("name") is not None:
            choices[f"{path}.name"] = (node.name, LR_NAMES)
        for key in ("min_lr", "warmup_lr", "decay_rate"):
            value = node.get(key)
            if value is not None and not (_is_number(value) and (value > 0 or (value == 0 and key != "decay_rate"))):
                yield f"{path}.{key} = {value!r} must be a positive number, or None to inherit lr_scheduler.{key}"
    for path, (value, allowed) in choices.items():
        if str(value).lower() not in allowed:
            yield f"{path} = {value!r} is unknown; use one of {', '.join(allowed)}"
    groups = config.optimizer.parameter_groups
    for group in groups if groups.enabled else ():
        if group != "enabled" and not (_is_number(groups[group].lr_multiplier) and groups[group].lr_multiplier >= 0):
            yield (
                f"optimizer.parameter_groups.{group}.lr_multiplier = {groups[group].lr_multiplier!r} "
                f"must be a number, 0 or above"
            )


def _combination_errors(
    config: ConfigDict, path: str, combos: Sequence[Sequence[str]], required: bool
) -> Iterator[str]:
    known = active_components(config.data.meta)
    seen = set()
    for combo in combos:
        if isinstance(combo, str):
            yield f"{path} holds {combo!r}; each entry is a tuple of component names, e.g. ({combo!r},)"
            continue
        unknown = [name for name in combo if name not in known]
        if unknown and required:
            yield (
                f"{path} names {', '.join(map(repr, unknown))}, but the components in use are "
                f"{', '.join(known) or 'none'} (data.meta.active = {config.data.meta.active}); "
                f"set data.meta.components.{unknown[0]}.enabled = True and its idx to 0 or more, or remove the entry"
            )
        if frozenset(combo) in seen:
            yield f"{path} holds the combination {tuple(combo)} twice; remove one"
        seen.add(frozenset(combo))


def _masking_errors(config: ConfigDict) -> Iterator[str]:
    partial, validation = config.schedule.meta_masking.partial, config.schedule.validation
    path = "schedule.meta_masking.partial"
    yield from _combination_errors(config, f"{path}.whitelist", partial.whitelist, partial.enabled)
    if partial.weights:
        if len(partial.weights) != len(partial.whitelist):
            yield (
                f"{path}.weights has {len(partial.weights)} entries and {path}.whitelist {len(partial.whitelist)}; "
                f"give one weight per combination, or none for equal weights"
            )
        numbers = all(_is_number(weight) and weight >= 0 for weight in partial.weights)
        if not numbers or sum(partial.weights) <= 0:
            yield f"{path}.weights = {tuple(partial.weights)} must be numbers of 0 or above with a positive sum"
    path = "schedule.validation.partial_mask_meta"
    whitelist = validation.partial_mask_meta.whitelist
    yield from _combination_errors(config, f"{path}.whitelist", whitelist, validation.partial_mask_meta.enabled)
    final, path = validation.final_epoch, "schedule.validation.final_epoch"
    if final.exhaustive_partial_meta_validation:
        components = tuple(final.exhaustive_meta_components)
        if not components:
            yield (
                f"{path}.exhaustive_partial_meta_validation = True needs components; "
                f"list them in {path}.exhaustive_meta_components"
            )
        combos = [(component,) for component in components]
        yield from _combination_errors(config, f"{path}.exhaustive_meta_components", combos, True)


def _mixing_errors(config: ConfigDict) -> Iterator[str]:
    mixup, tasks = config.schedule.mixup, tuple(config.data.task_keys_h5)
    if not mixup.group_levels and (mixup.enabled or mixup.cutmix.enabled) and mixup.prob.enabled:
        yield "schedule.mixup.group_levels is empty; name at least one rank, e.g. ('taxa_L10',), or switch mixing off"
    else:
        yield from level_switch_errors(configured_levels(config), mixup.level_switch_steps, mixup.level_switch_epochs)
    unknown = [level for level in mixup.group_levels if level not in tasks]
    if unknown and tasks:
        yield f"schedule.mixup.group_levels names {unknown}, but data.task_keys_h5 = {tasks}; use ranks of that list"


def _early_stop_errors(config: ConfigDict) -> Iterator[str]:
    stop = config.train.early_stop
    if stop.active:
        try:
            parse_metric_name(
                stop.metric, tasks=config.data.task_keys_h5, components=active_components(config.data.meta)
            )
        except ValueError as error:
            yield f"train.early_stop.metric = {error}"
    try:
        ranking_key(config, active_components(config.data.meta))
    except ValueError as error:
        yield f"schedule.checkpoint.best_metric = {error}"
    for key in ("max_loss", "min_lr", "max_grad_norm"):
        if stop[key] is not None and not _is_number(stop[key]):
            yield f"train.early_stop.{key} = {stop[key]!r} must be a finite number, or None to switch it off"


def validate_schedule_config(config: ConfigDict) -> list[str]:
    """Every contradiction and every value out of range in what the schedule reads; empty if there is none.

    Each text names key, value and fix. Only the configuration is looked at: no data, no device.
    """
    errors = [error for alternatives in all_sets(config) for error in set_errors(config, alternatives)]
    for check in (_number_errors, _choice_errors, _masking_errors, _mixing_errors, _early_stop_errors):
        errors += check(config)
    task, accumulation = config.loss.grad_weighting.task, max(1, config.train.accumulation_steps)
    if gradnorm_enabled(config) and task.update_interval < accumulation:
        errors.append(
            f"loss.grad_weighting.task.update_interval = {task.update_interval} is below train.accumulation_steps = "
            f"{accumulation}; raise it to at least {accumulation}"
        )
    return errors
