"""From device sums to log rows: which updates are log points, and what a row says.

Outputs of a log point are held and read one update later, so that the device never waits for the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from linnaeus_jax.metrics.phase import summarise
from linnaeus_jax.training.parallel import fetch
from linnaeus_jax.training.state import IntervalSums
from linnaeus_jax.training.step import StepOutputs

#: averaging windows on the host; `epoch` is reset at boundaries, the others at their log points
WINDOWS = ("epoch", "wandb", "console")


class NonFiniteError(Exception):
    """Too many updates in a row had non-finite values."""


@dataclass(frozen=True)
class LogIntervals:
    """Updates between log points per stream; 0 is off."""

    step: int
    console: int
    wandb: int
    lr: int
    pipeline: int

    def due(self, step: int) -> frozenset[str]:
        """Streams that log after `step` completed updates."""
        return frozenset(name for name, every in vars(self).items() if every > 0 and step % every == 0)


def _to_json(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x).tolist(), tree)


class TrainRecorder:
    """Host side of the training statistics."""

    def __init__(
        self,
        tasks: tuple[str, ...],
        components: tuple[str, ...],
        intervals: LogIntervals,
        nonfinite_limit: int,
    ) -> None:
        self.tasks, self.components = tasks, components
        self.intervals = intervals
        self.nonfinite_limit = nonfinite_limit
        zeros = jax.tree.map(np.asarray, IntervalSums.zeros(tasks, len(components)))
        self._zeros = jax.tree.map(self._widened, zeros)
        self.windows: dict[str, IntervalSums] = dict.fromkeys(WINDOWS, self._zeros)
        self._held: tuple[int, int, frozenset[str], StepOutputs, IntervalSums] | None = None
        self.last_grad_norm = math.nan
        self.last_rates: dict[str, float] = {}

    @staticmethod
    def _widened(x: np.ndarray) -> np.ndarray:
        return np.asarray(x, np.float64 if np.issubdtype(x.dtype, np.floating) else np.int64)

    def hold(
        self, step: int, epoch: int, streams: frozenset[str], outputs: StepOutputs, interval: IntervalSums
    ) -> None:
        """Keeps the outputs of a log point until `release`."""
        self._held = (step, epoch, streams, outputs, interval)

    def release(self) -> tuple[int, int, frozenset[str], dict[str, float]] | None:
        """Reads what is held: (step, epoch, streams, row); None if nothing is.

        Raises:
          NonFiniteError: the limit of non-finite updates in a row is reached.
        """
        if self._held is None:
            return None
        step, epoch, streams, device_outputs, device_interval = self._held
        self._held = None
        outputs, interval = fetch((device_outputs, device_interval))
        for name in WINDOWS:
            self.windows[name] = jax.tree.map(lambda a, b: a + self._widened(b), self.windows[name], interval)
        row = self._row(streams, outputs)
        for name in ("wandb", "console"):
            if name in streams:
                self.windows[name] = self._zeros
        self.last_grad_norm = float(outputs.grad_norm)
        self.last_rates = {name: float(rate) for name, rate in outputs.learning_rates.items()}
        if self.nonfinite_limit and int(outputs.skipped_in_a_row) >= self.nonfinite_limit:
            raise NonFiniteError(
                f"{int(outputs.skipped_in_a_row)} updates in a row were not finite (train.nonfinite_limit="
                f"{self.nonfinite_limit}), the last at step {step} with loss {float(outputs.loss):g} and gradient norm "
                f"{float(outputs.grad_norm):g}; lower lr_scheduler.base_lr or train.clip_grad, or look for the first "
                "bad value with --debug underflow_overflow"
            )
        return step, epoch, streams, row

    def _row(self, streams: frozenset[str], outputs: StepOutputs) -> dict[str, float]:
        now = self.means(outputs.interval)
        row = {f"train/{name}": value for name, value in now.items() if not name.startswith("null/")}
        row["train/loss"] = float(outputs.loss)
        for task, loss in zip(self.tasks, outputs.task_losses, strict=True):
            row[f"train/loss/{task}"] = float(loss)
        row["train/grad_norm"] = float(outputs.grad_norm)
        row["train/skipped_updates"] = int(outputs.skipped)
        if "wandb" in streams:
            average = self.means(self.windows["wandb"])
            row |= {f"train/step_avg_{name}": value for name, value in average.items() if "null/" not in name}
        row["train/lr"] = max(float(rate) for rate in outputs.learning_rates.values())
        if "lr" in streams:
            row |= {f"train/lr/{name}": float(rate) for name, rate in outputs.learning_rates.items()}
        row |= {f"schedule/{name}": float(value) for name, value in outputs.probabilities.items()}
        row |= self._valid_percent(outputs.interval)
        total, included = int(outputs.interval.null_total.sum()), int(outputs.interval.null_included.sum())
        row["schedule/null_masking/null_samples_total"] = total
        row["schedule/null_masking/null_samples_included"] = included
        if total:
            row["schedule/null_masking/inclusion_percentage"] = 100.0 * included / total
        for name, value in outputs.gradnorm.items():
            row |= self._per_task(f"gradnorm/{name}", value)
        row["core/train_loss"] = row["train/loss"]
        for short, name in (("chain_acc", "chain_accuracy"), ("partial_chain_acc", "partial_chain_accuracy")):
            if name in now:
                row[f"core/train_{short}"] = now[name]
        return row

    def _per_task(self, name: str, value: Any) -> dict[str, float]:
        if np.ndim(value) == 0:
            return {name: float(value)}
        return {f"{name}/{task}": float(x) for task, x in zip(self.tasks, value, strict=True)}

    def _valid_percent(self, interval: IntervalSums) -> dict[str, float]:
        count = int(interval.sums["count"])
        return {
            f"meta_masking/actual_valid_pct/{name}/train": 100.0 * int(valid) / count
            for name, valid in zip(self.components, interval.meta_valid, strict=True)
            if count
        }

    def means(self, interval: IntervalSums) -> dict[str, float]:
        """Metric -> mean over the samples of a window; `loss` is the weighted total that is trained on."""
        values = summarise(interval.sums, self.tasks)
        return {"loss": values["loss_weighted"], **values} if "loss_weighted" in values else values

    def finish_epoch(self) -> dict[str, float]:
        """Means over the epoch; starts the next one."""
        values = self.means(self.windows["epoch"])
        updates = float(self.windows["epoch"].updates)
        if updates:
            values["grad_norm"] = float(self.windows["epoch"].grad_norm) / updates
        self.windows["epoch"] = self._zeros
        return values

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable; exact, so that a resumed run logs what the uninterrupted one would have."""
        windows = {name: _to_json({"sums": w.sums, **_rest(w)}) for name, w in self.windows.items()}
        return {"windows": windows, "last_grad_norm": self.last_grad_norm, "last_rates": self.last_rates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, saved in state["windows"].items():
            like = {"sums": self._zeros.sums, **_rest(self._zeros)}
            loaded = {key: self._like(like[key], saved[key]) for key in like}
            self.windows[name] = IntervalSums(**loaded)
        self.last_grad_norm = float(state["last_grad_norm"])
        self.last_rates = dict(state["last_rates"])

    @staticmethod
    def _like(zero: Any, saved: Any) -> Any:
        if isinstance(zero, dict):
            return {key: np.asarray(saved[key], value.dtype) for key, value in zero.items()}
        return np.asarray(saved, zero.dtype)


def _rest(window: IntervalSums) -> dict[str, Any]:
    return {
        name: getattr(window, name) for name in ("grad_norm", "updates", "meta_valid", "null_total", "null_included")
    }
