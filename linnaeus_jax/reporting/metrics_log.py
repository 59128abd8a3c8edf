"""`metrics_log.jsonl`: every logged row of a run, one strict JSON object per line; trackers are made from it."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linnaeus_jax.config.errors import RESUME, TrainingError, UserError, described
from linnaeus_jax.files import set_lines_aside

log = logging.getLogger("linnaeus_jax")

#: how the metrics log and the state of a run spell what strict JSON cannot say
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
#: event of the rows that only the metrics log gets
LOCAL = "step"


def strict(value: Any) -> Any:
    """`value` as strict JSON types: numbers that are not finite become the strings of `NON_FINITE`."""
    return json.loads(json.dumps(value, default=float), parse_constant=str)


def revived(value: Any) -> Any:
    """The inverse of `strict`."""
    if isinstance(value, dict):
        return {key: revived(each) for key, each in value.items()}
    if isinstance(value, list):
        return [revived(each) for each in value]
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


class MetricsLogError(TrainingError):
    """The metrics log cannot be written; training must not go on without it."""


class RunError(UserError):
    """A directory is not a readable run; the message says which file is missing or damaged."""


@dataclass(frozen=True)
class Row:
    """One row of the metrics log; `values` without the four fields that every row has."""

    event: str  # train, step, epoch, probe or final
    step: int  # optimizer updates completed
    epoch: int  # index, from 0
    timestamp: float  # seconds since 1970
    values: Mapping[str, Any]  # name -> number or text

    @classmethod
    def parse(cls, line: str) -> Row:
        """Inverse of `MetricsLog.write`; ValueError of what is no row."""
        try:
            values = json.loads(line)
            event, step, epoch = values.pop("event"), int(values.pop("global_step")), int(values.pop("epoch"))
            timestamp = float(values.pop("timestamp"))
        except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(repr(error)) from error
        numbers = {k: NON_FINITE.get(value, value) if isinstance(value, str) else value for k, value in values.items()}
        return cls(event, step, epoch, timestamp, numbers)


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics log in the order written; a last line cut off by a kill is left out with a warning.

    Raises:
      RunError: the file is missing, or a line before the last is damaged.
    """
    if not path.is_file():
        raise RunError(f"{path} does not exist; give the directory of a run, its --workdir")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(Row.parse(line))
        except ValueError as error:
            if number < len(lines):
                text = f"{path}, line {number} is no row of a metrics log ({error}); remove or mend it"
                raise RunError(text) from error
            log.warning("%s: the last line is cut off and left out", path)
    return rows


class MetricsLog:
    """Appends rows; every row has `event`, `global_step`, `epoch` and `timestamp`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, event: str, step: int, epoch: int, values: dict[str, Any]) -> None:
        """Appends one row and hands it to the operating system.

        Raises:
          MetricsLogError: the row could not be written.
        """
        row = {"event": event, "global_step": int(step), "epoch": int(epoch), "timestamp": time.time(), **values}
        line = json.dumps(strict(row), sort_keys=True, separators=(",", ":"), allow_nan=False)
        try:
            with self.path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(line + "\n")
        except OSError as error:
            named = OSError(error.errno, error.strerror, str(self.path))
            raise MetricsLogError(f"cannot write {described(named)}; {RESUME}") from error

    def supersede(self, step: int, boundary_events: frozenset[str]) -> int:
        """Moves rows that a resumed run will write again to `*.superseded.jsonl`; returns how many.

        These are the rows beyond the restored `step`, rows at `step` of one of `boundary_events`, and a last line
        cut off by the kill.
        """

        def again(line: str) -> bool:
            try:
                row = Row.parse(line)
            except ValueError:
                log.warning("%s: a line is no row (cut off by a kill, or damaged) and is set aside", self.path.name)
                return True
            return row.step > step or (row.step == step and row.event in boundary_events)

        aside = self.path.with_suffix(".superseded.jsonl")
        return set_lines_aside(self.path, aside, again) if self.path.exists() else 0

    def rows(self) -> list[Row]:
        """The rows so far; RunError as of `read_rows`."""
        return read_rows(self.path) if self.path.exists() else []
