"""What is measured, under which names, and what a user may add.

The names below are imported when they are first used: registering a metric needs neither logger nor schedule.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linnaeus_jax.metrics.custom import MetricInputs, register, register_subset, unregister, unregister_subset
    from linnaeus_jax.metrics.extras import SubsetMetricWrapper
    from linnaeus_jax.metrics.phase import accuracy
    from linnaeus_jax.metrics.step_logger import StepMetricsLogger
    from linnaeus_jax.metrics.tracker import Metric, MetricsTracker

_HOME = {
    "Metric": "tracker",
    "MetricInputs": "custom",
    "MetricsTracker": "tracker",
    "StepMetricsLogger": "step_logger",
    "SubsetMetricWrapper": "extras",
    "accuracy": "phase",
    "register": "custom",
    "register_subset": "custom",
    "unregister": "custom",
    "unregister_subset": "custom",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


__all__ = [
    "Metric",
    "MetricInputs",
    "MetricsTracker",
    "StepMetricsLogger",
    "SubsetMetricWrapper",
    "accuracy",
    "register",
    "register_subset",
    "unregister",
    "unregister_subset",
]
