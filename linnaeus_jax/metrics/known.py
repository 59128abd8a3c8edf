"""The built-in metrics of a phase, in one table: name, direction, scope, and where they are measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class BuiltIn(NamedTuple):
    """One metric: measured over the whole phase (`<name>`), per task (`<name>_<task>`), or both."""

    higher_is_better: bool
    whole: bool
    per_task: bool
    train: bool  # measured in training as well as in validation


BUILT_IN = {
    "loss": BuiltIn(False, whole=True, per_task=True, train=True),
    "loss_weighted": BuiltIn(False, whole=True, per_task=False, train=True),
    "loss_unweighted": BuiltIn(False, whole=True, per_task=False, train=True),
    "chain_accuracy": BuiltIn(True, whole=True, per_task=False, train=True),
    "partial_chain_accuracy": BuiltIn(True, whole=True, per_task=False, train=True),
    "acc1": BuiltIn(True, whole=False, per_task=True, train=True),
    "acc3": BuiltIn(True, whole=False, per_task=True, train=True),
    "null/acc1": BuiltIn(True, whole=False, per_task=True, train=True),
    "null/loss": BuiltIn(False, whole=False, per_task=True, train=True),
    "non_null/acc1": BuiltIn(True, whole=False, per_task=True, train=True),
    "non_null/loss": BuiltIn(False, whole=False, per_task=True, train=True),
    "error_rate": BuiltIn(False, whole=True, per_task=True, train=False),
    "ece": BuiltIn(False, whole=True, per_task=True, train=False),
    "brier": BuiltIn(False, whole=True, per_task=True, train=False),
    "nll": BuiltIn(False, whole=True, per_task=True, train=False),
    "perplexity": BuiltIn(False, whole=True, per_task=True, train=False),
    "consistency_rate": BuiltIn(True, whole=True, per_task=False, train=False),
    "taxonomic_distance": BuiltIn(False, whole=False, per_task=True, train=False),
    "aurc": BuiltIn(False, whole=False, per_task=True, train=False),
    "coverage_at_risk_1": BuiltIn(True, whole=False, per_task=True, train=False),
    "coverage_at_risk_5": BuiltIn(True, whole=False, per_task=True, train=False),
    "coverage_at_risk_10": BuiltIn(True, whole=False, per_task=True, train=False),
    "epoch_duration_sec": BuiltIn(False, whole=True, per_task=False, train=True),
    "avg_samples_per_sec": BuiltIn(True, whole=True, per_task=False, train=True),
}

#: words of a metric's name that make smaller values better, where no table has it
LOWER_IS_BETTER = frozenset(
    "loss losses nll ece brier perplexity error errors aurc distance duration norm mse mae rmse".split()
)


def guess(name: str) -> bool:
    """Whether higher is better, from the words of a name."""
    return LOWER_IS_BETTER.isdisjoint(re.split(r"[^a-z0-9]+", name.lower()))


def keys(phase: str, tasks: Sequence[str]) -> dict[str, BuiltIn]:
    """Key below the phase -> entry, of everything that a phase, `train` or `val`, measures over these tasks."""
    found: dict[str, BuiltIn] = {}
    for name, entry in BUILT_IN.items():
        if phase != "train" or entry.train:
            found |= {name: entry} if entry.whole else {}
            found |= {f"{name}_{task}": entry for task in tasks} if entry.per_task else {}
    return found


def built_in(key: str) -> BuiltIn | None:
    """The entry of a key below the phase such as `loss` or `acc1_taxa_L10`, whatever the task; None: there is none."""
    if key in BUILT_IN and BUILT_IN[key].whole:
        return BUILT_IN[key]
    name = key.partition("_taxa_")[0]
    return BUILT_IN[name] if name != key and name in BUILT_IN and BUILT_IN[name].per_task else None
