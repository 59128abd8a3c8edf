from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.config.typed import typed
from linnaeus_jax.reporting.alerts import WAIT_SHARE, Watch
from linnaeus_jax.reporting.class_tables import Table
from linnaeus_jax.reporting.metrics_log import MetricsLog, MetricsLogError
from linnaeus_jax.reporting.sinks import Sinks, open_sinks


class Memory:
    """A sink that remembers, and fails from its `fail_after`th row on."""

    name = "memory"

    def __init__(self, fail_after: int = 10**9) -> None:
        self.rows: list[tuple[str, int, int, dict[str, Any]]] = []
        self.alerts: list[tuple[str, str]] = []
        self.closed: list[int] = []
        self.given: dict[str, Any] = {}
        self.fail_after = fail_after
        self.rows_replayed = 0

    def write(self, event: str, step: int, epoch: int, values: Any, *, timestamp: float | None = None) -> None:
        if len(self.rows) >= self.fail_after:
            raise ConnectionError("the server is gone")
        self.rows.append((event, step, epoch, dict(values)))

    def replayed(self) -> None:
        self.rows_replayed = len(self.rows)

    def tables(self, tables: Any) -> None:
        self.given |= tables

    def alert(self, title: str, text: str) -> None:
        self.alerts.append((title, text))

    def close(self, exit_code: int = 0) -> None:
        self.closed.append(exit_code)


@pytest.fixture
def caught(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.LogCaptureFixture]:
    """Log records, wherever an earlier test has pointed the logger."""
    monkeypatch.setattr(logging.getLogger("linnaeus_jax"), "propagate", True)
    with caplog.at_level(logging.INFO, "linnaeus_jax"):
        yield caplog


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_sink_gets_every_row(tmp_path: Path) -> None:
    first, second = Memory(), Memory()
    sinks = Sinks(MetricsLog(tmp_path / "log.jsonl"), [first, second])
    sinks.write("train", 5, 0, {"train/loss": 1.5})
    sinks.write("step", 6, 0, {"train/loss": 1.4})
    sinks.write("epoch", 10, 0, {"val_mask_TEMPORAL/loss": float("nan")})
    assert [row["global_step"] for row in rows_of(tmp_path / "log.jsonl")] == [5, 6, 10]
    assert [row[1] for row in first.rows] == [row[1] for row in second.rows] == [5, 10]
    sinks.tables({"worst": Table(("class",), [["a"]])})
    assert first.given == second.given == {"worst": Table(("class",), [["a"]])}
    sinks.close()
    sinks.close()
    assert first.closed == [0]


def test_a_failing_sink_is_dropped_with_one_warning(tmp_path: Path, caught: pytest.LogCaptureFixture) -> None:
    good, bad = Memory(), Memory(fail_after=1)
    sinks = Sinks(MetricsLog(tmp_path / "log.jsonl"), [bad, good])
    for step in range(4):
        sinks.write("train", step, 0, {"train/loss": 1.0})
    sinks.close(exit_code=1)
    assert len(rows_of(tmp_path / "log.jsonl")) == len(good.rows) == 4
    assert len(bad.rows) == 1
    assert bad.closed == []
    assert good.closed == [1]
    (record,) = caught.records
    for part in ("memory is off", "the server is gone", "linnaeus debug replay-metrics"):
        assert part in record.getMessage()


def test_the_metrics_log_is_mandatory(tmp_path: Path) -> None:
    sink = Memory()
    with pytest.raises(MetricsLogError):
        Sinks(MetricsLog(tmp_path / "missing" / "log.jsonl"), [sink]).write("train", 1, 0, {})
    assert not sink.rows


def test_other_processes_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sinks = Sinks()
    sinks.write("train", 1, 0, {"early_stop/reason": "patience"})
    sinks.alert("a", "b")
    sinks.close()
    assert list(tmp_path.iterdir()) == []


def test_alerts_are_found_in_the_rows(tmp_path: Path, caught: pytest.LogCaptureFixture) -> None:
    sink = Memory()
    sinks = Sinks(MetricsLog(tmp_path / "log.jsonl"), [sink])
    for step, skipped in enumerate((0, 0, 2, 3, 3, 4)):
        sinks.write("train", step, 0, {"train/skipped_updates": skipped})
    assert [title for title, _ in sink.alerts] == ["Non-finite updates"] * 2
    sinks.write("epoch", 9, 0, {"early_stop/reason": "no improvement"})
    assert sink.alerts[-1] == ("Early stop", "training ends after 9 updates: no improvement")
    assert len(caught.records) == 3


def test_starvation_needs_several_rows_and_is_armed_again() -> None:
    watch = Watch()  # of everything but losses, see `test_verdicts`
    shares = (0.9, 0.1, 0.9, 0.9, 0.9, 0.9, 0.4, 0.9, 0.9, 0.9, 0.1, 0.6, 0.6, 0.6)
    fired = [bool(watch.findings(step, {WAIT_SHARE: share})) for step, share in enumerate(shares)]
    assert [step for step, hit in enumerate(fired) if hit] == [4, 13]


def test_missing_tensorboard_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name in [name for name in sys.modules if name.startswith("tensorboard.")]:
        monkeypatch.delitem(sys.modules, name)
    experiment = typed(get_config()).experiment.replaced({"tensorboard.enabled": True})
    with pytest.raises(ConfigError, match=r"experiment.tensorboard.enabled.*linnaeus-jax\[profile\]"):
        open_sinks(Sinks(), MetricsLog(tmp_path / "log.jsonl"), experiment, config={}, facts={}, run_id="x")


def test_a_sink_gets_the_rows_of_earlier_starts(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "log.jsonl")
    log.write("train", 5, 0, {"train/loss": 1.0})
    log.write("step", 5, 0, {"train/skipped_updates": 0})  # of the metrics log alone
    log.write("epoch", 5, 0, {"val/loss": float("inf")})
    log.write("final", 5, 0, {"final_val_loss": 1.0})  # comes again with the end of the run
    sink, sinks = Memory(), Sinks(log)
    sinks.open("memory", lambda: sink)
    assert sinks.optional == [sink]
    assert sink.rows == [("train", 5, 0, {"train/loss": 1.0}), ("epoch", 5, 0, {"val/loss": float("inf")})]
    assert sink.rows_replayed == 2
    # a restart that does the end of an epoch again
    assert log.supersede(5, frozenset({"epoch", "final"})) == 2
    assert [row.event for row in log.rows()] == ["train", "step"]


class Refusing(Memory):
    """Cannot be closed."""

    def close(self, exit_code: int = 0) -> None:
        raise OSError("no space")


@pytest.mark.parametrize("broken", [None, Memory(fail_after=0), Memory(fail_after=2)], ids=["start", "row", "later"])
def test_a_sink_that_works_again_has_every_row(
    tmp_path: Path, caught: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, broken: Memory | None
) -> None:
    made: list[Memory] = []

    def make() -> Memory:
        made.append(broken if broken is not None and not made else Memory())
        if broken is None and len(made) < 3:
            raise ConnectionError("no server")
        return made[-1]

    monkeypatch.setattr("linnaeus_jax.reporting.sinks.RETRY_SECONDS", 0.0)
    sinks = Sinks(MetricsLog(tmp_path / "log.jsonl"))
    sinks.open("memory", make)
    events = [("train", 1), ("train", 2), ("epoch", 2), ("train", 3), ("epoch", 3), ("final", 3)]
    for event, step in events:
        sinks.write(event, step, 0, {"loss": float(step)})
    assert [row[:2] for row in made[-1].rows] == events
    assert caught.records[-1].getMessage() == "memory works again and holds every row"


def test_a_server_that_is_away_is_asked_ever_more_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MetricsLog(tmp_path / "log.jsonl")
    asked: list[int] = []
    now = [0.0]
    monkeypatch.setattr("linnaeus_jax.reporting.sinks.time", SimpleNamespace(monotonic=lambda: now[0]))

    def make() -> Memory:
        asked.append(len(log.rows()))
        raise ConnectionError("no server")

    sinks = Sinks(log)
    sinks.open("memory", make)
    for step, now[0] in enumerate((0.0, 299.0, 301.0, 899.0, 902.0)):
        sinks.write("epoch", step, 0, {})
    assert asked == [0, 2, 4]
    sinks.write("final", 4, 0, {})  # the last opportunity
    assert asked == [0, 2, 4, 5]


def test_a_sink_that_cannot_be_closed_does_not_harm(tmp_path: Path, caught: pytest.LogCaptureFixture) -> None:
    good = Memory()
    Sinks(MetricsLog(tmp_path / "log.jsonl"), [Refusing(), good]).close()
    assert good.closed == [0]
    assert "close failed: no space" in caught.text
