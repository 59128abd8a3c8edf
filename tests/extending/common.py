"""Trains three updates with a plugin, resumes, trains three more and evaluates: the way of every example here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import complete_open_nodes
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.run import trainer
from linnaeus_jax.tools import evaluate
from tests.step import toy
from tests.tiny import tiny_config

EXAMPLES = Path(__file__).parent


class Outcome(NamedTuple):
    config: ConfigDict
    run: Path
    rows: list[dict[str, Any]]  # of metrics_log.jsonl
    evaluated: dict[str, dict[str, float]]  # phase -> metrics, as tools.evaluate prints them


def train_resume_evaluate(
    directory: Path, plugin: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **overrides: Any
) -> Outcome:
    """Runs with the example `plugin` (a file name of this folder); overrides are keys with __ for dots."""
    toy.register(monkeypatch)
    start = {"model__type": "toy", "train__epochs": 1, "data__batch_size": 32}
    config = tiny_config(directory / "data", env__plugins=(str(EXAMPLES / plugin),))
    import_plugins(config)
    complete_open_nodes(config)
    for key, value in (start | overrides).items():
        *path, leaf = key.split("__")
        node = config
        for part in path:
            node = node[part]
        node[leaf] = value
    run = directory / "run"
    trainer.run(config, run)
    first = json.loads((run / "progress.json").read_text())
    assert first["global_step"] == 3
    config.train.epochs = 2
    trainer.run(config, run)
    assert json.loads((run / "progress.json").read_text())["global_step"] == 6
    rows = [json.loads(line) for line in (run / "logs" / "metrics_log.jsonl").read_text().splitlines()]
    saved = json.loads((run / "config.json").read_text())
    assert saved["env"]["plugins"] == [str(EXAMPLES / plugin)]
    capsys.readouterr()
    assert evaluate.main([str(run), "--json"]) == 0
    return Outcome(config, run, rows, json.loads(capsys.readouterr().out)["phases"])
