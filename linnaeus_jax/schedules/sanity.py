"""Schedules that are valid but unlikely to be meant."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import jax.numpy as jnp
import numpy as np

from linnaeus_jax.schedules.learning_rate import build_scheduler
from linnaeus_jax.schedules.resolved import LearningRateSpec, ResolvedSchedule
from linnaeus_jax.schedules.triggers import Stage, due_at_epoch_end, events, interval_epochs, measured_epochs
from linnaeus_jax.schedules.values import on_cpu, values_at

#: fewer updates of warm-up than this are hardly one
SHORTEST_WARMUP = 10
#: an epoch of fewer updates has a batch that is nearly as large as the data
FEWEST_UPDATES = 4
#: largest factor by which the size of the batch may multiply the learning rates without a word
LARGEST_FACTOR = 4.0


def _batch_findings(resolved: ResolvedSchedule) -> Iterator[str]:
    """Batches that are large for the data or for the rates: few updates, large rates."""
    totals = resolved.totals
    if min(totals.steps_per_epoch) < FEWEST_UPDATES:
        rows = totals.dataset_size // FEWEST_UPDATES
        yield (
            f"an update takes {totals.effective_batch_size} of {totals.dataset_size} training rows, so an epoch has "
            f"{min(totals.steps_per_epoch)} of them; updates of at most {max(1, rows)} rows (data.batch_size, "
            f"train.accumulation_steps) would make {FEWEST_UPDATES}"
        )
    if totals.lr_factor > LARGEST_FACTOR:
        yield (
            f"learning rates are multiplied by {totals.lr_factor:.3g} ({totals.scaling} scaling from "
            f"{totals.reference_bs} to {totals.effective_batch_size} rows), more than {LARGEST_FACTOR:g}: lower "
            "lr_scheduler.base_lr or the batch, or set lr_scheduler.reference_bs to the batch that the rate is for"
        )


def _lr_findings(spec: LearningRateSpec, total: int, steps: np.ndarray, rates: np.ndarray) -> Iterator[str]:
    who = f"group {spec.group!r}"
    if spec.delay_steps >= total:
        yield f"{who}: its delay takes {spec.delay_steps} of {total} updates, so it never trains"
    elif spec.warm_step >= total:
        yield f"{who}: warmup takes {spec.warmup_steps} of {total} updates, so only the ramp is seen"
    elif spec.warmup_steps >= total / 2:
        yield f"{who}: warmup takes {spec.warmup_steps} of {total} updates, half of the run or more"
    if 0 < spec.warmup_steps < SHORTEST_WARMUP and spec.peak > SHORTEST_WARMUP * spec.warmup_lr:
        yield (
            f"{who}: warmup takes {spec.warmup_steps} updates, fewer than {SHORTEST_WARMUP}, up to a rate of "
            f"{spec.peak:.3g}; lengthen it (lr_scheduler.warmup_epochs), or make more updates of smaller batches"
        )
    yield from (f"{who}: {text}" for text in spec.kind.findings(spec))
    wrong = steps[~((rates >= 0) & (rates < np.inf))]
    if len(wrong):
        yield f"{who}: the rate of schedule {spec.name!r} is negative or not finite, first at step {wrong[0]}"


def _interval_findings(resolved: ResolvedSchedule) -> Iterator[str]:
    validation, total, epochs = resolved.validation, resolved.total_steps, resolved.epochs
    named = {event.name: (f"schedule.{event.key}", event.interval) for event in events(resolved) if event.interval}
    final = due_at_epoch_end(resolved, epochs - 1, total, resolved.totals.boundaries[-2] if epochs > 1 else 0)
    at_end = {"validation": Stage.VALIDATION_NORMAL in final.stages, "checkpoint": final.save}
    validated = any(event.epochs for event in events(resolved) if event.stage != "CHECKPOINT")
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
    # the whole run in one interval is its end in any unit
    at_the_end = {path: interval.unit == "fraction" and interval.value >= 1 for path, interval in named.values()}
    explicit = [(path, interval.unit) for path, interval in named.values() if interval.explicit]
    by_epochs = [path for path, unit in explicit if unit == "epochs"]
    by_steps = [path for path, unit in explicit if unit in ("steps", "fraction") and not at_the_end[path]]
    if by_epochs and by_steps:
        verb = "is" if len(by_epochs) == 1 else "are"
        yield f"{', '.join(by_epochs)} {verb} given in epochs, but {', '.join(by_steps)} in updates or as a fraction"


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
    end = total if partial.end_steps is None else partial.end_steps
    if partial.enabled and partial.start_steps >= min(total, end):
        window = f"{partial.start_steps} to {'the end' if partial.end_steps is None else partial.end_steps}"
        yield f"the window of schedule.meta_masking.partial, {window}, is empty within {total} updates"
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
    measured = measured_epochs(resolved, stop.phase)
    if not measured:
        yield f"train.early_stop.metric is of phase {stop.phase}, which is never run"
        return
    ends = [resolved.totals.boundaries[epoch] for epoch in measured]
    spacing = max([ends[0]] + [b - a for a, b in pairwise(ends)])
    if stop.patience_steps and stop.patience_steps < spacing:
        yield (
            f"early-stop patience of {stop.patience_steps} updates is shorter than the {spacing} updates between "
            f"runs of phase {stop.phase}"
        )


def validate_schedule_sanity(resolved: ResolvedSchedule) -> list[str]:
    """Warnings about a valid schedule: what never fires, is cut off, is clamped or was decided by a fall-back."""
    totals, total = resolved.totals, resolved.total_steps
    findings = list(resolved.notes)
    if totals.reference_bs != 512:
        findings.append(f"lr_scheduler.reference_bs = {totals.reference_bs} differs from the usual 512")
    findings += _batch_findings(resolved)
    steps = np.linspace(0, total - 1, 1000).astype(np.int32)
    with on_cpu():  # a thousand rates are known sooner than a program is compiled for them
        rates = values_at(build_scheduler(resolved), jnp.asarray(steps))
    for spec in resolved.learning_rates:
        if not spec.frozen:
            findings += _lr_findings(spec, total, steps, np.asarray(rates[spec.group]))
    if all(spec.frozen or spec.peak == 0 for spec in resolved.learning_rates):
        findings.append("every learning rate is 0: this run trains nothing and only evaluates")
    findings += _interval_findings(resolved)
    findings += _probability_findings(resolved)
    findings += _early_stop_findings(resolved)
    silent = [f"{stream} (every {interval})" for stream, interval in resolved.logging.items() if interval > total]
    if silent:
        findings.append(
            f"schedule.metrics: {', '.join(silent)} records nothing within {total} updates; lower these intervals, or "
            f"set them to 0"
        )
    every, logged = resolved.gradnorm.interval, resolved.logging["step"]
    if resolved.gradnorm.enabled and every <= logged:
        findings.append(
            f"GradNorm changes the task weights every {every} updates, but metrics are recorded every {logged}: "
            f"divergence may stay hidden"
        )
    return findings
