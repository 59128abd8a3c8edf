"""What the numbers of a run say against it: losses that rise, overfitting, nothing learned."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import NamedTuple

from linnaeus_jax.data.baselines import BASELINES_FILE, TITLES, commonest_share
from linnaeus_jax.metrics import table
from linnaeus_jax.metrics.names import result_name, split_result
from linnaeus_jax.metrics.phases import phase_label
from linnaeus_jax.reporting.metrics_log import Row
from linnaeus_jax.reporting.run_record import RunRecord
from linnaeus_jax.schedules.early_stop import parse_metric_name, ranking_candidates
from linnaeus_jax.taxonomy.ranks import task_name

#: a mean loss of an epoch that is this many times the lowest one before counts as rising
RISING = 1.5
#: where a run keeps how well it knows training rows at its end, below its directory
TRAINING_ROWS_FILE = "assets/training_rows.json"
#: points by which the accuracy on training rows may be above that in validation
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
    known = known_rows(run)
    if known is not None and known.gap > OVERFITTING:
        fewer = " or weight decay narrow" if growth(run) > 0 else ", weight decay or fewer epochs narrow"
        yield (
            f"overfitting: {known.rank} {known.training:.1f} % of {known.rows:,} training rows, evaluated as "
            f"validation is, and {known.validation:.1f} % in validation, more than {OVERFITTING:g} points apart; "
            f"more data, augmentation{fewer} the gap"
        )


class KnownRows(NamedTuple):
    """Accuracy of the finest rank in percent on rows that were trained on and on others, under the same model."""

    rank: str
    rows: int  # training rows that were evaluated
    training: float
    validation: float

    @property
    def gap(self) -> float:
        """Points by which the training rows are known better."""
        return self.training - self.validation


def known_rows(run: RunRecord) -> KnownRows | None:
    """What the end of the run measured of its last model; None where it did not, or where it has gone on since."""
    tasks, found = run.config.get("data", {}).get("task_keys_h5") or (), run.json(TRAINING_ROWS_FILE)
    steps = [row.step for row in run.rows if row.event == "epoch"]
    if not (tasks and found and steps) or found["step"] != steps[-1]:
        return None
    shares = (float(found["percent"][name][tasks[0]]) for name in ("train", "val"))
    return KnownRows(task_name(tasks[0]), int(found["rows"]), *shares)


def growth(run: RunRecord) -> float:
    """Points by which the accuracy in validation grew over the last third of the epochs; 0.0 where the last is not the
    best, or there are too few."""
    curve, epochs = accuracy_curve(run), run.config.get("train", {}).get("epochs") or 0
    before = [value for epoch, value in curve if epoch < curve[-1][0] - epochs / 3]
    grown = bool(before) and curve[-1][1] == max(value for _, value in curve)
    return curve[-1][1] - before[-1] if grown else 0.0


def accuracy(run: RunRecord, start: str, task: str) -> float | None:
    """Accuracy of a rank in percent, over the rows that are labelled there: of the best epoch, else the last one."""
    names, best = [f"{start}{kind}acc1_{task}" for kind in ("non_null/", "")], best_epoch(run)
    values = [best.values[name] for name in names if best is not None and name in best.values]
    values += [last for name in names if (last := run.last(name)) is not None]
    return float(values[0]) if values else None


def best_epoch(run: RunRecord) -> Row | None:
    """The row of the validation by which the best checkpoint is chosen; None where nothing that ranks was measured."""
    data = run.config.get("data", {})
    configured = run.config.get("schedule", {}).get("checkpoint", {}).get("best_metric") or ""
    if configured:
        components = tuple(data.get("meta", {}).get("components", ()))
        metric = parse_metric_name(configured, tasks=data.get("task_keys_h5") or (), components=components)
        configured = result_name(metric.phase, metric.metric)
    for name in ranking_candidates(configured):
        sign = 1 if table.prefers_higher(split_result(name)[1]) else -1
        measured = [
            (sign * float(row.values[name]), row) for row in run.rows if row.event == "epoch" and name in row.values
        ]
        if finite := [each for each in measured if math.isfinite(each[0])]:
            return max(finite, key=operator.itemgetter(0))[1]
    return None


def rising_losses(run: RunRecord) -> Iterator[str]:
    """A sentence for each mean loss that is far above its lowest one."""
    for phase, name in LOSSES.items():
        known = known_rows(run) if phase == "val" else None
        why = "the model overfits, or " if known is not None and known.gap > OVERFITTING else ""
        points = [(row.epoch, float(row.values[name])) for row in run.rows if _holds(row, name)]
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
        below = [task for task in reached if task in percent and round(reached[task], 1) < round(percent[task], 1)]
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
    return [(row.epoch, float(row.values[name])) for row in run.rows if _holds(row, name)]


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


def _holds(row: Row, name: str) -> bool:
    """Whether the end of an epoch measured this; what was measured before the first update is of other heads."""
    return row.event == "epoch" and row.step > 0 and name in row.values
