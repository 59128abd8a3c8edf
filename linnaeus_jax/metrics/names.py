"""The documented names of logged values, in one place: pure functions from measurements to `{name: value}`.

One name is one quantity. `train/...` is of the last update alone (but `train/null/...` and `train/non_null/...`, which
no update measures, of the epoch), `train/step_avg_...` the mean over the updates since the last row of W&B,
`train/epoch_avg_...` the mean over an epoch; validation phases are always means over the split.

Of losses, `train/loss` is the weighted total that is trained on, without the null labels that are masked, and
`val/loss` the mean over the tasks. Comparable are `train/epoch_avg_loss_unweighted` and `val/loss_unweighted`, and in
`core/` `core/train_epoch_avg_loss_unweighted` and `core/val_loss_unweighted`: both are the mean over all rows and
tasks, every task counting the same and no null label masked. That of training is with augmentation, mixing and dropout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from linnaeus_jax.metrics import phases
from linnaeus_jax.metrics.table import BUILT_IN

Row = dict[str, Any]

#: metrics repeated in the `core/` section -> their short names, see `table.MetricInfo.core`
CORE = {name: info.core for name, info in BUILT_IN.items() if info.core}
#: fractions among them, which are also logged in percent
CHAINS = tuple(name for name in CORE if BUILT_IN[name].unit == "fraction")
EPOCH_AVG = "epoch_avg_"


def result_name(phase: str, name: str) -> str:
    """`<phase>/<name>`; a mean over an epoch of training is `train/epoch_avg_<name>`."""
    total = name.endswith("/count") or (name in BUILT_IN and not BUILT_IN[name].mean)
    mean = phase == "train" and not total
    return f"{phase}/{EPOCH_AVG if mean else ''}{name}"


def split_result(key: str) -> tuple[str, str]:
    """Inverse of `result_name`; the phase is empty where `key` has none."""
    phase, slash, name = key.partition("/")
    return (phase, name.removeprefix(EPOCH_AVG)) if slash else ("", key)


def core_prefix(phase: str) -> str:
    """`val_mask_meta` -> `valMask`, `val_mask_TEMPORAL` -> `valMask_TEMPORAL`, `train` -> `train_epoch_avg`."""
    return f"train_{EPOCH_AVG.rstrip('_')}" if phase == "train" else phases.core_prefix(phase)


def phase_row(phase: str, values: Mapping[str, float], null_tasks: Sequence[str] | None = None) -> Row:
    """All names of the results of one phase: those of `result_name`, percentages, `core/...`, the alias `val_mask/...`.

    What an epoch of training measured of null labels and of others apart also has its documented names, without
    `epoch_avg`: no update measures it, so they can be of nothing else.

    Args:
      values: as of `phase.summarise`, with `loss`.
      null_tasks: tasks whose values are also shown apart for null and other labels; None: all. The accuracy
        on labels that are not null is shown of every task.
    """
    row: Row = {}
    core = core_prefix(phase)
    for name, value in values.items():
        group, _, rest = name.partition("/")
        if group in ("null", "non_null"):
            kind, _, task = rest.partition("_")
            apart = null_tasks is None or task in null_tasks
            if not apart and (group, kind) != ("non_null", "acc1"):  # what a person wants to know of every rank
                continue
            if phase == "train":
                row[f"train/{name}"] = value
            for prefix in ((phase, core) if phase == "train" else (phase,)) if apart else ():
                row[f"core/{prefix}_{group}_{kind}/{task}"] = value
        row[result_name(phase, name)] = value
        if name in CORE:
            row[f"core/{core}_{CORE[name]}"] = value
        if name in CHAINS:
            row[result_name(phase, f"{name}_pct")] = row[f"core/{core}_{CORE[name]}_pct"] = 100 * value
        elif name.startswith("acc1_") and phase != "train":
            row[f"core/{core}_acc1/{name.removeprefix('acc1_')}"] = value
    if phase == phases.WITHOUT_METADATA.name:
        row |= {name.replace(phase, phases.ALIAS, 1): row[name] for name in row if name.startswith(f"{phase}/")}
    return row


def update_row(values: Mapping[str, float], task_losses: Mapping[str, float]) -> Row:
    """All names of the results of one update: `train/...`, `core/train_...` and the parts of its loss."""
    row: Row = {f"train/{name}": value for name, value in values.items() if "/" not in name}
    row |= {f"core/train_{short}": values[name] for name, short in CORE.items() if name in values}
    for name in CHAINS:
        if name in values:
            row[f"train/{name}_pct"] = row[f"core/train_{CORE[name]}_pct"] = 100 * values[name]
    row |= {f"train/loss/{task}": float(x) for task, x in task_losses.items()}
    row["loss/total/value"] = float(values["loss"])
    return row | {f"loss/tasks/{task}": float(x) for task, x in task_losses.items()}


def learning_rates(rates: Mapping[str, float]) -> Row:
    """Rate of every parameter group, and the largest as `train/lr`."""
    row: Row = {f"train/lr/{group}": float(rate) for group, rate in rates.items()}
    return {"train/lr": max(row.values())} | row if row else row


def schedule_values(values: Mapping[str, float], mixup_group: str) -> Row:
    """Probabilities such as `meta_mask_prob`, also in percent, and the rank whose groups are mixed."""
    row: Row = {f"schedule/{name}": float(value) for name, value in values.items()}
    row |= {f"{name}_pct": 100 * value for name, value in row.items()}
    return row | {"schedule/mixup_group_str": mixup_group}


def null_masking(total: int, included: int, probability: float | None = None, phase1: bool | None = None) -> Row:
    """Null labels of the interval, and how many of them count in the loss; no percentage without any."""
    prefix = "schedule/null_masking"
    row: Row = {f"{prefix}/null_samples_total": int(total), f"{prefix}/null_samples_included": int(included)}
    if total:
        row[f"{prefix}/inclusion_percentage"] = row["core/null_inclusion_pct"] = 100.0 * int(included) / int(total)
    if probability is not None:
        row[f"{prefix}/null_mask_prob"] = float(probability)
    if phase1 is not None:
        row[f"{prefix}/phase1_active"] = int(phase1)
    return row


def gradnorm(values: Mapping[str, Any], tasks: Sequence[str]) -> Row:
    """`gradnorm/<name>` of a number, `gradnorm/<name>/<task>` of one number per task."""
    row: Row = {}
    for name, value in values.items():
        if np.ndim(value) == 0:
            row[f"gradnorm/{name}"] = float(value)
        else:
            row |= {f"gradnorm/{name}/{task}": float(x) for task, x in zip(tasks, value, strict=True)}
    weights = zip(tasks, values.get("weight", ()), strict=False)
    return row | {f"task_weights/task_{task}": float(x) for task, x in weights}


def actual_valid_pct(components: Sequence[str], valid: Sequence[int] | np.ndarray, count: int, phase: str) -> Row:
    """Percent of samples whose metadata component is valid after mixing and masking; empty without samples."""
    return {
        f"meta_masking/actual_valid_pct/{name}/{phase}": 100.0 * int(x) / int(count)
        for name, x in zip(components, valid, strict=True)
        if count
    }
