"""What a debug event log says about a run: statistics, and good and bad signs with advice. No jax, no device."""

from __future__ import annotations

import collections
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

EVENT_TYPES = ("fit_start", "data_sanity_check", "epoch_start", "training_step", "gradient_stats", "param_updates")
NEAR_ZERO, EXPLODING = 1e-6, 1000.0
HEALTHY = (0.1, 100.0)
#: smallest changes of the mean over ten logged steps that count: share of the first loss, accuracy
FLAT_LOSS, FLAT_ACCURACY = 0.01, 0.01
RISING_LOSS = 0.05
_WINDOW, _SHOWN = 10, 10
_NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


@dataclass
class Log:
    """The events of a run, in order."""

    files: list[str]
    events: list[dict[str, Any]] = field(default_factory=list)
    malformed: int = 0  # lines that are no event: cut off, or foreign

    def of(self, event_type: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event_type"] == event_type]


def log_files(paths: Iterable[Path]) -> list[Path]:
    """The log files behind files and directories, in the order of their timestamps.

    Raises:
      FileNotFoundError: a file, or any log in a directory, is missing.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; debug logs lie in <run directory>/logs/debug")
        inside = logs_in(path) if path.is_dir() else [path]
        if not inside:
            raise FileNotFoundError(f"{path} holds no debug_log_*.jsonl; is it the run's debug.jsonl.dir?")
        found += inside
    return list(dict.fromkeys(found))


def logs_in(directory: Path) -> list[Path]:
    """The logs of a directory, oldest first."""
    return sorted(directory.glob("debug_log_*.jsonl"), key=lambda path: (len(path.name), path.name))


def read_events(files: Sequence[Path]) -> Log:
    """Reads logs; lines that are no JSON object with the fields of an event are counted, not fatal."""
    log = Log([str(path) for path in files])
    for path in files:
        with path.open(errors="replace") as lines:
            for line in lines:
                if not line.strip():
                    continue
                try:
                    event = json.loads(line, parse_constant=lambda name: name)
                    if not isinstance(event["data"], dict) or not isinstance(event["event_type"], str):
                        raise TypeError
                    event["step"], event["epoch"] = int(event["step"]), int(event["epoch"])
                except (ValueError, KeyError, TypeError):
                    log.malformed += 1
                else:
                    log.events.append(event)
    return log


def number(value: Any) -> float:
    """A number of the log; what is missing or no number is NaN."""
    if isinstance(value, str):
        return _NON_FINITE.get(value, float("nan"))
    return float(value) if isinstance(value, (int, float)) else float("nan")


def analyse(log: Log) -> dict[str, Any]:
    """Statistics of a log as plain JSON types.

    Returns:
      total_events, malformed_lines, event_types, files, training, improvement, gradients, param_updates, data_sanity
      (sections without events are absent or empty), and `findings`: see `diagnose`.
    """
    kinds = collections.Counter(event["event_type"] for event in log.events)
    found: dict[str, Any] = {
        "files": log.files,
        "total_events": len(log.events),
        "malformed_lines": log.malformed,
        "event_types": dict(kinds),
        "data_sanity": [event["data"] for event in log.of("data_sanity_check")],
    }
    if steps := log.of("training_step"):
        found["training"] = _training(steps)
        found["improvement"] = _improvement(steps)
    if gradients := log.of("gradient_stats"):
        found["gradients"] = _gradients(gradients)
    if updates := log.of("param_updates"):
        found["param_updates"] = {
            "count": len(updates),
            "updated": [event["data"].get("num_params_updated") for event in updates],
            "total": [event["data"].get("num_params_total") for event in updates],
            "no_update_steps": [event["step"] for event in updates if event["data"].get("no_updates")],
        }
    found["findings"] = diagnose(log, found)
    return found


def _values(events: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [number(event["data"].get(key)) for event in events]


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if isfinite(value)]
    return statistics.fmean(finite) if finite else None


def _training(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    epochs = collections.defaultdict(list)
    for event in steps:
        epochs[event["epoch"]].append(event)
    per_epoch = {}
    for epoch in sorted(epochs):
        row: dict[str, Any] = {"steps": len(epochs[epoch])}
        for key in ("loss", "accuracy", "learning_rate"):
            finite = [value for value in _values(epochs[epoch], key) if isfinite(value)]
            row[key] = {"first": finite[0], "last": finite[-1], "avg": _mean(finite)} if finite else None
        row["nonfinite_loss"] = sum(not isfinite(value) for value in _values(epochs[epoch], "loss"))
        per_epoch[str(epoch)] = row
    return {"logged": len(steps), "epochs": [min(epochs), max(epochs)], "per_epoch": per_epoch}


def _improvement(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = {}
    for key, sign in (("loss", -1), ("accuracy", 1)):
        values = _values(steps, key)
        first, last = _mean(values[:_WINDOW]), _mean(values[-_WINDOW:])
        change = None if first is None or last is None else last - first
        improved = change is not None and sign * change > 0
        found[key] = {
            "first10": first,
            "last10": last,
            "change": change,
            "status": "IMPROVED" if improved else "NOT IMPROVED",
        }
    return found


def _gradients(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    norms = _values(events, "total_norm")
    finite = [norm for norm in norms if isfinite(norm)]
    modules = collections.defaultdict(list)
    for event in events:
        for name, norm in (event["data"].get("top_10_grad_norms") or {}).items():
            modules[name].append(number(norm))
    means = [[name, mean] for name, values in modules.items() if (mean := _mean(values)) is not None]
    return {
        "count": len(events),
        "min": min(finite, default=None),
        "max": max(finite, default=None),
        "mean": _mean(finite),
        "median": statistics.median(finite) if finite else None,
        "near_zero_lt_1e-6": sum(norm < NEAR_ZERO for norm in finite),
        "exploding_gt_1000": sum(norm > EXPLODING for norm in finite),
        "nonfinite": len(norms) - len(finite),
        "top_modules_by_mean": sorted(means, key=lambda pair: -pair[1])[:_SHOWN],
    }


def diagnose(log: Log, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Signs of the document "what to look for", most urgent first.

    Returns:
      A list of {"level": "error" | "warning" | "note" | "good", "sign": a fixed word, "message", "advice": texts,
      "steps": where, as far as known}.
    """
    signs = [
        *_label_signs(log),
        *_gradient_signs(log, found.get("gradients")),
        *_update_signs(log, found.get("param_updates")),
        *_progress_signs(log, found),
    ]
    if not log.events:
        signs.append(
            _sign("warning", "empty", "the log holds no events", ["Check that the run got as far as fit_start"])
        )
    if log.malformed:
        text = f"{log.malformed} lines are no events: cut off by a kill, or foreign"
        signs.append(_sign("note", "malformed", text))
    order = ("error", "warning", "note", "good")
    return sorted(signs, key=lambda sign: order.index(sign["level"]))


def _sign(level: str, sign: str, message: str, advice: Sequence[str] = (), steps: Sequence[int] = ()) -> dict[str, Any]:
    return {"level": level, "sign": sign, "message": message, "advice": list(advice), "steps": list(steps)}


def _label_signs(log: Log) -> list[dict[str, Any]]:
    checks = log.of("data_sanity_check")
    signs = []
    for event in checks:
        for task, row in (event["data"].get("tasks") or {"": event["data"]}).items():
            if row.get("labels_valid") is False:
                text = (
                    f"labels{task and ' of '}{task} are out of range: {row.get('label_min')} to {row.get('label_max')}"
                )
                text += f", expected 0 to {row.get('expected_max')}"
                advice = [
                    "Data preprocessing issue: the labels were numbered for another list of classes",
                    "Compare assets/num_classes.json with the classes in the labels file",
                    "Rebuild the labels file if its codes belong to other classes",
                ]
                signs.append(_sign("error", "labels_out_of_range", text, advice, [event["step"]]))
    return signs or ([_sign("good", "labels_valid", "all labels are in range")] if checks else [])


def _gradient_signs(log: Log, stats: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    if stats is None:
        return []
    events, signs = log.of("gradient_stats"), []
    norms = list(zip((event["step"] for event in events), _values(events, "total_norm"), strict=True))
    broken = [step for step, norm in norms if not isfinite(norm)]
    zero = [step for step, norm in norms if norm < NEAR_ZERO]
    huge = [step for step, norm in norms if isfinite(norm) and norm > EXPLODING]
    if broken:
        advice = [
            "Find the first layer with non-finite values: --debug underflow_overflow",
            "Reduce the learning rate, lengthen the warm-up or clip gradients (train.clip_grad)",
            "Look for non-finite metadata or images in these batches",
        ]
        text = f"{len(broken)} steps with non-finite gradients; such updates are skipped"
        signs.append(_sign("error", "nonfinite_gradients", text, advice, broken))
    if zero:
        advice = [
            "No gradient flow: is every parameter frozen, or every label masked?",
            "Check that the loss is connected to the parameters and no task weight is 0",
            "Check for stop_gradient (detached values) between the loss and the parameters",
        ]
        signs.append(_sign("warning", "zero_gradients", f"{len(zero)} steps with near-zero gradients", advice, zero))
    if huge:
        advice = [
            "Gradient explosion: increase gradient clipping (a smaller train.clip_grad)",
            "Reduce the learning rate or lengthen the warm-up",
        ]
        text = f"{len(huge)} steps with exploding gradients (norm > 1000)"
        signs.append(_sign("warning", "exploding_gradients", text, advice, huge))
    if not zero:
        signs.append(_sign("good", "gradients_flow", "0 steps with near-zero gradients"))
    inside = [norm for _, norm in norms if HEALTHY[0] <= norm <= HEALTHY[1]]
    if len(inside) == len(norms):
        signs.append(_sign("good", "healthy_gradients", "all gradient norms lie between 0.1 and 100"))
    return signs


def _update_signs(log: Log, stats: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    if stats is None:
        return []
    steps = stats["no_update_steps"]
    if not steps:
        updated, total = stats["updated"], stats["total"]
        if updated == total:
            return [_sign("good", "parameters_update", "all parameters are updating")]
        fewest = min(zip(updated, total, strict=True), key=lambda pair: number(pair[0]))
        return [
            _sign(
                "note",
                "some_parameters_update",
                f"at times only {fewest[0]} of {fewest[1]} parameters are updating; the others are frozen, "
                "get no gradient, or move by less than float32 resolves",
            )
        ]
    advice = []
    starts = log.of("fit_start")
    if starts and starts[-1]["data"].get("trainable_params") == 0:
        advice.append("CAUSE: every parameter is frozen (optimizer.parameter_groups.*.frozen)")
    rates = {event["step"]: number(event["data"].get("learning_rate")) for event in log.of("training_step")}
    norms = {event["step"]: number(event["data"].get("total_norm")) for event in log.of("gradient_stats")}
    if any(rates.get(step) == 0.0 for step in steps):
        advice.append("CAUSE: the learning rate is 0 at these steps; check lr_scheduler and the schedule's summary")
    if any(norms.get(step, 1.0) < NEAR_ZERO for step in steps):
        advice.append("CAUSE: the gradients are zero at these steps")
    if any(not isfinite(norms.get(step, 0.0)) for step in steps):
        advice.append("CAUSE: the gradients are not finite at these steps, so the updates were skipped")
    advice += [
        "Learning rate might be too small",
        "Gradients might be zero",
        "Optimizer might not be stepping: are updates skipped as non-finite?",
    ]
    return [_sign("warning", "no_updates", f"{len(steps)} measurements with NO parameter updates!", advice, steps)]


def _progress_signs(log: Log, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    steps = log.of("training_step")
    if not steps:
        return []
    signs = []
    losses = _values(steps, "loss")
    broken = [event["step"] for event, loss in zip(steps, losses, strict=True) if not isfinite(loss)]
    if broken:
        advice = ["Find the first layer with non-finite values: --debug underflow_overflow", "Reduce the learning rate"]
        signs.append(_sign("error", "nonfinite_loss", f"{len(broken)} steps with a non-finite loss", advice, broken))
    rates = _values(steps, "learning_rate")
    peak = max((rate for rate in rates if isfinite(rate)), default=0.0)
    if peak == 0.0:
        advice = ["Check lr_scheduler.base_lr, the multipliers of the groups and the schedule's summary"]
        signs.append(_sign("warning", "zero_learning_rate", "the learning rate is 0 at every logged step", advice))
    elif rates[0] < 0.5 * peak and steps[0]["step"] == 0:
        signs.append(
            _sign("good", "warmup", f"the learning rate starts small ({rates[0]:.2e}) and rises to {peak:.2e}")
        )
    spikes = _spikes(steps, losses)
    if spikes:
        advice = ["Look at the batches and the gradients of these steps", "A spike at each epoch's start hints at data"]
        text = f"{len(spikes)} sudden rises of the loss to more than twice the median of the ten steps before"
        signs.append(_sign("note", "loss_spikes", text, advice, spikes))
    if len(steps) < 2 * _WINDOW:
        text = f"only {len(steps)} steps are logged: too few to judge loss and accuracy; run for at least 5 epochs"
        return [*signs, _sign("note", "too_short", text)]
    return signs + _trend_signs(found["improvement"])


def _trend_signs(improvement: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    loss, accuracy = improvement["loss"], improvement["accuracy"]
    if loss["change"] is None:
        return []
    change, gain = loss["change"], accuracy["change"] or 0.0
    scale = abs(loss["first10"]) or 1.0
    text = f"loss {loss['first10']:.4f} -> {loss['last10']:.4f}, accuracy {gain:+.4f}"
    if change > RISING_LOSS * scale:
        advice = [
            "Reduce the learning rate or lengthen the warm-up",
            "Compare with the gradient norms of the same steps",
        ]
        return [_sign("warning", "rising_loss", f"the loss is rising: {text}", advice)]
    if change > -FLAT_LOSS * scale and gain < FLAT_ACCURACY:
        advice = [
            "Optimizer not updating weights: see the parameter updates",
            "Check the learning rate schedule",
            "Check if gradients are flowing: see the gradient norms",
        ]
        return [_sign("warning", "flat", f"loss and accuracy are flat: {text}", advice)]
    signs = [_sign("good", "loss_falls", "the loss is decreasing")] if change < 0 else []
    return signs + ([_sign("good", "accuracy_rises", "the accuracy is increasing")] if gain > 0 else [])


def _spikes(steps: Sequence[Mapping[str, Any]], losses: Sequence[float]) -> list[int]:
    found = []
    for i in range(_WINDOW, len(losses)):
        before = [loss for loss in losses[i - _WINDOW : i] if isfinite(loss)]
        if before and isfinite(losses[i]) and losses[i] > 2 * statistics.median(before) > 0:
            found.append(steps[i]["step"])
    return found
