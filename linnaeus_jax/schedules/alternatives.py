"""Quantities that may be given in steps, as a fraction of the run or in epochs: which key counts, and how many updates.

`None` means "not mentioned" and 0 means "off", so a single choice of the user never collides with a default.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import declared
from linnaeus_jax.config.derived import value_of


class Choice(NamedTuple):
    unit: str  # off | steps | fraction | epochs
    value: float
    explicit: bool = False


OFF = Choice("off", 0)


@dataclass(frozen=True)
class AlternativeSet:
    """Keys of one node that exclude each other, by unit; `default` counts where none of them is mentioned."""

    node: str
    keys: Mapping[str, str]
    default: Choice = OFF
    negative_is_off: bool = False

    def path(self, unit: str) -> str:
        return f"{self.node}.{self.keys[unit]}"


_INTERVAL = ("epochs", "steps", "fraction")
_END = ("steps", "fraction")
_PARTIAL = "schedule.meta_masking.partial"


def _set(node: str, prefix: str, units: Sequence[str] = _END) -> AlternativeSet:
    """The set of the keys `<node>.<prefix>_<unit>`, with the default that is declared."""
    return _with_default(node, {unit: f"{prefix}_{unit}" for unit in units})


def _with_default(node: str, keys: Mapping[str, str], *, negative_is_off: bool = False) -> AlternativeSet:
    counts = {unit: declared()[f"{node}.{key}"].counts for unit, key in keys.items()}
    default = next((Choice(unit, value) for unit, value in counts.items() if value is not None), OFF)
    return AlternativeSet(node, keys, default, negative_is_off)


ALTERNATIVES: dict[str, AlternativeSet] = {
    "warmup": _set("lr_scheduler", "warmup", _INTERVAL),
    "decay": _set("lr_scheduler", "decay"),
    "validation": _set("schedule.validation", "interval", _INTERVAL),
    "mask_meta": _set("schedule.validation", "mask_meta_interval", _INTERVAL),
    "partial_mask_meta": _set("schedule.validation.partial_mask_meta", "interval", _INTERVAL),
    "checkpoint": _set("schedule.checkpoint", "interval", _INTERVAL),
    "meta_end": _set("schedule.meta_masking", "end"),
    "partial_start": _set(_PARTIAL, "start"),
    "partial_end": _set(_PARTIAL, "end"),
    "partial_prob_end": _set(_PARTIAL, "prob_end"),
    "null_end": _set("schedule.null_masking", "end"),
    "mix_end": _set("schedule.mixup.prob", "end"),
    "patience": _set("train.early_stop", "patience", _INTERVAL),
}
#: durations in the learning-rate overrides of a parameter group -> their keys
GROUP_KEYS = {
    "delay": {unit: f"delay_{unit}" for unit in _INTERVAL},
    **{name: ALTERNATIVES[name].keys for name in ("warmup", "decay")},
}
#: streams of records, each with an interval of its own; the tracker stream follows the step stream by default
LOG_STREAMS = ("step", "console", "wandb", "lr", "pipeline")
for _stream in LOG_STREAMS:
    ALTERNATIVES[f"log_{_stream}"] = _with_default(
        "schedule.metrics",
        {"steps": f"{_stream}_interval", "fraction": f"{_stream}_fraction"},
        negative_is_off=True,
    )


def of_group(name: str, group: str) -> AlternativeSet:
    """The set `name` of `GROUP_KEYS` among the learning-rate overrides of one parameter group."""
    return AlternativeSet(f"lr_scheduler.parameter_groups.{group}", GROUP_KEYS[name])


def all_sets(config: ConfigDict) -> Iterator[AlternativeSet]:
    """Every alternative set of the tree, those of the learning-rate groups included."""
    yield from ALTERNATIVES.values()
    for group in config.lr_scheduler.parameter_groups:
        if group != "enabled":
            yield from (of_group(name, group) for name in GROUP_KEYS)


def is_mentioned(config: ConfigDict, alternatives: AlternativeSet) -> bool:
    """Whether the user gave any member, 0 included."""
    node = value_of(config, alternatives.node)
    return any(node.get(key) is not None for key in alternatives.keys.values())


def choose(config: ConfigDict, alternatives: AlternativeSet) -> Choice:
    """The member that counts: the one in use, else off where a member is explicitly 0, else the default."""
    node = value_of(config, alternatives.node)
    for unit, key in alternatives.keys.items():
        value = node.get(key)
        if value is not None and value > 0:
            return Choice(unit, value, True)
    return Choice("off", 0, True) if is_mentioned(config, alternatives) else alternatives.default


def set_errors(config: ConfigDict, alternatives: AlternativeSet) -> list[str]:
    """Members out of range, and members that exclude each other; each text names key, value and fix."""
    node = value_of(config, alternatives.node)
    errors, used = [], []
    for unit, key in alternatives.keys.items():
        value: Any = node.get(key)
        path = alternatives.path(unit)
        if value is None or value == 0:
            continue
        if unit == "fraction" and not 0 < value <= 1:
            errors.append(f"{path} = {value} must lie in (0, 1]; use {alternatives.path('steps')} for a step count")
        elif not value > 0 and alternatives.negative_is_off:
            continue
        elif not (value > 0 and math.isfinite(value)):
            errors.append(f"{path} = {value} must be a positive number, or 0 to switch it off")
        used.append(f"{path} = {value}")
    if len(used) > 1:
        errors.append(f"{' and '.join(used)} exclude each other; keep one of them and set the others to None")
    return errors


def fraction_to_steps(fraction: float, total_steps: int) -> int:
    """max(1, round-half-even(T * f)) for f > 0, the one rule by which fractions become updates."""
    return max(1, round(total_steps * fraction))


def epochs_to_steps(epochs: float, steps_per_epoch: Sequence[int]) -> int:
    """Updates in a number of epochs, truncated; beyond the last epoch its length is continued."""
    if min(steps_per_epoch) == max(steps_per_epoch):
        return int(epochs * steps_per_epoch[0])
    whole = min(int(epochs), len(steps_per_epoch) - 1)
    start = (0, *accumulate(steps_per_epoch))[whole]
    return start + int((epochs - whole) * steps_per_epoch[whole])


def to_steps(choice: Choice, steps_per_epoch: Sequence[int]) -> int:
    """Updates of a choice; 0 where it is off."""
    if choice.unit == "fraction":
        return fraction_to_steps(choice.value, sum(steps_per_epoch))
    if choice.unit == "epochs":
        return epochs_to_steps(choice.value, steps_per_epoch)
    return int(choice.value)
