"""From the configuration and the lengths of the epochs to the resolved schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ml_collections import ConfigDict

from linnaeus_jax.config.derived import (
    STORED_GROUP,
    active_components,
    forms_groups,
    global_batch_size,
    gradnorm_enabled,
    stores_inputs,
)
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.registry import SCHEDULES
from linnaeus_jax.schedules.alternatives import (
    ALTERNATIVES,
    LOG_STREAMS,
    AlternativeSet,
    choose,
    is_mentioned,
    of_group,
    to_steps,
)
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
_FEW_STEPS = 10


class _Resolver:
    """Resolves one configuration; `notes` collects what it decided for the user."""

    def __init__(self, config: ConfigDict, totals: Totals) -> None:
        self.config, self.totals = config, totals
        self.notes: list[str] = []

    def steps(self, alternatives: AlternativeSet) -> int:
        """Updates of an alternative set, 0 where it is off."""
        choice = choose(self.config, alternatives)
        steps = to_steps(choice, self.totals.steps_per_epoch)
        if choice.unit == "fraction" and choice.value > 0.01 and steps < _FEW_STEPS:
            self.notes.append(f"{alternatives.path('fraction')} = {choice.value} is only {steps} updates")
        return steps

    def interval(self, name: str) -> Interval:
        choice = choose(self.config, ALTERNATIVES[name])
        steps = 0 if choice.unit == "epochs" else self.steps(ALTERNATIVES[name])
        return Interval(**choice._asdict(), steps=steps)

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
        optimizer_group = groups[group] if groups.enabled and group in groups else ConfigDict()
        override = overrides[group] if overrides.enabled and group in overrides else ConfigDict()

        def setting(key: str) -> float:
            return scheduler[key] if override.get(key) is None else override[key]

        def duration(name: str) -> int:
            group_set = of_group(name, group)  # unset and 0 both mean the global value
            if bool(override) and choose(self.config, group_set).unit != "off":
                return self.steps(group_set)
            return self.steps(ALTERNATIVES[name]) if name in ALTERNATIVES else 0

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

    def ramp(self, node: ConfigDict, enabled: bool, end_steps: int, disabled_value: float = 0.0) -> Ramp:
        return Ramp(
            enabled=bool(enabled),
            start=float(node.start_prob),
            end=float(node.end_prob),
            end_steps=end_steps,
            disabled_value=disabled_value,
        )

    def end_or_fallback(self, name: str, enabled: bool) -> int:
        alternatives = ALTERNATIVES[name]
        end = self.steps(alternatives)
        if not end and enabled:
            self.notes.append(
                f"{alternatives.path('steps')} and {alternatives.path('fraction')} are unset: the ramp ends after "
                f"{FALLBACK_END_STEPS} updates"
            )
        return end or FALLBACK_END_STEPS

    def partial_masking(self, meta_end: int) -> PartialMasking:
        partial, order = self.config.schedule.meta_masking.partial, active_components(self.config.data.meta)
        prob_end = self.steps(ALTERNATIVES["partial_prob_end"]) or meta_end
        return PartialMasking(
            enabled=bool(partial.enabled),
            start_steps=self.steps(ALTERNATIVES["partial_start"]),
            end_steps=self.steps(ALTERNATIVES["partial_end"]) or None,
            prob=self.ramp(partial, partial.enabled, prob_end),
            whitelist=_canonical(partial.whitelist, order),
            weights=tuple(float(weight) for weight in partial.weights),
        )

    def mixing(self) -> Mixing:
        mixup, totals = self.config.schedule.mixup, self.totals
        enabled = mixup.prob.enabled and (mixup.enabled or mixup.cutmix.enabled)
        if enabled and not forms_groups(self.config.data.sampler.type):
            self.notes.append(
                f"data.sampler.type = {self.config.data.sampler.type!r} forms no groups, so nothing is mixed"
            )
            enabled = False
        end = self.steps(ALTERNATIVES["mix_end"])
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
        mask_meta = self.interval("mask_meta")
        if mask_meta.explicit and mask_meta.unit != "off" and not has_metadata:
            self.notes.append("schedule.validation.mask_meta_interval_* has no effect: no metadata component is in use")
        return Validation(
            normal=self.interval("validation"),
            mask_meta=mask_meta if has_metadata else Interval(),
            has_metadata=has_metadata,
            partial=self.interval("partial_mask_meta") if enabled else Interval(),
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
            patience_steps=self.steps(ALTERNATIVES["patience"]) or None,
            min_delta=stop.min_delta or 0.0,
            max_steps=stop.max_steps or None,
            max_loss=stop.max_loss,
            min_lr=stop.min_lr,
            max_grad_norm=stop.max_grad_norm,
        )

    def logging(self) -> dict[str, int]:
        intervals = {stream: self.steps(ALTERNATIVES[f"log_{stream}"]) for stream in LOG_STREAMS}
        if not is_mentioned(self.config, ALTERNATIVES["log_wandb"]):
            intervals["wandb"] = intervals["step"]
        return intervals


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
    config: ConfigDict,
    *,
    steps_per_epoch: int | Sequence[int],
    dataset_size: int,
    micro_batches_per_epoch: int | Sequence[int],
    past_epochs: int = 0,
    devices: int = 1,
) -> ResolvedSchedule:
    """Turns every duration of the configuration into optimizer updates. The configuration is not changed.

    Args:
      config: the whole tree, without errors (`checks.schedule.validate_schedule_config`).
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
    masking, null, task = config.schedule.meta_masking, config.schedule.null_masking, config.loss.grad_weighting.task
    meta_end = resolver.end_or_fallback("meta_end", masking.enabled)
    checkpoint = config.schedule.checkpoint
    resolved = ResolvedSchedule(
        totals=totals,
        learning_rates=resolver.learning_rates(),
        meta_masking=resolver.ramp(masking, masking.enabled, meta_end),
        partial_masking=resolver.partial_masking(meta_end),
        null_masking=resolver.ramp(null, null.enabled, resolver.end_or_fallback("null_end", null.enabled), 1.0),
        mixing=resolver.mixing(),
        validation=resolver.validation(),
        checkpoint=Checkpointing(
            interval=resolver.interval("checkpoint"),
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


def _require_ranking_phase(config: ConfigDict, resolved: ResolvedSchedule) -> None:
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
