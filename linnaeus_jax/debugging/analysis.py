"""The analysis of a debug event log: its signs, as JSON types, as text and as a plot. No jax, no device."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus_jax.debugging.log_statistics import (
    FIRST_UPDATES,
    HEALTHY,
    JUMP,
    SPIKE,
    WINDOW,
    Gradients,
    LogStatistics,
    Steps,
    Training,
    changes,
    count_text,
    mean,
)

# ---- Good and bad signs in the statistics, with advice: what the documents say to look for

LEVELS = ("error", "warning", "note", "good")
#: smallest changes of the mean over ten logged steps that count: share of the first loss, accuracy
FLAT_LOSS, FLAT_ACCURACY = 0.01, 0.01
RISING_LOSS = 0.05
#: level, sign and message, then the advice; {count} is the number of steps
_TABLE = """\
error labels_out_of_range: labels{of_task} are out of range: {low} to {high}, expected 0 to {expected}
    Data preprocessing issue: the labels were numbered for another list of classes
    Compare assets/num_classes.json with the classes in the labels file
    Rebuild the labels file if its codes belong to other classes
good labels_valid: all labels are in range
error nonfinite_gradients: {count} steps with non-finite gradients; such updates are skipped
    Find the first layer with non-finite values: --debug underflow_overflow
    Reduce the learning rate, lengthen the warm-up or clip gradients (train.clip_grad)
    Look for non-finite metadata or images in these batches
warning zero_gradients: {count} steps with near-zero gradients
    No gradient flow: is every parameter frozen, or every label masked?
    Check that the loss is connected to the parameters and no task weight is 0
    Check for stop_gradient (detached values) between the loss and the parameters
warning exploding_gradients: {count} steps with exploding gradients (norm > 1000)
    Gradient explosion: stronger gradient clipping (a smaller train.clip_grad)
    Reduce the learning rate or lengthen the warm-up
warning gradient_jumps: {count} sudden rises of the gradient norm to more than ten times the median of the steps before
    Look at the batches, the loss and the learning rate of these steps
    Clip gradients (train.clip_grad) or reduce the learning rate
note gradient_drops: {count} sudden drops of the gradient norm below a tenth of the median of the steps before
    Look at the loss of these steps
good gradients_flow: 0 steps with near-zero gradients
good healthy_gradients: all gradient norms lie between 0.1 and 100
good parameters_update: all parameters are updating
note some_parameters_update: at times only {updated} of {total} parameters are updating; {others}
warning no_updates: {count} measurements with NO parameter updates!
    Learning rate might be too small
    Gradients might be zero
    Optimizer might not be stepping: are updates skipped as non-finite?
error nonfinite_loss: {count} steps with a non-finite loss
    Find the first layer with non-finite values: --debug underflow_overflow
    Reduce the learning rate
warning zero_learning_rate: the learning rate is 0 at every logged step
    Check lr_scheduler.base_lr, the multipliers of the groups and the schedule's summary
good warmup: the learning rate starts small ({first:.2e}) and rises to {peak:.2e}
note loss_spikes: {count} sudden rises of the loss to more than twice the median of the ten steps before
    Look at the batches and the gradients of these steps
    A spike at each epoch's start hints at data
note flat_start: nothing improves in the first {updates} updates: loss {loss:.4f} -> {later:.4f}
    The warm-up is slow: the learning rate is {rate:.2e} there and rises to {peak:.2e} later
warning flat_start: nothing improves in the first {updates} updates: loss {loss:.4f} -> {later:.4f}
    Check the learning rate, the gradient norms and the parameter updates of these steps
note too_short: only {logged} steps are logged: too few to judge loss and accuracy, which takes 20
warning rising_loss: the loss is rising: loss {first:.4f} -> {last:.4f}, accuracy {gain:+.4f}
    Reduce the learning rate or lengthen the warm-up
    Compare with the gradient norms of the same steps
warning flat: loss and accuracy are flat: loss {first:.4f} -> {last:.4f}, accuracy {gain:+.4f}
    Optimizer not updating weights: see the parameter updates
    Check the learning rate schedule
    Check if gradients are flowing: see the gradient norms
good loss_falls: the loss is decreasing
good accuracy_rises: the accuracy is increasing
warning empty: the log holds no events
    Check that the run got as far as fit_start
note malformed: {malformed} lines are no events: cut off by a kill, or foreign
"""
#: level and sign -> message and advice
TEXTS = {
    key: texts.split("\n    ") for key, texts in re.findall(r"^(\w+ \w+): (.*(?:\n    .*)*)", _TABLE, re.MULTILINE)
}
Sign = dict[str, Any]
_NO_STEPS = Steps()
#: why a parameter may not be updated
_OTHERS = "the others are frozen, get no gradient, or move by less than float32 resolves"


def diagnose(log: LogStatistics) -> list[Sign]:
    """The signs, most urgent first.

    Returns:
      A list of {"level": one of `LEVELS`, "sign": a fixed word, "message", "advice": texts, "count": at how many steps,
      "steps": the first of them, both where they are known}.
    """
    signs = [*_label_signs(log), *_gradient_signs(log.gradients), *_update_signs(log), *_progress_signs(log.training)]
    if not log.events:
        signs.append(_sign("warning empty"))
    if log.malformed:
        signs.append(_sign("note malformed", malformed=log.malformed))
    return sorted(signs, key=lambda sign: LEVELS.index(sign["level"]))


def _sign(key: str, steps: Steps = _NO_STEPS, causes: Sequence[str] = (), **values: Any) -> Sign:
    """The sign of `TEXTS` with this level and name; `values` fill its texts, `causes` come before its advice."""
    message, *advice = (text.format(count=steps.count, **values) for text in TEXTS[key])
    level, sign = key.split()
    return {
        "level": level,
        "sign": sign,
        "message": message,
        "advice": [*causes, *advice],
        "count": steps.count,
        "steps": steps.first,
    }


def _where_any(steps: np.ndarray, signs: Mapping[str, np.ndarray]) -> Iterator[Sign]:
    """Those signs that occurred at any of `steps` [n]; they are bool [n]."""
    return (_sign(key, Steps.where(steps, chosen)) for key, chosen in signs.items() if chosen.any())


def _label_signs(log: LogStatistics) -> list[Sign]:
    signs = []
    for step, check in log.checks:
        for task, row in (check.get("tasks") or {"": check}).items():
            if row.get("labels_valid") is False:
                low, high, expected = (row.get(key) for key in ("label_min", "label_max", "expected_max"))
                values = {"of_task": task and f" of {task}", "low": low, "high": high, "expected": expected}
                signs.append(_sign("error labels_out_of_range", Steps(1, [step]), **values))
    return signs or ([_sign("good labels_valid")] if log.checks else [])


def _gradient_signs(stats: Gradients) -> Iterator[Sign]:
    if not len(stats):
        return
    norm, signs = stats["total_norm"], stats.signs()
    rises, drops = changes(norm, JUMP, 3)
    yield from _where_any(
        stats["step"],
        {
            "error nonfinite_gradients": signs["nonfinite"],
            "warning zero_gradients": signs["zero"],
            "warning exploding_gradients": signs["huge"],
            "warning gradient_jumps": rises,
            "note gradient_drops": drops,
        },
    )
    if not signs["zero"].any():
        yield _sign("good gradients_flow")
    if ((norm >= HEALTHY[0]) & (norm <= HEALTHY[1])).all():
        yield _sign("good healthy_gradients")


def _update_signs(log: LogStatistics) -> Iterator[Sign]:
    stats = log.updates
    if stats.none_moved.count:
        causes = ["every parameter is frozen (optimizer.parameter_groups.*.frozen)"] if log.frozen else []
        causes += log.causes()
        yield _sign("warning no_updates", stats.none_moved, [f"CAUSE: {cause}" for cause in causes])
    elif len(stats) and (stats["num_params_updated"] == stats["num_params_total"]).all():
        yield _sign("good parameters_update")
    elif len(stats):
        updated, total = (count_text(value) for value in stats.fewest())
        yield _sign("note some_parameters_update", updated=updated, total=total, others=_OTHERS)


def _progress_signs(training: Training) -> Iterator[Sign]:
    if not len(training):
        return
    step, loss, rate = (training[key] for key in ("step", "loss", "learning_rate"))
    yield from _where_any(step, {"error nonfinite_loss": ~np.isfinite(loss)})
    peak = rate.max(initial=0.0, where=np.isfinite(rate))
    if peak == 0.0:
        yield _sign("warning zero_learning_rate")
    elif rate[0] < 0.5 * peak and step[0] == 0:
        yield _sign("good warmup", first=rate[0], peak=peak)
    yield from _where_any(step, {"note loss_spikes": changes(loss, SPIKE, WINDOW)[0]})
    yield from _start_signs(training, peak)
    if len(training) < 2 * WINDOW:
        yield _sign("note too_short", logged=len(training))
    else:
        yield from _trend_signs(training.improvement())


def _start_signs(training: Training, peak: float) -> Iterator[Sign]:
    """Whether anything improves in the first 100 updates of a run."""
    step = training["step"]
    start = np.flatnonzero(step <= FIRST_UPDATES)[: FIRST_UPDATES + 1]
    if step[0] >= WINDOW or len(start) < 6 or step[start[-1]] < FIRST_UPDATES - WINDOW:
        return
    (loss, later), (accuracy, better) = (
        [mean(training[key][half]) for half in np.split(start, [len(start) // 2])] for key in ("loss", "accuracy")
    )
    if loss is None or later is None:
        return
    rate, gain = training["learning_rate"][start[-1]], (better or 0.0) - (accuracy or 0.0)
    if loss - later <= FLAT_LOSS * abs(loss) and gain <= FLAT_ACCURACY:
        level = "note" if rate < 0.1 * peak else "warning"
        key = f"{level} flat_start"
        yield _sign(key, updates=FIRST_UPDATES, loss=loss, later=later, rate=rate, peak=peak)


def _trend_signs(improvement: Mapping[str, Mapping[str, Any]]) -> Iterator[Sign]:
    loss, accuracy = improvement["loss"], improvement["accuracy"]
    if loss["change"] is None:
        return
    change, gain = loss["change"], accuracy["change"] or 0.0
    scale = abs(loss["first10"]) or 1.0
    values: dict[str, Any] = {"first": loss["first10"], "last": loss["last10"], "gain": gain}
    if change > RISING_LOSS * scale:
        yield _sign("warning rising_loss", **values)
    elif change > -FLAT_LOSS * scale and gain < FLAT_ACCURACY:
        yield _sign("warning flat", **values)
    else:
        yield from (
            _sign(key) for key, so in (("good loss_falls", change < 0), ("good accuracy_rises", gain > 0)) if so
        )


# ---- The analysis

_MARKS = {"error": "❌ ERROR", "warning": "⚠️  WARNING", "note": "NOTE", "good": "✅ OK"}

#: text and style: a level of a sign, "title" or ""
Line = tuple[str, str]


def analyse(files: Sequence[Path]) -> dict[str, Any]:
    """Statistics of the log of a run, as plain JSON types.

    Args:
      files: in order, see `event_reader.log_files`.

    Returns:
      total_events, malformed_lines, event_types, files, training, improvement, gradients, param_updates, data_sanity
      (sections without events are absent or empty), and `findings`: see `diagnose`. Of anything that could grow
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
    for name, average in gradients["top_modules_by_mean"]:
        yield f"  {average:12.6f}  {name}", ""


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
