"""Statistics of a debug event log that grow with every event, in bounded memory."""

from __future__ import annotations

import collections
import random
import statistics
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from typing import Any

from linnaeus_jax.debugging.event_reader import number

NEAR_ZERO, EXPLODING = 1e-6, 1000.0
HEALTHY = (0.1, 100.0)
#: sudden changes: times the median of the ten values before
SPIKE, JUMP = 2.0, 10.0
#: updates after which something must have improved
FIRST_UPDATES = 100
#: values at either end of a run that are compared
WINDOW = 10
#: lengths of what is kept: steps of a sign, measurements and epochs that are listed, norms of which the median is taken
LISTED, MEDIAN_OF = 1000, 10_000
_SHOWN, _NAMES, _KINDS = 10, 10_000, 100

#: causes of no update, as the events of the same step show them
NO_RATE = "the learning rate is 0 at these steps; check lr_scheduler and the schedule's summary"
NO_GRADIENT = "the gradients are zero at these steps"
BAD_GRADIENT = "the gradients are not finite at these steps, so the updates were skipped"


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a dict, else an empty one."""
    return value if isinstance(value, dict) else {}


def mean(values: Sequence[float]) -> float | None:
    """Mean of the finite values; None without any."""
    finite = [value for value in values if isfinite(value)]
    return statistics.fmean(finite) if finite else None


def count_text(value: float) -> int | float | None:
    """A count as JSON; None where it is not finite."""
    if not isfinite(value):
        return None
    return int(value) if value == int(value) else value


def _text(value: Any) -> str:
    """Foreign text, short and printable anywhere."""
    return str(value)[:200].encode(errors="replace").decode()


@dataclass
class Series:
    """Of a series of numbers: how many, and of the finite ones first, last, least, greatest and mean."""

    count: int = 0
    finite: int = 0
    total: float = 0.0
    first: float = nan
    last: float = nan
    least: float = inf
    greatest: float = -inf

    def add(self, value: float) -> None:
        self.count += 1
        if isfinite(value):
            self.first = self.first if self.finite else value
            self.finite, self.total, self.last = self.finite + 1, self.total + value, value
            self.least, self.greatest = min(self.least, value), max(self.greatest, value)

    @property
    def mean(self) -> float | None:
        return self.total / self.finite if self.finite else None

    def row(self) -> dict[str, Any] | None:
        return {"first": self.first, "last": self.last, "avg": self.mean} if self.finite else None


@dataclass
class Sample:
    """All values, or a uniform sample of `MEDIAN_OF` of them."""

    values: array[float] = field(default_factory=lambda: array("d"))
    count: int = 0
    random: random.Random = field(default_factory=lambda: random.Random(0))

    def add(self, value: float) -> None:
        self.count += 1
        if len(self.values) < MEDIAN_OF:
            self.values.append(value)
        elif (place := self.random.randrange(self.count)) < MEDIAN_OF:
            self.values[place] = value


def _window() -> collections.deque[Any]:
    return collections.deque(maxlen=WINDOW)


@dataclass
class Ends:
    """The first and the last `WINDOW` values."""

    first: list[float] = field(default_factory=list)
    last: collections.deque[float] = field(default_factory=_window)
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.last.append(value)
        if len(self.first) < WINDOW:
            self.first.append(value)

    @property
    def window(self) -> int:
        """How many values stand for an end: no value belongs to both."""
        return min(WINDOW, self.count // 2)

    def means(self) -> tuple[float | None, float | None]:
        return mean(self.first[: self.window]), mean(list(self.last)[len(self.last) - self.window :])


@dataclass
class Steps:
    """Steps at which something was the case: how many, and the first `LISTED` of them."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, step: int) -> None:
        self.count += 1
        if len(self.first) < LISTED:
            self.first.append(step)


@dataclass
class Changes:
    """Steps at which a value left the median of the ten before by more than a factor."""

    factor: float
    needed: int  # values that there must be before
    rises: Steps = field(default_factory=Steps)
    drops: Steps = field(default_factory=Steps)
    before: collections.deque[float] = field(default_factory=_window)

    def add(self, step: int, value: float) -> None:
        finite = [old for old in self.before if isfinite(old)]
        if len(self.before) >= self.needed and finite and isfinite(value):
            usual = statistics.median(finite)
            if value > self.factor * usual > 0:
                self.rises.add(step)
            elif 0 <= value * self.factor < usual:
                self.drops.add(step)
        self.before.append(value)


class Epochs:
    """Rows of the epochs; of more than `LISTED` epochs, those of the first and of the last half of `LISTED`."""

    def __init__(self) -> None:
        self.first: dict[int, dict[str, Series]] = {}
        self.last: dict[int, dict[str, Series]] = {}
        self.left_out = 0
        self.range: tuple[int, ...] = ()

    def row(self, epoch: int) -> dict[str, Series]:
        self.range = min(epoch, *self.range[:1], epoch), max(epoch, *self.range[1:], epoch)
        for rows in (self.first, self.last):
            if epoch in rows:
                return rows[epoch]
        rows = self.first if len(self.first) < LISTED // 2 else self.last
        if len(rows) >= LISTED // 2:
            del rows[next(iter(rows))]
            self.left_out += 1
        return rows.setdefault(epoch, {key: Series() for key in ("loss", "accuracy", "learning_rate")})


class Training:
    """`training_step` events."""

    def __init__(self) -> None:
        self.epochs = Epochs()
        self.ends = {"loss": Ends(), "accuracy": Ends()}
        self.rate = Series()
        self.first_step, self.first_rate = 0, nan
        self.nonfinite = Steps()
        self.spikes = Changes(SPIKE, WINDOW)
        self.start: list[tuple[int, float, float, float]] = []  # step, loss, accuracy, rate of the first updates

    @property
    def logged(self) -> int:
        return self.ends["loss"].count

    def add(self, step: int, epoch: int, data: Mapping[str, Any]) -> None:
        row = self.epochs.row(epoch)
        values = {key: number(data.get(key)) for key in row}
        loss, accuracy, rate = values.values()
        if not self.logged:
            self.first_step, self.first_rate = step, rate
        for key, series in row.items():
            series.add(values[key])
        for key, ends in self.ends.items():
            ends.add(values[key])
        self.rate.add(rate)
        if not isfinite(loss):
            self.nonfinite.add(step)
        self.spikes.add(step, loss)
        if step <= FIRST_UPDATES and len(self.start) <= FIRST_UPDATES:
            self.start.append((step, loss, accuracy, rate))

    def results(self) -> dict[str, Any]:
        per_epoch = {
            str(epoch): {
                "steps": row["loss"].count,
                **{key: series.row() for key, series in row.items()},
                "nonfinite_loss": row["loss"].count - row["loss"].finite,
            }
            for epoch, row in sorted({**self.epochs.first, **self.epochs.last}.items())
        }
        return {
            "logged": self.logged,
            "epochs": list(self.epochs.range),
            "epochs_left_out": self.epochs.left_out,
            "per_epoch": per_epoch,
        }

    def improvement(self) -> dict[str, Any]:
        improvement: dict[str, Any] = {"window": self.ends["loss"].window}
        for key, sign in (("loss", -1), ("accuracy", 1)):
            first, last = self.ends[key].means()
            change = None if first is None or last is None else last - first
            improved = change is not None and sign * change > 0
            status = "IMPROVED" if improved else "NOT IMPROVED"
            improvement[key] = {"first10": first, "last10": last, "change": change, "status": status}
        return improvement


class Gradients:
    """`gradient_stats` events."""

    def __init__(self) -> None:
        self.norms, self.sample = Series(), Sample()
        self.zero, self.huge, self.nonfinite = Steps(), Steps(), Steps()
        self.jumps = Changes(JUMP, 3)
        self.healthy = 0
        self.modules: dict[str, Series] = {}

    def add(self, step: int, data: Mapping[str, Any]) -> None:
        norm = number(data.get("total_norm"))
        self.norms.add(norm)
        self.jumps.add(step, norm)
        for steps, applies in (
            (self.nonfinite, not isfinite(norm)),
            (self.zero, norm < NEAR_ZERO and isfinite(norm)),
            (self.huge, EXPLODING < norm < inf),
        ):
            if applies:
                steps.add(step)
        if isfinite(norm):
            self.sample.add(norm)
        self.healthy += HEALTHY[0] <= norm <= HEALTHY[1]
        for name, value in mapping(data.get("top_10_grad_norms")).items():
            if name in self.modules or len(self.modules) < _NAMES:
                self.modules.setdefault(name, Series()).add(number(value))

    def results(self) -> dict[str, Any]:
        finite = self.norms.finite > 0
        means = [[_text(name), series.mean] for name, series in self.modules.items() if series.finite]
        return {
            "count": self.norms.count,
            "min": self.norms.least if finite else None,
            "max": self.norms.greatest if finite else None,
            "mean": self.norms.mean,
            "median": statistics.median(self.sample.values) if finite else None,
            "near_zero_lt_1e-6": self.zero.count,
            "exploding_gt_1000": self.huge.count,
            "nonfinite": self.nonfinite.count,
            "top_modules_by_mean": sorted(means, key=lambda pair: -pair[1])[:_SHOWN],  # type: ignore[operator]
        }


class Updates:
    """`param_updates` events, and what the other events of their steps say of the cause of no update."""

    def __init__(self) -> None:
        self.count = 0
        self.updated: list[float | None] = []
        self.total: list[float | None] = []
        self.fewest: tuple[float, float] = (inf, nan)
        self.all_moved = True
        self.none_moved = Steps()
        self.causes: set[str] = set()
        self.recent: collections.deque[tuple[int, str]] = _window()  # causes by step

    def add(self, step: int, data: Mapping[str, Any]) -> None:
        updated, total = (number(data.get(f"num_params_{key}")) for key in ("updated", "total"))
        self.count += 1
        self.all_moved &= updated == total
        if updated < self.fewest[0]:
            self.fewest = updated, total
        if len(self.updated) < LISTED:
            self.updated.append(count_text(updated))
            self.total.append(count_text(total))
        if data.get("no_updates"):
            self.none_moved.add(step)
            self.causes |= {cause for at, cause in self.recent if at == step}

    def note(self, step: int, cause: str) -> None:
        """`cause` would explain that nothing moved at `step`."""
        self.recent.append((step, cause))
        if step in self.none_moved.first[-1:]:
            self.causes.add(cause)

    def results(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "updated": self.updated,
            "total": self.total,
            "no_updates": self.none_moved.count,
            "no_update_steps": self.none_moved.first,
        }


class LogStatistics:
    """All statistics of a log."""

    def __init__(self) -> None:
        self.kinds: collections.Counter[str] = collections.Counter()
        self.events = self.malformed = 0
        self.frozen = False
        self.checks: list[tuple[int, dict[str, Any]]] = []
        self.training, self.gradients, self.updates = Training(), Gradients(), Updates()

    def add(self, event: Mapping[str, Any] | None) -> None:
        if event is None:
            self.malformed += 1
            return
        kind, step, data = _text(event["event_type"]), event["step"], event["data"]
        self.events += 1
        self.kinds[kind if kind in self.kinds or len(self.kinds) < _KINDS else "(others)"] += 1
        if kind == "fit_start":
            self.frozen = data.get("trainable_params") == 0
        elif kind == "data_sanity_check" and len(self.checks) < LISTED:
            tasks = {_text(task): _labels(row) for task, row in mapping(data.get("tasks")).items()}
            self.checks.append((step, {**_labels(data), **({"tasks": tasks} if tasks else {})}))
        elif kind == "training_step":
            self.training.add(step, event["epoch"], data)
            if number(data.get("learning_rate")) == 0.0:
                self.updates.note(step, NO_RATE)
        elif kind == "gradient_stats":
            self.gradients.add(step, data)
            norm = number(data.get("total_norm"))
            if not isfinite(norm) or norm < NEAR_ZERO:
                self.updates.note(step, NO_GRADIENT if isfinite(norm) else BAD_GRADIENT)
        elif kind == "param_updates":
            self.updates.add(step, data)


def _labels(row: Any) -> dict[str, Any]:
    """The fields of a label check that are there."""
    row = mapping(row)
    fields = {key: row[key] for key in ("label_min", "label_max", "expected_max", "labels_valid") if key in row}
    return {key: x if isinstance(x, (int, float)) or x is None else _text(x) for key, x in fields.items()}
