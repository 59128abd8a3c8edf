"""All that can be said about a configuration without data or devices: every wrong value at once.

Here stand the rules between keys, and the checks of other subpackages; `config.values` has those of single keys.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.derived import (
    STORED_GROUP,
    active_components,
    gradnorm_enabled,
    mixes,
    stores_inputs,
    wants_mixing,
)
from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.config.keys import value_of
from linnaeus_jax.config.paths import typed_command
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.config.typed import Config, typed
from linnaeus_jax.config.values import rule_of, wrong_values
from linnaeus_jax.data.dataset import resolve_sources
from linnaeus_jax.data.metadata import component_layout, component_settings
from linnaeus_jax.data.preprocessing import crop_conflict
from linnaeus_jax.data.samplers import SamplerSettings
from linnaeus_jax.data.splits import check_percentiles
from linnaeus_jax.debugging import profiler
from linnaeus_jax.learning import augmentation
from linnaeus_jax.learning.filters import parse_filter
from linnaeus_jax.learning.losses import TAXONOMY, make_criterion
from linnaeus_jax.learning.optimizers import read_groups
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models import ModelFamily, build_model
from linnaeus_jax.models.factory import split_block
from linnaeus_jax.registry import MODELS, SCHEDULES
from linnaeus_jax.schedules.early_stop import parse_metric_name, ranking_key
from linnaeus_jax.schedules.kinds import configured_kind
from linnaeus_jax.schedules.level_switching import configured_levels, level_switch_errors
from linnaeus_jax.step.probes import registered_probes
from linnaeus_jax.taxonomy.ranks import check_task_order
from linnaeus_jax.weights.settings import reads_weights, setting_errors

# ---- Contradictions in what the schedule reads

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


# ---- All rules

#: classes of the task on which losses are tried
TRIAL_CLASSES = 1000
#: characters of a name that becomes a directory
MAX_NAME = 120
#: how the keys begin that the schedule reads
READ = (
    "schedule.",
    "lr_scheduler.",
    "train.epochs",
    "train.accumulation_steps",
    "train.early_stop.",
    "optimizer.parameter_groups.",
    "loss.grad_weighting.task.update_interval",
    "loss.grad_weighting.task.gradnorm_warmup_steps",
)


def checked(tree: ConfigDict, *, needs_data: bool = True, rules: bool = True) -> Config:
    """The configuration as the program reads it, once every check has passed: the way of every program to it.

    Args:
      tree: as it was loaded; plugins that it names are imported.
      needs_data: False of a program that does without labels and pictures, which then need not be named.
      rules: False before the initial weights have set what they need: then the rules are of interest only where a
        value is wrong by itself.

    Raises:
      ConfigError: everything that is wrong, at once.
    """
    import_plugins(tree)  # of a tree that was made in Python; a loaded one has done so
    made, wrong = _made(tree)
    if (rules or wrong) and (errors := _errors(tree, made, wrong, needs_data=needs_data)):
        raise ConfigError(errors)
    return made


def validate_schedule_config(config: ConfigDict) -> list[str]:
    """Every contradiction and every value out of range in what the schedule reads; empty if there is none.

    Each text names key, value and fix. Only the configuration is looked at: no data, no device.
    """
    made, wrong = _made(config)
    errors = [error for key, error in wrong.items() if key.startswith(READ)]
    return list(dict.fromkeys([*errors, *_rule_errors(made, wrong, SCHEDULE_RULES)]))


def config_errors(config: ConfigDict, *, needs_data: bool = True) -> list[str]:
    """Every problem of the configuration at once, each naming key, value and fix. Touches neither files nor devices.

    Args:
      needs_data: as of `checked`.
    """
    return _errors(config, *_made(config), needs_data=needs_data)


def _made(tree: ConfigDict) -> tuple[Config, dict[str, str]]:
    """The configuration, and key -> error of its wrong values, which have their defaults in it."""
    try:
        return typed(tree), {}
    except ConfigError:
        wrong = dict(wrong_values(tree))
        return typed(_with_defaults(tree, wrong)), wrong


def _errors(tree: ConfigDict, made: Config, wrong: Mapping[str, str], *, needs_data: bool) -> list[str]:
    rules: list[Rule] = [
        (lambda made: _source_errors(made, needs_data=needs_data), ("data",)),
        (_data_errors, ("data", "metrics", "schedule.mixup")),
        (_model_errors, ("data.img_size", "data.meta", "data.task_keys_h5", "model", "train.tune", "schedule.mixup")),
        (lambda made: setting_errors(made.model), ("model",)),
        (_loss_errors, ("loss", "data.task_keys_h5", "model.label_smoothing", "model.type")),
        (_optimizer_errors, ("optimizer",)),
        (lambda made: augmentation.validate(made.aug), ("aug",)),
        (_name_errors, ("experiment",)),
        (lambda made: _limit_errors(made, tree), ("data.hybrid",)),
        (_bucket_errors, ("env",)),
        *SCHEDULE_RULES,
        (lambda made: profiler.schedule_errors(made.debug.profiler.schedule), ("debug.profiler",)),
        (lambda made: error_lines(lambda: registered_probes(made.debug.get("probes", {}))), ("debug.probes",)),
    ]
    return list(dict.fromkeys([*wrong.values(), *_rule_errors(made, wrong, rules)]))


def _rule_errors(made: Config, wrong: Collection[str], rules: Sequence[Rule]) -> list[str]:
    """What the rules say that read none of the wrong keys."""
    errors = list[str]()
    for rule, reads in rules:
        if not any(f"{key}.".startswith(tuple(f"{start.rstrip('.')}." for start in reads)) for key in wrong):
            errors += rule(made)
    return errors


def _with_defaults(config: ConfigDict, keys: Collection[str]) -> ConfigDict:
    """A copy in which these keys have their defaults; options of plugins and filters are left out."""
    copied = copy.deepcopy(config)
    for key in keys:
        section, _, name = key.rpartition(".")
        rule, node = rule_of(key), value_of(copied, section)
        with node.unlocked(), node.ignore_type():
            if rule is None:
                del node[name]
            else:
                node[name] = rule.initial()
    return copied


def _name_errors(config: Config) -> list[str]:
    """Names that become directories."""
    names = config.experiment
    return [
        f"experiment.{key} = {str(names[key])[:60]!r} becomes a directory: use at most {MAX_NAME} characters, none of "
        "them a line break or other control character, and no '..'"
        for key in ("project", "group", "name")
        if len(names[key]) > MAX_NAME or ".." in Path(names[key]).parts or not names[key].isprintable()
    ]


def _bucket_errors(config: Config) -> list[str]:
    bucket = config.env.output.bucket
    if bucket.enabled and not bucket.remote:
        return ["env.output.bucket.enabled is True but env.output.bucket.remote is empty; name an rclone destination"]
    return []


def _source_errors(config: Config, *, needs_data: bool) -> list[str]:
    """What is wrong with the files that are named, and, where data are needed, that there are none."""
    h5, hybrid = config.data.h5, config.data.hybrid
    named = hybrid.use_hybrid or h5.labels_path or h5.train_labels_path or h5.val_labels_path
    return error_lines(lambda: resolve_sources(config.data)) if needs_data or named else []


def _data_errors(config: Config) -> list[str]:
    data, metrics, tasks = config.data, config.metrics, config.data.task_keys_h5
    errors = error_lines(lambda: check_task_order(tasks))
    errors += error_lines(lambda: component_settings(data.meta))
    errors += error_lines(lambda: check_percentiles(metrics.rarity_percentiles))
    errors += error_lines(lambda: SamplerSettings.from_config(config))
    if conflict := crop_conflict(data.resize_mode, data.crop_fraction):
        errors.append(f"data.{conflict}")
    named: dict[str, tuple[str, ...]] = {"schedule.mixup.null_task_keys": config.schedule.mixup.null_task_keys}
    if metrics.track_null_vs_non_null:
        named["metrics.null_vs_non_null_tasks"] = metrics.null_vs_non_null_tasks
    for key, names in named.items():
        if unknown := [name for name in names if name not in tasks]:
            errors.append(f"{key} names {unknown[0]!r}, which is not in data.task_keys_h5 = {tasks}; use its tasks")
    subsets = metrics.taxa_subsets
    for entry in subsets:
        kinds = tuple(map(type, entry))
        if kinds != (str, str, int):
            errors.append(f"metrics.taxa_subsets holds {entry!r}; each entry is (name, task, taxon id)")
        elif "/" in entry[0] or entry[2] < 1:
            errors.append(
                f"metrics.taxa_subsets holds {entry!r}; a name cannot hold '/', which parts metrics, and taxon ids are "
                "1 or more"
            )
    titles = [entry[0] for entry in subsets if entry]
    if len(set(titles)) != len(titles):
        errors.append(f"metrics.taxa_subsets = {subsets!r} uses a name twice; rename one of the entries")
    bounds = config.schedule.mixup.cutmix.minmax
    if bounds and bounds[0] > bounds[1]:
        errors.append(f"schedule.mixup.cutmix.minmax = {bounds} must be (low, high) with low <= high; swap them")
    return errors


def _limit_errors(config: Config, given: ConfigDict) -> list[str]:
    """Verification of pictures without a limit, in the spelling of the user."""
    verify, their = config.data.hybrid.verify_images, given.data.hybrid.verify_images
    if not verify.enabled or verify.max_missing_ratio is not None or verify.max_missing_count is not None:
        return []
    return [
        f"data.hybrid.verify_images.max_missing_ratio = {their.max_missing_ratio} and max_missing_count = "
        f"{their.max_missing_count} switch off both limits; set one to 0 or more, or enabled to False"
    ]


def _model_errors(config: Config) -> list[str]:
    data = config.data

    def build() -> None:
        components = component_layout(component_settings(data.meta))
        model = build_model(
            config.model,
            components=[(component.name, component.stop - component.start) for component in components],
            num_classes=dict.fromkeys(data.task_keys_h5, 2),
            img_size=data.img_size,
            parents=dict.fromkeys(data.task_keys_h5, (0, 1)),
        )
        if split_block(model, config.train.tune) is not None and mixes(config):
            raise InputError(
                f"train.tune = {config.train.tune!r} trains on what is stored of the pictures, which is not mixed; set "
                "schedule.mixup.prob.enabled=False, or train.tune='full'"
            )

    errors = [
        error if error.startswith(("model.", "data.", "train.")) else f"model: {error}" for error in error_lines(build)
    ]
    return _of_other_families(config) or errors


def _of_other_families(config: Config) -> list[str]:
    """Set keys of the model that only other families read; families without `keys` may read any."""
    own = _family(config).keys.values()
    if not own:
        return []
    default = typed(get_config())
    owners: dict[tuple[str, ...], list[str]] = {}
    for name, family in MODELS.entries.items():
        foreign = [f"model.{key}" for key in family.keys.values() if key not in own]
        given = tuple(key for key in foreign if value_of(config, key) != value_of(default, key))
        if given:
            owners.setdefault(given, []).append(name)
    widest = [keys for keys in owners if not any(set(keys) < set(other) for other in owners)]  # each key once
    return [_of_another_family(keys, owners[keys], config, default) for keys in widest]


def _of_another_family(keys: Sequence[str], names: Sequence[str], config: Config, default: Config) -> str:
    """The error of keys that the families `names` read and the one of `config` does not."""
    one = len(keys) == 1
    values = {key: value_of(default, key) for key in keys}
    defaults = " and ".join(map(repr, values.values()))
    arguments = typed_command(*(f"--config.{key}={value}" for key, value in values.items()))
    return (
        f"{', '.join(keys)} {'is a setting' if one else 'are settings'} of {' and '.join(names)}, but model.type = "
        f"{config.model.type!r}: remove {'it' if one else 'them'} (the default{'' if one else 's'}: {defaults}; "
        f"on the command line add {arguments}), or change model.type"
    )


def _family(config: Config) -> type[ModelFamily]:
    """The model family, or the base of all where its name is unknown."""
    family: type[ModelFamily] = MODELS.entries.get(config.model.type, ModelFamily)
    return family


def _loss_errors(config: Config) -> list[str]:
    tasks, loss, errors = tuple(config.data.task_keys_h5), config.loss, []
    smoothed = tuple(loss.taxonomy_smoothing.enabled) or (False,)
    smoothed *= len(tasks) if len(smoothed) == 1 else 1
    for split in ("train", "val"):
        funcs = tuple(loss.task_specific[split].funcs)
        funcs *= len(tasks) if len(funcs) == 1 else 1
        rows = zip(tasks, funcs, smoothed, strict=True)
        if bare := [task for task, name, on in rows if name == TAXONOMY and not on]:
            errors.append(
                f"loss.task_specific.{split}.funcs = {loss.task_specific[split].funcs!r} asks for taxonomy smoothing; "
                f"set loss.taxonomy_smoothing.enabled to True for {', '.join(bare)}"
            )
    smoothing = config.model.label_smoothing
    for name in {*loss.task_specific.train.funcs, *loss.task_specific.val.funcs} - {TAXONOMY}:
        errors += error_lines(
            lambda name=name: make_criterion(  # type: ignore[misc]
                name, num_classes=TRIAL_CLASSES, label_smoothing=smoothing, options=loss.get(name)
            )
        )
    weighting = loss.grad_weighting.task
    weights = weighting.init_weights
    if weights and (len(weights) != len(tasks) or not math.fsum(weights) > 0):
        errors.append(
            f"loss.grad_weighting.task.init_weights = {weights!r} must hold one number per task of data.task_keys_h5 = "
            f"{tasks}, not all 0"
        )
    key = "loss.grad_weighting.task.exclude_config"
    return errors + error_lines(lambda: parse_filter(weighting.exclude_config, key, stage_of=_family(config).stage_of))


def _optimizer_errors(config: Config) -> list[str]:
    shapes: dict[str, tuple[int, ...]] | None = {} if reads_weights(config.model) else None  # read later
    return read_groups(config.optimizer, checkpoint_shapes=shapes, stage_of=_family(config).stage_of)[2]
