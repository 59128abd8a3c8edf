"""One run of the campaign of kills, and one that loses power, see `power.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaign import kills, power


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the run lies that nothing happens to."""
    return tmp_path_factory.mktemp("made")


@pytest.mark.slow
def test_a_run_that_is_killed_holds_what_one_holds_that_never_was(made: Path, tmp_path: Path) -> None:
    chosen = [kills.Kill("save", 1, 0.05, all=True), kills.Kill("row", 6, 0.0, all=False)]
    (tmp_path / "case").mkdir()
    outcome = kills.killed_run("toy", chosen, made, tmp_path / "case")
    assert outcome.good, outcome.detail
    assert outcome.what == "as never killed, after 2 kills"


@pytest.mark.slow
def test_a_run_that_loses_power_holds_what_one_holds_that_never_did(made: Path, tmp_path: Path) -> None:
    (tmp_path / "case").mkdir()
    outcome = power.failing_run("first", made, tmp_path / "case")
    assert outcome.good, outcome
