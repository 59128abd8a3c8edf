"""What a metric is: sums over the rows of a phase (an epoch of training, or one validation pass), and its values.

The sums are a flat dict of device arrays that merge by addition, so a metric is exact under padding and any split of
the rows over batches and devices. Counts are int32, everything else is float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.taxonomy.ranks import task_name

# ---- What a metric is called, in which unit, which way is better, and where it is measured: a row of `metrics.table`


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


# ----------------------------------------------------------------------------------------------------------------------


Sums = dict[str, jax.Array]


@dataclass(frozen=True, eq=False)
class MetricInputs:
    """One batch, as a metric sees it. B rows, T tasks (finest first), D metadata columns, K metadata components.

    In training the images may be mixed: `label` is then that of the larger share, the rest is of the row itself.
    """

    logits: Mapping[str, jax.Array]  # task -> float32 [B, C], in task order
    label: jax.Array  # int32 [B, T], class index; 0 is null where null labels are possible
    weight: jax.Array  # float32 [B], 0 for padding, which must not count
    row: jax.Array  # int32 [B], row of the labels file
    group: jax.Array  # int32 [B], rows of one group may be mixed; -1: never, as in validation
    meta: jax.Array  # float32 [B, D], as the model sees it: masked and invalid components are zero
    meta_valid: jax.Array  # bool [B, K], components that are present and not masked
    subsets: Mapping[str, jax.Array]  # kind of custom subset -> int32 [B], position of the row's subset; -1: in none
    loss: Any = None  # float32 [B, T], loss of every task, null labels included
    loss_weighted: Any = None  # float32 [B], the weighted total; 0 in training, where it is known once per update
    null_possible: bool = True  # whether class 0 stands for "unknown"
    membership: Mapping[str, jax.Array] = field(default_factory=dict)  # any kind of subset -> see `SubsetMetricWrapper`

    @property
    def probabilities(self) -> dict[str, jax.Array]:
        """Task -> float32 [B, C], softmax of the logits."""
        return {task: jax.nn.softmax(z, axis=1) for task, z in self.logits.items()}

    @cached_property
    def valid(self) -> jax.Array:
        """bool [B], the row is no padding."""
        return self.weight > 0

    @cached_property
    def rows(self) -> jax.Array:
        """bool [B, 1], as `valid`."""
        return self.valid[:, None]

    @cached_property
    def labelled(self) -> jax.Array:
        """bool [B, T], the label is not null."""
        return (self.label != 0) if self.null_possible else jnp.ones_like(self.label, bool)

    @cached_property
    def counted(self) -> jax.Array:
        """bool [B, T], the row is no padding and its label not null."""
        return self.rows & self.labelled

    @cached_property
    def rank(self) -> jax.Array:
        """int32 [B, T], how many classes are predicted before the label, see `rank_of_label`."""
        return jnp.stack([rank_of_label(z, self.label[:, t]) for t, z in enumerate(self.logits.values())], axis=1)

    @cached_property
    def right(self) -> jax.Array:
        """bool [B, T], the prediction is the label."""
        return self.rank == 0


class PhaseMetric:
    """One metric, or several that are made of the same sums.

    Attributes:
      infos: name -> what it is, of everything that `compute` gives but subsets.
    """

    infos: ClassVar[Mapping[str, MetricInfo]] = MappingProxyType({})

    def empty(self, tasks: Sequence[str]) -> Sums:
        """The sums of no row."""
        return {}

    def update(self, inputs: MetricInputs) -> Sums:
        """The sums of one batch, names and shapes as in `empty`; traced. Padding must not count."""
        return {}

    @staticmethod
    def merge(left: Any, right: Any) -> Any:
        """The sums of the rows of both, two trees of one structure."""
        return jax.tree.map(jnp.add, left, right)

    def compute(self, sums: Mapping[str, np.ndarray], tasks: Sequence[str]) -> dict[str, float]:
        """`<name>` or `<name>_<task>` -> value; what has no sample is absent.

        Args:
          sums: those of the whole phase, on the host. Built-in metrics see the sums of all, `count` (rows) among them.
        """
        return {}

    def curves(self, sums: Mapping[str, np.ndarray], t: int) -> dict[str, Any]:
        """Name -> what a plot of the `t`-th task needs, as JSON values."""
        return {}


def ratio(numerator: Any, denominator: Any, scale: float = 1) -> Any:
    """scale · numerator / denominator as float, or a list where one is [T]; None where the denominator is 0."""
    n, d = np.broadcast_arrays(np.asarray(numerator, np.float64), denominator)
    if n.ndim:
        return [ratio(*pair, scale) for pair in zip(n, d, strict=True)]
    return scale * float(n) / float(d) if d else None


def named(values: Mapping[str, Any], tasks: Sequence[str]) -> dict[str, float]:
    """Values under their full names: a list, one value per task, gets `_<task>`; None is left out."""
    pairs: list[tuple[str, float | None]] = []
    for name, value in values.items():
        pairs += (
            [(f"{name}_{task}", x) for task, x in zip(tasks, value)] if isinstance(value, list) else [(name, value)]
        )
    return {name: value for name, value in pairs if value is not None}


def rank_of_label(logits: jax.Array, label: jax.Array) -> jax.Array:
    """How many classes are predicted before the label.

    Ties go to the lower index and NaN counts as largest, as in argmax.

    Args:
      logits: float [B, C].
      label: int32 [B].

    Returns:
      int32 [B]; 0 means that the prediction is right.
    """
    label_logit = jnp.take_along_axis(logits, label[:, None], axis=1)
    nan, label_nan = jnp.isnan(logits), jnp.isnan(label_logit)
    index = jnp.arange(logits.shape[1], dtype=label.dtype)[None, :]
    larger = (logits > label_logit) | (nan & ~label_nan)  # NaN is above infinity, too
    equal = (logits == label_logit) | (nan & label_nan)
    return (larger | (equal & (index < label[:, None]))).sum(axis=1, dtype=jnp.int32)
