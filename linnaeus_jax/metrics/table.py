"""The one table of metrics: what each one is, in which unit, which way is better, and where it is measured.

Early stopping, the ranking of checkpoints, the tracker, the console, TensorBoard and the report read it; `register`
adds those of plugins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

#: kinds of phases: the training step, and every validation phase
PHASES = ("train", "val")
VAL = ("val",)
#: accepted percentages of errors for which the coverage is reported
RISK_LEVELS = (1, 5, 10)


@dataclass(frozen=True)
class MetricInfo:
    """One metric: of the whole phase (`<name>`), per task (`<name>_<task>`), or both.

    Attributes:
      label, formula: for people.
      unit: `fraction` (shown to people in percent), `%`, `nats`, `edges` ...; empty: a pure number.
      core: its name in the section `core/` of the log, where a fraction is also logged in percent; empty: not there.
      mean: a mean over the rows of the phase, not a total.
      init_value: the best value before the first measurement; None: any value is better.
    """

    label: str
    formula: str
    unit: str
    higher_is_better: bool
    phases: tuple[str, ...] = PHASES
    whole: bool = True
    per_task: bool = False
    core: str = ""
    mean: bool = True
    init_value: float | None = None

    @property
    def scale(self) -> float:
        """What a logged value is multiplied with for people."""
        return 100.0 if self.unit == "fraction" else 1.0

    @property
    def heading(self) -> str:
        """Label and unit of a table's column."""
        unit = "%" if self.unit == "fraction" else self.unit
        return f"{self.label} [{unit}]" if unit else self.label

    @property
    def description(self) -> str:
        """Formula and unit."""
        return f"{self.formula} [{self.unit}]" if self.unit else self.formula


def _per_task(label: str, formula: str, unit: str, higher: bool, phases: Sequence[str] = PHASES) -> MetricInfo:
    return MetricInfo(label, formula, unit, higher, tuple(phases), whole=False, per_task=True)


def _both(label: str, formula: str, unit: str) -> MetricInfo:
    return MetricInfo(label, f"{formula}; of the whole phase the mean over tasks", unit, False, VAL, per_task=True)


BUILT_IN: dict[str, MetricInfo] = {
    "loss": MetricInfo(
        "loss",
        "training: the weighted total that is trained on, without masked null labels; validation: mean over tasks, "
        "with class weights where they are on in validation",
        "nats",
        False,
        per_task=True,
        core="loss",
    ),
    "loss_weighted": MetricInfo("weighted loss", "mean over rows of Σ_t weight_t · loss_t", "nats", False),
    "loss_unweighted": MetricInfo(
        "loss, mean of ranks", "mean over rows and tasks, null labels included", "nats", False, core="loss_unweighted"
    ),
    "chain_accuracy": MetricInfo(
        "all ranks right", "rows right at every task / rows", "fraction", True, core="chain_acc"
    ),
    "partial_chain_accuracy": MetricInfo(
        "all known ranks right",
        "rows right at every task with a label / rows with a label at any task",
        "fraction",
        True,
        core="partial_chain_acc",
    ),
    "acc1": _per_task("top-1", "rows whose best class is the label / rows", "%", True),
    "acc3": _per_task("top-3", "rows whose label is among the best three classes / rows", "%", True),
    "null/acc1": _per_task("top-1 of null labels", "as acc1, over rows without a label", "%", True),
    "null/loss": _per_task("loss of null labels", "mean loss over rows without a label", "nats", False),
    "non_null/acc1": _per_task("top-1 of known labels", "as acc1, over rows with a label", "%", True),
    "non_null/loss": _per_task("loss of known labels", "mean loss over rows with a label", "nats", False),
    "error_rate": _both("errors", "wrong rows / rows with a label", "fraction"),
    "ece": _both("calibration error (ECE)", "Σ_bins rows_b / rows · |accuracy_b - mean confidence_b|, 15 bins", ""),
    "brier": _both("Brier score", "mean over rows of Σ_c (p_c - [c is the label])²", ""),
    "nll": _both("log loss", "mean over rows of -log p_label", "nats"),
    "perplexity": _both("perplexity", "exp of the log loss", ""),
    "consistency_rate": MetricInfo(
        "consistent ranks", "rows whose predicted classes are one branch of the taxonomy / rows", "fraction", True, VAL
    ),
    "taxonomic_distance": _per_task(
        "mean distance of errors", "mean over wrong rows of the path from prediction to label", "edges", False, VAL
    ),
    "aurc": _per_task(
        "area under risk–coverage", "mean over k of the errors among the k most confident rows / k", "", False, VAL
    ),
    **{
        f"coverage_at_risk_{percent}": _per_task(
            f"answered at ≤ {percent} % errors",
            f"largest share of rows, most confident first, of which at most {percent} % are wrong",
            "fraction",
            True,
            VAL,
        )
        for percent in RISK_LEVELS
    },
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
    entries: dict[str, MetricInfo] = {}
    for name, info in TABLE.items():
        if phase in info.phases:
            entries |= {name: info} if info.whole else {}
            entries |= {f"{name}_{task}": info for task in tasks} if info.per_task else {}
    return entries


def of_plugins() -> dict[str, MetricInfo]:
    """The entries that plugins registered."""
    return {name: info for name, info in TABLE.items() if name not in BUILT_IN}


def entry(key: str) -> MetricInfo | None:
    """The entry of a key below the phase such as `loss` or `acc1_taxa_L10`, whatever the task; None: there is none."""
    if key in TABLE and TABLE[key].whole:
        return TABLE[key]
    name = key.partition("_taxa_")[0]
    return TABLE[name] if name != key and name in TABLE and TABLE[name].per_task else None


def prefers_higher(key: str) -> bool:
    """Whether higher is better of a key below the phase: from the table, else from the words of the name."""
    info = entry(key)
    return guess(key) if info is None else info.higher_is_better
