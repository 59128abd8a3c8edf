"""The one table of metrics: what each one is, in which unit, which way is better, and where it is measured.

Metrics describe themselves (`PhaseMetric.infos`), `register` adds those of plugins. Early stopping, the ranking of
checkpoints, the tracker, the console, TensorBoard and the report read the table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from linnaeus_jax.metrics.extras import Calibration, RiskCoverage, TaxonomyMetrics
from linnaeus_jax.metrics.metric import PHASES, RISK_LEVELS, MetricInfo, PhaseMetric
from linnaeus_jax.metrics.phase import ALWAYS

__all__ = ["BUILT_IN", "PHASES", "RISK_LEVELS", "TABLE", "MetricInfo"]

_MEASURED: tuple[PhaseMetric | type[PhaseMetric], ...] = (*ALWAYS, Calibration, TaxonomyMetrics, RiskCoverage)
#: metric -> what it is, of all that the program itself measures
BUILT_IN: dict[str, MetricInfo] = {name: info for metric in _MEASURED for name, info in metric.infos.items()} | {
    "epoch_duration_sec": MetricInfo("duration", "seconds that the phase took", "s", False, mean=False),
    "avg_samples_per_sec": MetricInfo("speed", "rows / seconds of the phase", "rows/s", True, mean=False),
}
#: the built-in metrics and those that plugins registered
TABLE: dict[str, MetricInfo] = dict(BUILT_IN)

#: words of a metric's name that make smaller values better, where the table does not have it
LOWER_IS_BETTER = frozenset(
    "loss losses nll ece brier perplexity error errors aurc distance duration norm mse mae rmse".split()
)


def guess(name: str) -> bool:
    """Whether higher is better, from the words of a name."""
    return LOWER_IS_BETTER.isdisjoint(re.split(r"[^a-z0-9]+", name.lower()))


def keys(phase: str, tasks: Sequence[str]) -> dict[str, MetricInfo]:
    """Key below the phase -> entry, of everything but subsets that a phase, `train` or `val`, measures."""
    found = ((name, info) for name, info in TABLE.items() if phase in info.phases)
    return {key: info for name, info in found for key, _ in info.measured(name, tasks)}


def of_plugins() -> dict[str, MetricInfo]:
    """The entries that plugins registered."""
    return {name: info for name, info in TABLE.items() if name not in BUILT_IN}


def entry(key: str) -> MetricInfo | None:
    """The entry of a key below the phase such as `loss` or `acc1_taxa_L10`, whatever the task; None: there is none."""
    if key in TABLE and TABLE[key].whole:
        return TABLE[key]
    name = key.rpartition("_taxa_")[0]
    return TABLE[name] if name in TABLE and TABLE[name].per_task else None


def clash(name: str, info: MetricInfo) -> str:
    """Name of another metric that is, or may be, logged under a name of this one; empty: there is none."""
    for other, one in TABLE.items():
        longer = info.per_task and other.startswith(f"{name}_taxa_")
        shorter = one.per_task and name.startswith(f"{other}_taxa_")
        if longer or shorter or (other == name and other in BUILT_IN):
            return other
    return ""


def prefers_higher(key: str) -> bool:
    """Whether higher is better of a key below the phase: from the table, else from the words of the name."""
    info = entry(key)
    return guess(key) if info is None else info.higher_is_better
