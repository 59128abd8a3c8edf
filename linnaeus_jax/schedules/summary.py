"""The schedule as text and as JSON: `schedule_summary.txt` and `schedule_summary.json`.

Everything shown comes from the resolved schedule and the functions that the training loop calls.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optax

from linnaeus_jax.files import write_atomically, write_json
from linnaeus_jax.metrics.phases import REGISTERED
from linnaeus_jax.schedules.learning_rate import build_scheduler
from linnaeus_jax.schedules.probabilities import build_probabilities
from linnaeus_jax.schedules.resolved import Interval, LearningRateSpec, Ramp, ResolvedSchedule
from linnaeus_jax.schedules.triggers import Stage, firing_epochs, phases_of
from linnaeus_jax.schedules.values import on_host

_WIDTH = 72
_LABEL = 23
_LEVELS = " .:-=+*#%@"
_MANY = 12
EVENTS = {
    Stage.VALIDATION_NORMAL.value: "validation",
    Stage.VALIDATION_MASK_META.value: "mask-meta validation",
    Stage.VALIDATION_PARTIAL_MASK_META.value: "partial-mask validation",
    Stage.VALIDATION_EXHAUSTIVE.value: "exhaustive validation",
    "CHECKPOINT": "checkpoint",
}


def headline(resolved: ResolvedSchedule) -> str:
    """Two lines for people; `schedule_summary` has the rest."""
    totals, fired = resolved.totals, firing_epochs(resolved)
    first, *others = sorted(resolved.learning_rates, key=lambda spec: (spec.frozen, spec.group != "default"))
    rate = f"{first.name} from {first.peak:.4g} after {first.warmup_steps} updates of warmup"
    rate = "0, all is frozen" if first.frozen else rate
    groups = f", and {len(others)} other groups of parameters" if others else ""
    times = {name: len(fired[event]) for event, name in EVENTS.items() if fired.get(event)}
    at_ends = ", ".join(f"{name} {count} times" if count > 1 else f"{name} once" for name, count in times.items())
    updates = f"{totals.epochs} epochs, {totals.total_steps} updates of {totals.effective_batch_size} rows"
    return f"schedule: {updates}; learning rate: {rate}{groups}\n          at ends of epochs: {at_ends or 'nothing'}"


def curves(resolved: ResolvedSchedule) -> dict[str, optax.Schedule]:
    """Every probability that is in use, by name; the partial one with its window applied."""
    schedules = build_probabilities(resolved).by_name()
    named = {
        "meta mask": (resolved.meta_masking.enabled and resolved.validation.has_metadata, "meta_mask_prob"),
        "partial mask": (resolved.partial_masking.enabled and resolved.validation.has_metadata, "partial_mask_prob"),
        "null inclusion": (resolved.null_masking.enabled, "null_mask_prob"),
        "mixing": (resolved.mixing.prob.enabled, "mixup_prob"),
    }
    return {name: schedules[logged] for name, (enabled, logged) in named.items() if enabled}


def _elided(items: Sequence[Any]) -> str:
    if not items:
        return "never"
    shown = [str(item) for item in items]
    if len(shown) > _MANY:
        shown = [*shown[: _MANY - 2], "...", shown[-1]]
    return ", ".join(shown) + f"  ({len(items)} in all)"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.4g} %"


def _when(resolved: ResolvedSchedule, step: int) -> str:
    """An update in all three units."""
    return f"{step} updates ({_percent(step, resolved.total_steps)}, epoch {resolved.totals.epoch_at(step):.4g})"


def _range(values: Sequence[int]) -> str:
    return str(values[0]) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def _totals(resolved: ResolvedSchedule) -> list[str]:
    totals = resolved.totals
    return [
        f"dataset size           {totals.dataset_size} rows",
        f"micro-batches / epoch  {_range(totals.micro_batches_per_epoch)}, of {totals.batch_size} rows "
        f"({totals.batch_size / totals.devices:.4g} on each of {totals.devices} devices)",
        f"accumulation           {totals.accumulation_steps} micro-batches per update",
        f"updates / epoch        {_range(totals.steps_per_epoch)}",
        f"epochs                 {totals.epochs}",
        f"total updates          {totals.total_steps}",
        f"effective batch size   {totals.effective_batch_size} rows per update",
        f"learning-rate factor   {totals.lr_factor:.6g} ({totals.scaling} scaling, reference {totals.reference_bs})",
    ]


def _learning_rate(resolved: ResolvedSchedule, spec: LearningRateSpec) -> list[str]:
    if spec.frozen:
        return [f"{spec.group}: frozen, rate 0"]
    lines = [
        f"{spec.group}: {spec.name}",
        f"  peak {spec.peak:.6g} = base {spec.base_lr:.6g} x multiplier {spec.multiplier:.6g} x factor "
        f"{resolved.totals.lr_factor:.6g}; warmup from {spec.warmup_lr:.6g}; "
        + ("no floor" if spec.kind.stepwise else f"floor {spec.min_lr:.6g}"),
        f"  warmup {_when(resolved, spec.warmup_steps)}",
    ]
    if spec.delay_steps:
        lines.insert(1, f"  stays as it is for {_when(resolved, spec.delay_steps)}")
    for name, first, last in spec.phases():
        length = last - first + 1
        share = _percent(length, spec.total_steps) + " of the run"
        if name not in ("delay", "warmup"):
            share += f", {_percent(length, spec.decay_span)} of the time after warmup"
        lines.append(f"  {name:<8} updates {first} .. {last}  ({length}; {share})")
    if spec.kind.stepwise:
        every = f"every {spec.decay_steps} updates" if spec.decay_steps else "never"
        lines.append(f"  drops by factor {spec.decay_rate:.6g} {every}, at updates {_elided(spec.drops())}")
    return lines


def describe_interval(resolved: ResolvedSchedule, interval: Interval) -> str:
    """An interval in the user's unit and in the others."""
    if interval.unit == "off":
        return "off"
    totals = resolved.totals
    mean = totals.total_steps / totals.epochs
    source = "" if interval.explicit else " (default)"
    if interval.unit == "epochs":
        return f"every {interval.value} epochs{source} = {interval.value * mean:.6g} updates"
    given = f"every {interval.value} {'updates' if interval.unit == 'steps' else 'of the run'}{source}"
    steps = interval.steps
    return f"{given} = {steps} updates, {_percent(steps, totals.total_steps)}, {steps / mean:.4g} epochs"


def _validation(resolved: ResolvedSchedule) -> list[str]:
    validation, fired = resolved.validation, firing_epochs(resolved)
    lines = [f"step triggers: {resolved.step_trigger_mode}; always after the last epoch: {_yes(validation.at_end)}"]
    for stage, interval in (
        (Stage.VALIDATION_NORMAL, validation.normal),
        (Stage.VALIDATION_MASK_META, validation.mask_meta),
        (Stage.VALIDATION_PARTIAL_MASK_META, validation.partial),
    ):
        lines.append(f"{EVENTS[stage.value]}: {describe_interval(resolved, interval)}")
        lines.append(f"  after epochs {_elided(fired[stage.value])}")
    if REGISTERED:
        lines.insert(3, f"  of {_names(resolved, Stage.VALIDATION_NORMAL)}")
    if validation.whitelist:
        lines.append(f"  combinations {_names(resolved, Stage.VALIDATION_PARTIAL_MASK_META)}")
    combos = phases_of(resolved, Stage.VALIDATION_EXHAUSTIVE)
    lines.append(f"exhaustive validation: {f'{len(combos)} combinations at the end' if combos else 'off'}")
    if combos:
        lines.append(f"  {_names(resolved, Stage.VALIDATION_EXHAUSTIVE)}")
    return lines


def _names(resolved: ResolvedSchedule, stage: Stage) -> str:
    return ", ".join(phase.name for phase in phases_of(resolved, stage))


def _checkpoints(resolved: ResolvedSchedule) -> list[str]:
    checkpoint = resolved.checkpoint
    kept = f"best {checkpoint.keep_top_n} and newest {max(1, checkpoint.keep_last_n)}"
    return [
        f"interval: {describe_interval(resolved, checkpoint.interval)}; always after the last epoch: "
        f"{_yes(checkpoint.at_end)}",
        f"  after epochs {_elided(firing_epochs(resolved)['CHECKPOINT'])}; also before every validation",
        f"kept: {kept if checkpoint.keep_top_n or checkpoint.keep_last_n else 'all (keep_top_n = keep_last_n = 0)'}",
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _ramp(resolved: ResolvedSchedule, name: str, ramp: Ramp) -> str:
    if not ramp.enabled:
        return f"{name}: off (constant {ramp.disabled_value:g})"
    return f"{name}: {ramp.start:g} -> {ramp.end:g} at {_when(resolved, ramp.end_steps)}"


def _probabilities(resolved: ResolvedSchedule) -> list[str]:
    partial, metadata = resolved.partial_masking, resolved.validation.has_metadata
    lines = ["metadata masking: none, since no metadata component is in use"]
    if metadata:
        lines = [_ramp(resolved, "full metadata masking", resolved.meta_masking)]
        lines.append(_ramp(resolved, "partial metadata masking", partial.prob))
    if metadata and partial.enabled:
        end = "the end" if partial.end_steps is None else _when(resolved, partial.end_steps)
        lines.append(f"  active from {_when(resolved, partial.start_steps)} to {end}")
        weights = partial.weights or (1.0,) * len(partial.whitelist)
        combos = [f"{'+'.join(c) or 'nothing'} {_percent(w, sum(weights))}" for c, w in zip(partial.whitelist, weights)]
        lines.append(f"  combinations: {', '.join(combos) or 'none'}")
    lines.append(_ramp(resolved, "inclusion of null labels", resolved.null_masking))
    lines.append(_ramp(resolved, "mixing", resolved.mixing.prob))
    return lines


def _mixing(resolved: ResolvedSchedule) -> list[str]:
    mixing = resolved.mixing
    levels, mixup, cutmix = mixing.level_of_epoch, mixing.mixup_enabled, mixing.cutmix_enabled
    switches = [epoch for epoch in range(1, len(levels)) if levels[epoch] != levels[epoch - 1]]
    bounds = f", fraction within {mixing.cutmix_minmax}" if mixing.cutmix_minmax else ""
    lines = [
        f"group level: {levels[0]} from epoch 0",
        *([f"  {levels[epoch]} from epoch {epoch}" for epoch in switches] or ["  level switching off"]),
        f"minimum group size {mixing.min_group_size}; null labels excluded: {_yes(mixing.exclude_null_samples)}",
        f"mixup: {f'lambda ~ Beta({mixing.mixup_alpha:g}, {mixing.mixup_alpha:g})' if mixup else 'off'}",
        f"cutmix: {f'lambda ~ Beta({mixing.cutmix_alpha:g}, {mixing.cutmix_alpha:g}){bounds}' if cutmix else 'off'}",
    ]
    if mixup and cutmix:
        lines.append(f"  cutmix in {_percent(mixing.switch_prob, 1)} of the mixed micro-batches")
    return lines


def _early_stop(resolved: ResolvedSchedule) -> list[str]:
    stop = resolved.early_stop
    if not stop.active:
        return ["off"]
    better = "higher" if stop.higher_is_better else "lower"
    lines = [f"metric {stop.phase}/{stop.metric}, {better} is better, by at least {stop.min_delta:g}"]
    lines.append(f"patience: {_when(resolved, stop.patience_steps) if stop.patience_steps else 'off'}")
    for key in ("max_steps", "max_loss", "min_lr", "max_grad_norm"):
        value = getattr(stop, key)
        lines.append(f"{key}: {'off' if value is None else f'{value:g}'}")
    return lines


def _logging(resolved: ResolvedSchedule) -> list[str]:
    lines = [
        f"{stream:<8} {f'every {_when(resolved, every)}' if every else 'off'}"
        for stream, every in resolved.logging.items()
    ]
    trigger = resolved.gradnorm
    every = f"every {trigger.interval} updates from update {trigger.warmup_steps}" if trigger.enabled else "off"
    return [*lines, f"GradNorm {every}"]


def text_chart(resolved: ResolvedSchedule) -> list[str]:
    """Fixed-width chart over updates 0 .. T-1: curves as levels of ink, ends of epochs as marks, an epoch axis."""
    total = resolved.total_steps
    columns = [min(total - 1, (2 * column + 1) * total // (2 * _WIDTH)) for column in range(_WIDTH)]

    def row(label: str, values: np.ndarray, scale: float) -> str:
        top = len(_LEVELS) - 1
        ink = "".join(_LEVELS[max(0, min(top, round(top * value / scale)))] for value in values.tolist())
        return f"{label[:_LABEL]:<{_LABEL}} |{ink}| {scale:.3g}"

    peaks = {spec.group: spec.peak for spec in resolved.learning_rates if not spec.frozen and spec.peak > 0}
    rates = build_scheduler(resolved)
    shown = {f"lr {group}": (rates[group], peak) for group, peak in peaks.items()}
    shown |= {f"p {name}": (curve, 1.0) for name, curve in curves(resolved).items()}
    values = on_host({label: schedule for label, (schedule, _) in shown.items()})(columns)
    lines = [row(label, values[label], scale) for label, (_, scale) in shown.items()]
    ends = resolved.totals.boundaries
    for event, epochs in firing_epochs(resolved).items():
        if epochs:
            hit = {-(-ends[epoch] * _WIDTH // total) - 1 for epoch in epochs}
            marks = "".join("^" if column in hit else " " for column in range(_WIDTH))
            lines.append(f"{EVENTS[event]:<{_LABEL}.{_LABEL}} |{marks}|")
    epochs_at = [resolved.totals.epoch_at(tick * total // _WIDTH) for tick in range(0, _WIDTH, 12)]
    lines.append(f"{'':<{_LABEL}} +{'+-----------' * len(epochs_at)}+")
    lines.append(f"{'epoch':<{_LABEL}}  {''.join(f'{epoch:<12.3g}' for epoch in epochs_at).rstrip()}")
    lines.append(f"ink {_LEVELS!r} from 0 to the number at the right; ^ marks a boundary")
    return lines


def schedule_summary(resolved: ResolvedSchedule) -> str:
    """The whole schedule as text, in ten sections."""
    rates = [line for spec in resolved.learning_rates for line in _learning_rate(resolved, spec)]
    sections = {
        "Totals": _totals(resolved),
        "Learning rate": rates,
        "Validation": _validation(resolved),
        "Checkpoints": _checkpoints(resolved),
        "Probabilities": _probabilities(resolved),
        "Mixing": _mixing(resolved),
        "Early stopping": _early_stop(resolved),
        "Logging": _logging(resolved),
        "Warnings": [f"! {warning}" for warning in resolved.warnings] or ["none"],
        "Chart": text_chart(resolved),
    }
    parts = ["TRAINING SCHEDULE"]
    for number, (title, lines) in enumerate(sections.items(), 1):
        parts += ["", f"{number}. {title}", *(f"   {line}".rstrip() for line in lines)]
    return "\n".join(parts) + "\n"


def summary_dict(resolved: ResolvedSchedule) -> dict[str, Any]:
    """JSON-able: resolved values, totals, phases per group, firing epochs, warnings."""
    return {
        "total_steps": resolved.total_steps,
        "effective_batch_size": resolved.totals.effective_batch_size,
        "epoch_boundaries": list(resolved.totals.boundaries),
        "learning_rate_phases": {
            spec.group: [list(phase) for phase in spec.phases()] for spec in resolved.learning_rates
        },
        "firing_epochs": {event: list(epochs) for event, epochs in firing_epochs(resolved).items()},
        "warnings": list(resolved.warnings),
        "resolved": resolved.to_dict(),
    }


def write_summary(resolved: ResolvedSchedule, directory: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Writes `schedule_summary.txt` and `schedule_summary.json` below `directory`; returns their paths."""
    text, data = Path(directory) / "schedule_summary.txt", Path(directory) / "schedule_summary.json"
    write_atomically(text, schedule_summary(resolved))
    write_json(data, summary_dict(resolved))
    return text, data
