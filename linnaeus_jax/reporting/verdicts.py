"""What the numbers of a run say against it: losses that rise, overfitting, nothing learned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from linnaeus_jax.data.baselines import BASELINES_FILE, TITLES, commonest_share
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
    """One sentence for each thing that the last epoch shows; what simple means do better comes first."""
    yield from below_baselines(run)
    yield from rising_losses(run)
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


def accuracy(run: RunRecord, start: str, task: str) -> float | None:
    """The last accuracy of a rank in percent, over the rows that are labelled there."""
    labelled, every = (run.last(f"{start}{kind}acc1_{task}") for kind in ("non_null/", ""))
    return every if labelled is None else labelled


def rising_losses(run: RunRecord) -> Iterator[str]:
    """A sentence for each mean loss that is far above its lowest one."""
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


def below_baselines(run: RunRecord) -> Iterator[str]:
    """A sentence where the finest rank is not above the commonest class, and one for each simple baseline that is above
    the run at some rank."""
    tasks = tuple(run.config.get("data", {}).get("task_keys_h5") or ())
    reached = {task: found for task in tasks if (found := accuracy(run, "val/", task)) is not None}
    for kind, percent in baselines(run).items():
        if kind == "commonest":
            common = percent.get(tasks[0]) if tasks else None
            # where every row is of one class, there is nothing to learn
            if common is not None and tasks[0] in reached and reached[tasks[0]] <= common < 100:
                yield (
                    f"nothing learned at the rank {task_name(tasks[0])}: {reached[tasks[0]]:.1f} % in validation, "
                    f"where always naming the commonest class of the training rows is right for {common:.1f} %"
                )
            continue
        below = [task for task in reached if task in percent and reached[task] < percent[task]]
        if below:
            ranks = ", ".join(
                f"{task_name(task)} {reached[task]:.1f} % in validation against {percent[task]:.1f} %" for task in below
            )
            yield f"below a simple baseline ({TITLES.get(kind, kind)}): {ranks}"


def accuracy_curve(run: RunRecord) -> list[tuple[int, float]]:
    """(epoch, percent) of the finest rank at every validation, over the rows that are labelled there."""
    tasks = run.config.get("data", {}).get("task_keys_h5") or ()
    names = [f"val/{kind}acc1_{tasks[0]}" for kind in ("non_null/", "")] if tasks else []
    name = next((name for name in names if name in run.names), "")
    return [(row.epoch, float(row.values[name])) for row in run.rows if _holds(row.event, row.values, name)]


def baselines(run: RunRecord) -> dict[str, dict[str, float]]:
    """Kind of baseline -> rank -> percent of the labelled validation rows that it has right; of a run that kept none,
    the commonest class alone."""
    kept = run.json(BASELINES_FILE)
    if kept is not None:
        return {kind: dict(percent) for kind, percent in kept["percent"].items()}
    counts = run.json("metadata/class_label_counts.json") or {}
    classes, commonest = run.json("assets/class_to_idx.json") or {}, {}
    for task, train in counts.get("train", {}).items():
        null = classes.get(task, {}).get("null")
        share = commonest_share(train, counts.get("val", {}).get(task, ()), null)
        if share is not None:
            commonest[task] = share
    return {"commonest": commonest} if commonest else {}


def _holds(event: str, values: Iterable[str], name: str) -> bool:
    return event == "epoch" and name in values
