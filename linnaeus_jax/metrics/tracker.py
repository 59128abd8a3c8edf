"""The current, best and final values of every metric, and their state for checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: parts of a metric's name that make smaller values better
LOWER_IS_BETTER = ("loss", "ece", "brier", "nll", "perplexity", "error", "distance", "duration")


def higher_is_better(name: str) -> bool:
    """Direction of a metric, from its name."""
    return not any(part in name.lower() for part in LOWER_IS_BETTER)


class Metric:
    """One metric: its last value and its best, which only a strict improvement moves (NaN never does)."""

    def __init__(self, name: str, init_value: float | None = None, higher_is_better: bool | None = None) -> None:
        self.name = name
        self.higher_is_better = higher_is_better if higher_is_better is not None else globals()["higher_is_better"](name)
        self.value = init_value
        self.best = init_value
        self.best_epoch: int | None = None
        self.best_step: int | None = None
        self.last_step: int | None = None
        self.count = 0

    def update(self, value: float, epoch: int, step: int | None = None) -> None:
        """Takes a new value, measured in `epoch` at global step `step`."""
        self.value = float(value)
        self.last_step = step
        self.count += 1
        if math.isnan(self.value):
            return
        unset = self.best is None
        if unset or (self.value > self.best if self.higher_is_better else self.value < self.best):  # type: ignore[operator]
            self.best, self.best_epoch, self.best_step = self.value, epoch, step


class MetricsTracker:
    """All metrics of a run, by `<phase>/<name>`."""

    def __init__(self) -> None:
        self.metrics: dict[str, Metric] = {}

    def update(self, phase: str, values: Mapping[str, float], epoch: int, step: int) -> None:
        """Takes the results of one phase; only phases that ran are ever updated."""
        for name, value in values.items():
            key = f"{phase}/{name}"
            self.metrics.setdefault(key, Metric(key)).update(value, epoch, step)

    def value(self, name: str) -> float | None:
        """Last value of `<phase>/<metric>`; None before its first measurement."""
        metric = self.metrics.get(name)
        return None if metric is None else metric.value

    def latest_by_phase(self) -> dict[str, dict[str, float]]:
        """Phase -> metric -> last value."""
        found: dict[str, dict[str, float]] = {}
        for key, metric in self.metrics.items():
            phase, name = key.split("/", 1)
            if metric.value is not None:
                found.setdefault(phase, {})[name] = metric.value
        return found

    def final_metrics(self) -> dict[str, float]:
        """`final_<phase>_<metric>` -> best value observed in the run."""
        return {
            f"final_{name.replace('/', '_', 1)}": metric.best
            for name, metric in sorted(self.metrics.items())
            if metric.best is not None
        }

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state."""
        fields = ("value", "best", "best_epoch", "best_step", "last_step", "count")
        return {name: {field: getattr(metric, field) for field in fields} for name, metric in self.metrics.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.metrics = {}
        for name, fields in state.items():
            metric = self.metrics[name] = Metric(name)
            for field, value in fields.items():
                setattr(metric, field, value)
