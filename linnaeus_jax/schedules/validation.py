"""Checks of the schedule: contradictions in the configuration, and plans that are valid but unlikely to be meant."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from numbers import Real
from typing import Any

from ml_collections import ConfigDict

from linnaeus_jax.config.components import active_components
from linnaeus_jax.schedules.alternatives import all_sets, get_node, set_errors
from linnaeus_jax.schedules.early_stop import parse_metric_name, ranking_key
from linnaeus_jax.schedules.level_switching import configured_levels, level_switch_errors
from linnaeus_jax.schedules.resolved import LearningRateSpec, ResolvedSchedule
from linnaeus_jax.schedules.triggers import Stage, due_at_boundary, firing_epochs, interval_epochs, phases_of

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


def component_order(config: ConfigDict) -> tuple[str, ...]:
    """Names of the metadata components in use, in the order of the metadata vector."""
    return active_components(config.data.meta)


def _value(config: ConfigDict, path: str) -> Any:
    node, key = path.rsplit(".", 1)
    return get_node(config, node)[key]


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(float(value))


def _number_errors(config: ConfigDict) -> Iterator[str]:
    for path in _POSITIVE:
        if not (_is_number(_value(config, path)) and _value(config, path) > 0):
            yield f"{path} = {_value(config, path)!r} must be a number above 0"
    for path in _NOT_NEGATIVE:
        value = _value(config, path)
        if value is not None and not (_is_number(value) and value >= 0):
            yield f"{path} = {value!r} must be a number, 0 or above"
    for path in _PROBABILITIES:
        value = _value(config, path)
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
    known = component_order(config)
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
            parse_metric_name(stop.metric, tasks=config.data.task_keys_h5, components=component_order(config))
        except ValueError as error:
            yield f"train.early_stop.metric = {error}"
    try:
        ranking_key(config, component_order(config))
    except ValueError as error:
        yield f"schedule.checkpoint.best_metric = {error}"
    for key in ("max_loss", "min_lr", "max_grad_norm"):
        if stop[key] is not None and not _is_number(stop[key]):
            yield f"train.early_stop.{key} = {stop[key]!r} must be a finite number, or None to switch it off"


def gradnorm_enabled(config: ConfigDict) -> bool:
    task = config.loss.grad_weighting.task
    return bool(task.gradnorm_enabled) and task.type == "gradnorm"


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


def _lr_findings(spec: LearningRateSpec, total: int) -> Iterator[str]:
    who = f"group {spec.group!r}"
    if spec.warmup_steps >= total:
        yield f"{who}: warmup takes {spec.warmup_steps} of {total} updates, so only the ramp is seen"
    elif spec.warmup_steps >= total / 2:
        yield f"{who}: warmup takes {spec.warmup_steps} of {total} updates, half of the run or more"
    if spec.name == "step" and not spec.drops():
        yield f"{who}: the step schedule never drops within {total} updates"
    if spec.name == "wsd" and spec.stable_steps + spec.decay_steps > spec.decay_span:
        yield (
            f"{who}: stable and decay phase take {spec.stable_steps} + {spec.decay_steps} of {spec.decay_span} updates "
            f"after warmup, so training ends before lr_scheduler.min_lr is reached"
        )


def _interval_findings(resolved: ResolvedSchedule) -> Iterator[str]:
    validation, total, epochs = resolved.validation, resolved.total_steps, resolved.epochs
    named = {
        "validation": ("schedule.validation.interval", validation.normal),
        "mask-meta validation": ("schedule.validation.mask_meta_interval", validation.mask_meta),
        "partial-mask validation": ("schedule.validation.partial_mask_meta.interval", validation.partial),
        "checkpoint": ("schedule.checkpoint.interval", resolved.checkpoint.interval),
    }
    final = due_at_boundary(resolved, epochs - 1, total, resolved.totals.boundaries[-2] if epochs > 1 else 0)
    at_end = {"validation": Stage.VALIDATION_NORMAL in final.stages, "checkpoint": final.save}
    validated = any(fired for stage, fired in firing_epochs(resolved).items() if stage != "CHECKPOINT")
    for name, (path, interval) in named.items():
        regular = interval_epochs(resolved, interval)
        if interval.unit == "off":
            if name == "checkpoint" and validated:
                yield f"no checkpoint interval ({path}_*): one before every validation only"
            elif name in at_end:
                rest = "one at the end only" if at_end[name] else "none at all"
                yield f"no {name} interval ({path}_*): {rest}"
            elif name == "mask-meta validation" and validation.normal.unit != "off" and validation.has_metadata:
                yield f"validation is scheduled, but no mask-meta validation ({path}_*)"
            elif name == "partial-mask validation" and validation.partial_enabled:
                yield f"partial-mask validation is enabled without an interval ({path}_*), so it never runs"
            continue
        if not regular:
            yield f"{path}_{interval.unit} = {interval.value} never fires within {epochs} epochs ({total} updates)"
        elif interval.unit == "steps" and interval.steps > total / 4:
            yield f"{path}_steps = {interval.steps} is over a quarter of {total} updates: {len(regular)} regular runs"
        if not at_end.get(name, True):
            yield f"the final epoch has no {name}; set {path.rsplit('.', 1)[0]}.at_end = True"
    explicit = [(path, interval.unit) for path, interval in named.values() if interval.explicit]
    by_epochs = [path for path, unit in explicit if unit == "epochs"]
    by_steps = [path for path, unit in explicit if unit in ("steps", "fraction")]
    if by_epochs and by_steps:
        yield f"{', '.join(by_epochs)} is given in epochs and {', '.join(by_steps)} in steps"


def _probability_findings(resolved: ResolvedSchedule) -> Iterator[str]:
    total, partial = resolved.total_steps, resolved.partial_masking
    ramps = {
        "schedule.meta_masking": resolved.meta_masking,
        "schedule.meta_masking.partial (probability)": partial.prob,
        "schedule.null_masking": resolved.null_masking,
        "schedule.mixup.prob": resolved.mixing.prob,
    }
    for name, ramp in ramps.items():
        if ramp.enabled and ramp.end_steps > total and ramp.start != ramp.end:
            yield f"{name} ends at update {ramp.end_steps}, beyond the {total} updates of the run"
    if partial.enabled:
        if not partial.whitelist:
            yield "schedule.meta_masking.partial is enabled with an empty whitelist, so nothing is masked"
        if partial.start_steps >= min(total, total if partial.end_steps is None else partial.end_steps):
            window = f"{partial.start_steps} to {'the end' if partial.end_steps is None else partial.end_steps}"
            yield f"the window of schedule.meta_masking.partial, {window}, is empty within {total} updates"
    if resolved.validation.partial_enabled and not resolved.validation.whitelist:
        yield "schedule.validation.partial_mask_meta is enabled with an empty whitelist, so nothing is run"
    unused = [level for level in resolved.mixing.group_levels if level not in resolved.mixing.level_of_epoch]
    if unused:
        yield (
            f"schedule.mixup.group_levels: {', '.join(unused)} is used in no epoch; name switches within the run in "
            f"schedule.mixup.level_switch_epochs or level_switch_steps"
        )


def _early_stop_findings(resolved: ResolvedSchedule) -> Iterator[str]:
    stop, total = resolved.early_stop, resolved.total_steps
    if not stop.active:
        return
    if stop.max_steps is not None and stop.max_steps > total:
        yield f"train.early_stop.max_steps = {stop.max_steps} is beyond the {total} updates of the run"
    if stop.max_loss is not None and not stop.is_loss:
        yield f"train.early_stop.max_loss has no effect on {stop.phase}/{stop.metric}, which is no loss"
    if stop.phase == "train":
        seen: tuple[int, ...] = tuple(range(resolved.epochs))
    else:
        fired = firing_epochs(resolved)
        stages = [Stage(name) for name in fired if name != "CHECKPOINT"]
        with_phase = [s for s in stages if stop.phase in {phase.name for phase in phases_of(resolved, s)}]
        seen = tuple(sorted({epoch for stage in with_phase for epoch in fired[stage]}))
    if not seen:
        yield f"train.early_stop.metric watches phase {stop.phase}, which is never run"
        return
    ends = [resolved.totals.boundaries[epoch] for epoch in seen]
    spacing = max([ends[0]] + [b - a for a, b in pairwise(ends)])
    if stop.patience_steps and stop.patience_steps < spacing:
        yield (
            f"early-stop patience of {stop.patience_steps} updates is shorter than the {spacing} updates between "
            f"runs of phase {stop.phase}"
        )


def validate_schedule_sanity(resolved: ResolvedSchedule) -> list[str]:
    """Warnings about a valid schedule: what never fires, is cut off, is clamped or was decided by a fall-back."""
    totals, total = resolved.totals, resolved.total_steps
    found = list(resolved.notes)
    if totals.reference_bs != 512:
        found.append(f"lr_scheduler.reference_bs = {totals.reference_bs} differs from the usual 512")
    for spec in resolved.learning_rates:
        if not spec.frozen:
            found += _lr_findings(spec, total)
    if all(spec.frozen or spec.peak == 0 for spec in resolved.learning_rates):
        found.append("every learning rate is 0: this run trains nothing and only evaluates")
    found += _interval_findings(resolved)
    found += _probability_findings(resolved)
    found += _early_stop_findings(resolved)
    silent = [f"{stream} (every {interval})" for stream, interval in resolved.logging.items() if interval > total]
    if silent:
        found.append(
            f"schedule.metrics: {', '.join(silent)} records nothing within {total} updates; lower these intervals, or "
            f"set them to 0"
        )
    every, logged = resolved.gradnorm.interval, resolved.logging["step"]
    if resolved.gradnorm.enabled and every <= logged:
        found.append(
            f"GradNorm changes the task weights every {every} updates, but metrics are recorded every {logged}: "
            f"divergence may stay hidden"
        )
    return found
