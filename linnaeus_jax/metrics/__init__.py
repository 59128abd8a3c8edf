"""What is measured, under which names, and what a user may add."""

from linnaeus_jax.metrics.custom import register, register_subset
from linnaeus_jax.metrics.extras import SubsetMetricWrapper
from linnaeus_jax.metrics.metric import MetricInputs, PhaseMetric
from linnaeus_jax.metrics.phase import accuracy
from linnaeus_jax.metrics.phases import Phase, register_phase
from linnaeus_jax.metrics.step_logger import StepMetricsLogger
from linnaeus_jax.metrics.tracker import Metric, MetricsTracker

__all__ = [
    "Metric",
    "MetricInputs",
    "MetricsTracker",
    "Phase",
    "PhaseMetric",
    "StepMetricsLogger",
    "SubsetMetricWrapper",
    "accuracy",
    "register",
    "register_phase",
    "register_subset",
]
