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

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from linnaeus_jax.metrics import table
from linnaeus_jax.metrics.table import PHASES, MetricInfo
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.registry import METRICS, options_of

if TYPE_CHECKING:
    import jax

#: kinds of subsets that every run may have
BUILT_IN_SUBSETS = ("taxa", "rarity", "metadata")


@dataclass(frozen=True, eq=False)
class MetricInputs:
    """One batch, as a metric sees it. B rows, T tasks (finest first), D metadata columns, K metadata components.

    In training the images may be mixed: `label` is then that of the larger share, the rest is of the row itself.
    """

    logits: Mapping[str, jax.Array]  # task -> float32 [B, C]
    label: jax.Array  # int32 [B, T], class index; 0 is null where null labels are possible
    weight: jax.Array  # float32 [B], 0 for padding, which must not count
    row: jax.Array  # int32 [B], row of the labels file
    group: jax.Array  # int32 [B], rows of one group may be mixed; -1: never, as in validation
    meta: jax.Array  # float32 [B, D], as the model sees it: masked and invalid components are zero
    meta_valid: jax.Array  # bool [B, K], components that are present and not masked
    subsets: Mapping[str, jax.Array]  # kind of custom subset -> int32 [B], position of the row's subset; -1: in none

    @property
    def probabilities(self) -> dict[str, jax.Array]:
        """Task -> float32 [B, C], softmax of the logits."""
        import jax

        return {task: jax.nn.softmax(z, axis=1) for task, z in self.logits.items()}


#: MetricInputs, options -> (sum [], count []); the metric is sum / count
UpdateFn = Callable[..., tuple[Any, Any]]
#: split of the data (`data.dataset.Split`) -> bool, int or text [n], see `register_subset`
SubsetFn = Callable[[Any], Any]


class CustomMetric(NamedTuple):
    """A registered metric with its options filled in."""

    name: str
    update_fn: UpdateFn


#: kind of subsets of plugins -> function, in order of registration
SUBSETS: dict[str, SubsetFn] = {}


def register(
    name: str,
    update_fn: UpdateFn | None = None,
    *,
    formula: str = "",
    unit: str = "",
    init_value: float | None = None,
    higher_is_better: bool | None = None,
    phases: Sequence[str] = PHASES,
) -> Any:
    """Adds a metric, logged as `<phase>/<name>` and, at the end, as `final_<phase>_<name>`; also a decorator.

    Args:
      name: letters, digits, `_`, `-` and `.`.
      update_fn: traced; its sums over batches and devices are added up, so rows of weight 0 (padding) must not count.
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

    def add(function: UpdateFn) -> UpdateFn:
        _check_name("metric", name)
        if not phases or not set(phases) <= set(PHASES):
            raise InputError(f"custom metric {name!r}: phases={tuple(phases)} must name one or more of {PHASES}")
        if table.entry(name) is not None and name not in METRICS:
            raise InputError(f"custom metric {name!r} has the name of a built-in one; choose another name")
        if options_of(function) and not name.isidentifier():
            raise InputError(f"custom metric {name!r} has options: its name must be one word, metrics.<name>.<option>")
        METRICS.register(name)(function)
        higher = table.guess(name) if higher_is_better is None else higher_is_better
        text = formula or (function.__doc__ or "").strip().partition("\n")[0]
        table.TABLE[name] = MetricInfo(name, text, unit, higher, tuple(phases), init_value=init_value)
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


def registered(phase: str, options: Mapping[str, Any]) -> tuple[CustomMetric, ...]:
    """The metrics of plugins that a kind of phase, `train` or `val`, measures, in order of registration.

    Args:
      options: the section `metrics` of the configuration, which holds `<name>.<option>`.
    """
    return tuple(
        CustomMetric(name, functools.partial(function, **{key: options[name][key] for key in METRICS.options(name)}))
        for name, function in METRICS.entries.items()
        if phase in table.TABLE[name].phases
    )
