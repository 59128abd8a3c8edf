"""Metrics of the user's own, measured inside the compiled step.

Five lines, for example in the configuration file of an experiment, add one to step logs, validation, checkpoints and
final values:

    from linnaeus_jax.metrics import custom

    def genus_confidence(logits, label, weight):
        best = jax.nn.softmax(logits["taxa_L20"]).max(axis=1)
        return (best * weight).sum(), weight.sum()

    custom.register("genus_confidence", genus_confidence)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax

#: (task -> float32 [B, C_t], int32 label [B, T], float32 weight [B]) -> (sum [], count []); the metric is sum / count
UpdateFn = Callable[[Mapping[str, jax.Array], jax.Array, jax.Array], tuple[jax.Array, jax.Array]]

#: kinds of phases: the training step, and every validation phase
PHASES = ("train", "val")


@dataclass(frozen=True, eq=False)
class CustomMetric:
    """One registered metric; see `register`."""

    name: str
    update_fn: UpdateFn
    init_value: float | None
    higher_is_better: bool | None
    phases: tuple[str, ...]


_registry: dict[str, CustomMetric] = {}


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
      higher_is_better: None: from the name, see `tracker.prefers_higher`.
      phases: any of `PHASES`.

    Raises:
      ValueError: the name is malformed or taken, or a phase is unknown.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.\-]+", name):
        raise ValueError(f"custom metric {name!r}: use only letters, digits, '_', '-' and '.'")
    if name in _registry:
        raise ValueError(f"custom metric {name!r} is registered twice; choose another name or unregister it first")
    unknown = [phase for phase in phases if phase not in PHASES]
    if unknown or not phases:
        raise ValueError(f"custom metric {name!r}: phases={tuple(phases)} must name one or more of {PHASES}")
    metric = _registry[name] = CustomMetric(name, update_fn, init_value, higher_is_better, tuple(phases))
    return metric


def unregister(name: str) -> None:
    """Removes a metric; KeyError if there is none of that name."""
    del _registry[name]


def registered(phase: str) -> tuple[CustomMetric, ...]:
    """The metrics of a kind of phase, `train` or `val`, in order of registration."""
    return tuple(metric for metric in _registry.values() if phase in metric.phases)


def find(name: str) -> CustomMetric | None:
    """The metric of that name, if there is one."""
    return _registry.get(name)
