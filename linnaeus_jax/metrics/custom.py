"""Metrics and subsets of the user's own, from a plugin: a module that `env.plugins` names.

A metric is measured inside the compiled step and, like the built-in ones, logged, kept in checkpoints, reported at the
end, and may drive early stopping and the ranking of checkpoints. A subset splits the validation rows by whatever a
function says of them; a column `subset_<kind>` of the labels file does the same without code.

    import jax.numpy as jnp
    from linnaeus_jax.metrics import MetricInputs, register, register_subset

    def genus_confidence(inputs: MetricInputs):
        best = inputs.probabilities["taxa_L20"].max(axis=1)
        return (best * inputs.weight).sum(), inputs.weight.sum()

    register("genus_confidence", genus_confidence)
    register_subset("hemisphere", lambda rows: rows.meta[:, 4] >= 0)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from linnaeus_jax.metrics import known, names

if TYPE_CHECKING:
    import jax

#: kinds of phases: the training step, and every validation phase
PHASES = ("train", "val")
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
    meta_valid: jax.Array  # bool [B, K], components that are known and not masked
    subsets: Mapping[str, jax.Array]  # kind of custom subset -> int32 [B], position of the row's subset; -1: in none

    @property
    def probabilities(self) -> dict[str, jax.Array]:
        """Task -> float32 [B, C], softmax of the logits."""
        import jax

        return {task: jax.nn.softmax(z, axis=1) for task, z in self.logits.items()}


#: inputs -> (sum [], count []); the metric is sum / count
UpdateFn = Callable[[MetricInputs], tuple["jax.Array", "jax.Array"]]
#: split of the data (`data.dataset.Split`) -> bool, int or text [n], see `register_subset`
SubsetFn = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class CustomMetric:
    """One registered metric; see `register`."""

    name: str
    update_fn: UpdateFn
    init_value: float | None
    higher_is_better: bool
    phases: tuple[str, ...]


_metrics: dict[str, CustomMetric] = {}
_subsets: dict[str, SubsetFn] = {}


def register(
    name: str,
    update_fn: UpdateFn,
    *,
    init_value: float | None = None,
    higher_is_better: bool | None = None,
    phases: Sequence[str] = PHASES,
) -> CustomMetric:
    """Adds a metric, logged as `<phase>/<name>` and, at the end, as `final_<phase>_<name>`.

    Args:
      name: letters, digits, `_`, `-` and `.`.
      update_fn: traced; its sums over batches and devices are added up, so rows of weight 0 (padding) must not count.
      init_value: the best value before the first measurement; None: any value is better.
      higher_is_better: None: from the words of the name, see `known.guess`.
      phases: any of `PHASES`.

    Raises:
      ValueError: the name is malformed or taken, or a phase is unknown.
    """
    _check_name("metric", name, _metrics)
    unknown = [phase for phase in phases if phase not in PHASES]
    if unknown or not phases:
        raise ValueError(f"custom metric {name!r}: phases={tuple(phases)} must name one or more of {PHASES}")
    if known.built_in(name) is not None:
        raise ValueError(f"custom metric {name!r} has the name of a built-in one; choose another name")
    higher = known.guess(name) if higher_is_better is None else higher_is_better
    metric = _metrics[name] = CustomMetric(name, update_fn, init_value, higher, tuple(phases))
    return metric


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
    _check_name("subset", kind, {**dict.fromkeys(BUILT_IN_SUBSETS), **_subsets})
    _subsets[kind] = function


def _check_name(what: str, name: str, taken: Mapping[str, object]) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_.\-]+", name):
        raise ValueError(f"custom {what} {name!r}: use only letters, digits, '_', '-' and '.'")
    if name in taken:
        raise ValueError(f"custom {what} {name!r} is registered twice or built in; choose another name")


def unregister(name: str) -> None:
    """Removes a metric; KeyError if there is none of that name."""
    del _metrics[name]


def unregister_subset(kind: str) -> None:
    """Removes a kind of subsets; KeyError if there is none of that name."""
    del _subsets[kind]


def registered(phase: str) -> tuple[CustomMetric, ...]:
    """The metrics of a kind of phase, `train` or `val`, in order of registration."""
    return tuple(metric for metric in _metrics.values() if phase in metric.phases)


def registered_subsets() -> dict[str, SubsetFn]:
    """Kind -> function, in order of registration."""
    return dict(_subsets)


def find(name: str) -> CustomMetric | None:
    """The metric of that name, if there is one."""
    return _metrics.get(name)


def prefers_higher(name: str) -> bool:
    """Direction of `<phase>/<metric>`: registered, else built in, else from the words of its name."""
    key = names.split_result(name)[1]
    if key in _metrics:
        return _metrics[key].higher_is_better
    entry = known.built_in(key)
    return known.guess(key) if entry is None else entry.higher_is_better


def available(phase: str, tasks: Sequence[str]) -> dict[str, bool]:
    """Metric -> whether higher is better, of everything but subsets that a phase, `train` or `val`, measures."""
    found = {key: entry.higher_is_better for key, entry in known.keys(phase, tasks).items()}
    return found | {metric.name: metric.higher_is_better for metric in registered(phase)}
