"""What W&B has written offline."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from linnaeus_jax.reporting.wandb_file import history_row, item_name, records


def wait_for_end(path: Path) -> list[Any]:
    """Every record of a run that is finished; another process writes them."""
    written: list[Any] = []
    deadline = time.monotonic() + 30
    while not written or written[-1].WhichOneof("record_type") != "exit":
        assert time.monotonic() < deadline, f"{path} has no end"
        time.sleep(0.05)
        written = list(records(path))
    return written


def contents(directory: Path) -> dict[str, Any]:
    """History rows, summary, config, alerts, run and exit code of the only offline run below `directory`."""
    (path,) = directory.glob("wandb/offline-run-*/*.wandb")
    written = wait_for_end(path)
    found: dict[str, Any] = {
        "history": [],
        "summary": {},
        "config": {},
        "alerts": [],
        "metrics": [],
        "visible": [],
        "exit": None,
    }
    for record in written:
        kind = record.WhichOneof("record_type")
        if kind == "history":
            found["history"].append(history_row(record))
        elif kind == "summary":
            found["summary"] |= {item_name(item): json.loads(item.value_json) for item in record.summary.update}
        elif kind == "run":
            found["run"] = record.run
            found["config"] |= {item_name(item): json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "alert":
            found["alerts"].append((record.alert.title, record.alert.text))
        elif kind == "metric":
            found["metrics"].append((record.metric.name or record.metric.glob_name, record.metric.step_metric))
            if not record.metric.options.hidden:
                found["visible"].append(found["metrics"][-1][0])
        elif kind == "exit":
            found["exit"] = record.exit.exit_code
    return found
