"""What a debug event log says: progress, gradients, updates, data, and what to do about bad signs.

python -m linnaeus_jax.tools.analyze_debug_logs RUN/logs/debug [--json] [--strict] [--plot out.png]
"""

from __future__ import annotations

import argparse
import json
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from linnaeus_jax.debugging.analysis import HEALTHY, analyse, log_files, number, read_events
from linnaeus_jax.reporting.metrics_log import strict

_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan", "good": "green", "title": "bold", "": ""}
_MARKS = {"error": "❌ ERROR", "warning": "⚠️  WARNING", "note": "NOTE", "good": "✅ OK"}

Line = tuple[str, str]


def report(found: Mapping[str, Any]) -> Iterator[Line]:
    """The documented report of `analyse`'s result as (text, style) lines."""
    yield "=== EVENTS ===", "title"
    yield f"{found['total_events']} events in {len(found['files'])} file(s)", ""
    for kind, count in found["event_types"].items():
        yield f"  {kind}: {count}", ""
    if found["malformed_lines"]:
        yield f"  lines that are no events: {found['malformed_lines']}", "note"
    yield from _data(found["data_sanity"])
    if "training" in found:
        yield from _training(found["training"])
        yield from _improvement(found["improvement"])
    if "gradients" in found:
        yield from _gradients(found["gradients"])
    if "param_updates" in found:
        yield from _updates(found["param_updates"])
    yield "", ""
    yield "=== SIGNS ===", "title"
    for sign in found["findings"]:
        yield f"{_MARKS[sign['level']]}: {sign['message']}{_at(sign['steps'], sign['count'])}", sign["level"]
        for advice in sign["advice"]:
            yield f"  → {advice}", sign["level"]


def _at(steps: Sequence[int], count: int) -> str:
    if not steps:
        return ""
    return f" (at {', '.join(map(str, steps[:5]))}{f' and {count - 5} more' if count > 5 else ''})"


def _data(checks: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    yield "", ""
    yield "=== DATA SANITY CHECK ===", "title"
    if not checks:
        yield "no check is logged", ""
    for check in checks:
        for task, row in (check.get("tasks") or {"labels": check}).items():
            valid = bool(row.get("labels_valid"))
            text = f"{task}: {row.get('label_min')} to {row.get('label_max')}, expected 0 to {row.get('expected_max')}"
            yield f"{'OK' if valid else 'ERROR: labels out of range'}: {text}", "good" if valid else "error"


def _training(found: Mapping[str, Any]) -> Iterator[Line]:
    yield "", ""
    yield "=== TRAINING PROGRESSION ===", "title"
    yield f"Total training steps logged: {found['logged']}", ""
    yield f"Epochs covered: {found['epochs'][0]} to {found['epochs'][1]}", ""
    for epoch, row in found["per_epoch"].items():
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
    if left_out := found["epochs_left_out"]:
        yield f"{left_out} epochs in the middle are left out", "note"


def _improvement(found: Mapping[str, Any]) -> Iterator[Line]:
    yield "", ""
    yield "=== IMPROVEMENT CHECK ===", "title"
    loss, accuracy = found["loss"], found["accuracy"]
    for label, key in (("First", "first10"), ("Last", "last10")):
        label = f"{label} {found['window']} steps:"
        yield f"{label:<16} Loss={_short(loss[key])}, Acc={_short(accuracy[key])}", ""
    for label, row in (("Loss change:    ", loss), ("Acc change:     ", accuracy)):
        if row["change"] is not None:
            style = "good" if row["status"] == "IMPROVED" else "warning"
            yield f"{label} {row['change']:+.4f} ({row['status']})", style


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _count(count: int, what: str, level: str = "warning") -> Line:
    return (f"{_MARKS[level]}: {count} {what}", level) if count else (f"OK: 0 {what}", "good")


def _gradients(found: Mapping[str, Any]) -> Iterator[Line]:
    yield "", ""
    yield "=== GRADIENT ANALYSIS ===", "title"
    yield "Total gradient norm:", ""
    if found["mean"] is not None:
        yield f"  Range: {found['min']:.4f} to {found['max']:.4f}", ""
        yield f"  Mean:  {found['mean']:.4f}", ""
        yield f"  Median: {found['median']:.4f}", ""
    yield _count(found["near_zero_lt_1e-6"], "steps with near-zero gradients")
    yield _count(found["exploding_gt_1000"], "steps with exploding gradients (norm > 1000)")
    yield _count(found["nonfinite"], "steps with non-finite gradients", "error")
    yield "Top modules by mean gradient norm:", ""
    for name, mean in found["top_modules_by_mean"]:
        yield f"  {mean:12.6f}  {name}", ""


def _updates(found: Mapping[str, Any]) -> Iterator[Line]:
    yield "", ""
    yield "=== PARAMETER UPDATES ===", "title"
    pairs = sorted({f"{updated}/{total}" for updated, total in zip(found["updated"], found["total"], strict=True)})
    more = f" and {len(pairs) - 5} other counts" if len(pairs) > 5 else ""
    yield f"Parameters updated per measurement: {', '.join(pairs[:5])}{more}", ""
    steps, count = found["no_update_steps"], found["no_updates"]
    text, level = _count(count, "measurements with NO parameter updates")
    yield (f"{text}!{_at(steps, count)} (Check optimizer!)" if steps else text), level


#: panels of the plot: event, key, label, scale
_PANELS = (
    ("training_step", "loss", "loss", "linear"),
    ("training_step", "accuracy", "accuracy (fraction)", "linear"),
    ("training_step", "learning_rate", "learning rate", "linear"),
    ("gradient_stats", "total_norm", "gradient norm", "log"),
    ("param_updates", "num_params_updated", "parameters updated", "linear"),
)


def plot(files: Sequence[Path], path: Path) -> Path:
    """Draws loss, accuracy, learning rate, gradient norm and updated parameters over the steps, 1200 x 1000 pixels."""
    from matplotlib.figure import Figure  # the import takes a second, which only those who draw should pay

    curves = {key: (array("q"), array("d")) for _, key, _, _ in _PANELS}
    epochs = array("q")
    for event in read_events(files):
        if event is not None and event["event_type"] == "epoch_start":
            epochs.append(event["step"])
        for kind, key, _, _ in _PANELS:
            if event is not None and event["event_type"] == kind:
                curves[key][0].append(event["step"])
                curves[key][1].append(number(event["data"].get(key)))
    figure = Figure(figsize=(12, 10), dpi=100, layout="constrained")
    for axes, (kind, key, label, scale) in zip(figure.subplots(len(_PANELS), 1, sharex=True), _PANELS, strict=True):
        steps, values = curves[key]
        axes.plot(steps, values, ".-", lw=0.8, ms=4)
        for step in (step for step, value in zip(steps, values, strict=True) if value - value != 0.0):
            axes.axvline(step, color="red", lw=0.8, alpha=0.5)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        if key == "total_norm" and any(value > 0 for value in values):
            axes.set_yscale(scale)
            axes.axhspan(*HEALTHY, color="green", alpha=0.07)
        if kind == "param_updates":
            axes.set_ylim(bottom=0)
        for start in epochs:
            axes.axvline(start, color="black", lw=0.6, alpha=0.3)
    axes.set_xlabel("optimizer updates (thin lines: epochs; red: not finite; green band: usual gradient norms)")
    figure.suptitle(files[0].parent.as_posix() if len(files) > 1 else files[0].name)
    figure.savefig(path)
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Exit status: 0; 1 where a log is missing; 2 with --strict where there are warnings or errors."""
    parser = argparse.ArgumentParser(prog="linnaeus_jax.tools.analyze_debug_logs", description=__doc__.split("\n")[0])
    parser.add_argument("logs", nargs="+", type=Path, help="debug_log_*.jsonl files of one run, or their directory")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--strict", action="store_true", help="exit with 2 if there are warnings or errors")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the curves into this file")
    options = parser.parse_args(argv)
    try:
        files = log_files(options.logs)
        found = analyse(files)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(strict(found), indent=1, allow_nan=False))
    else:
        console = Console(highlight=False, soft_wrap=True)
        for text, style in report(found):
            console.print(Text(text, _STYLES[style]))
    if options.plot:
        print(f"written: {plot(files, options.plot)}", file=sys.stderr)
    bad = any(sign["level"] in ("error", "warning") for sign in found["findings"])
    return 2 if options.strict and bad else 0


if __name__ == "__main__":
    sys.exit(main())
