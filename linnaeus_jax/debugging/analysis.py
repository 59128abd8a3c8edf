"""The analysis of a debug event log: as JSON types, as text and as a plot. No jax, no device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus_jax.debugging.log_statistics import HEALTHY, LogStatistics
from linnaeus_jax.debugging.signs import diagnose

_MARKS = {"error": "❌ ERROR", "warning": "⚠️  WARNING", "note": "NOTE", "good": "✅ OK"}

#: text and style: a level of a sign, "title" or ""
Line = tuple[str, str]


def analyse(files: Sequence[Path]) -> dict[str, Any]:
    """Statistics of the log of a run, as plain JSON types.

    Args:
      files: in order, see `event_reader.log_files`.

    Returns:
      total_events, malformed_lines, event_types, files, training, improvement, gradients, param_updates, data_sanity
      (sections without events are absent or empty), and `findings`: see `signs.diagnose`. Of anything that could grow
      with the log, the first `LISTED` are listed; of the epochs the first and the last.

    Raises:
      OSError: a file cannot be read.
    """
    log = LogStatistics.read(files)
    analysis: dict[str, Any] = {
        "files": [str(path) for path in files],
        "total_events": log.events,
        "malformed_lines": log.malformed,
        "event_types": dict(log.kinds),
        "data_sanity": [check for _, check in log.checks],
    }
    if len(log.training):
        analysis |= {"training": log.training.results(), "improvement": log.training.improvement()}
    if len(log.gradients):
        analysis["gradients"] = log.gradients.results()
    if len(log.updates):
        analysis["param_updates"] = log.updates.results()
    analysis["findings"] = diagnose(log)
    return analysis


def report(analysis: Mapping[str, Any]) -> Iterator[Line]:
    """The documented report of `analyse`'s result as (text, style) lines."""
    yield "=== EVENTS ===", "title"
    yield f"{analysis['total_events']} events in {len(analysis['files'])} file(s)", ""
    for kind, count in analysis["event_types"].items():
        yield f"  {kind}: {count}", ""
    if analysis["malformed_lines"]:
        yield f"  lines that are no events: {analysis['malformed_lines']}", "note"
    for key, (title, lines) in _SECTIONS.items():
        if key in analysis:
            yield "", ""
            yield f"=== {title} ===", "title"
            yield from lines(analysis[key])


def _signs(findings: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    for sign in findings:
        yield f"{_MARKS[sign['level']]}: {sign['message']}{_at(sign['steps'], sign['count'])}", sign["level"]
        for advice in sign["advice"]:
            yield f"  → {advice}", sign["level"]


def _at(steps: Sequence[int], count: int) -> str:
    if not steps:
        return ""
    return f" (at {', '.join(map(str, steps[:5]))}{f' and {count - 5} more' if count > 5 else ''})"


def _data(checks: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    if not checks:
        yield "no check is logged", ""
    for check in checks:
        for task, row in (check.get("tasks") or {"labels": check}).items():
            valid = bool(row.get("labels_valid"))
            text = f"{task}: {row.get('label_min')} to {row.get('label_max')}, expected 0 to {row.get('expected_max')}"
            yield f"{'OK' if valid else 'ERROR: labels out of range'}: {text}", "good" if valid else "error"


def _training(training: Mapping[str, Any]) -> Iterator[Line]:
    yield f"Total training steps logged: {training['logged']}", ""
    yield f"Epochs covered: {training['epochs'][0]} to {training['epochs'][1]}", ""
    for epoch, row in training["per_epoch"].items():
        yield "", ""
        yield f"Epoch {epoch}:", ""
        yield f"  Steps: {row['steps']}", ""
        for label, key in (("Loss: ", "loss"), ("Acc:  ", "accuracy")):
            if values := row[key]:
                yield f"  {label} {values['first']:.4f} -> {values['last']:.4f} (avg: {values['avg']:.4f})", ""
        if rates := row["learning_rate"]:
            yield f"  LR:    {rates['first']:.6e} -> {rates['last']:.6e}", ""
        if row["nonfinite_loss"]:
            yield f"  Non-finite losses: {row['nonfinite_loss']}", "error"
    if left_out := training["epochs_left_out"]:
        yield f"{left_out} epochs in the middle are left out", "note"


def _improvement(improvement: Mapping[str, Any]) -> Iterator[Line]:
    loss, accuracy = improvement["loss"], improvement["accuracy"]
    for label, key in (("First", "first10"), ("Last", "last10")):
        label = f"{label} {improvement['window']} steps:"
        yield f"{label:<16} Loss={_short(loss[key])}, Acc={_short(accuracy[key])}", ""
    for label, row in (("Loss change:    ", loss), ("Acc change:     ", accuracy)):
        if row["change"] is not None:
            style = "good" if row["status"] == "IMPROVED" else "warning"
            yield f"{label} {row['change']:+.4f} ({row['status']})", style


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _count(count: int, what: str, level: str = "warning") -> Line:
    return (f"{_MARKS[level]}: {count} {what}", level) if count else (f"OK: 0 {what}", "good")


def _gradients(gradients: Mapping[str, Any]) -> Iterator[Line]:
    yield "Total gradient norm:", ""
    if gradients["mean"] is not None:
        yield f"  Range: {gradients['min']:.4f} to {gradients['max']:.4f}", ""
        yield f"  Mean:  {gradients['mean']:.4f}", ""
        yield f"  Median: {gradients['median']:.4f}", ""
    yield _count(gradients["near_zero_lt_1e-6"], "steps with near-zero gradients")
    yield _count(gradients["exploding_gt_1000"], "steps with exploding gradients (norm > 1000)")
    yield _count(gradients["nonfinite"], "steps with non-finite gradients", "error")
    yield "Top modules by mean gradient norm:", ""
    for name, mean in gradients["top_modules_by_mean"]:
        yield f"  {mean:12.6f}  {name}", ""


def _updates(updates: Mapping[str, Any]) -> Iterator[Line]:
    pairs = sorted({f"{updated}/{total}" for updated, total in zip(updates["updated"], updates["total"], strict=True)})
    more = f" and {len(pairs) - 5} other counts" if len(pairs) > 5 else ""
    yield f"Parameters updated per measurement: {', '.join(pairs[:5])}{more}", ""
    steps, count = updates["no_update_steps"], updates["no_updates"]
    text, level = _count(count, "measurements with NO parameter updates")
    yield (f"{text}!{_at(steps, count)} (Check optimizer!)" if steps else text), level


#: part of the analysis -> title, lines
_SECTIONS: dict[str, tuple[str, Callable[[Any], Iterator[Line]]]] = {
    "data_sanity": ("DATA SANITY CHECK", _data),
    "training": ("TRAINING PROGRESSION", _training),
    "improvement": ("IMPROVEMENT CHECK", _improvement),
    "gradients": ("GRADIENT ANALYSIS", _gradients),
    "param_updates": ("PARAMETER UPDATES", _updates),
    "findings": ("SIGNS", _signs),
}

#: panels of the plot: part of the log, key, label
_PANELS = (
    ("training", "loss", "loss"),
    ("training", "accuracy", "accuracy (fraction)"),
    ("training", "learning_rate", "learning rate"),
    ("gradients", "total_norm", "gradient norm"),
    ("updates", "num_params_updated", "parameters updated"),
)


def plot(files: Sequence[Path], path: Path) -> Path:
    """Draws loss, accuracy, learning rate, gradient norm and updated parameters over the steps, 1200 x 1000 pixels."""
    from matplotlib.figure import Figure  # the import takes a second, which only those who draw should pay

    log = LogStatistics.read(files)
    figure = Figure(figsize=(12, 10), dpi=100, layout="constrained")
    for axes, (kind, key, label) in zip(figure.subplots(len(_PANELS), 1, sharex=True), _PANELS, strict=True):
        steps, values = getattr(log, kind)["step"], getattr(log, kind)[key]
        axes.plot(steps, values, ".-", lw=0.8, ms=4)
        for step in steps[~np.isfinite(values)]:
            axes.axvline(step, color="red", lw=0.8, alpha=0.5)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        if key == "total_norm" and (values > 0).any():
            axes.set_yscale("log")
            axes.axhspan(*HEALTHY, color="green", alpha=0.07)
        if kind == "updates":
            axes.set_ylim(bottom=0)
        for start in log.epoch_starts["step"]:
            axes.axvline(start, color="black", lw=0.6, alpha=0.3)
    axes.set_xlabel("optimizer updates (thin lines: epochs; red: not finite; green band: usual gradient norms)")
    figure.suptitle(files[0].parent.as_posix() if len(files) > 1 else files[0].name)
    figure.savefig(path)
    return path
