"""Where the time of profiled updates goes, read from the traces of `profiler` without TensorBoard.

Times of operations are self times, without the operations inside them.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from linnaeus_jax.debugging.profiler import STEP_NAME, WAIT_NAME
from linnaeus_jax.files import DamagedFileError

Span = tuple[float, float]  # start and end, nanoseconds


@dataclass
class Trace:
    """What matters of one trace: of each device the operations, of the host the steps and the waits."""

    operations: dict[str, list[tuple[str, float, float]]] = field(
        default_factory=lambda: collections.defaultdict(list)
    )  # "device/line" -> (name, start, end)
    steps: list[tuple[int, float, float]] = field(default_factory=list)  # (step_num, start, end)
    waits: list[Span] = field(default_factory=list)


def find_traces(path: Path) -> list[Path]:
    """The `*.xplane.pb` files below a directory, or the file itself.

    Raises:
      FileNotFoundError: there are none.
    """
    traces = [path] if path.is_file() else sorted(path.rglob("*.xplane.pb"))
    if not traces:
        raise FileNotFoundError(f"{path} holds no *.xplane.pb; was debug.profiler.enabled on, and a cycle completed?")
    return traces


def read_trace(path: Path) -> Trace:
    """Reads one trace.

    On accelerators every operation of a device's "XLA Ops" line (or, without one, its streams) counts; on CPU, where
    operations run on threads of the host, the events that name an HLO operation.

    Raises:
      DamagedFileError: the file is no trace.
      OSError: it cannot be read.
    """
    trace = Trace()
    try:
        planes = list(jax.profiler.ProfileData.from_serialized_xspace(path.read_bytes()).planes)
    except RuntimeError as error:
        raise DamagedFileError(f"{path} is no trace of a profile ({error})") from error
    if not planes:
        raise DamagedFileError(f"{path} holds no trace; was the run killed while it wrote?")
    for plane in planes:
        if plane.name.startswith("/device:") and "CUSTOM" not in plane.name:
            lines = list(plane.lines)
            chosen = [line for line in lines if line.name == "XLA Ops"]
            chosen = chosen or [line for line in lines if line.name.startswith("Stream")]
            for index, line in enumerate(chosen):
                key = f"{plane.name.removeprefix('/device:')}/{index}"
                for event in line.events:
                    name = str(dict(event.stats).get("hlo_op") or event.name)
                    trace.operations[key].append((name, event.start_ns, event.start_ns + event.duration_ns))
        elif plane.name.startswith("/host:"):
            for index, line in enumerate(plane.lines):
                _read_host_line(trace, line.events, index)
    return trace


def _read_host_line(trace: Trace, events: Iterable[Any], index: int) -> None:
    for event in events:
        end = event.start_ns + event.duration_ns
        if event.name == WAIT_NAME:
            trace.waits.append((event.start_ns, end))
        elif event.name == STEP_NAME:
            trace.steps.append((int(dict(event.stats).get("step_num", -1)), event.start_ns, end))
        elif event.duration_ns > 0 and not event.name.startswith("end: "):
            stats = dict(event.stats)
            if "hlo_op" in stats:
                key = f"CPU:{stats.get('device_ordinal', 0)}/{index}"
                trace.operations[key].append((str(stats["hlo_op"]), event.start_ns, end))


def self_times(operations: Iterable[tuple[str, float, float]]) -> dict[str, tuple[float, int]]:
    """name -> (nanoseconds without nested operations, calls), of the operations of one line."""
    total: dict[str, float] = collections.defaultdict(float)
    calls: collections.Counter[str] = collections.Counter()
    stack: list[tuple[str, float]] = []  # enclosing operations: name, end
    for name, start, end in sorted(operations, key=lambda op: (op[1], -op[2])):
        while stack and stack[-1][1] <= start:
            stack.pop()
        if stack:
            total[stack[-1][0]] -= min(end, stack[-1][1]) - start
        total[name] += end - start
        calls[name] += 1
        stack.append((name, end))
    return {name: (value, calls[name]) for name, value in total.items()}


def covered(spans: Iterable[Span]) -> float:
    """Time that at least one of the spans covers."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def summarise(path: Path, top: int = 15) -> dict[str, Any]:
    """The summary of one trace as plain JSON types; all shares are fractions of the window.

    The window reaches from the first step, or the wait for its data, to the last operation.

    Returns:
      run, steps (their numbers), window_ms, ms_per_step; per device in `devices`: computing, waiting_for_input (idle
      while the host waited for data; None where no wait was marked) and other_idle, which add up to 1, and idle; and
      `operations`, the `top` largest: name, ms, calls, share of all operations' time.
    """
    trace = read_trace(path)
    every = [operation for operations in trace.operations.values() for operation in operations]
    starts = [start for _, start, _ in trace.steps] + [start for start, _ in trace.waits]
    begin = min(starts or [start for _, start, _ in every], default=0.0)
    end = max((stop for _, _, stop in [*trace.steps, *every]), default=0.0)
    window = end - begin
    waits = [(max(start, begin), min(stop, end)) for start, stop in trace.waits]
    busy: dict[str, list[Span]] = collections.defaultdict(list)
    times: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0])
    for key, operations in trace.operations.items():
        busy[key.rpartition("/")[0]] += [(max(start, begin), stop) for _, start, stop in operations if stop > begin]
        for name, (value, calls) in self_times(operations).items():
            times[name][0] += value
            times[name][1] += calls
    devices = {}
    for device, spans in sorted(busy.items()):
        computing = covered(spans) / window
        waiting = covered([*spans, *waits]) / window - computing if trace.waits else None
        devices[device] = {
            "computing": computing,
            "idle": 1.0 - computing,
            "waiting_for_input": waiting,
            "other_idle": 1.0 - computing - (waiting or 0.0),
        }
    spent = sum(value for value, _ in times.values())
    rows = sorted(times.items(), key=lambda item: -item[1][0])[:top]
    return {
        "run": path.parent.name,
        "file": str(path),
        "steps": sorted({step for step, _, _ in trace.steps}),
        "window_ms": window / 1e6,
        "ms_per_step": window / 1e6 / len(trace.steps) if trace.steps else None,
        "devices": devices,
        "operations": [
            {"name": name, "ms": value / 1e6, "calls": int(calls), "share": value / spent if spent else 0.0}
            for name, (value, calls) in rows
        ],
    }
