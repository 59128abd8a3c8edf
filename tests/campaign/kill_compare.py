"""Whether a run that was killed holds what one holds that never was; its sinks, what its metrics log does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from tests.reporting.wandb_file import history_row, item_name, records
from tests.run.test_kill import assert_same_end
from tests.run.test_trainer import comparable, rows_of

Rows = dict[int, dict[str, Any]]


def assert_same(killed: Path, whole: Path) -> None:
    """AssertionError where two finished runs differ in more than times."""
    assert_same_end(killed, whole)
    assert files_of(killed) == files_of(whole)
    for run in (killed, whole):
        history, tables, summary = wandb_of(run)
        assert_rows(history, logged_rows(run, without={"step", "final"}), "W&B")
        logged = {step: numbers(row) for step, row in logged_rows(run, without={"step"}).items()}
        assert_rows(tensorboard_of(run), logged, "TensorBoard")
        assert (tables, summary) == wandb_of(whole)[1:], "tables or summary of W&B"


def assert_rows(found: Rows, expected: Rows, name: str) -> None:
    """AssertionError with the first step that differs."""
    assert found.keys() == expected.keys(), f"{name}: steps {sorted(found.keys() ^ expected.keys())} are of one alone"
    for step, row in expected.items():
        differ = {k: (found[step].get(k), row.get(k)) for k in found[step].keys() | row.keys()}
        differ = {k: pair for k, pair in differ.items() if pair[0] != pair[1]}
        assert not differ, f"{name}, step {step}: {dict(list(differ.items())[:5])}"


def logged_rows(run: Path, without: set[str]) -> Rows:
    """What the metrics log holds, but for some events, without times."""
    found: Rows = {}
    for row in comparable(rows_of(run)):
        event = row.pop("event")
        if event not in without:
            found.setdefault(row["global_step"], {}).update(row)
    return found


def wandb_of(run: Path) -> tuple[Rows, set[str], dict[str, Any]]:
    """Rows without times, names of tables and the best values that the files of W&B hold together."""
    (run_id,) = (run / "run_id.txt").read_text().split()
    rows: Rows = {}
    tables: set[str] = set()
    summary: dict[str, Any] = {}
    files = sorted((run / "logs" / "wandb").glob("*run-*/*.wandb"))
    assert {path.stem for path in files} == {f"run-{run_id}"}
    for record in (record for path in files for record in records(path)):
        if record.HasField("history"):
            row = history_row(record)
            step = row["_step"]
            assert step not in rows, f"W&B: step {step} is there twice"
            tables |= {name.split("/")[1] for name in row if name.startswith("classes/")}
            own = {name: value for name, value in row.items() if not name.startswith(("_", "classes/"))}
            (rows[step],) = comparable([own])
        elif record.HasField("summary"):
            summary |= {item_name(item): json.loads(item.value_json) for item in record.summary.update}
    (best,) = comparable([{name: value for name, value in summary.items() if name.startswith("final_")}])
    return rows, tables, best


def tensorboard_of(run: Path) -> Rows:
    """Numbers in the event files, without times."""
    rows: Rows = {}
    for path in sorted((run / "logs" / "tensorboard").glob("*tfevents*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    row = rows.setdefault(event.step, {"global_step": event.step})
                    assert value.tag not in row, f"TensorBoard: {value.tag} of step {event.step} is there twice"
                    row[value.tag] = value.simple_value
    return {step: comparable([row])[0] for step, row in rows.items()}


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """The numbers of a row as TensorBoard keeps them, in float32."""
    return {
        name: value if name == "global_step" else float(np.float32(value))
        for name, value in row.items()
        if isinstance(value, (int, float))
    }


def files_of(run: Path) -> set[str]:
    """The files of a run but those whose names hold numbers drawn anew, or that only a killed run has."""
    names = (path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file())
    drawn = ("logs/wandb/", "logs/tensorboard/", "logs/debug/", "checkpoints/")
    return {name for name in names if not name.startswith(drawn) and not name.endswith(".superseded.jsonl")}
