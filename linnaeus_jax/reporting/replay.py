"""Reading a finished or running run back from its directory, and sending its rows to a sink again."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from linnaeus_jax.reporting.sinks import Sink

log = logging.getLogger("linnaeus_jax")

#: how the metrics log spells what strict JSON cannot say
NON_FINITE = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}


#: event of the rows that only the metrics log gets
LOCAL = "step"


class RunError(Exception):
    """A directory is not a readable run; the message says which file is missing or damaged."""


@dataclass(frozen=True)
class Row:
    """One row of the metrics log; `values` without the four fields that every row has."""

    event: str
    step: int
    epoch: int
    timestamp: float
    values: Mapping[str, Any]


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics log in the order written; a last line cut off by a kill is left out with a warning.

    Raises:
      RunError: the file is missing, or a line before the last is damaged.
    """
    if not path.is_file():
        raise RunError(f"{path} does not exist; give the directory of a run, its --workdir")
    lines = path.read_text().splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            event, step, epoch = values.pop("event"), int(values.pop("global_step")), int(values.pop("epoch"))
            timestamp = float(values.pop("timestamp"))
        except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            if number == len(lines):
                log.warning("%s: the last line is cut off and left out", path)
                break
            raise RunError(
                f"{path}, line {number} is no row of a metrics log ({error!r}); remove or mend it"
            ) from error
        numbers = {
            name: NON_FINITE.get(value, value) if isinstance(value, str) else value for name, value in values.items()
        }
        rows.append(Row(event, step, epoch, timestamp, numbers))
    return rows


@dataclass(frozen=True)
class RunRecord:
    """What a run directory holds about its run, all of it optional but the rows."""

    root: Path
    rows: tuple[Row, ...]

    @classmethod
    def load(cls, root: Path) -> RunRecord:
        """Reads the metrics log of a run.

        Raises:
          RunError: there is none, it is damaged, or it has no row.
        """
        rows = read_rows(Path(root) / "logs" / "metrics_log.jsonl")
        if not rows:
            raise RunError(f"{root}/logs/metrics_log.jsonl has no row yet; wait for the first log point of the run")
        return cls(Path(root), tuple(rows))

    def json(self, name: str) -> Any:
        """A JSON file below the run directory; None where it does not exist.

        Raises:
          RunError: the file is no JSON.
        """
        path = self.root / name
        if not path.is_file():
            return None
        try:
            return json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise RunError(f"{path} is no JSON: {error}; restore or remove it") from error

    @cached_property
    def config(self) -> dict[str, Any]:
        return self.json("config.json") or {}

    @cached_property
    def schedule(self) -> dict[str, Any]:
        return self.json("assets/schedule_summary.json") or {}

    @cached_property
    def names(self) -> dict[str, None]:
        """Every metric name that occurs, in order of first occurrence."""
        return dict.fromkeys(name for row in self.rows for name in row.values)

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps int64 [N] and values float64 [N] of a numeric metric."""
        found = [(row.step, row.values[name]) for row in self.rows if isinstance(row.values.get(name), (int, float))]
        steps, values = zip(*found) if found else ((), ())
        return np.asarray(steps, np.int64), np.asarray(values, np.float64)

    def last(self, name: str) -> float | None:
        """The newest value of a numeric metric; None where there is none."""
        values = self.series(name)[1]
        return float(values[-1]) if len(values) else None


def replay(rows: Iterable[Row], sink: Sink) -> dict[str, Any] | None:
    """Sends every row but the `LOCAL` ones to a sink, in order of steps; returns the final metrics, if there are any.

    A restart writes the rows of a boundary after those of the log point at the same step: a stable sort keeps that.
    """
    final = None
    for row in sorted((row for row in rows if row.event != LOCAL), key=lambda row: row.step):
        if row.event == "final":
            final = dict(row.values)
        sink.write(row.event, row.step, row.epoch, row.values, timestamp=row.timestamp)
    return final
