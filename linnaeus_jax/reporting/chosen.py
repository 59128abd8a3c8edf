"""The dozen curves that a tracker opens on, of the hundreds that a run logs, and the groups in which the others lie."""

from __future__ import annotations

import re
from collections.abc import Sequence

from linnaeus_jax.metrics.phases import REGISTERED, phase_label
from linnaeus_jax.taxonomy.ranks import task_name

#: title of a group -> pattern of the names in it
GROUPS = {
    "Training, means over an epoch": r"train/epoch_avg_.*",
    "Training, means between log points": r"train/step_avg_.*",
    "Training, of one update": r"train/(?!epoch_avg_|step_avg_).*",
    "Validation": r"val/.*",
    "Validation without metadata": r"val_mask_meta/.*",
    "Validation without parts of the metadata": r"val_mask(_(?!meta/).*)?/.*",
    "Weights of the ranks": r"(gradnorm|task_weights)/.*",
    "Schedules": r"schedule/.*",
    "Input pipeline": r"pipeline/.*",
    "The same under the names of core": r"core/.*",
}


def all_groups() -> dict[str, str]:
    """`GROUPS`, and one of each phase that a plugin registered."""
    return GROUPS | {f"Validation, {phase_label(name)}": rf"{re.escape(name)}/.*" for name in REGISTERED}


def chosen_curves(tasks: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Title -> names of the curves in one chart.

    Args:
      tasks: of the run, finest first.
    """
    finest, rank = (
        (f"non_null/acc1_{tasks[0]}", task_name(tasks[0])) if tasks else ("chain_accuracy", "all ranks right")
    )
    return {
        "loss, mean of the ranks": ("train/epoch_avg_loss_unweighted", "val/loss_unweighted"),
        f"{rank} [%]": (f"train/epoch_avg_{finest}", f"val/{finest}", f"val_mask_meta/{finest}"),
        "all ranks right": ("train/epoch_avg_chain_accuracy", "val/chain_accuracy"),
        "loss that is minimized, of one update": ("train/loss",),
        "learning rate": ("train/lr",),
        "norm of the gradient": ("train/grad_norm",),
        "images per second": ("train/images_per_sec",),
        "share of the time spent waiting for data": ("pipeline/wait_share",),
    }
