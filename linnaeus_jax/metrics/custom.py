"""Metrics and subsets of plugins, the modules that `env.plugins` names.

A metric is measured inside the compiled step and, like the built-in ones, logged, kept in checkpoints, reported at the
end, and may drive early stopping and the ranking of checkpoints. Keyword-only arguments with a default value are its
options, keys `metrics.<name>.<option>` of the configuration. A subset splits the validation rows by whatever a function
says of them; a column `subset_<kind>` of the labels file does the same without code.

    from linnaeus_jax.metrics import MetricInputs, register, register_subset

    @register("genus_confidence", unit="fraction", formula="mean probability of the best genus")
    def genus_confidence(inputs: MetricInputs):
        best = inputs.probabilities["taxa_L20"].max(axis=1)
        return (best * inputs.weight).sum(), inputs.weight.sum()

    register_subset("hemisphere", lambda rows: rows.meta[:, 4] >= 0)

`register("genus_confidence", genus_confidence)` does the same for a function that exists.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from linnaeus_jax.metrics import table
from linnaeus_jax.metrics.metric import PHASES, MetricInfo, MetricInputs, PhaseMetric, Sums, named, ratio
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.registry import METRICS, options_of

#: kinds of subsets that every run may have
BUILT_IN_SUBSETS = ("taxa", "rarity", "metadata")


#: MetricInputs, options -> (sum, count), [] each or, per task, [T]; the metric is sum / count
UpdateFn = Callable[..., tuple[Any, Any]]
#: split of the data (`data.dataset.Split`) -> bool, int or text [n], see `register_subset`
SubsetFn = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class CustomMetric(PhaseMetric):
    """A registered function with its options filled in: the quotient of two sums."""

    name: str
    update_fn: UpdateFn
    per_task: bool = False

    def empty(self, tasks: Sequence[str]) -> Sums:
        return {f"custom/{self.name}": jnp.zeros((2, len(tasks)) if self.per_task else 2, jnp.float32)}

    def update(self, inputs: MetricInputs) -> Sums:
        shape = (len(inputs.logits),) if self.per_task else ()
        what = "two arrays of one number per task" if self.per_task else "two scalars"
        with _errors(self.name, f"its function takes a MetricInputs and returns (sum, count), {what}"):
            total, count = (jnp.asarray(x, jnp.float32).reshape(shape) for x in self.update_fn(inputs))
        return {f"custom/{self.name}": jnp.stack([total, count])}

    def compute(self, sums: Mapping[str, np.ndarray], tasks: Sequence[str]) -> dict[str, float]:
        return named({self.name: ratio(*sums[f"custom/{self.name}"])}, tasks)


@dataclass(frozen=True, eq=False)
class CustomSums(PhaseMetric):
    """A registered `PhaseMetric`: its sums under names of their own, its values and errors under its name."""

    name: str
    metric: PhaseMetric

    def empty(self, tasks: Sequence[str]) -> Sums:
        with _errors(self.name, "its `empty` takes the tasks and returns name -> zeros"):
            return self._renamed(self._empty(tasks))

    def update(self, inputs: MetricInputs) -> Sums:
        with _errors(self.name, "its `update` takes a MetricInputs and returns the names and shapes of `empty`"):
            empty, found = self._empty(tuple(inputs.logits)), self.metric.update(inputs)
            shapes, of_empty = ({name: np.shape(x) for name, x in sums.items()} for sums in (found, empty))
            if wrong := dict.fromkeys(name for name, _ in shapes.items() ^ of_empty.items()):
                raise ValueError(f"{', '.join(wrong)} of other shapes than in `empty`")
            return self._renamed({name: jnp.asarray(found[name], zeros.dtype) for name, zeros in empty.items()})

    def compute(self, sums: Mapping[str, np.ndarray], tasks: Sequence[str]) -> dict[str, float]:
        known = {key for key, _ in table.TABLE[self.name].measured(self.name, tasks)}
        with _errors(self.name, "its `compute` takes its sums and the tasks and returns name -> number"):
            own = {name: sums[f"custom/{self.name}/{name}"] for name in self.metric.empty(tasks)}
            values = {name: float(x) for name, x in self.metric.compute(own, tasks).items()}
            if not values.keys() <= known:
                raise ValueError(f"{', '.join(values.keys() - known)} is none of {', '.join(sorted(known))}")
        return values

    def _empty(self, tasks: Sequence[str]) -> Sums:
        return {name: jnp.asarray(x) for name, x in self.metric.empty(tasks).items()}  # in the precision of the step

    def _renamed(self, sums: Sums) -> Sums:
        return {f"custom/{self.name}/{name}": x for name, x in sums.items()}


@contextlib.contextmanager
def _errors(name: str, rule: str) -> Iterator[None]:
    """Reports whatever a plugin raises under the name of its metric."""
    try:
        yield
    except Exception as error:
        raise InputError(f"custom metric {name!r} fails with {type(error).__name__}: {error}; {rule}") from error


#: kind of subsets of plugins -> function, in order of registration
SUBSETS: dict[str, SubsetFn] = {}


def register(
    name: str,
    update_fn: UpdateFn | type[PhaseMetric] | None = None,
    *,
    per_task: bool = False,
    formula: str = "",
    unit: str = "",
    init_value: float | None = None,
    higher_is_better: bool | None = None,
    phases: Sequence[str] = PHASES,
) -> Any:
    """Adds a metric, logged as `<phase>/<name>` and, at the end, as `final_<phase>_<name>`; also a decorator.

    Of a metric per task, `_<task>` follows the name.

    Args:
      name: letters, digits, `_`, `-` and `.`.
      update_fn: traced; its sums over batches and devices are added up, so rows of weight 0 (padding) must not count.
        What is no quotient of two sums is a subclass of `PhaseMetric` instead, a dataclass if it has options.
      per_task: sum and count are arrays [T], one number per task, finest first.
      formula: a short text for reports; empty: the first line of the function's docstring.
      unit: for reports; `fraction` is shown in percent.
      init_value: the best value before the first measurement; None: any value is better.
      higher_is_better: None: from the words of the name, see `table.guess`.
      phases: any of `PHASES`.

    Returns:
      `update_fn`, or a decorator where it is None.

    Raises:
      ValueError: the name is malformed or taken, or a phase is unknown.
    """

    def add(function: Any) -> Any:
        _check_name("metric", name)
        if not phases or not set(phases) <= set(PHASES):
            raise InputError(f"custom metric {name!r}: phases={tuple(phases)} must name one or more of {PHASES}")
        higher = table.guess(name) if higher_is_better is None else higher_is_better
        text = formula or (function.__doc__ or "").strip().partition("\n")[0]
        info = MetricInfo(name, text, unit, higher, tuple(phases), not per_task, per_task, init_value=init_value)
        if clash := table.clash(name, info):
            whose = "built-in one" if clash in table.BUILT_IN else f"value of {clash!r}"
            raise InputError(f"custom metric {name!r} has the name of a {whose}; choose another name")
        if options_of(function) and not name.isidentifier():
            raise InputError(f"custom metric {name!r} has options: its name must be one word, metrics.<name>.<option>")
        METRICS.register(name)(function)
        table.TABLE[name] = info
        return function

    return add if update_fn is None else add(update_fn)


def register_subset(kind: str, function: SubsetFn) -> None:
    """Adds a kind of subsets, reported in every validation phase as `subset/<kind>/<name>/acc1_<task>` and `/count`.

    Args:
      kind: letters, digits, `_`, `-` and `.`; what the subsets have in common, e.g. `habitat`.
      function: called on the host, once per split, with the split (`data.dataset.Split`: `rows`, `labels`, `taxa`,
        `meta`, `meta_valid`, `identifiers`). Returns one value per row: text (the name of its subset; empty: none),
        int (negative: none) or bool (subsets `true` and `false`).

    Raises:
      ValueError: the name is malformed or taken.
    """
    _check_name("subset", kind)
    if kind in (*BUILT_IN_SUBSETS, *SUBSETS):
        raise InputError(f"custom subset {kind!r} is registered twice or built in; choose another name")
    SUBSETS[kind] = function


def _check_name(what: str, name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_.\-]+", name):
        raise InputError(f"custom {what} {name!r}: use only letters, digits, '_', '-' and '.'")


def registered(phase: str, options: Mapping[str, Any]) -> tuple[CustomMetric | CustomSums, ...]:
    """The metrics of plugins that a kind of phase, `train` or `val`, measures, in order of registration.

    Args:
      options: the section `metrics` of the configuration, which holds `<name>.<option>`.
    """
    return tuple(
        _built(name, functools.partial(item, **{key: options[name][key] for key in METRICS.options(name)}))
        for name, item in METRICS.entries.items()
        if phase in table.TABLE[name].phases
    )


def _built(name: str, item: functools.partial[Any]) -> CustomMetric | CustomSums:
    if not isinstance(item.func, type):
        return CustomMetric(name, item, table.TABLE[name].per_task)
    with _errors(name, "it is made of its options alone"):
        return CustomSums(name, item())
