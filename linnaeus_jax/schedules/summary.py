"""The schedule as text and as JSON: `schedule_summary.txt` and `schedule_summary.json`.

Everything shown comes from the resolved schedule and the functions that the training loop calls.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optax

from linnaeus_jax.files import write_atomically, write_json
from linnaeus_jax.schedules.learning_rate import build_scheduler
from linnaeus_jax.schedules.probabilities import build_probabilities
from linnaeus_jax.schedules.resolved import Interval, LearningRateSpec, Ramp, ResolvedSchedule
from linnaeus_jax.schedules.triggers import events, firing_epochs
from linnaeus_jax.schedules.values import on_host

_WIDTH = 72
_LABEL = 23
_LEVELS = " .:-=+*#%@"
_MANY = 12


def headline(resolved: ResolvedSchedule) -> str:
    """Two lines for people; `schedule_summary` has the rest."""
    totals = resolved.totals
    first, *others = sorted(resolved.learning_rates, key=lambda spec: (spec.frozen, spec.group != "default"))
    rate = f"{first.name} from {first.peak:.4g} after {first.warmup_steps} updates of warmup"
    rate = "0, all is frozen" if first.frozen else rate
    groups = f", and {len(others)} other groups of parameters" if others else ""
    times = {event.name: len(event.epochs) for event in events(resolved) if event.epochs}
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
        return "none"
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


def _shown(resolved: ResolvedSchedule, name: str, value: Any) -> str:
    """One resolved value; an interval, a ramp or a number of updates in all three units."""
    if isinstance(value, Interval):
        return describe_interval(resolved, value)
    if isinstance(value, Ramp):
        ramp = f"{value.start:g} -> {value.end:g} at {_when(resolved, value.end_steps)}"
        return ramp if value.enabled else f"off (constant {value.disabled_value:g})"
    if value is None or isinstance(value, bool):
        return "yes" if value else "off" if value is None else "no"
    if isinstance(value, tuple):
        return _elided(["+".join(item) or "nothing" if isinstance(item, tuple) else item for item in value])
    if name.endswith("_steps") and name != "accumulation_steps":
        return _when(resolved, value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _fields(resolved: ResolvedSchedule, part: Any, *left_out: str) -> list[str]:
    """The fields of a part of the schedule under their own names."""
    fields = {each.name: getattr(part, each.name) for each in dataclasses.fields(part) if each.name not in left_out}
    return [f"{name:<23} {_shown(resolved, name, value)}" for name, value in fields.items()]


def _totals(resolved: ResolvedSchedule) -> list[str]:
    totals, per_epoch = resolved.totals, ("steps_per_epoch", "micro_batches_per_epoch")
    return [
        *_fields(resolved, totals, *per_epoch),
        f"{'rows per device':<23} {totals.batch_size / totals.devices:g}",
        *(f"{name:<23} {_range(getattr(totals, name))}" for name in per_epoch),
        *(f"{name:<23} {getattr(totals, name)}" for name in ("epochs", "total_steps", "effective_batch_size")),
    ]


def _learning_rate(resolved: ResolvedSchedule, spec: LearningRateSpec) -> list[str]:
    if spec.frozen:
        return [f"{spec.group}: frozen, rate 0"]
    lines = [f"{spec.group}: {spec.name}"]
    lines += [f"  {line}" for line in _fields(resolved, spec, "group", "name", "frozen", "total_steps", "options")]
    lines += [f"  {name:<23} {value}" for name, value in spec.options.items()]
    for name, first, last in spec.phases():
        length = last - first + 1
        share = _percent(length, spec.total_steps) + " of the run"
        if name not in ("delay", "warmup"):
            share += f", {_percent(length, spec.decay_span)} of the time after warmup"
        lines.append(f"  {name:<8} updates {first} .. {last}  ({length}; {share})")
    if spec.kind.stepwise:
        lines.append(f"  drops at updates {_elided(spec.drops())}")
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


def _events(resolved: ResolvedSchedule) -> list[str]:
    """Validations and checkpoints: how often, after which epochs, in which phases."""
    lines = [f"step_trigger_mode       {resolved.step_trigger_mode}"]
    for event in events(resolved):
        last = "at the end" if event.epochs else "off"
        lines.append(f"{event.name}: {describe_interval(resolved, event.interval) if event.interval else last}")
        if event.epochs:
            lines += [f"  after epochs {_elided(event.epochs)}"]
            lines += [f"  of {', '.join(event.phases)}"] if event.phases else []
    return lines


def _mixing(resolved: ResolvedSchedule) -> list[str]:
    levels = resolved.mixing.level_of_epoch
    switches = [epoch for epoch in range(len(levels)) if epoch == 0 or levels[epoch] != levels[epoch - 1]]
    return [
        *(f"{levels[epoch]} from epoch {epoch}" for epoch in switches),
        *_fields(resolved, resolved.mixing, "prob", "level_of_epoch"),
    ]


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
    for event in events(resolved):
        if event.epochs:
            hit = {-(-ends[epoch] * _WIDTH // total) - 1 for epoch in event.epochs}
            marks = "".join("^" if column in hit else " " for column in range(_WIDTH))
            lines.append(f"{event.name:<{_LABEL}.{_LABEL}} |{marks}|")
    epochs_at = [resolved.totals.epoch_at(tick * total // _WIDTH) for tick in range(0, _WIDTH, 12)]
    lines.append(f"{'':<{_LABEL}} +{'+-----------' * len(epochs_at)}+")
    lines.append(f"{'epoch':<{_LABEL}}  {''.join(f'{epoch:<12.3g}' for epoch in epochs_at).rstrip()}")
    lines.append(f"ink {_LEVELS!r} from 0 to the number at the right; ^ marks a boundary")
    return lines


def schedule_summary(resolved: ResolvedSchedule) -> str:
    """The whole schedule as text, in ten sections."""
    ramps = {"meta_masking": resolved.meta_masking, "null_masking": resolved.null_masking}
    ramps["mixup.prob"] = resolved.mixing.prob
    probabilities = [f"{name:<23} {_shown(resolved, name, ramp)}" for name, ramp in ramps.items()]
    if not resolved.validation.has_metadata:
        probabilities[0] = "meta_masking            none, since no metadata component is in use"
    elif resolved.partial_masking.enabled:
        lines = _fields(resolved, resolved.partial_masking, "enabled")
        probabilities += ["meta_masking.partial:", *(f"  {line}" for line in lines)]
    early_stop = resolved.early_stop
    sections = {
        "Totals": _totals(resolved),
        "Learning rate": [line for spec in resolved.learning_rates for line in _learning_rate(resolved, spec)],
        "Validation and checkpoints": _events(resolved),
        "Retention": _fields(resolved, resolved.checkpoint, "interval"),
        "Probabilities": probabilities,
        "Mixing": _mixing(resolved),
        "Early stopping": _fields(resolved, early_stop, "active") if early_stop.active else ["off"],
        "Logging": [
            *(f"{name:<23} {_when(resolved, every) if every else 'off'}" for name, every in resolved.logging.items()),
            *(f"gradnorm.{line}" for line in _fields(resolved, resolved.gradnorm)),
        ],
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
