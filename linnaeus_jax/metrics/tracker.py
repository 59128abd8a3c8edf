"""The current, best and final values of every metric, and their state for checkpoints."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from linnaeus_jax.metrics import names, table


class Metric:
    """One metric: its last value and its best, which only a strict improvement moves; all values are in the log.

    Attributes:
      value, best: None before the first measurement, unless `init_value` is given.
      best_epoch, best_step, last_step: of the measurement, None before it.
      count: measurements so far.
    """

    def __init__(self, name: str, init_value: float | None = None, higher_is_better: bool | None = None) -> None:
        self.name = name
        higher = table.prefers_higher(names.split_result(name)[1])
        self.higher_is_better = higher if higher_is_better is None else higher_is_better
        self.value = init_value
        self.best = init_value
        self.best_epoch: int | None = None
        self.best_step: int | None = None
        self.last_step: int | None = None
        self.count = 0

    def update(self, value: float, epoch: int, step: int | None = None) -> None:
        """Takes a new value, measured in `epoch` at global step `step`; NaN is never the best."""
        self.value = float(value)
        self.last_step = step
        self.count += 1
        better = operator.gt if self.higher_is_better else operator.lt
        if not math.isnan(self.value) and (self.best is None or better(self.value, self.best)):
            self.best, self.best_epoch, self.best_step = self.value, epoch, step

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable."""
        return dict(vars(self))

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Metric:
        """Inverse of `state_dict`."""
        metric = cls(state["name"])
        vars(metric).update(state)
        return metric


class MetricsTracker:
    """All metrics of a run, by their logged name (`names.result_name`), and the last values of whatever else is logged.

    A metric may also be an attribute, in a method of a subclass; it then is logged, saved and restored like the others:

        def update_custom_metric(self, value: float, epoch: int) -> None:
            if not hasattr(self, "custom_metric"):
                self.custom_metric = Metric("custom_metric", init_value=0.0)
            self.custom_metric.update(value, epoch)
    """

    def __init__(self, null_tasks: Sequence[str] | None = None) -> None:
        """Args: null_tasks: tasks logged apart for null and other labels; None: all."""
        self.metrics: dict[str, Metric] = {}
        self.latest: names.Row = {}
        self.null_tasks = null_tasks

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Metric):
            self.metrics[name] = value
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Metric:
        metric = self.__dict__.get("metrics", {}).get(name)
        if metric is None:
            raise AttributeError(f"{type(self).__name__} has no attribute or metric {name!r}")
        return metric

    # ---- updates ------------------------------------------------------------------------------------------------

    def update(
        self,
        phase: str,
        values: Mapping[str, float],
        epoch: int,
        step: int,
        *,
        seconds: float | None = None,
        samples: int | None = None,
    ) -> None:
        """Takes the results of one phase; only phases that ran are ever updated.

        Args:
          values: metric -> value.
          seconds, samples: duration and rows of the phase, for `epoch_duration_sec` and `avg_samples_per_sec`.
        """
        values = dict(values)
        if seconds is not None:
            values["epoch_duration_sec"] = seconds
            if samples is not None and seconds > 0:
                values["avg_samples_per_sec"] = samples / seconds
        for name, value in values.items():
            key = names.result_name(phase, name)
            if key not in self.metrics:
                info = table.entry(name)
                self.metrics[key] = Metric(key, None if info is None else info.init_value)
            self.metrics[key].update(value, epoch, step)

    def update_latest(self, row: Mapping[str, Any]) -> None:
        """Takes last values of what has no best: rates, probabilities, task weights, pipeline counters; see `names`."""
        self.latest |= row

    # ---- views --------------------------------------------------------------------------------------------------

    def value(self, name: str) -> float | None:
        """Last value under a logged name such as `val/loss`; None before its first measurement."""
        metric = self.metrics.get(name)
        return None if metric is None else metric.value

    def latest_by_phase(self, step: int | None = None) -> dict[str, dict[str, float]]:
        """Phase -> metric -> last value, of the metrics measured at `step` (None: at any)."""
        results: dict[str, dict[str, float]] = {}
        for key, metric in self.metrics.items():
            phase, name = names.split_result(key)
            if phase and metric.count and metric.value is not None and step in (None, metric.last_step):
                results.setdefault(phase, {})[name] = metric.value
        return results

    def get_wandb_metrics(self, step: int | None = None) -> names.Row:
        """Flat row under the documented names, holding only what was measured.

        Args:
          step: only results measured at this global step, so that nothing stale is logged again.
        """
        row: names.Row = dict(self.latest) if step is None else {"core/global_step": step}
        for phase, values in self.latest_by_phase(step).items():
            row |= names.phase_row(phase, values, self.null_tasks)
        for key, metric in self.metrics.items():
            if "/" not in key and metric.count and (step is None or metric.last_step in (None, step)):
                row[key] = metric.value
        return row

    def final_metrics(self) -> dict[str, float]:
        """`final_<phase>_<metric>` -> best value observed in the run."""
        return {
            "final_" + "_".join(filter(None, names.split_result(key))): metric.best
            for key, metric in sorted(self.metrics.items())
            if metric.best is not None and metric.best_epoch is not None and not key.endswith("/count")
        }

    # ---- state --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state; holds no configuration."""
        metrics = {key: metric.state_dict() for key, metric in self.metrics.items()}
        return {"metrics": metrics, "latest": dict(self.latest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.metrics = {key: Metric.from_state(fields) for key, fields in state["metrics"].items()}
        self.latest = dict(state["latest"])
