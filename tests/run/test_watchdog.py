"""Stalls are noticed once each, with who waits for what; a run says them in its log, its sinks and its report."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from linnaeus_jax.files import RunDirectory
from linnaeus_jax.reporting.metrics_log import MetricsLog
from linnaeus_jax.reporting.report import warnings
from linnaeus_jax.reporting.run_record import RunRecord
from linnaeus_jax.reporting.sinks import Sinks
from linnaeus_jax.run.stalls import Stalls
from linnaeus_jax.run.watchdog import Watchdog


def until(condition: Callable[[], object]) -> None:
    """Waits, at most a minute."""
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def a_read_that_hangs(free: threading.Event) -> None:
    free.wait(60)


def is_busy() -> None:
    time.sleep(0.5)


def test_each_stall_is_told_once_and_its_end():
    told: list[tuple[str, float, str, str]] = []
    ended: list[tuple[str, float]] = []
    free = threading.Event()
    reading = threading.Thread(target=a_read_that_hangs, args=(free,), name="reader")
    reading.start()
    with Watchdog(0.05, lambda *stall: told.append(stall), lambda *end: ended.append(end)) as watchdog:
        until(lambda: told)
        time.sleep(0.2)
        assert len(told) == 1
        watchdog.finished("update 1")
        until(lambda: len(told) == 2)
    free.set()
    reading.join()
    (before, seconds, waiting, stacks), (after, *_) = told
    assert (before, after) == ("nothing yet", "update 1")
    assert seconds > 0.05
    assert waiting.startswith("MainThread is in until (run/test_watchdog.py:")
    assert "a_read_that_hangs" in stacks
    assert ended[0][0] == "nothing yet"


def test_threads_of_the_package_that_are_busy_are_named(monkeypatch):
    monkeypatch.setattr("linnaeus_jax.run.watchdog._PACKAGE", str(Path(__file__).parent))
    told: list[str] = []
    reading = threading.Thread(target=time.sleep, args=(0.5,), name="outside")
    busy = threading.Thread(target=is_busy, name="busy")
    for thread in (reading, busy):
        thread.start()
    with Watchdog(0.05, lambda _, __, waiting, ___: told.append(waiting)):
        until(lambda: told)
    for thread in (reading, busy):
        thread.join()
    assert "; busy is in" in told[0]
    assert "outside is in" not in told[0]


@pytest.mark.parametrize("seconds", [0.0, float("inf")])
def test_nothing_is_watched_where_it_is_off(tmp_path, seconds):
    with Stalls(RunDirectory(tmp_path), seconds, Sinks()).watchdog as watchdog:
        assert list(watchdog.each([1, 2], "an item")) == [1, 2]
        assert "watchdog" not in [thread.name for thread in threading.enumerate()]


def test_what_finishes_in_time_is_no_stall():
    told: list[str] = []
    with Watchdog(5, lambda what, *_: told.append(what)) as watchdog:
        for _ in watchdog.each(range(3), "an item"):
            time.sleep(0.01)
    assert not told


def test_a_failure_to_tell_ends_nothing(capsys):
    def fails(*_: object) -> None:
        raise OSError("no space")

    with Watchdog(0.05, fails) as watchdog:
        time.sleep(0.3)
        assert watchdog._thread.is_alive()
    assert "telling failed: no space" in capsys.readouterr().err


def test_a_stall_stands_in_log_and_report(tmp_path, caplog):
    directory = RunDirectory(tmp_path)
    directory.create()
    metrics_log = MetricsLog(directory.metrics_log)
    metrics_log.write("train", 1, 0, {"train/loss": 1.0})
    stalls = Stalls(directory, 0.05, Sinks(metrics_log))
    caplog.set_level("DEBUG", "linnaeus_jax")
    with stalls.watchdog:
        until((tmp_path / "logs" / "stalls.jsonl").exists)
    row = json.loads((tmp_path / "logs" / "stalls.jsonl").read_text())
    assert row["last"] == "nothing yet"
    assert "MainThread is in" in row["waiting"]
    assert any("stalled 1 times" in text for text in warnings(RunRecord.load(tmp_path)))
