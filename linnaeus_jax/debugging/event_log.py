"""The debug event log: what a training run did, as strict JSON lines that a program (or `jq`) can read afterwards.

Every start of a run writes its own `debug_log_<unix seconds>.jsonl`; the logs of one directory, in the order of their
names, are the log of one run. A line is `{"event_type", "step", "epoch", "timestamp", "data"}`; `step` is the 0-based
optimizer update, counted before it is made.

JSON has no NaN and no infinity. A NaN is null, a gap in a plot. An infinity is the number 1e999, which readers round to
infinity (Python) or to their largest number (`jq`). The total norm of gradients with a NaN is infinite, so that who
looks for small norms does not find it (to `jq`, null is less than any number).
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.debugging.analysis import analyse
from linnaeus_jax.debugging.event_reader import logs_in, parse_event
from linnaeus_jax.debugging.leaf_sizes import leaf_sizes
from linnaeus_jax.files import set_lines_aside, write_json
from linnaeus_jax.learning.transforms import FROZEN
from linnaeus_jax.learning.update import ParameterRow
from linnaeus_jax.reporting.metrics_log import strict
from linnaeus_jax.step.probes import Probe, ProbeInputs

log = logging.getLogger("linnaeus_jax")

#: event type, step, epoch, data
Writer = Callable[[str, int, int, Mapping[str, Any]], None]

BUFFERED_EVENTS = 100
FLUSH_SECONDS = 30.0
#: updates between events
TRAINING_STEP_EVERY = GRADIENT_STATS_EVERY = 10
PARAM_UPDATES_EVERY = 50
#: mean |update| of one update from which a parameter counts as moving: 1e-8 over the 50 updates between measurements
MOVING = 1e-8 / PARAM_UPDATES_EVERY
SUPERSEDED = "events.superseded.jsonl"
_SAMPLES, _TOP = 10, 10
#: stand for infinities while a line is made; no text of an event holds the character 0
_INFINITE, _MINUS_INFINITE = "\0inf", "\0-inf"
_NON_FINITE = {"NaN": None, "Infinity": _INFINITE, "-Infinity": _MINUS_INFINITE}


class DebugEventLog:
    """Appends events to `<directory>/debug_log_<timestamp>.jsonl`; only process 0 should have one.

    Events are kept in memory and written when there are 100, when 30 s have passed (by a thread, so that a run that
    hangs shows what came before), at `flush` (call it at the end of an epoch) and at `close`. A file that cannot be
    written ends the log with one warning; training goes on.

    Args:
      directory: made if missing.
      timestamp: unix seconds of the start; the next free second where that log exists already.
      run: the run directory, see `logs_of`.
      flush_seconds: longest time that an event stays in memory.
    """

    def __init__(
        self, directory: Path, timestamp: int, *, run: Path | None = None, flush_seconds: float = FLUSH_SECONDS
    ) -> None:
        self.directory = directory
        self._run = run
        while (path := directory / f"debug_log_{timestamp}.jsonl").exists():
            timestamp += 1
        self.path = path
        self.summary_path = directory / f"debug_summary_{timestamp}.json"
        self._buffer: list[str] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._failed = False
        try:
            directory.mkdir(parents=True, exist_ok=True)
            path.touch()
        except OSError as error:
            self._fail(error)
        self._thread = threading.Thread(target=self._flush_regularly, args=(flush_seconds,), daemon=True)
        self._thread.start()

    def event(self, event_type: str, step: int, epoch: int, data: Mapping[str, Any]) -> None:
        """Adds an event; `data` holds plain Python values (nested dicts, lists, numbers, strings, None)."""
        row = {"event_type": event_type, "step": int(step), "epoch": int(epoch), "timestamp": time.time(), "data": data}
        line = event_line(row)
        with self._lock:
            self._buffer.append(line)
            full = len(self._buffer) >= BUFFERED_EVENTS
        if full:
            self.flush()

    def flush(self) -> None:
        """Hands everything so far to the operating system."""
        with self._lock:
            lines, self._buffer = self._buffer, []
            if not lines or self._failed:
                return
            try:
                with self.path.open("a", encoding="utf-8", newline="\n") as file:
                    file.write("".join(line + "\n" for line in lines))
            except OSError as error:
                self._fail(error)

    def close(self) -> None:
        """Writes what is left and `debug_summary_<timestamp>.json`: the analysis of all logs of the directory."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._thread.join()
        self.flush()
        if not self._failed:
            try:
                write_json(self.summary_path, strict(analyse(logs_of(self._run, self.directory))))
            except OSError as error:
                self._fail(error)

    def _flush_regularly(self, seconds: float) -> None:
        while not self._closed.wait(seconds):
            self.flush()

    def _fail(self, error: OSError) -> None:
        self._failed = True
        log.warning("the debug log %s cannot be written (%s): it ends here, training goes on", self.path, error)


def event_line(row: Mapping[str, Any]) -> str:
    """An event as strict JSON, without line break; NaN as null, infinities as 1e999 and -1e999."""
    finite = json.loads(json.dumps(row, default=float), parse_constant=_NON_FINITE.get)
    text = json.dumps(finite, separators=(",", ":"), allow_nan=False)
    return text.replace(json.dumps(_INFINITE), "1e999").replace(json.dumps(_MINUS_INFINITE), "-1e999")


def logs_of(run: Path | None, directory: Path) -> list[Path]:
    """The logs in `directory` of the run in `run`, oldest first; all of them where `directory` is the run's own.

    Several runs may share a directory outside of their own: there, the `fit_start` of a log names its run.
    """
    logs = logs_in(directory)
    if run is None or directory.resolve().is_relative_to(run.resolve()):
        return logs

    def owner(path: Path) -> Any:
        with path.open(encoding="utf-8", errors="replace") as file:
            event = parse_event(file.readline())
        return event and event["data"].get("run")

    return [path for path in logs if owner(path) == str(run.resolve())]


def supersede(directory: Path, step: int, *, run: Path | None = None) -> int:
    """Moves the events that a run resumed at update `step` will write again to `events.superseded.jsonl`.

    These are the events of updates >= `step` and lines cut off by a kill. Call it before the new log is opened.

    Args:
      run: the run directory, see `logs_of`.

    Returns:
      How many lines were moved.
    """

    def again(line: str) -> bool:
        event = parse_event(line)
        return event is None or event["step"] >= step

    return sum(set_lines_aside(path, directory / SUPERSEDED, again) for path in logs_of(run, directory))


# ---- contents of the events that are no measurements of an update


def fit_start_data(rows: Sequence[ParameterRow], *, run: Path, **facts: Any) -> dict[str, Any]:
    """Data of `fit_start`.

    Args:
      rows: one per parameter, of `Optimizer.rows`.
      run: the run directory.
      facts: total_examples, the training rows; training: epochs, steps_per_epoch, total_steps, batch_size,
        accumulation; optimizer: name, lr, betas, weight_decay, groups.
    """
    frozen = [row for row in rows if row.optimizer == FROZEN]
    total, frozen_params = (sum(math.prod(row.shape) for row in part) for part in (rows, frozen))
    return {
        "run": str(run.resolve()),
        "trainable_params": total - frozen_params,
        "frozen_params": frozen_params,
        "total_params": total,
        "frozen_modules": sorted({row.name.rpartition(".")[0] for row in frozen}),
        **facts,
    }


def epoch_start_data(
    rows: Sequence[ParameterRow], learning_rates: Mapping[str, float], betas: Sequence[float]
) -> dict[str, Any]:
    """Data of `epoch_start`: one entry of `optimizer_state` per pair of optimizer and group.

    Args:
      rows: one per parameter, of `Optimizer.rows`.
      learning_rates: group -> rate of the first update of the epoch.
    """
    trained = [row for row in rows if row.optimizer != FROZEN]
    optimizers = list(dict.fromkeys(row.optimizer for row in trained))
    groups = list(learning_rates)
    decay: dict[tuple[str, str], float] = {}
    for row in trained:
        pair = (row.optimizer, row.group)
        decay[pair] = max(decay.get(pair, 0.0), row.weight_decay)
    state = [
        {
            "optimizer_idx": optimizers.index(optimizer),
            "group_idx": groups.index(group),
            "optimizer": optimizer,
            "group": group,
            "lr": float(learning_rates[group]),
            "betas": [float(beta) for beta in betas],
            "weight_decay": amount,
        }
        for (optimizer, group), amount in decay.items()
    ]
    return {"optimizer_state": state}


def data_sanity_data(labels: np.ndarray, classes: Mapping[str, int]) -> dict[str, Any]:
    """Data of `data_sanity_check`; at the top level stands the worst task.

    Args:
      labels: int [..., T]; only the least and greatest of every task matter.
      classes: task -> number of classes, in the order of the last axis.
    """
    flat = np.asarray(labels).reshape(-1, len(classes))
    tasks: dict[str, dict[str, Any]] = {}
    for column, (task, count) in zip(flat.T, classes.items(), strict=True):
        low, high = int(column.min()), int(column.max())
        tasks[task] = {
            "label_min": low,
            "label_max": high,
            "expected_max": count - 1,
            "labels_valid": low >= 0 and high < count,
        }
    worst = max(tasks.values(), key=lambda row: max(-row["label_min"], row["label_max"] - row["expected_max"]))
    return {**worst, "tasks": tasks}


# ---- measurements of an update


@dataclass
class EventFacts:
    """What events show beside what is measured; all but `tasks` is set when the step has been built.

    Attributes:
      tasks: in task order, finest first.
      rows: of all parameters in leaf order; measured are those that train.
      learning_rate: step -> rate that is shown.
      batch_index: step -> its position in its epoch.
    """

    tasks: Sequence[str]
    rows: Sequence[ParameterRow] = ()
    learning_rate: Callable[[int], float] = lambda step: math.nan
    batch_index: Callable[[int], int] = lambda step: step


def event_log_probes(write: Writer, facts: EventFacts) -> list[Probe]:
    """The probes that write `training_step`, `gradient_stats` and `param_updates`."""
    return [
        TrainingStep(name="training_step", every=TRAINING_STEP_EVERY, write=write, facts=facts),
        GradientStats(name="gradient_stats", every=GRADIENT_STATS_EVERY, write=write, facts=facts),
        ParamUpdates(name="param_updates", every=PARAM_UPDATES_EVERY, write=write, facts=facts),
    ]


class EventProbe(Probe):
    """A probe whose result becomes an event of its name, added to the log by `write`."""

    write: Writer
    facts: EventFacts

    def consume(self, step: int, epoch: int, values: Any) -> dict[str, Any]:
        if data := self.data(step, values):
            self.write(self.name, step, epoch, data)
        return {}

    def data(self, step: int, values: Any) -> dict[str, Any]:
        """Data of the event; empty: none is written."""
        raise NotImplementedError

    def top(self, values: np.ndarray) -> dict[str, float]:
        """The ten largest of the trained parameters by name, largest first; what is not finite comes before all."""
        names = [row.name for row in self.facts.rows if row.optimizer != FROZEN]
        order = np.argsort(-np.where(np.isfinite(values), values, np.inf), kind="stable")[:_TOP]
        return {names[i]: float(values[i]) for i in order}


class TrainingStep(EventProbe):
    """Loss, accuracy, and labels and predictions of the first rows."""

    def measure(self, inputs: ProbeInputs) -> dict[str, jax.Array]:
        label = inputs.batch["label"]
        shown = min(_SAMPLES, inputs.preview.shape[0], label.shape[1])
        return {
            "loss": inputs.loss,
            "task_losses": inputs.task_losses,
            "count": inputs.sums["count"],
            "correct": inputs.sums["correct1"],
            "counts": inputs.counts,
            "predictions": inputs.preview[:shown, 0],
            "labels": label[0, :shown, 0],
            "target_shape": jnp.asarray(inputs.loss_mask.shape, jnp.int32),
            "labels_shape": jnp.asarray(label.shape, jnp.int32),
        }

    def data(self, step: int, values: Mapping[str, np.ndarray]) -> dict[str, Any]:
        accuracy = [float(correct) / max(int(values["count"]), 1) for correct in values["correct"]]
        return {
            "loss": float(values["loss"]),
            "accuracy": accuracy[0],
            "learning_rate": float(self.facts.learning_rate(step)),
            "sample_predictions": values["predictions"].tolist(),
            "sample_labels": values["labels"].tolist(),
            "target_shape": values["target_shape"].tolist(),
            "labels_shape": values["labels_shape"].tolist(),
            "num_valid": round(float(values["counts"][0])),
            "batch_idx": int(self.facts.batch_index(step)),
            "tasks": {
                task: {"loss": float(values["task_losses"][t]), "accuracy": accuracy[t]}
                for t, task in enumerate(self.facts.tasks)
            },
        }


class GradientStats(EventProbe):
    """Norms and extremes of the gradient."""

    def measure(self, inputs: ProbeInputs) -> dict[str, jax.Array]:
        """Per trained leaf float32 [L]: L2 norm, largest and smallest |g|, the largest NaN where any entry is."""
        sizes = leaf_sizes(jax.tree.leaves(inputs.grads))
        found = {"norms": jnp.sqrt(sizes["squares"]), "max": sizes["max"], "min": sizes["min"]}
        return found | {"total": inputs.grad_norm}

    def data(self, step: int, values: Mapping[str, np.ndarray]) -> dict[str, Any]:
        norm = float(values["total"])
        return {
            "total_norm": norm if math.isfinite(norm) else math.inf,
            "max_grad": float(np.max(values["max"], initial=0.0)),
            "min_grad": float(np.min(values["min"])) if len(values["min"]) else 0.0,
            "num_params_with_grad": int(np.count_nonzero(values["max"])),
            "num_params_total": len(self.facts.rows),
            "top_10_grad_norms": self.top(values["norms"]),
            "nonfinite_params": int(np.count_nonzero(~np.isfinite(values["max"]))),
        }


class ParamUpdates(EventProbe):
    """Which parameters move: of the update that it falls on, without a copy of earlier parameters."""

    def measure(self, inputs: ProbeInputs) -> jax.Array:
        """float32 [L], mean |update| of every leaf that trains."""
        leaves = jax.tree.leaves(inputs.updates())
        return leaf_sizes(leaves)["sum"] / jnp.array([max(leaf.size, 1) for leaf in leaves], jnp.float32)

    def data(self, step: int, values: np.ndarray) -> dict[str, Any]:
        if step == 0:  # the first measurement is of step 50
            return {}
        updated = int(np.count_nonzero(values > MOVING))
        return {
            "num_params_updated": updated,
            "num_params_total": len(self.facts.rows),
            "top_10_param_changes": self.top(values),
            "no_updates": updated == 0,
        }
