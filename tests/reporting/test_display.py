"""Tables of the console in a terminal of 80 columns."""

from __future__ import annotations

import io
import shlex
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from linnaeus_jax.reporting import display
from linnaeus_jax.reporting.display import Throughput, TrainingProgressBar, phase_tables
from linnaeus_jax.reporting.next_steps import next_steps
from tests.reporting.helpers import phase_values

SEVEN = tuple(f"taxa_L{level}" for level in (10, 20, 30, 40, 50, 60, 70))


def shown(results, tasks, width=80) -> list[str]:
    file = io.StringIO()
    console = Console(width=width, file=file)
    for part in phase_tables("last results", results, tasks, width):
        console.print(part)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_seven_ranks_and_many_phases_are_readable(width) -> None:
    phases = ["train", "val", "val_mask_meta", "val_mask_TEMPORAL", "val_mask_SPATIAL", "val_mask_TEMPORAL_SPATIAL"]
    values = phase_values(np.random.default_rng(0), 0.8, SEVEN)
    lines = shown(dict.fromkeys(phases, values), SEVEN, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for word in (
        "species %",
        "kingdom %",
        "loss, mean of ranks",
        "all known right %",
        "validation",
        "TEMPORAL_SPATIAL",
    ):
        assert word in text
    assert "taxa_L" not in text
    cells = [line.split("│")[1:-1] for line in lines if "species" in line]
    assert [len(found) - 1 for found in cells] == ([3, 3] if width == 80 else [5, 1])
    assert {cell.strip() for found in cells for cell in found[1:]} == {f"{values['non_null/acc1_taxa_L10']:.1f}"}


def test_what_was_not_measured_is_a_dash() -> None:
    lines = shown({"train": {"chain_accuracy": 0.5}, "odd": {"count": 3.0}}, ("taxa_L10", "colour"))
    assert "50.0" in "\n".join(lines)
    assert "odd" not in "\n".join(lines)
    (row,) = [line for line in lines if "colour %" in line]
    assert "–" in row
    assert shown({}, ("taxa_L10",)) == []


def test_the_bar_and_plain_lines_say_what_is_compiled_and_for_how_long(monkeypatch, caplog) -> None:
    file = io.StringIO()
    for terminal in (True, False):
        monkeypatch.setattr(display, "console", Console(width=150, file=file, force_terminal=terminal))
        monkeypatch.setattr(display, "PLAIN_EVERY", 0.05)
        bar = TrainingProgressBar(66, 0, shown=True)
        told = threading.Event()
        with caplog.at_level("INFO"), bar.compiling():
            told.wait(1.1 if terminal else 0.2)
            bar._progress.refresh()  # by itself it may come after this block
        if terminal:
            bar.accuracies = "species 29 %  all ranks 12 %  "
            bar.update(33, "epoch 2 [11/11]", Throughput())
            bar._progress.refresh()
            with bar.doing("end of epoch 2", 44):
                bar._progress.refresh()
        bar.close()
    text = file.getvalue()
    assert "compiling (1 s)" in text
    assert "XLA makes the program of an update" in text
    assert "species 29 %  all ranks 12 %" in text
    assert "whole run ?" in text
    assert "ETA" not in text, "that of the lines is of the epoch"
    assert "44/66" in text
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "compiling: XLA makes the program of an update; a second start finds it on disk"
    assert set(lines[1:]) == {"compiling (0 s)"}


def test_throughput_is_a_moving_average_from_the_first_measured_update(monkeypatch) -> None:
    moments = iter((0.0, 10.0, 12.0, 100.0))
    monkeypatch.setattr(display, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    speed, found = Throughput(), []
    for waited in (9.0, 20.0, 1.0):  # of the first one nothing is known; more than all of the time is all of it
        speed.update(32, waited)
        found.append((speed.seconds_per_update, speed.wait_share))
    speed.pause()
    speed.update(32, 0.0)
    assert found == [(0.0, 0.0), (10.0, 1.0), pytest.approx((9.2, 0.95))]
    assert speed.seconds_per_update == found[-1][0], "the pause does not count"
    assert speed.images_per_second == pytest.approx(32 / 9.2)


def test_next_steps_are_commands_with_the_paths_of_the_run() -> None:
    first, *commands = next_steps(Path("my runs/demo")).splitlines()
    assert first == "next:"
    assert [shlex.split(command, comments=True)[1:] for command in commands] == [
        ["bundle", "my runs/demo", "my runs/demo_bundle"],
        ["predict", "my runs/demo_bundle", "PICTURES"],
        ["serve", "my runs/demo_bundle"],
    ]
    assert "PICTURES: a folder of pictures" in commands[1]
    assert "linnaeus bundle . bundle " in next_steps(Path())
    _, made, _, predict, _ = next_steps(Path("run"), Path("photos"), "python -m make photos").splitlines()
    assert made.split("#")[0].split() == ["python", "-m", "make", "photos"]
    assert predict.split()[1:] == ["predict", "run_bundle", "photos"]
