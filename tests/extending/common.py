"""Trains three updates with a plugin, resumes, trains three more and evaluates: the way of every example here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ml_collections import ConfigDict

from linnaeus_jax.config import load_config
from linnaeus_jax.config.defaults import complete_open_nodes
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.config.tree import assign
from linnaeus_jax.run import trainer
from linnaeus_jax.tools import evaluate
from tests.conftest import use_one_device
from tests.step import toy
from tests.tiny import tiny_config

EXAMPLES = Path(__file__).parent


def config_with(example: str, *options: str) -> ConfigDict:
    """The quickstart with an example of this folder; `options` are keys with values, as on the command line."""
    given = (f"env.plugins=('{EXAMPLES / example}',)", *options)
    quickstart = EXAMPLES.parents[1] / "configs" / "quickstart.py"
    return load_config([f"--config={quickstart}", *(f"--config.{option}" for option in given)])[0]


class Outcome(NamedTuple):
    config: ConfigDict
    run: Path
    rows: list[dict[str, Any]]  # of metrics_log.jsonl
    evaluated: dict[str, dict[str, float]]  # phase -> metrics, as tools.evaluate prints them


def train_resume_evaluate(
    directory: Path,
    plugin: str | tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    **overrides: Any,
) -> Outcome:
    """Runs with the examples `plugin` (file names of this folder); overrides are keys with __ for dots."""
    plugins = [str(EXAMPLES / name) for name in ((plugin,) if isinstance(plugin, str) else plugin)]
    toy.register(monkeypatch)
    use_one_device(monkeypatch)
    start = {"model__type": "toy", "train__epochs": 1, "data__batch_size": 32}
    config = tiny_config(directory / "data", env__plugins=tuple(plugins), aug__hflip_prob=0.0)
    import_plugins(config)
    complete_open_nodes(config)
    for key, value in (start | overrides).items():
        assign(config, tuple(key.split("__")), value)
    run = directory / "run"
    trainer.run(config, run)
    first = json.loads((run / "progress.json").read_text())
    assert first["global_step"] == 3
    config.train.epochs = 2
    trainer.run(config, run)
    assert json.loads((run / "progress.json").read_text())["global_step"] == 6
    rows = [json.loads(line) for line in (run / "logs" / "metrics_log.jsonl").read_text().splitlines()]
    saved = json.loads((run / "config.json").read_text())
    assert saved["env"]["plugins"] == plugins
    capsys.readouterr()
    assert evaluate.main([str(run), "--checkpoint=newest", "--json"]) == 0
    return Outcome(config, run, rows, json.loads(capsys.readouterr().out)["phases"])
