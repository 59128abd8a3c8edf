"""`metrics_log.jsonl`: the local truth about a run, one strict JSON object per line."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from linnaeus_jax.files import write_atomically


class MetricsLogError(Exception):
    """The metrics log cannot be written; training must not go on without it."""


def strict(value: Any) -> Any:
    """`value` as strict JSON types: non-finite numbers become the strings NaN, Infinity, -Infinity."""
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    if isinstance(value, (bool, str)) or value is None:
        return value
    if isinstance(value, int):
        return value
    number = float(value)
    if math.isnan(number):
        return "NaN"
    return number if math.isfinite(number) else ("Infinity" if number > 0 else "-Infinity")


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
            with self.path.open("a") as file:
                file.write(line + "\n")
        except OSError as error:
            raise MetricsLogError(
                f"cannot write {self.path}: {error}; free space or choose another --workdir"
            ) from error

    def supersede(self, step: int, boundary_events: frozenset[str]) -> int:
        """Moves rows that a resumed run will write again to `*.superseded.jsonl`; returns how many.

        These are the rows beyond the restored `step`, rows at `step` of one of `boundary_events`, and a last line
        cut off by the kill.
        """
        if not self.path.exists():
            return 0
        kept: list[str] = []
        moved: list[str] = []
        for line in self.path.read_text().splitlines():
            try:
                row = json.loads(line)
                again = row["global_step"] > step or (row["global_step"] == step and row["event"] in boundary_events)
            except (json.JSONDecodeError, KeyError, TypeError):
                again = True
            (moved if again else kept).append(line)
        if moved:
            with self.path.with_suffix(".superseded.jsonl").open("a") as file:
                file.writelines(line + "\n" for line in moved)
            write_atomically(self.path, "".join(line + "\n" for line in kept))
        return len(moved)

    def applied_rates(self) -> dict[str, tuple[list[int], list[float]]]:
        """Learning rates that the updates really used: group -> (0-based updates, rates)."""
        found: dict[str, tuple[list[int], list[float]]] = {}
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            row = json.loads(line)
            for name, value in row.items():
                if name.startswith("train/lr/") and isinstance(value, float):
                    updates, rates = found.setdefault(name.removeprefix("train/lr/"), ([], []))
                    updates.append(row["global_step"] - 1)
                    rates.append(value)
        return found
