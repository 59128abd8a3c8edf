"""What a run directory holds about its run, for reports and for sending it to a sink again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus_jax.files import DamagedFileError, RunDirectory, read_json
from linnaeus_jax.metrics.table import MetricInfo
from linnaeus_jax.reporting.metrics_log import Row, RunError, read_rows

#: name -> fields of `MetricInfo`, of the metrics that plugins registered
PLUGIN_METRICS_FILE = "assets/plugin_metrics.json"


@dataclass(frozen=True)
class RunRecord:
    """What a run directory holds about its run, all of it optional but the rows."""

    root: Path  # the run directory
    rows: tuple[Row, ...]  # of the metrics log, in the order written
    read: list[str] = field(default_factory=list, compare=False)  # JSON files, since `files_fit` began

    @classmethod
    def load(cls, root: Path) -> RunRecord:
        """Reads the metrics log of a run.

        Raises:
          RunError: there is none, a row is damaged, or it has no row.
          DamagedFileError: it is not what was written.
        """
        directory = RunDirectory(Path(root))
        directory.check(directory.metrics_log)
        rows = read_rows(directory.metrics_log)
        if not rows:
            raise RunError(f"{root}/logs/metrics_log.jsonl has no row yet; wait for the first log point of the run")
        return cls(Path(root), tuple(rows))

    def json(self, name: str) -> Any:
        """The JSON object in a file below the run directory; None where it does not exist.

        Raises:
          DamagedFileError: the file holds something else, or is not what was written.
          OSError: it cannot be read.
        """
        path = self.root / name
        self.read.append(name)
        RunDirectory(self.root).check(path)
        return read_json(path) if path.exists() else None

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration; empty where it is not there, as the next ones."""
        return self.json("config.json") or {}

    @cached_property
    def schedule(self) -> dict[str, Any]:
        """The resolved schedule and its warnings."""
        return self.json("assets/schedule_summary.json") or {}

    @cached_property
    def plugin_metrics(self) -> dict[str, MetricInfo]:
        """What metrics of plugins are, by name."""
        return {name: MetricInfo(**fields) for name, fields in (self.json(PLUGIN_METRICS_FILE) or {}).items()}

    @cached_property
    def names(self) -> dict[str, None]:
        """Every metric name that occurs, in order of first occurrence."""
        return dict.fromkeys(name for row in self.rows for name in row.values)

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps int64 [N] and values float64 [N] of a numeric metric."""
        points = [(row.step, row.values[name]) for row in self.rows if isinstance(row.values.get(name), (int, float))]
        steps, values = zip(*points) if points else ((), ())
        return np.asarray(steps, np.int64), np.asarray(values, np.float64)

    def applied_rates(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Learning rates that the updates really used: group -> (0-based steps, rates)."""
        names = [name for name in self.names if name.startswith("train/lr/")]
        points = {name.removeprefix("train/lr/"): self.series(name) for name in names}
        return {group: (completed - 1, rates) for group, (completed, rates) in points.items()}

    def last(self, name: str) -> float | None:
        """The newest value of a numeric metric; None where there is none."""
        values = self.series(name)[1]
        return float(values[-1]) if len(values) else None


@contextlib.contextmanager
def files_fit(runs: Iterable[RunRecord], what: str) -> Iterator[None]:
    """Within it, what the content of a run's JSON files raises becomes a `RunError` that names them.

    Args:
      what: is made of them, for the message.
    """
    runs = list(runs)
    for run in runs:
        run.read.clear()
    try:
        yield
    except DamagedFileError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        kept = ("config.json", "assets/schedule_summary.json")  # cached: read for an earlier part
        names = dict.fromkeys(str(run.root / name) for run in runs for name in run.read or kept)
        raise RunError(
            f"{what}: one of {', '.join(names)} does not hold what a run writes there "
            f"({type(error).__name__}: {error}); restore it from a copy, or remove it"
        ) from error
