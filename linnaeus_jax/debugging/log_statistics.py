"""Statistics of a debug event log, computed of the numbers that its events hold. No jax, no device."""

from __future__ import annotations

import collections
import itertools
import statistics
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus_jax.debugging.event_reader import number, read_events

NEAR_ZERO, EXPLODING = 1e-6, 1000.0
HEALTHY = (0.1, 100.0)
#: sudden changes: times the median of the ten values before
SPIKE, JUMP = 2.0, 10.0
#: updates after which something must have improved
FIRST_UPDATES = 100
#: values at either end of a run that are compared
WINDOW = 10
#: steps of a sign, measurements and epochs that are listed
LISTED = 1000
_SHOWN, _NAMES, _KINDS = 10, 10_000, 100

#: causes of no update, as the events of the same step show them
NO_RATE = "the learning rate is 0 at these steps; check lr_scheduler and the schedule's summary"
NO_GRADIENT = "the gradients are zero at these steps"
BAD_GRADIENT = "the gradients are not finite at these steps, so the updates were skipped"


def mean(values: np.ndarray) -> float | None:
    """Mean of the finite values; None without any."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else None


def count_text(value: float) -> int | float | None:
    """A count as JSON; None where it is not finite."""
    if not isfinite(value):
        return None
    return int(value) if value == int(value) else float(value)


@dataclass(frozen=True)
class Steps:
    """Steps at which something was the case: how many, and the first `LISTED` of them."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    @classmethod
    def where(cls, steps: np.ndarray, chosen: np.ndarray) -> Steps:
        """Those of `steps` [n] that are chosen, bool [n]."""
        first = itertools.islice(itertools.compress(steps, chosen), LISTED)
        return cls(int(np.count_nonzero(chosen)), [int(step) for step in first])


def changes(values: np.ndarray, factor: float, needed: int) -> tuple[np.ndarray, np.ndarray]:
    """bool [n] each: a value rose above, or fell below, the median of the ten before by more than a factor.

    Args:
      values: float [n].
      needed: values that there must be before.
    """
    rises, drops = np.zeros(len(values), bool), np.zeros(len(values), bool)
    before = collections.deque[float](maxlen=WINDOW)
    for i, value in enumerate(values):
        finite = [old for old in before if isfinite(old)]
        if len(before) >= needed and finite and isfinite(value):
            usual = statistics.median(finite)
            rises[i] = value > factor * usual > 0
            drops[i] = 0 <= value * factor < usual
        before.append(value)
    return rises, drops


class Events:
    """The events of one kind: their steps and some of their numbers, 8 bytes each; NaN where one is missing."""

    def __init__(self, *keys: str) -> None:
        self._columns = {key: array("d") for key in ("step", *keys)}

    def add(self, event: Mapping[str, Any]) -> None:
        values = {**event["data"], "step": event["step"], "epoch": event["epoch"]}
        for key, column in self._columns.items():
            column.append(number(values.get(key)))

    def __getitem__(self, key: str) -> np.ndarray:
        """float64 [events], a view; nothing may be added as long as it is used."""
        return np.frombuffer(self._columns[key])

    def __len__(self) -> int:
        return len(self._columns["step"])


class Training(Events):
    """`training_step` events."""

    def __init__(self) -> None:
        super().__init__("epoch", "loss", "accuracy", "learning_rate")

    def results(self) -> dict[str, Any]:
        epochs, columns = self["epoch"], {key: self[key] for key in ("loss", "accuracy", "learning_rate")}
        order = np.argsort(epochs, kind="stable")
        starts = np.concatenate([[0], np.flatnonzero(np.diff(epochs[order])) + 1, [len(order)]])
        each, half = range(len(starts) - 1), LISTED // 2
        listed = [order[starts[i] : starts[i + 1]] for i in (*each[:half], *each[half:][-half:])]

        def progress(values: np.ndarray) -> dict[str, Any] | None:
            finite = values[np.isfinite(values)]
            return {"first": finite[0], "last": finite[-1], "avg": finite.mean()} if len(finite) else None

        per_epoch = {
            str(int(epochs[rows[0]])): {
                "steps": len(rows),
                **{key: progress(values[rows]) for key, values in columns.items()},
                "nonfinite_loss": int((~np.isfinite(columns["loss"][rows])).sum()),
            }
            for rows in listed
        }
        return {
            "logged": len(self),
            "epochs": [int(epochs.min()), int(epochs.max())],
            "epochs_left_out": len(each) - len(listed),
            "per_epoch": per_epoch,
        }

    def improvement(self) -> dict[str, Any]:
        window = min(WINDOW, len(self) // 2)  # no value belongs to both ends
        improvement: dict[str, Any] = {"window": window}
        for key, sign in (("loss", -1), ("accuracy", 1)):
            first, last = mean(self[key][:window]), mean(self[key][len(self) - window :])
            change = None if first is None or last is None else last - first
            improved = change is not None and sign * change > 0
            status = "IMPROVED" if improved else "NOT IMPROVED"
            improvement[key] = {"first10": first, "last10": last, "change": change, "status": status}
        return improvement


class Gradients(Events):
    """`gradient_stats` events."""

    def __init__(self) -> None:
        super().__init__("total_norm")
        self._modules: dict[str, list[float]] = {}  # finite norms: how many, and their sum

    def add(self, event: Mapping[str, Any]) -> None:
        super().add(event)
        for name, value in mapping(event["data"].get("top_10_grad_norms")).items():
            if isfinite(norm := number(value)) and (name in self._modules or len(self._modules) < _NAMES):
                count, total = self._modules.get(name, (0, 0.0))
                self._modules[name] = [count + 1, total + norm]

    def signs(self) -> dict[str, np.ndarray]:
        """bool [events] each: the norm is not finite, next to zero, too large."""
        norm = self["total_norm"]
        finite = np.isfinite(norm)
        return {"nonfinite": ~finite, "zero": finite & (norm < NEAR_ZERO), "huge": finite & (norm > EXPLODING)}

    def results(self) -> dict[str, Any]:
        norm, signs = self["total_norm"], self.signs()
        finite = norm[np.isfinite(norm)]
        means = [[_text(name), total / count] for name, (count, total) in self._modules.items()]
        numbers: dict[str, Callable[[np.ndarray], Any]]
        numbers = {"min": np.min, "max": np.max, "mean": np.mean, "median": np.median}
        return {
            "count": len(self),
            **{name: float(of(finite)) if len(finite) else None for name, of in numbers.items()},
            "near_zero_lt_1e-6": np.count_nonzero(signs["zero"]),
            "exploding_gt_1000": np.count_nonzero(signs["huge"]),
            "nonfinite": np.count_nonzero(signs["nonfinite"]),
            "top_modules_by_mean": sorted(means, key=lambda pair: -pair[1])[:_SHOWN],  # type: ignore[operator]
        }


class Updates(Events):
    """`param_updates` events."""

    def __init__(self) -> None:
        super().__init__("num_params_updated", "num_params_total")
        self._none = array("b")

    def add(self, event: Mapping[str, Any]) -> None:
        super().add(event)
        self._none.append(bool(event["data"].get("no_updates")))

    @property
    def none_moved(self) -> Steps:
        """Of which an event says that nothing moved."""
        return Steps.where(self["step"], np.frombuffer(self._none, bool))

    def fewest(self) -> tuple[float, float]:
        """The fewest parameters that moved, and of how many."""
        updated, total = self["num_params_updated"], self["num_params_total"]
        known = np.flatnonzero(np.isfinite(updated))
        return min(((updated[i], total[i]) for i in known), key=lambda pair: pair[0], default=(inf, nan))

    def results(self) -> dict[str, Any]:
        none = self.none_moved
        return {
            "count": len(self),
            "updated": [count_text(value) for value in self["num_params_updated"][:LISTED]],
            "total": [count_text(value) for value in self["num_params_total"][:LISTED]],
            "no_updates": none.count,
            "no_update_steps": none.first,
        }


class LogStatistics:
    """The events of a log."""

    def __init__(self, events: Iterable[Mapping[str, Any] | None] = ()) -> None:
        self.kinds: collections.Counter[str] = collections.Counter()
        self.malformed = 0
        self.frozen = False
        self.checks: list[tuple[int, dict[str, Any]]] = []
        self.training, self.gradients, self.updates = Training(), Gradients(), Updates()
        self.epoch_starts = Events()
        self._of_kind: dict[str, Events] = {
            "training_step": self.training,
            "gradient_stats": self.gradients,
            "param_updates": self.updates,
            "epoch_start": self.epoch_starts,
        }
        for event in events:
            self.add(event)

    @classmethod
    def read(cls, files: Sequence[Path]) -> LogStatistics:
        """Those of log files, in order."""
        return cls(read_events(files))

    @property
    def events(self) -> int:
        return self.kinds.total()

    def add(self, event: Mapping[str, Any] | None) -> None:
        if event is None:
            self.malformed += 1
            return
        kind, data = _text(event["event_type"]), event["data"]
        self.kinds[kind if kind in self.kinds or len(self.kinds) < _KINDS else "(others)"] += 1
        if kind in self._of_kind:
            self._of_kind[kind].add(event)
        elif kind == "fit_start":
            self.frozen = data.get("trainable_params") == 0
        elif kind == "data_sanity_check" and len(self.checks) < LISTED:
            tasks = {_text(task): _labels(row) for task, row in mapping(data.get("tasks")).items()}
            self.checks.append((event["step"], {**_labels(data), **({"tasks": tasks} if tasks else {})}))

    def causes(self) -> Iterator[str]:
        """What the other events of the steps at which nothing moved, as far as they are listed, say of it."""
        still, training, gradients = set(self.updates.none_moved.first), self.training, self.gradients
        signs = gradients.signs()
        for cause, steps, chosen in (
            (NO_RATE, training["step"], training["learning_rate"] == 0.0),
            (NO_GRADIENT, gradients["step"], signs["zero"]),
            (BAD_GRADIENT, gradients["step"], signs["nonfinite"]),
        ):
            if not still.isdisjoint(itertools.compress(steps, chosen)):
                yield cause


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a dict, else an empty one."""
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    """Foreign text, short and printable anywhere."""
    return str(value)[:200].encode(errors="replace").decode()


def _labels(row: Any) -> dict[str, Any]:
    """The fields of a label check that are there."""
    row = mapping(row)
    fields = {key: row[key] for key in ("label_min", "label_max", "expected_max", "labels_valid") if key in row}
    return {key: x if isinstance(x, (int, float)) or x is None else _text(x) for key, x in fields.items()}
