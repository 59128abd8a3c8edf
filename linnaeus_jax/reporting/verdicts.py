"""What the numbers of a run say against it: losses that rise, overfitting, nothing learned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from linnaeus_jax.metrics.phases import phase_label
from linnaeus_jax.reporting.run_record import RunRecord
from linnaeus_jax.taxonomy.ranks import task_name

#: a mean loss of an epoch that is this many times the lowest one before counts as rising
RISING = 1.5
#: points by which accuracy in training, with augmentation, may be above that in validation
OVERFITTING = 20.0
#: mean over the ranks without their weights, which alone can be compared between epochs and phases
LOSSES = {"train": "train/epoch_avg_loss_unweighted", "val": "val/loss_unweighted"}


def has_risen(loss: float, lowest: float) -> bool:
    """Whether a loss is far above the lowest one before."""
    return math.isfinite(loss) and 0 < lowest < math.inf and loss > RISING * lowest


def verdicts(run: RunRecord) -> Iterator[str]:
    """One sentence for each thing that the last epoch shows."""
    for phase, name in LOSSES.items():
        why = "the model overfits, or " if phase == "val" else ""
        points = [(row.epoch, float(row.values[name])) for row in run.rows if _holds(row.event, row.values, name)]
        if points:
            lowest, last = min(points, key=lambda point: point[1]), points[-1]
            if has_risen(last[1], lowest[1]):
                yield (
                    f"the {phase_label(phase)} loss rose from {lowest[1]:.3g} (epoch {lowest[0]}) to {last[1]:.3g} "
                    f"(epoch {last[0]}): {why}the learning rate is too high"
                )
    tasks = run.config.get("data", {}).get("task_keys_h5") or ()
    if not tasks:
        return
    rank = task_name(tasks[0])
    training, validation = (accuracy(run, phase, tasks[0]) for phase in ("train/epoch_avg_", "val/"))
    if validation is None:
        return
    if training is not None and training - validation > OVERFITTING:
        yield (
            f"overfitting: {rank} {training:.1f} % in training and {validation:.1f} % in validation, more than "
            f"{OVERFITTING:g} points apart; more data, augmentation, weight decay or fewer epochs narrow the gap"
        )
    commonest = commonest_share(run, tasks[0])
    if commonest is not None and validation <= commonest:
        yield (
            f"nothing learned at the rank {rank}: {validation:.1f} % in validation, where always naming the commonest "
            f"class of the training rows is right for {commonest:.1f} %"
        )


def accuracy(run: RunRecord, start: str, task: str) -> float | None:
    """The last accuracy of a rank in percent, over the rows that are labelled there."""
    labelled, every = (run.last(f"{start}{kind}acc1_{task}") for kind in ("non_null/", ""))
    return every if labelled is None else labelled


def commonest_share(run: RunRecord, task: str) -> float | None:
    """How many labelled validation rows, in percent, are of the class with most training rows; None where the run
    has no counts."""
    counts = run.json("metadata/class_label_counts.json") or {}
    train, val = (counts.get(split, {}).get(task, ()) for split in ("train", "val"))
    null = (run.json("assets/class_to_idx.json") or {}).get(task, {}).get("null")
    known = [(rows, found) for index, (rows, found) in enumerate(zip(train, val)) if index != null]
    total = sum(found for _, found in known)
    return 100 * max(known)[1] / total if total else None


def _holds(event: str, values: Iterable[str], name: str) -> bool:
    return event == "epoch" and name in values
