"""One run of the campaign of kills."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorboard", reason="the extra `profile` is not installed")

from tests.campaign import kills


@pytest.mark.slow
def test_a_run_that_is_killed_holds_what_one_holds_that_never_was(tmp_path: Path) -> None:
    chosen = [kills.Kill("save", 1, 0.05, all=True), kills.Kill("row", 6, 0.0, all=False)]
    (tmp_path / "case").mkdir()
    outcome = kills.killed_run("toy", chosen, tmp_path / "made", tmp_path / "case")
    assert outcome.good, outcome.detail
    assert outcome.what == "as never killed, after 2 kills"
