"""Contradictions in what the schedule reads of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from linnaeus_jax.config.derived import STORED_GROUP, active_components, gradnorm_enabled, stores_inputs, wants_mixing
from linnaeus_jax.config.typed import Config
from linnaeus_jax.registry import SCHEDULES
from linnaeus_jax.schedules.early_stop import parse_metric_name, ranking_key
from linnaeus_jax.schedules.kinds import configured_kind
from linnaeus_jax.schedules.level_switching import configured_levels, level_switch_errors

#: (rules between keys, the beginnings of what they read: none of it may be wrong by itself)
Rule = tuple[Callable[[Config], Iterable[str]], tuple[str, ...]]


def error_lines(check: Callable[[], object]) -> list[str]:
    """The message, by lines, of what a check of another subpackage raises."""
    try:
        check()
    except ValueError as error:
        return str(error).splitlines()
    return []


def _kind_errors(config: Config) -> Iterator[str]:
    scheduler, groups = config.lr_scheduler, config.lr_scheduler.parameter_groups
    names = [scheduler.name, *(groups[group].name for group in groups if group != "enabled")]
    for name in dict.fromkeys(filter(None, names)):
        if name in SCHEDULES or name.lower() in SCHEDULES:
            yield from (
                f"lr_scheduler.{name}: {text}" for text in error_lines(partial(configured_kind, scheduler, name))
            )


def _group_errors(config: Config) -> Iterator[str]:
    """Schedules of parameter groups that there are not."""
    overrides, groups = config.lr_scheduler.parameter_groups, config.optimizer.parameter_groups
    names = [name for name in groups if name not in ("enabled", "default")] if groups.enabled else []
    if STORED_GROUP in names and stores_inputs(config):
        yield (
            f"optimizer.parameter_groups.{STORED_GROUP} has the name of what does not train with train.tune = "
            f"{config.train.tune!r}; give it another one"
        )
    for name in overrides if overrides.enabled else ():
        if name not in ("enabled", "default", *names):
            yield (
                f"lr_scheduler.parameter_groups.{name} matches no optimizer group ({', '.join([*names, 'default'])}); "
                f"correct the name, add optimizer.parameter_groups.{name} or remove the entry"
            )


def _combination_errors(config: Config, path: str, combos: Sequence[Sequence[str]], required: bool) -> Iterator[str]:
    components = active_components(config.data.meta)
    if required and not combos:
        yield f"{path} is empty; list combinations of {', '.join(components) or 'components'}, or set enabled to False"
    listed = set()
    for combo in combos:
        if not isinstance(combo, tuple):
            yield f"{path} holds {combo!r}; each entry is a tuple of component names, e.g. ({combo!r},)"
            continue
        unknown = [name for name in combo if name not in components]
        if unknown and required:
            yield (
                f"{path} names {', '.join(map(repr, unknown))}, but the components in use are "
                f"{', '.join(components) or 'none'} (data.meta.active = {config.data.meta.active}); "
                f"set data.meta.components.{unknown[0]}.enabled = True and its idx to 0 or more, or remove the entry"
            )
        if frozenset(combo) in listed:
            yield f"{path} holds the combination {tuple(combo)} twice; remove one"
        listed.add(frozenset(combo))


def _masking_errors(config: Config) -> Iterator[str]:
    masking, validation = config.schedule.meta_masking.partial, config.schedule.validation
    path = "schedule.meta_masking.partial"
    yield from _combination_errors(config, f"{path}.whitelist", masking.whitelist, masking.enabled)
    if masking.weights:
        if len(masking.weights) != len(masking.whitelist):
            yield (
                f"{path}.weights has {len(masking.weights)} entries and {path}.whitelist {len(masking.whitelist)}; "
                f"give one weight per combination, or none for equal weights"
            )
        if not sum(masking.weights) > 0:
            yield f"{path}.weights = {tuple(masking.weights)} must have a positive sum"
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
        yield from _combination_errors(config, f"{path}.exhaustive_meta_components", combos, bool(combos))


def _mixing_errors(config: Config) -> Iterator[str]:
    mixup, tasks = config.schedule.mixup, tuple(config.data.task_keys_h5)
    if not mixup.group_levels and wants_mixing(config):
        yield "schedule.mixup.group_levels is empty; name at least one rank, e.g. ('taxa_L10',), or switch mixing off"
    else:
        yield from level_switch_errors(configured_levels(config), mixup.level_switch_steps, mixup.level_switch_epochs)
    unknown = [level for level in mixup.group_levels if level not in tasks]
    if unknown and tasks:
        yield f"schedule.mixup.group_levels names {unknown}, but data.task_keys_h5 = {tasks}; use ranks of that list"


def _early_stop_errors(config: Config) -> Iterator[str]:
    stop, tasks, components = config.train.early_stop, config.data.task_keys_h5, active_components(config.data.meta)
    if stop.active:
        for error in error_lines(lambda: parse_metric_name(stop.metric, tasks=tasks, components=components)):
            yield f"train.early_stop.metric = {error}"
    for error in error_lines(lambda: ranking_key(config, components)):
        yield f"schedule.checkpoint.best_metric = {error}"


def _accumulation_errors(config: Config) -> Iterator[str]:
    task, accumulation = config.loss.grad_weighting.task, max(1, config.train.accumulation_steps)
    if gradnorm_enabled(config) and task.update_interval < accumulation:
        yield (
            f"loss.grad_weighting.task.update_interval = {task.update_interval} is below train.accumulation_steps = "
            f"{accumulation}; raise it to at least {accumulation}"
        )


#: contradictions between the keys that the schedule reads, each naming key, value and fix
SCHEDULE_RULES: tuple[Rule, ...] = (
    (_kind_errors, ("lr_scheduler",)),
    (_group_errors, ("lr_scheduler.parameter_groups", "optimizer.parameter_groups", "train.tune")),
    (_masking_errors, ("data.meta", "schedule.meta_masking.partial", "schedule.validation")),
    (_mixing_errors, ("data.task_keys_h5", "data.sampler", "schedule.mixup")),
    (_early_stop_errors, ("data.meta", "data.task_keys_h5", "train.early_stop", "schedule.checkpoint.best_metric")),
    (_accumulation_errors, ("loss.grad_weighting.task", "train.accumulation_steps")),
)
