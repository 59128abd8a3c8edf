"""Training logs between the ends of epochs: which streams are due, current and averaged values, their names.

Takes host values only; `run/train_log.py` reads them from the device.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from linnaeus_jax.metrics import names
from linnaeus_jax.metrics.extras import NO_EXTRAS, PhaseExtras
from linnaeus_jax.metrics.phase import summarise

log = logging.getLogger("linnaeus_jax")

#: streams of what an update measured
MEASURED = frozenset({"wandb", "step"})
#: beginning of a name -> streams whose log points have it; the first that fits counts
STREAMS = (
    ("train/step_avg_", frozenset({"wandb"})),
    ("train/eta_sec", frozenset({"wandb"})),
    ("train/lr/", frozenset({"lr"})),
    ("train/lr", MEASURED | {"lr"}),
    ("gradnorm/total_norm_", MEASURED),
    ("gradnorm/", frozenset({"gradnorm"})),
    ("task_weights/", frozenset({"gradnorm"})),
    ("pipeline/wait_share", MEASURED | {"pipeline"}),
    ("pipeline/", frozenset({"pipeline"})),
    ("", MEASURED),
)
#: averaging windows; `epoch` ends with an epoch, the others at a log point of their stream
WINDOWS = ("epoch", "wandb")
#: seconds between two estimates of the remaining time in the logged rows
ETA_EVERY = 30.0

#: sums over any updates, the fields of `step.state.Statistics`: {"sums": {name: array}, "updates": [],
#: "grad_norm": [], "meta_valid": [K], "null_total": [T], "null_included": [T]}
Statistics = Mapping[str, Any]


def log_due(step: int, interval: int) -> bool:
    """Whether a record is written once `step` updates are completed; an interval of 0 writes none."""
    return interval > 0 and step % interval == 0


class StepMetricsLogger:
    """Cadence, averaging and names of the training log.

    A row holds current values under plain names (`train/loss`) and, where the `wandb` stream is due, means over all
    updates since its last row under `train/step_avg_...`. Windows go on from one epoch to the next; `flush` gives what
    the last, partial one holds when the run ends.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        intervals: Mapping[str, int],
        *,
        components: Sequence[str] = (),
        extras: PhaseExtras = NO_EXTRAS,
    ) -> None:
        """Args: intervals: stream (step, console, wandb, lr, pipeline) -> updates between its log points, 0 = off."""
        self.tasks, self.components, self.extras = tuple(tasks), tuple(components), extras
        self.intervals = dict(intervals)
        self.windows: dict[str, dict[str, Any]] = {name: {} for name in WINDOWS}
        self.last_grad_norm = math.nan  # of the last log point
        self.last_rates: dict[str, float] = {}
        self._last_eta = math.inf

    def due(self, step: int) -> frozenset[str]:
        """Streams that log after `step` completed updates."""
        return frozenset(name for name, every in self.intervals.items() if log_due(step, every))

    # ---- averages -----------------------------------------------------------------------------------------------

    def add(self, statistics: Statistics) -> None:
        """Adds what happened since the last log point to every window."""
        for name, window in self.windows.items():
            self.windows[name] = _merged(window, statistics)

    def means(self, statistics: Statistics) -> dict[str, float]:
        """Metric -> mean over the samples of some updates; `loss` is the weighted total that is trained on."""
        if not statistics:
            return {}
        values = summarise(statistics["sums"], self.tasks, self.extras)
        return {"loss": values["loss_weighted"], **values} if "loss_weighted" in values else values

    def epoch_so_far(self) -> dict[str, float]:
        """Means over what is over of the epoch, as its end will say."""
        return self.means(self.windows["epoch"])

    def epoch_samples(self) -> int | None:
        """How many samples that is; None: there was no log point."""
        count = self.windows["epoch"].get("sums", {}).get("count")
        return None if count is None else int(count)

    def finish_epoch(self) -> dict[str, float]:
        """Means over the epoch; starts the next one."""
        window = self.windows["epoch"]
        values = self.means(window)
        if window and window["updates"]:
            values["grad_norm"] = float(window["grad_norm"]) / float(window["updates"])
        self.windows["epoch"] = {}
        return values

    def flush(self) -> names.Row:
        """`train/step_avg_...` since the last row of the `wandb` stream; empty where that was the last update."""
        average = self.means(self.windows["wandb"])
        self.windows["wandb"] = {}
        row: names.Row = {}
        for name, value in average.items():
            if "/" not in name:
                by_task = name.startswith("loss_") and name.removeprefix("loss_") in self.tasks
                row["train/step_avg_" + (name.replace("_", "/", 1) if by_task else name)] = value
        return row

    # ---- rows and lines -----------------------------------------------------------------------------------------

    def row(
        self,
        step: int,
        streams: frozenset[str],
        current: Statistics,
        *,
        loss: float,
        task_losses: Sequence[float],
        learning_rates: Mapping[str, float],
        schedule: Mapping[str, float],
        gradnorm: Mapping[str, Any],
        mixup_group: str,
        seconds_left: float,
        now: float,
    ) -> names.Row:
        """The row of a log point, after `add`.

        Args:
          step: completed updates.
          streams: those of `due`.
          current: sums of the last update alone.
          loss, task_losses: what the last update trained on: weighted total, and one per task.
          seconds_left, now: remaining time of the epoch and any monotonic clock, for `train/eta_sec`.
        """
        now_values = self.means(current) | {"loss": float(loss)}
        row = names.update_row(now_values, dict(zip(self.tasks, task_losses, strict=True)))
        row["core/global_step"] = step
        rates = names.learning_rates(learning_rates)
        row |= rates if "lr" in streams else {name: rates[name] for name in rates if name == "train/lr"}
        row |= names.schedule_values(schedule, mixup_group)
        count = int(current["sums"]["count"])
        row |= names.actual_valid_pct(self.components, current["meta_valid"], count, "train")
        row |= names.null_masking(int(np.sum(current["null_total"])), int(np.sum(current["null_included"])))
        row |= names.gradnorm(gradnorm, self.tasks)
        if "wandb" in streams:
            row |= self.flush()
            if now - self._last_eta > ETA_EVERY:
                self._last_eta = now
                row["train/eta_sec"] = seconds_left
        return row

    def start_clock(self, now: float) -> None:
        """The remaining time is first logged `ETA_EVERY` seconds after `now`."""
        self._last_eta = now

    # ---- state --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable and exact, so that a resumed run logs what the uninterrupted one would have."""
        return {
            "windows": {name: _map(lambda x: np.asarray(x).tolist(), window) for name, window in self.windows.items()},
            "last_grad_norm": self.last_grad_norm,
            "last_rates": self.last_rates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.windows = {name: _map(np.asarray, state["windows"][name]) for name in WINDOWS}
        self.last_grad_norm = float(state["last_grad_norm"])
        self.last_rates = dict(state["last_rates"])


def due_part(row: names.Row, streams: frozenset[str]) -> names.Row:
    """What of a full row is due where only these streams are: of W&B, `wandb`, `lr`, `pipeline` and `gradnorm`."""
    owners = {name: next(owning for start, owning in STREAMS if name.startswith(start)) for name in row}
    return {name: value for name, value in row.items() if owners[name] & streams}


def _map(function: Any, tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _map(function, x) if isinstance(x, Mapping) else function(x) for key, x in tree.items()}


def _wide(x: Any) -> np.ndarray:
    """Exact sums over many intervals."""
    return np.asarray(x, np.float64 if np.issubdtype(np.asarray(x).dtype, np.floating) else np.int64)


def _merged(window: Mapping[str, Any], statistics: Statistics) -> dict[str, Any]:
    """`window` + `statistics`; a sum that the restored window lacks or has in another shape starts anew."""
    merged: dict[str, Any] = {}
    for key, value in statistics.items():
        old = window.get(key)
        if isinstance(value, Mapping):
            merged[key] = _merged(old or {}, value)
        elif old is not None and np.shape(old) == np.shape(value):
            merged[key] = old + _wide(value)
        else:
            if window:
                log.warning("the restored training statistics do not fit %r: its average starts anew", key)
            merged[key] = _wide(value)
    return merged
