"""From the configuration and the lengths of the epochs to the resolved schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from linnaeus_jax.config.derived import (
    STORED_GROUP,
    active_components,
    global_batch_size,
    gradnorm_enabled,
    mixes,
    null_masking,
    stores_inputs,
    wants_mixing,
)
from linnaeus_jax.config.keys import value_of
from linnaeus_jax.config.section import Duration
from linnaeus_jax.config.typed import Config
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.registry import SCHEDULES
from linnaeus_jax.schedules.early_stop import parse_metric_name
from linnaeus_jax.schedules.kinds import configured_kind
from linnaeus_jax.schedules.learning_rate import apply_lr_scaling
from linnaeus_jax.schedules.level_switching import configured_levels, level_of_epoch
from linnaeus_jax.schedules.resolved import (
    Checkpointing,
    EarlyStopSpec,
    GradNormTrigger,
    Interval,
    LearningRateSpec,
    Mixing,
    PartialMasking,
    Ramp,
    ResolvedSchedule,
    Totals,
    Validation,
)
from linnaeus_jax.schedules.sanity import validate_schedule_sanity
from linnaeus_jax.schedules.triggers import measured_epochs

#: end of a full-masking or null-masking ramp for which no end is given
FALLBACK_END_STEPS = 5000
#: streams of records, each with an interval of its own
LOG_STREAMS = ("step", "console", "wandb", "lr", "pipeline")
_FEW_STEPS = 10


class _Resolver:
    """Resolves one configuration; `notes` collects what it decided for the user."""

    def __init__(self, config: Config, totals: Totals) -> None:
        self.config, self.totals = config, totals
        self.notes: list[str] = []

    def steps(self, path: str) -> int:
        """Updates of a quantity, such as `lr_scheduler.warmup`; 0 where it is off."""
        given: Duration | None = value_of(self.config, path)
        if given is None:
            return 0
        steps = given.steps(self.totals.steps_per_epoch)
        if given.unit == "fraction" and given.value > 0.01 and steps < _FEW_STEPS:
            self.notes.append(f"{path}_fraction = {given.value} is only {steps} updates")
        return steps

    def interval(self, path: str) -> Interval:
        given: Duration | None = value_of(self.config, path)
        if given is None:
            return Interval()
        return Interval(**given._asdict(), steps=0 if given.unit == "epochs" else self.steps(path))

    def learning_rates(self) -> tuple[LearningRateSpec, ...]:
        groups = self.config.optimizer.parameter_groups
        names = [name for name in groups if name not in ("enabled", "default")] if groups.enabled else []
        names.append("default")
        if stores_inputs(self.config):
            names.append(STORED_GROUP)
        return tuple(self._learning_rate(name) for name in names)

    def _learning_rate(self, group: str) -> LearningRateSpec:
        scheduler, totals = self.config.lr_scheduler, self.totals
        groups, overrides = self.config.optimizer.parameter_groups, self.config.lr_scheduler.parameter_groups
        optimizer_group: Mapping[str, Any] = groups[group] if groups.enabled and group in groups else {}
        override: Mapping[str, Any] = overrides[group] if overrides.enabled and group in overrides else {}

        def setting(key: str) -> float:
            return scheduler[key] if override.get(key) is None else override[key]

        def duration(name: str) -> int:
            if override.get(name):
                return self.steps(f"lr_scheduler.parameter_groups.{group}.{name}")
            return self.steps(f"lr_scheduler.{name}") if name in scheduler else 0

        name, options = configured_kind(scheduler, override.get("name") or scheduler.name)
        frozen = group == STORED_GROUP or bool(optimizer_group.get("frozen", False))
        multiplier = float(optimizer_group.get("lr_multiplier", 1.0))
        peak = 0.0 if frozen else scheduler.base_lr * multiplier * totals.lr_factor
        for key in ("min_lr", "warmup_lr"):
            if setting(key) > peak and not frozen:
                self.notes.append(f"group {group!r}: {key} = {setting(key)} is lowered to the peak rate {peak:.4g}")
        delay, warmup = duration("delay"), duration("warmup")
        span = max(1, totals.total_steps - delay - warmup)
        return LearningRateSpec(
            group=group,
            name=name,
            base_lr=scheduler.base_lr,
            multiplier=multiplier,
            peak=peak,
            min_lr=min(setting("min_lr"), peak),
            warmup_lr=min(setting("warmup_lr"), peak),
            delay_steps=delay,
            warmup_steps=warmup,
            total_steps=totals.total_steps,
            decay_rate=setting("decay_rate"),
            decay_type=scheduler.decay_type.lower(),
            frozen=frozen,
            options=options,
            **SCHEDULES[name](**options).durations(scheduler, span, lambda: duration("decay")),
        )

    def ramp(self, node: Any, enabled: bool, end_steps: int, disabled_value: float = 0.0) -> Ramp:
        return Ramp(
            enabled=bool(enabled),
            start=float(node.start_prob),
            end=float(node.end_prob),
            end_steps=end_steps,
            disabled_value=disabled_value,
        )

    def end_or_fallback(self, path: str, enabled: bool) -> int:
        end = self.steps(path)
        if not end and enabled:
            self.notes.append(
                f"{path}_steps and {path}_fraction are unset: the ramp ends after {FALLBACK_END_STEPS} updates"
            )
        return end or FALLBACK_END_STEPS

    def partial_masking(self, meta_end: int) -> PartialMasking:
        partial, order = self.config.schedule.meta_masking.partial, active_components(self.config.data.meta)
        prob_end = self.steps("schedule.meta_masking.partial.prob_end") or meta_end
        return PartialMasking(
            enabled=bool(partial.enabled),
            start_steps=self.steps("schedule.meta_masking.partial.start"),
            end_steps=self.steps("schedule.meta_masking.partial.end") or None,
            prob=self.ramp(partial, partial.enabled, prob_end),
            whitelist=_canonical(partial.whitelist, order),
            weights=tuple(float(weight) for weight in partial.weights),
        )

    def mixing(self) -> Mixing:
        mixup, totals = self.config.schedule.mixup, self.totals
        enabled = mixes(self.config)
        if wants_mixing(self.config) and not enabled:
            self.notes.append(
                f"data.sampler.type = {self.config.data.sampler.type!r} forms no groups, so nothing is mixed"
            )
        end = self.steps("schedule.mixup.prob.end")
        if enabled and not end:
            self.notes.append(
                f"schedule.mixup.prob.end_steps and end_fraction are unset: the probability is end_prob = "
                f"{mixup.prob.end_prob} from the start"
            )
        levels = configured_levels(self.config)
        return Mixing(
            prob=self.ramp(mixup.prob, enabled, end),
            level_of_epoch=level_of_epoch(
                levels,
                mixup.level_switch_steps,
                mixup.level_switch_epochs,
                totals.epochs,
                lambda epoch, level: totals.steps_per_epoch[epoch],
            ),
            group_levels=levels,
            min_group_size=mixup.min_group_size,
            exclude_null_samples=mixup.exclude_null_samples,
            mixup_enabled=bool(mixup.enabled),
            mixup_alpha=mixup.alpha,
            cutmix_enabled=bool(mixup.cutmix.enabled),
            cutmix_alpha=mixup.cutmix.alpha,
            cutmix_minmax=tuple(mixup.cutmix.minmax),
            switch_prob=mixup.switch_prob,
        )

    def validation(self) -> Validation:
        node, order = self.config.schedule.validation, active_components(self.config.data.meta)
        final = node.final_epoch
        exhaustive = final.exhaustive_meta_components if final.exhaustive_partial_meta_validation else ()
        enabled, has_metadata = bool(node.partial_mask_meta.enabled), bool(order)
        mask_meta = self.interval("schedule.validation.mask_meta_interval")
        if mask_meta.explicit and mask_meta.unit != "off" and not has_metadata:
            self.notes.append("schedule.validation.mask_meta_interval_* has no effect: no metadata component is in use")
        return Validation(
            normal=self.interval("schedule.validation.interval"),
            mask_meta=mask_meta if has_metadata else Interval(),
            has_metadata=has_metadata,
            partial=self.interval("schedule.validation.partial_mask_meta.interval") if enabled else Interval(),
            at_end=bool(node.at_end),
            partial_enabled=enabled,
            whitelist=_canonical(node.partial_mask_meta.whitelist, order),
            exhaustive=_canonical((exhaustive,), order)[0],
        )

    def early_stop(self) -> EarlyStopSpec:
        stop = self.config.train.early_stop
        if not stop.active:
            return EarlyStopSpec(active=False)
        tasks, components = self.config.data.task_keys_h5, active_components(self.config.data.meta)
        metric = parse_metric_name(stop.metric, tasks=tasks, components=components)
        return EarlyStopSpec(
            active=True,
            **metric._asdict(),
            patience_steps=self.steps("train.early_stop.patience") or None,
            min_delta=stop.min_delta or 0.0,
            max_steps=stop.max_steps,
            max_loss=stop.max_loss,
            min_lr=stop.min_lr,
            max_grad_norm=stop.max_grad_norm,
        )

    def logging(self) -> dict[str, int]:
        return {stream: self.steps(f"schedule.metrics.{stream}") for stream in LOG_STREAMS}


def _canonical(combos: Sequence[Sequence[str]], order: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Each combination in the order of the metadata components, so that one combination has one name."""
    position = {name: index for index, name in enumerate(order)}
    return tuple(tuple(sorted(combo, key=lambda name: position.get(name, len(position)))) for combo in combos)


def _per_epoch(name: str, value: int | Sequence[int], epochs: int) -> tuple[int, ...]:
    counts = (value,) * epochs if isinstance(value, int) else tuple(int(count) for count in value)
    if min(counts) <= 0:
        raise InputError(f"{name} = {counts} must be positive; is the training set empty, or smaller than one batch?")
    if len(counts) != epochs:
        raise InputError(
            f"{name} has {len(counts)} numbers for {epochs} epochs (train.epochs); give one for each, or one"
        )
    return counts


def _check_counts(totals: Totals, past_epochs: int) -> None:
    """An update takes as many micro-batches as accumulate; the last of an epoch takes what is left. Epochs of a resumed
    run that are finished may have been made with another number."""
    size = totals.accumulation_steps
    for epoch, (steps, parts) in enumerate(zip(totals.steps_per_epoch, totals.micro_batches_per_epoch, strict=True)):
        if epoch >= past_epochs and steps != -(-parts // size):
            raise InputError(
                f"steps_per_epoch = {steps} contradicts micro_batches_per_epoch = {parts} in epoch {epoch}: with "
                f"train.accumulation_steps = {size} they are {-(-parts // size)} updates; give those"
            )


def resolve_all_schedule_params(
    config: Config,
    *,
    steps_per_epoch: int | Sequence[int],
    dataset_size: int,
    micro_batches_per_epoch: int | Sequence[int],
    past_epochs: int = 0,
    devices: int = 1,
) -> ResolvedSchedule:
    """Turns every duration of the configuration into optimizer updates. The configuration is not changed.

    Args:
      config: the whole tree, without errors (`checks.validate_schedule_config`).
      steps_per_epoch: optimizer updates of each epoch, or one number for all; they differ where the mixing level
        switches.
      dataset_size: training rows.
      micro_batches_per_epoch: micro-batches of each epoch, or one number for all.
      past_epochs: how many epochs of a resumed run are finished; their numbers may come from other settings.
      devices: data-parallel devices.

    Returns:
      The schedule, with all its warnings.

    Raises:
      ValueError: an epoch has no update, the numbers of updates and micro-batches contradict each other, or checkpoints
        are ranked by a phase that never runs.
    """
    scheduler, epochs = config.lr_scheduler, config.train.epochs
    accumulation = max(1, config.train.accumulation_steps)
    batch = global_batch_size(config, devices)
    effective = batch * accumulation
    totals = Totals(
        dataset_size=dataset_size,
        steps_per_epoch=_per_epoch("steps_per_epoch", steps_per_epoch, epochs),
        micro_batches_per_epoch=_per_epoch("micro_batches_per_epoch", micro_batches_per_epoch, epochs),
        accumulation_steps=accumulation,
        batch_size=batch,
        devices=devices,
        reference_bs=scheduler.reference_bs,
        scaling=scheduler.scaling.lower(),
        lr_factor=apply_lr_scaling(1.0, effective, reference_bs=scheduler.reference_bs, rule=scheduler.scaling.lower()),
    )
    _check_counts(totals, past_epochs)
    resolver = _Resolver(config, totals)
    masking, null, task = config.schedule.meta_masking, null_masking(config), config.loss.grad_weighting.task
    meta_end = resolver.end_or_fallback("schedule.meta_masking.end", masking.enabled)
    null_end = resolver.end_or_fallback("schedule.null_masking.end", null == "scheduled")
    checkpoint = config.schedule.checkpoint
    resolved = ResolvedSchedule(
        totals=totals,
        learning_rates=resolver.learning_rates(),
        meta_masking=resolver.ramp(masking, masking.enabled, meta_end),
        partial_masking=resolver.partial_masking(meta_end),
        null_masking=resolver.ramp(
            config.schedule.null_masking, null == "scheduled", null_end, 0.0 if null == "always" else 1.0
        ),
        mixing=resolver.mixing(),
        validation=resolver.validation(),
        checkpoint=Checkpointing(
            interval=resolver.interval("schedule.checkpoint.interval"),
            at_end=bool(checkpoint.at_end),
            keep_top_n=checkpoint.keep_top_n,
            keep_last_n=checkpoint.keep_last_n,
        ),
        early_stop=resolver.early_stop(),
        gradnorm=GradNormTrigger(
            enabled=gradnorm_enabled(config),
            warmup_steps=task.gradnorm_warmup_steps,
            interval=max(1, task.update_interval),
        ),
        logging=resolver.logging(),
        step_trigger_mode=config.schedule.step_trigger_mode.lower(),
        notes=tuple(dict.fromkeys(resolver.notes)),
    )
    _require_ranking_phase(config, resolved)
    return dataclasses.replace(resolved, warnings=tuple(validate_schedule_sanity(resolved)))


def _require_ranking_phase(config: Config, resolved: ResolvedSchedule) -> None:
    """Raises ValueError where checkpoints are ranked by a phase that never runs, so that none would be the best."""
    best = config.schedule.checkpoint.best_metric
    if not best:
        return
    components = active_components(config.data.meta)
    phase = parse_metric_name(best, tasks=config.data.task_keys_h5, components=components).phase
    if not measured_epochs(resolved, phase):
        raise InputError(
            f"schedule.checkpoint.best_metric = {best!r} is of phase {phase}, which never runs; schedule it under "
            "schedule.validation, or choose a metric of another phase"
        )
