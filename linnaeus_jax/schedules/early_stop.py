"""Early stopping: a pure state machine over JSON-able state, and the names of what may be monitored."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from linnaeus_jax.schedules.resolved import EarlyStopSpec
from linnaeus_jax.schedules.triggers import exhaustive_combos, phase_name

#: direction of every metric of a phase; per task: those marked in _PER_TASK
HIGHER_IS_BETTER = {
    "loss": False,
    "chain_accuracy": True,
    "partial_chain_accuracy": True,
    "acc1": True,
    "acc3": True,
    "error_rate": False,
    "ece": False,
    "brier": False,
    "nll": False,
    "perplexity": False,
}
_PER_TASK = ("loss", "acc1", "acc3", "error_rate", "ece", "brier", "nll", "perplexity")
_WHOLE_PHASE = ("loss", "chain_accuracy", "partial_chain_accuracy", "error_rate", "ece", "brier", "nll", "perplexity")

State = dict[str, Any]


class MonitoredMetric(NamedTuple):
    phase: str
    metric: str  # as written, with the case of its task
    higher_is_better: bool
    key: str  # below the phase in the tracker: `loss`, `acc1_taxa_L10`
    is_loss: bool


class Decision(NamedTuple):
    stop: bool
    reason: str | None  # max_steps | patience | max_loss | min_lr | max_grad_norm


def parse_metric_name(name: str, *, tasks: Sequence[str] = (), components: Sequence[str] = ()) -> MonitoredMetric:
    """Splits `<phase>_<metric>` or `<phase>/<metric>`, regardless of case, at the longest phase that fits.

    Args:
      name: e.g. `val_loss`, `val_mask_meta/chain_accuracy`, `val/taxa_L10/acc1`, `val_acc1_taxa_L10`.
      tasks: ranks whose metrics may be named.
      components: metadata components in canonical order, for phases such as `val_mask_TEMPORAL_SPATIAL`.

    Raises:
      ValueError: unknown phase or metric.
    """
    name = re.sub(r"(?i)^(train[_/])epoch_avg_", r"\1", name)  # how the mean over an epoch is logged
    metrics = {metric: (metric, metric) for metric in _WHOLE_PHASE}
    for task in tasks:
        for metric in _PER_TASK:
            key = f"{metric}_{task}"
            spellings = (key, f"{metric}/{task}", f"{task}/{metric}", f"{task}_{metric}")
            metrics |= {spelling.lower(): (spelling, key) for spelling in spellings}
    phases = ["train", "val", phase_name(None), *map(phase_name, exhaustive_combos(components))]
    for phase in sorted(phases, key=len, reverse=True):
        head, rest = name[: len(phase)], name[len(phase) :]
        if head.lower() == phase.lower() and rest[:1] in ("_", "/") and rest[1:].lower() in metrics:
            spelling, key = metrics[rest[1:].lower()]
            base = next(metric for metric in _PER_TASK + _WHOLE_PHASE if key == metric or key.startswith(f"{metric}_"))
            return MonitoredMetric(phase, spelling, HIGHER_IS_BETTER[base], key, base == "loss")
    raise ValueError(
        f"{name!r} is no known metric; write <phase>_<metric> with a phase of {', '.join(phases)} and a metric of "
        f"{', '.join(_WHOLE_PHASE)}, or of {', '.join(_PER_TASK)} with a task of {', '.join(tasks) or 'this dataset'}"
    )


def initial_state(spec: EarlyStopSpec) -> State:
    """State before the first check."""
    return {
        "metric": f"{spec.phase}/{spec.metric}",
        "higher_is_better": spec.higher_is_better,
        "patience_steps": spec.patience_steps,
        "min_delta": spec.min_delta,
        "best": None,
        "best_step": 0,
    }


def restore_state(spec: EarlyStopSpec, saved: Mapping[str, Any], step: int) -> tuple[State, list[str]]:
    """State of a resumed run, and warnings.

    The limits of the current configuration count. A best value of another metric is dropped, and patience then starts
    anew at `step`.
    """
    state = initial_state(spec)
    if saved["metric"] != state["metric"]:
        return state | {"best_step": step}, [
            f"train.early_stop.metric changed from {saved['metric']} to {state['metric']}: patience starts anew"
        ]
    return state | {"best": saved["best"], "best_step": saved["best_step"]}, []


def check(
    spec: EarlyStopSpec,
    state: State,
    *,
    step: int,
    metric: float | None,
    learning_rate: float,
    grad_norm: float | None,
    in_warmup: bool,
) -> tuple[State, Decision]:
    """One decision at a boundary, after its validations.

    Args:
      step: completed updates.
      metric: the monitored value if it was refreshed at this boundary, else None. NaN never improves.
      learning_rate: highest rate over the groups, of the last update; ignored while `in_warmup`.
      grad_norm: global norm of the last update before clipping; None where there is none.

    Returns:
      The new state and the decision; the first condition that holds gives the reason.
    """

    def beyond(value: float | None, limit: float | None) -> bool:
        return value is not None and limit is not None and not value <= limit  # NaN is beyond every limit

    if not spec.active:
        return state, Decision(False, None)
    if spec.max_steps is not None and step >= spec.max_steps:
        return state, Decision(True, "max_steps")
    if metric is not None:
        metric = float(metric)
        change = math.nan
        if not math.isnan(metric):
            best = state["best"]
            if best is None:
                change = math.inf
            else:
                change = metric - best if spec.higher_is_better else best - metric
        if change > 0 and change >= spec.min_delta:
            state = state | {"best": metric, "best_step": step}
        if spec.patience_steps and step - state["best_step"] >= spec.patience_steps:
            return state, Decision(True, "patience")
        if spec.is_loss and beyond(metric, spec.max_loss):
            return state, Decision(True, "max_loss")
    if spec.min_lr is not None and not in_warmup and learning_rate < spec.min_lr:
        return state, Decision(True, "min_lr")
    if beyond(grad_norm, spec.max_grad_norm):
        return state, Decision(True, "max_grad_norm")
    return state, Decision(False, None)
