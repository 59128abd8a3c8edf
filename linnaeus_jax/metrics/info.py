"""What a metric is called, in which unit, which way is better, and where it is measured: a row of `metrics.table`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from linnaeus_jax.taxonomy.ranks import task_name

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

    def measured(self, name: str, tasks: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Key below the phase and heading of everything that the metric `name` is measured as."""
        if self.whole:
            yield name, self.heading
        for task in tasks if self.per_task else ():
            yield f"{name}_{task}", replace(self, label=f"{self.label}, {task_name(task)}").heading


def per_task(label: str, formula: str, unit: str, higher: bool, phases: Sequence[str] = PHASES) -> MetricInfo:
    return MetricInfo(label, formula, unit, higher, tuple(phases), whole=False, per_task=True)


def both(label: str, formula: str, unit: str) -> MetricInfo:
    return MetricInfo(label, f"{formula}; of the whole phase the mean over tasks", unit, False, VAL, per_task=True)
