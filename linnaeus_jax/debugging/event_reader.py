"""Reading debug event logs: line by line, so that memory does not grow with the length of a log. No jax, no device."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from math import inf, nan
from pathlib import Path
from typing import Any

#: longest line of a log, bytes or characters; a longer one is no event
LONGEST_LINE = 1 << 20
_NON_FINITE = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}


def log_files(paths: Iterable[Path]) -> list[Path]:
    """The log files behind files and directories, in the order of their timestamps.

    Raises:
      FileNotFoundError: a file, or any log in a directory, is missing.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; debug logs lie in <run directory>/logs/debug")
        inside = logs_in(path) if path.is_dir() else [path]
        if not inside:
            raise FileNotFoundError(f"{path} holds no debug_log_*.jsonl; is it the run's debug.jsonl.dir?")
        files += inside
    return list(dict.fromkeys(files))


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
