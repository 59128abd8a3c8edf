"""What every benchmark shares: the machine, fair comparisons, a table and a JSON file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "h5py", "opencv-python-headless")


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine_info() -> dict[str, Any]:
    """CPU, usable cores, load, memory, versions, and the JAX devices where JAX is already imported."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    jax = sys.modules.get("jax")
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": round(os.getloadavg()[0], 1),  # other work on the machine spoils timings
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
        "devices": [device.device_kind for device in jax.devices()] if jax is not None else [],
    }


def write_results(
    name: str, rows: Sequence[Mapping[str, Any]], command: str, details: Mapping[str, Any] | None = None
) -> Path:
    """Prints `rows` as a table and writes them with machine and versions to `results/<name>.json`.

    Args:
      name: of the benchmark; the file's stem.
      rows: one mapping per line; columns are the union of their keys.
      command: what to type to measure again.
      details: further keys of the file, what the rows were computed from.

    Returns:
      Path of the JSON file.
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(title=name)
    for column in columns:
        table.add_column(column)
    for row in rows:
        cells = [row.get(column, "") for column in columns]
        table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells))
    Console(width=None if sys.stdout.isatty() else 240).print(table)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    report: dict[str, Any] = {
        "name": name,
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine_info(),
    }
    report |= {"rows": [dict(row) for row in rows], **(details or {})}
    path.write_text(json.dumps(report, indent=1) + "\n")
    return path


def add_names(parser: argparse.ArgumentParser, names: Collection[str]) -> None:
    """The positional arguments `names`: some of `names`, or none for all of them."""

    def known(name: str) -> str:
        if name not in names:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(names)}")
        return name

    parser.add_argument("names", nargs="*", type=known, default=tuple(names), help="what to measure (default: all)")


@dataclass(frozen=True)
class Ratios:
    """Times of f and g measured alternately; medians over the pairs, with the quartiles of the ratio."""

    f_seconds: float
    g_seconds: float
    ratio: float  # time of g over time of f: how many times faster f is
    ratio_low: float
    ratio_high: float
    control: float  # the same ratio for f against itself: its distance from 1 is the noise

    def row(self) -> dict[str, float]:
        """The numbers for a table, rounded to 4 digits."""
        return {key: float(f"{value:.4g}") for key, value in vars(self).items()}


def interleaved(f: Callable[[], object], g: Callable[[], object], pairs: int = 10) -> Ratios:
    """Compares two callables by alternating them, so that drifts of a shared machine hit both.

    Each round runs f, g and f again in rotating order; one round is run before and not counted. A callable that
    starts asynchronous work must wait for it.

    Args:
      f, g: what to time.
      pairs: rounds, at least 2.
    """

    def timed(run: Callable[[], object]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return compared(lambda: timed(f), lambda: timed(g), pairs)


def compared(f: Callable[[], float], g: Callable[[], float], pairs: int) -> Ratios:
    """`interleaved` for callables that return their own seconds."""
    if pairs < 2:
        raise ValueError(f"pairs is {pairs}; give at least 2 rounds")
    runs = (f, g, f)
    times: list[list[float]] = [[], [], []]
    for number in range(pairs + 1):
        for turn in range(3):
            which = (turn + number) % 3
            seconds = runs[which]()
            if number:
                times[which].append(seconds)
    first, other, again = times
    ratios = [b / a for a, b in zip(first, other, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    control = statistics.median(b / a for a, b in zip(first, again, strict=True))
    return Ratios(statistics.median(first), statistics.median(other), middle, low, high, control)


def as_read(config: Any) -> Any:
    """A configuration as the package reads it; that of an earlier commit reads the tree itself."""
    try:
        from linnaeus_jax.config.typed import typed
    except ModuleNotFoundError:
        return config
    return typed(config)
