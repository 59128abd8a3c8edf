"""Early stopping: a pure state machine over JSON-able state, and the names of what may be monitored."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from linnaeus_jax.config.typed import Config
from linnaeus_jax.metrics import names, phases, table
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.schedules.resolved import EarlyStopSpec

State = dict[str, Any]
#: metrics that rank checkpoints where none is configured, in order of preference
RANKING_METRICS = ("val/partial_chain_accuracy", "val/chain_accuracy", "val/loss")


class MonitoredMetric(NamedTuple):
    phase: str
    metric: str  # key below the phase in the tracker: `loss`, `acc1_taxa_L10`
    higher_is_better: bool
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
    masked = map(phases.masking, (None, *phases.exhaustive_combos(components)))
    known = {phase.name: phase.name for phase in (phases.MAIN, *masked, *phases.REGISTERED.values())}
    names_of = {"train": "train", **known, phases.ALIAS: phases.WITHOUT_METADATA.name}
    for written in sorted(names_of, key=len, reverse=True):
        head, rest = name[: len(written)], name[len(written) + 1 :]
        if head.lower() != written.lower() or name[len(written) : len(written) + 1] not in ("_", "/"):
            continue
        phase = names_of[written]
        for key, info in table.keys("train" if phase == "train" else "val", tasks).items():
            if rest.lower() in [spelling.lower() for spelling in (key, *_with_task(key, tasks))]:
                return MonitoredMetric(phase, key, info.higher_is_better, key.partition("_taxa_")[0] == "loss")
        # whether the subset exists depends on the data, see `require_measured`
        if any(re.fullmatch(rf"subset/[^/]+/[^/]+/acc1_{re.escape(task)}", rest) for task in tasks):
            return MonitoredMetric(phase, rest, True, False)
    whole = [name for name, info in table.TABLE.items() if info.whole]
    per_task = [name for name, info in table.TABLE.items() if info.per_task]
    raise InputError(
        f"{name!r} is no known metric; write <phase>_<metric> with a phase of {', '.join(names_of)} and a metric that "
        f"it measures: {', '.join(whole)}, or {', '.join(per_task)} with a task of "
        f"{', '.join(tasks) or 'this dataset'}; env.plugins may register more"
    )


def _with_task(key: str, tasks: Sequence[str]) -> Iterator[str]:
    """Other spellings of `<metric>_<task>`."""
    for task in tasks:
        if key.endswith(f"_{task}"):
            metric = key.removesuffix(f"_{task}")
            yield from (f"{metric}/{task}", f"{task}/{metric}", f"{task}_{metric}")


def ranking_key(config: Config, components: Sequence[str]) -> str:
    """`schedule.checkpoint.best_metric` as it is logged, see `names.result_name`; empty if it is.

    Raises:
      ValueError: unknown phase or metric.
    """
    name = config.schedule.checkpoint.best_metric
    if not name:
        return ""
    metric = parse_metric_name(name, tasks=config.data.task_keys_h5, components=components)
    return names.result_name(metric.phase, metric.metric)


def ranking_candidates(configured: str) -> tuple[str, ...]:
    """Metrics of which the first that was measured ranks checkpoints; `configured`: see `ranking_key`."""
    return (configured,) if configured else RANKING_METRICS


def require_measured(key: str, subsets: Mapping[str, Sequence[str]]) -> None:
    """Raises ValueError if a key below a phase is of a subset that the phase lacks; `subsets`: kind -> names."""
    parts = key.split("/")
    if parts[0] == "subset" and parts[2] not in subsets.get(parts[1], ()):
        offered = [f"{kind}/{each}" for kind, names in subsets.items() for each in names]
        raise InputError(f"{key!r} is of no subset of this data; there are {', '.join(offered) or 'none'}")


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
    """One decision at the end of an epoch, after its validations.

    Args:
      step: completed updates.
      metric: the monitored value if it was measured at this end, else None. NaN never improves.
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
        metric, best = float(metric), state["best"]
        gain = math.inf if best is None else (metric - best) * (1 if spec.higher_is_better else -1)
        if not math.isnan(metric) and gain > 0 and gain >= spec.min_delta:
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
