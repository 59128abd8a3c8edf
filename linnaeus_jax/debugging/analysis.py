"""What a debug event log says about a run: statistics, and good and bad signs with advice. No jax, no device.

Logs are read line by line and nothing is kept but the statistics: memory does not grow with the length of a log.
"""

from __future__ import annotations

import collections
import json
import random
import statistics
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

EVENT_TYPES = ("fit_start", "data_sanity_check", "epoch_start", "training_step", "gradient_stats", "param_updates")
NEAR_ZERO, EXPLODING = 1e-6, 1000.0
HEALTHY = (0.1, 100.0)
#: smallest changes of the mean over ten logged steps that count: share of the first loss, accuracy
FLAT_LOSS, FLAT_ACCURACY = 0.01, 0.01
RISING_LOSS = 0.05
#: sudden changes: times the median of the ten values before
SPIKE, JUMP = 2.0, 10.0
#: updates after which something must have improved
FIRST_UPDATES = 100
#: lengths of what is kept: steps of a sign, measurements and epochs that are listed, norms of which the median is taken
LISTED, MEDIAN_OF = 1000, 10_000
#: longest line of a log, bytes or characters; a longer one is no event
LONGEST_LINE = 1 << 20
_WINDOW, _SHOWN = 10, 10
_NAMES, _KINDS = 10_000, 100
_NON_FINITE = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}


def log_files(paths: Iterable[Path]) -> list[Path]:
    """The log files behind files and directories, in the order of their timestamps.

    Raises:
      FileNotFoundError: a file, or any log in a directory, is missing.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; debug logs lie in <run directory>/logs/debug")
        inside = logs_in(path) if path.is_dir() else [path]
        if not inside:
            raise FileNotFoundError(f"{path} holds no debug_log_*.jsonl; is it the run's debug.jsonl.dir?")
        found += inside
    return list(dict.fromkeys(found))


def logs_in(directory: Path) -> list[Path]:
    """The logs of a directory, oldest first."""
    return sorted(directory.glob("debug_log_*.jsonl"), key=lambda path: (len(path.name), path.name))


def parse_event(line: str) -> dict[str, Any] | None:
    """The event of a line, or None: cut off by a kill, or foreign. `step` and `epoch` are ints, `data` is a dict."""
    if len(line) > LONGEST_LINE:
        return None
    try:
        event = json.loads(line)
        step, epoch = (_whole(event[key]) for key in ("step", "epoch"))
        kind, data = event["event_type"], event["data"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(kind, str) or not isinstance(data, dict):
        return None
    return {**event, "event_type": kind, "step": step, "epoch": epoch, "data": data}


def _whole(value: Any) -> int:
    """A count below 2^53, up to which JSON numbers are exact."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 2**53 or value != int(value):
        raise ValueError(f"{value!r} is no whole number")
    return int(value)


def read_events(files: Iterable[Path]) -> Iterator[dict[str, Any] | None]:
    """The events of logs, one after the other; None for every line that is not blank and no event."""
    for path in files:
        with path.open("rb") as file:
            while line := file.readline(LONGEST_LINE):
                whole = len(line) < LONGEST_LINE or line.endswith(b"\n")
                if whole and line.strip():
                    yield parse_event(line.decode(errors="replace"))
                elif not whole:
                    while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                        pass
                    yield None


def number(value: Any) -> float:
    """A number of the log; what is missing or no number is NaN, what no float can hold is infinite."""
    if isinstance(value, str):
        return _NON_FINITE.get(value, nan)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return nan
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    """Foreign text, short and printable anywhere."""
    return str(value)[:200].encode(errors="replace").decode()


# ---- statistics that grow with every event


@dataclass
class _Series:
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
class _Median:
    """The median; of a uniform sample where there are more than `MEDIAN_OF` values."""

    values: array[float] = field(default_factory=lambda: array("d"))
    count: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def add(self, value: float) -> None:
        self.count += 1
        if len(self.values) < MEDIAN_OF:
            self.values.append(value)
        elif (place := self._random.randrange(self.count)) < MEDIAN_OF:
            self.values[place] = value

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values else None


@dataclass
class _Ends:
    """The first and the last `_WINDOW` values."""

    first: list[float] = field(default_factory=list)
    last: collections.deque[float] = field(default_factory=lambda: collections.deque(maxlen=_WINDOW))
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.last.append(value)
        if len(self.first) < _WINDOW:
            self.first.append(value)

    @property
    def window(self) -> int:
        """How many values stand for an end: the two never share one."""
        return min(_WINDOW, self.count // 2)

    def means(self) -> tuple[float | None, float | None]:
        return _mean(self.first[: self.window]), _mean(list(self.last)[len(self.last) - self.window :])


@dataclass
class _Steps:
    """At which steps something was so: how many, and the first `LISTED` of them."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, step: int) -> None:
        self.count += 1
        if len(self.first) < LISTED:
            self.first.append(step)


@dataclass
class _Changes:
    """Steps at which a value left the median of the ten before by more than a factor."""

    factor: float
    needed: int  # values that there must be before
    rises: _Steps = field(default_factory=_Steps)
    drops: _Steps = field(default_factory=_Steps)
    _before: collections.deque[float] = field(default_factory=lambda: collections.deque(maxlen=_WINDOW))

    def add(self, step: int, value: float) -> None:
        before = [old for old in self._before if isfinite(old)]
        if len(self._before) >= self.needed and before and isfinite(value):
            usual = statistics.median(before)
            if value > self.factor * usual > 0:
                self.rises.add(step)
            elif 0 <= value * self.factor < usual:
                self.drops.add(step)
        self._before.append(value)


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if isfinite(value)]
    return statistics.fmean(finite) if finite else None


class _Epochs:
    """Rows of the epochs; of more than `LISTED` epochs, those of the first and of the last half of `LISTED`."""

    def __init__(self) -> None:
        self.first: dict[int, dict[str, _Series]] = {}
        self.last: dict[int, dict[str, _Series]] = {}
        self.left_out = 0
        self.range: tuple[int, int] | None = None

    def row(self, epoch: int) -> dict[str, _Series]:
        low, high = self.range or (epoch, epoch)
        self.range = min(low, epoch), max(high, epoch)
        for rows in (self.first, self.last):
            if epoch in rows:
                return rows[epoch]
        rows = self.first if len(self.first) < LISTED // 2 else self.last
        if len(rows) >= LISTED // 2:
            del rows[next(iter(rows))]
            self.left_out += 1
        rows[epoch] = {key: _Series() for key in ("loss", "accuracy", "learning_rate")}
        return rows[epoch]


class _Training:
    """`training_step` events."""

    def __init__(self) -> None:
        self.epochs = _Epochs()
        self.ends = {"loss": _Ends(), "accuracy": _Ends()}
        self.rate = _Series()
        self.first_step, self.first_rate = 0, nan
        self.nonfinite = _Steps()
        self.spikes = _Changes(SPIKE, _WINDOW)
        self.start: list[tuple[int, float, float, float]] = []  # step, loss, accuracy, rate of the first updates

    @property
    def logged(self) -> int:
        return self.ends["loss"].count

    def add(self, step: int, epoch: int, data: Mapping[str, Any]) -> None:
        values = {key: number(data.get(key)) for key in ("loss", "accuracy", "learning_rate")}
        loss, rate = values["loss"], values["learning_rate"]
        if not self.logged:
            self.first_step, self.first_rate = step, rate
        for key, series in self.epochs.row(epoch).items():
            series.add(values[key])
        for key, ends in self.ends.items():
            ends.add(values[key])
        self.rate.add(rate)
        if not isfinite(loss):
            self.nonfinite.add(step)
        self.spikes.add(step, loss)
        if step <= FIRST_UPDATES and len(self.start) <= FIRST_UPDATES:
            self.start.append((step, loss, values["accuracy"], rate))

    def results(self) -> dict[str, Any]:
        per_epoch = {
            str(epoch): {
                "steps": row["loss"].count,
                **{key: series.row() for key, series in row.items()},
                "nonfinite_loss": row["loss"].count - row["loss"].finite,
            }
            for epoch, row in sorted({**self.epochs.first, **self.epochs.last}.items())
        }
        improvement: dict[str, Any] = {"window": self.ends["loss"].window}
        for key, sign in (("loss", -1), ("accuracy", 1)):
            first, last = self.ends[key].means()
            change = None if first is None or last is None else last - first
            improved = change is not None and sign * change > 0
            improvement[key] = {
                "first10": first,
                "last10": last,
                "change": change,
                "status": "IMPROVED" if improved else "NOT IMPROVED",
            }
        training = {
            "logged": self.logged,
            "epochs": list(self.epochs.range or ()),
            "epochs_left_out": self.epochs.left_out,
            "per_epoch": per_epoch,
        }
        return {"training": training, "improvement": improvement}


class _Gradients:
    """`gradient_stats` events."""

    def __init__(self) -> None:
        self.norms, self.median = _Series(), _Median()
        self.zero, self.huge, self.nonfinite = _Steps(), _Steps(), _Steps()
        self.jumps = _Changes(JUMP, 3)
        self.healthy = 0
        self.modules: dict[str, _Series] = {}

    def add(self, step: int, data: Mapping[str, Any]) -> None:
        norm = number(data.get("total_norm"))
        self.norms.add(norm)
        self.jumps.add(step, norm)
        if not isfinite(norm):
            self.nonfinite.add(step)
        else:
            self.median.add(norm)
            for steps, so in ((self.zero, norm < NEAR_ZERO), (self.huge, norm > EXPLODING)):
                if so:
                    steps.add(step)
            self.healthy += HEALTHY[0] <= norm <= HEALTHY[1]
        for name, value in _mapping(data.get("top_10_grad_norms")).items():
            if name in self.modules or len(self.modules) < _NAMES:
                self.modules.setdefault(name, _Series()).add(number(value))

    def results(self) -> dict[str, Any]:
        finite = self.norms.finite > 0
        means = [(_text(name), mean) for name, series in self.modules.items() if (mean := series.mean) is not None]
        return {
            "count": self.norms.count,
            "min": self.norms.least if finite else None,
            "max": self.norms.greatest if finite else None,
            "mean": self.norms.mean,
            "median": self.median.median,
            "near_zero_lt_1e-6": self.zero.count,
            "exploding_gt_1000": self.huge.count,
            "nonfinite": self.nonfinite.count,
            "top_modules_by_mean": [list(pair) for pair in sorted(means, key=lambda pair: -pair[1])[:_SHOWN]],
        }


class _Updates:
    """`param_updates` events, and what the other events of their steps say of the cause of no update."""

    def __init__(self) -> None:
        self.count = 0
        self.updated: list[float | None] = []
        self.total: list[float | None] = []
        self.fewest: tuple[float, float] = (inf, nan)
        self.all_moved = True
        self.none_moved = _Steps()
        self.causes: dict[str, None] = {}
        self._recent: collections.deque[tuple[int, str]] = collections.deque(maxlen=_WINDOW)  # causes by step

    def add(self, step: int, data: Mapping[str, Any]) -> None:
        updated, total = (number(data.get(f"num_params_{key}")) for key in ("updated", "total"))
        self.count += 1
        self.all_moved &= updated == total
        if updated < self.fewest[0]:
            self.fewest = updated, total
        if len(self.updated) < LISTED:
            self.updated.append(_plain(updated))
            self.total.append(_plain(total))
        if data.get("no_updates"):
            self.none_moved.add(step)
            self.causes |= {cause: None for at, cause in self._recent if at == step}

    def note(self, step: int, cause: str) -> None:
        """`cause` would explain that nothing moved at `step`."""
        self._recent.append((step, cause))
        if step in self.none_moved.first[-1:]:
            self.causes[cause] = None

    def results(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "updated": self.updated,
            "total": self.total,
            "no_updates": self.none_moved.count,
            "no_update_steps": self.none_moved.first,
        }


def _plain(value: float) -> float | None:
    """A count as JSON."""
    if not isfinite(value):
        return None
    return int(value) if value == int(value) else value


NO_RATE = "the learning rate is 0 at these steps; check lr_scheduler and the schedule's summary"
NO_GRADIENT = "the gradients are zero at these steps"
BAD_GRADIENT = "the gradients are not finite at these steps, so the updates were skipped"


class _Analysis:
    """All statistics of a log."""

    def __init__(self) -> None:
        self.kinds: collections.Counter[str] = collections.Counter()
        self.events = self.malformed = 0
        self.frozen = False
        self.checks: list[tuple[int, dict[str, Any]]] = []
        self.training, self.gradients, self.updates = _Training(), _Gradients(), _Updates()

    def add(self, event: Mapping[str, Any] | None) -> None:
        if event is None:
            self.malformed += 1
            return
        kind, step, data = event["event_type"], event["step"], event["data"]
        self.events += 1
        kind = kind if kind in EVENT_TYPES else _text(kind)
        self.kinds[kind if kind in self.kinds or len(self.kinds) < _KINDS else "(others)"] += 1
        if kind == "fit_start":
            self.frozen = data.get("trainable_params") == 0
        elif kind == "data_sanity_check" and len(self.checks) < LISTED:
            tasks = {_text(task): _labels(row) for task, row in _mapping(data.get("tasks")).items()}
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
    row = _mapping(row)
    found = {key: row[key] for key in ("label_min", "label_max", "expected_max", "labels_valid") if key in row}
    return {key: x if isinstance(x, (int, float)) or x is None else _text(x) for key, x in found.items()}


def analyse(files: Sequence[Path]) -> dict[str, Any]:
    """Statistics of the log of a run, as plain JSON types.

    Args:
      files: in order, see `log_files`.

    Returns:
      total_events, malformed_lines, event_types, files, training, improvement, gradients, param_updates, data_sanity
      (sections without events are absent or empty), and `findings`: see `_diagnose`. Of anything that could grow with
      the log, the first `LISTED` are listed; of the epochs the first and the last. The median is that of a sample
      where there are more than `MEDIAN_OF` norms.

    Raises:
      OSError: a file cannot be read.
    """
    log = _Analysis()
    for event in read_events(files):
        log.add(event)
    found: dict[str, Any] = {
        "files": [str(path) for path in files],
        "total_events": log.events,
        "malformed_lines": log.malformed,
        "event_types": dict(log.kinds),
        "data_sanity": [check for _, check in log.checks],
    }
    if log.training.logged:
        found |= log.training.results()
    if log.gradients.norms.count:
        found["gradients"] = log.gradients.results()
    if log.updates.count:
        found["param_updates"] = log.updates.results()
    found["findings"] = _diagnose(log, found)
    return found


def _diagnose(log: _Analysis, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Signs of the document "what to look for", most urgent first.

    Returns:
      A list of {"level": "error" | "warning" | "note" | "good", "sign": a fixed word, "message", "advice": texts,
      "count": at how many steps, "steps": the first of them, both as far as known}.
    """
    signs = [
        *_label_signs(log),
        *_gradient_signs(log.gradients),
        *_update_signs(log),
        *_progress_signs(log.training, found),
    ]
    if not log.events:
        signs.append(
            _sign("warning", "empty", "the log holds no events", ["Check that the run got as far as fit_start"])
        )
    if log.malformed:
        text = f"{log.malformed} lines are no events: cut off by a kill, or foreign"
        signs.append(_sign("note", "malformed", text))
    order = ("error", "warning", "note", "good")
    return sorted(signs, key=lambda sign: order.index(sign["level"]))


def _sign(
    level: str, sign: str, message: str, advice: Sequence[str] = (), steps: _Steps | None = None
) -> dict[str, Any]:
    steps = steps or _Steps()
    return {
        "level": level,
        "sign": sign,
        "message": message,
        "advice": list(advice),
        "count": steps.count,
        "steps": steps.first,
    }


def _label_signs(log: _Analysis) -> list[dict[str, Any]]:
    signs = []
    for step, check in log.checks:
        for task, row in (check.get("tasks") or {"": check}).items():
            if row.get("labels_valid") is False:
                text = (
                    f"labels{task and ' of '}{task} are out of range: {row.get('label_min')} to {row.get('label_max')}"
                )
                text += f", expected 0 to {row.get('expected_max')}"
                advice = [
                    "Data preprocessing issue: the labels were numbered for another list of classes",
                    "Compare assets/num_classes.json with the classes in the labels file",
                    "Rebuild the labels file if its codes belong to other classes",
                ]
                signs.append(_sign("error", "labels_out_of_range", text, advice, _Steps(1, [step])))
    return signs or ([_sign("good", "labels_valid", "all labels are in range")] if log.checks else [])


def _gradient_signs(stats: _Gradients) -> list[dict[str, Any]]:
    if not stats.norms.count:
        return []
    signs = []
    if broken := stats.nonfinite.count:
        advice = [
            "Find the first layer with non-finite values: --debug underflow_overflow",
            "Reduce the learning rate, lengthen the warm-up or clip gradients (train.clip_grad)",
            "Look for non-finite metadata or images in these batches",
        ]
        text = f"{broken} steps with non-finite gradients; such updates are skipped"
        signs.append(_sign("error", "nonfinite_gradients", text, advice, stats.nonfinite))
    if zero := stats.zero.count:
        advice = [
            "No gradient flow: is every parameter frozen, or every label masked?",
            "Check that the loss is connected to the parameters and no task weight is 0",
            "Check for stop_gradient (detached values) between the loss and the parameters",
        ]
        text = f"{zero} steps with near-zero gradients"
        signs.append(_sign("warning", "zero_gradients", text, advice, stats.zero))
    if huge := stats.huge.count:
        advice = [
            "Gradient explosion: increase gradient clipping (a smaller train.clip_grad)",
            "Reduce the learning rate or lengthen the warm-up",
        ]
        text = f"{huge} steps with exploding gradients (norm > 1000)"
        signs.append(_sign("warning", "exploding_gradients", text, advice, stats.huge))
    if rises := stats.jumps.rises.count:
        advice = [
            "Look at the batches, the loss and the learning rate of these steps",
            "Clip gradients (train.clip_grad) or reduce the learning rate",
        ]
        text = f"{rises} sudden rises of the gradient norm to more than ten times the median of the steps before"
        signs.append(_sign("warning", "gradient_jumps", text, advice, stats.jumps.rises))
    if drops := stats.jumps.drops.count:
        text = f"{drops} sudden drops of the gradient norm below a tenth of the median of the steps before"
        signs.append(_sign("note", "gradient_drops", text, ["Look at the loss of these steps"], stats.jumps.drops))
    if not zero:
        signs.append(_sign("good", "gradients_flow", "0 steps with near-zero gradients"))
    if stats.healthy == stats.norms.count:
        signs.append(_sign("good", "healthy_gradients", "all gradient norms lie between 0.1 and 100"))
    return signs


def _update_signs(log: _Analysis) -> list[dict[str, Any]]:
    stats = log.updates
    if not stats.count:
        return []
    if not stats.none_moved.count:
        if stats.all_moved:
            return [_sign("good", "parameters_update", "all parameters are updating")]
        fewest = " of ".join(str(_plain(value)) for value in stats.fewest)
        return [
            _sign(
                "note",
                "some_parameters_update",
                f"at times only {fewest} parameters are updating; the others are frozen, "
                "get no gradient, or move by less than float32 resolves",
            )
        ]
    causes = ["every parameter is frozen (optimizer.parameter_groups.*.frozen)"] if log.frozen else []
    causes += [cause for cause in (NO_RATE, NO_GRADIENT, BAD_GRADIENT) if cause in stats.causes]
    advice = [
        *(f"CAUSE: {cause}" for cause in causes),
        "Learning rate might be too small",
        "Gradients might be zero",
        "Optimizer might not be stepping: are updates skipped as non-finite?",
    ]
    text = f"{stats.none_moved.count} measurements with NO parameter updates!"
    return [_sign("warning", "no_updates", text, advice, stats.none_moved)]


def _progress_signs(training: _Training, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not training.logged:
        return []
    signs = []
    if broken := training.nonfinite.count:
        advice = ["Find the first layer with non-finite values: --debug underflow_overflow", "Reduce the learning rate"]
        text = f"{broken} steps with a non-finite loss"
        signs.append(_sign("error", "nonfinite_loss", text, advice, training.nonfinite))
    peak = training.rate.greatest if training.rate.finite else 0.0
    if peak == 0.0:
        advice = ["Check lr_scheduler.base_lr, the multipliers of the groups and the schedule's summary"]
        signs.append(_sign("warning", "zero_learning_rate", "the learning rate is 0 at every logged step", advice))
    elif training.first_rate < 0.5 * peak and training.first_step == 0:
        text = f"the learning rate starts small ({training.first_rate:.2e}) and rises to {peak:.2e}"
        signs.append(_sign("good", "warmup", text))
    if spikes := training.spikes.rises.count:
        advice = ["Look at the batches and the gradients of these steps", "A spike at each epoch's start hints at data"]
        text = f"{spikes} sudden rises of the loss to more than twice the median of the ten steps before"
        signs.append(_sign("note", "loss_spikes", text, advice, training.spikes.rises))
    signs += _start_signs(training, peak)
    if training.logged < 2 * _WINDOW:
        text = f"only {training.logged} steps are logged: too few to judge loss and accuracy; run for at least 5 epochs"
        return [*signs, _sign("note", "too_short", text)]
    return signs + _trend_signs(found["improvement"])


def _start_signs(training: _Training, peak: float) -> list[dict[str, Any]]:
    """Whether anything improves in the first 100 updates of a run."""
    steps = training.start
    if training.first_step >= _WINDOW or len(steps) < 6 or steps[-1][0] < FIRST_UPDATES - _WINDOW:
        return []
    half = len(steps) // 2
    (loss, later), (accuracy, better) = (
        (_mean([row[k] for row in steps[:half]]), _mean([row[k] for row in steps[half:]])) for k in (1, 2)
    )
    if loss is None or later is None:
        return []
    if loss - later > FLAT_LOSS * abs(loss) or (better or 0.0) - (accuracy or 0.0) > FLAT_ACCURACY:
        return []
    rate = steps[-1][3]
    slow = rate < 0.1 * peak
    advice = [
        f"The warm-up is slow: the learning rate is {rate:.2e} there and rises to {peak:.2e} later"
        if slow
        else "Check the learning rate, the gradient norms and the parameter updates of these steps"
    ]
    text = f"nothing improves in the first {FIRST_UPDATES} updates: loss {loss:.4f} -> {later:.4f}"
    return [_sign("note" if slow else "warning", "flat_start", text, advice)]


def _trend_signs(improvement: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    loss, accuracy = improvement["loss"], improvement["accuracy"]
    if loss["change"] is None:
        return []
    change, gain = loss["change"], accuracy["change"] or 0.0
    scale = abs(loss["first10"]) or 1.0
    text = f"loss {loss['first10']:.4f} -> {loss['last10']:.4f}, accuracy {gain:+.4f}"
    if change > RISING_LOSS * scale:
        advice = [
            "Reduce the learning rate or lengthen the warm-up",
            "Compare with the gradient norms of the same steps",
        ]
        return [_sign("warning", "rising_loss", f"the loss is rising: {text}", advice)]
    if change > -FLAT_LOSS * scale and gain < FLAT_ACCURACY:
        advice = [
            "Optimizer not updating weights: see the parameter updates",
            "Check the learning rate schedule",
            "Check if gradients are flowing: see the gradient norms",
        ]
        return [_sign("warning", "flat", f"loss and accuracy are flat: {text}", advice)]
    signs = [_sign("good", "loss_falls", "the loss is decreasing")] if change < 0 else []
    return signs + ([_sign("good", "accuracy_rises", "the accuracy is increasing")] if gain > 0 else [])
