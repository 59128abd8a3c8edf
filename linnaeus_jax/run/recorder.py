"""From device sums to log rows: outputs of a log point are held and read one update later, so that the device never
waits for the host. What is due, averaged and named how stands in `metrics/step_logger.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from linnaeus_jax.config.errors import TrainingError
from linnaeus_jax.metrics.step_logger import StepMetricsLogger
from linnaeus_jax.step import probes
from linnaeus_jax.step.placement import fetch
from linnaeus_jax.step.state import IntervalSums
from linnaeus_jax.step.train_step import StepOutputs


class NonFiniteError(TrainingError):
    """Too many updates in a row had non-finite values."""

    alert = "Non-finite values"


@dataclass(frozen=True, eq=False)
class LogPoint:
    """A log point as it was held and, after `release`, as the host sees it."""

    step: int
    epoch: int
    streams: frozenset[str]
    probes: tuple[probes.Probe, ...]  # that were due at this update
    outputs: StepOutputs
    interval: IntervalSums
    probe_row: Mapping[str, Any] = field(default_factory=dict)  # what they log


class TrainRecorder:
    """Host side of the training statistics."""

    def __init__(self, logger: StepMetricsLogger, nonfinite_limit: int) -> None:
        self.logger = logger
        self.nonfinite_limit = nonfinite_limit
        self._held: LogPoint | None = None
        self.last_grad_norm = math.nan
        self.last_rates: dict[str, float] = {}

    def hold(self, point: LogPoint) -> None:
        """Keeps the outputs of a log point until `release`."""
        self._held = point

    def release(self) -> LogPoint | None:
        """Reads what is held, hands the results of probes to them and adds the sums to every average.

        Raises:
          NonFiniteError: the limit of non-finite updates in a row is reached.
        """
        if self._held is None:
            return None
        held, self._held = self._held, None
        outputs, interval = fetch((held.outputs, held.interval))
        self.logger.add(interval_dict(interval))
        probe_row = probes.consume(held.probes, held.step - 1, held.epoch, outputs.probes)
        self.last_grad_norm = float(outputs.grad_norm)
        self.last_rates = host_floats(outputs.learning_rates)
        if self.nonfinite_limit and int(outputs.skipped_in_a_row) >= self.nonfinite_limit:
            raise NonFiniteError(
                f"{int(outputs.skipped_in_a_row)} updates in a row were not finite (train.nonfinite_limit="
                f"{self.nonfinite_limit}), the last at step {held.step} with loss {float(outputs.loss):g} and gradient "
                f"norm {float(outputs.grad_norm):g}; lower lr_scheduler.base_lr or train.clip_grad, or look for the "
                "first bad value with --debug underflow_overflow"
            )
        return LogPoint(held.step, held.epoch, held.streams, held.probes, outputs, interval, probe_row)

    def row(self, point: LogPoint, *, mixup_group: str, seconds_left: float, now: float) -> dict[str, Any]:
        """The row of a released log point under the documented names."""
        outputs = point.outputs
        row = self.logger.row(
            point.step,
            point.streams,
            interval_dict(outputs.interval),
            loss=float(outputs.loss),
            task_losses=np.asarray(outputs.task_losses).tolist(),
            learning_rates=host_floats(outputs.learning_rates),
            schedule=host_floats(outputs.probabilities),
            gradnorm=outputs.gradnorm,
            mixup_group=mixup_group,
            seconds_left=seconds_left,
            now=now,
        )
        row["train/grad_norm"] = row["gradnorm/total_norm_pre_clip"] = float(outputs.grad_norm)
        row["gradnorm/total_norm_post_clip"] = float(outputs.clipped_norm)
        row["train/skipped_updates"] = int(outputs.skipped)
        return row

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable; exact, so that a resumed run logs what the uninterrupted one would have."""
        return {
            "windows": self.logger.state_dict(),
            "last_grad_norm": self.last_grad_norm,
            "last_rates": self.last_rates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.logger.load_state_dict(state["windows"])
        self.last_grad_norm = float(state["last_grad_norm"])
        self.last_rates = dict(state["last_rates"])


def host_floats(values: Mapping[str, Any]) -> dict[str, float]:
    """Fetched scalars as Python numbers."""
    return {name: float(value) for name, value in values.items()}


def interval_dict(interval: IntervalSums) -> dict[str, Any]:
    """Interval sums as the plain mapping that the logger averages."""
    names = ("sums", "updates", "grad_norm", "meta_valid", "null_total", "null_included")
    return {name: getattr(interval, name) for name in names}
