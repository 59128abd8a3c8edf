"""Event logs of real runs in which something is wrong, and what the analyser says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import complete_open_nodes
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.run import experiment, trainer
from linnaeus_jax.run.trainer import run
from linnaeus_jax.step import compilation
from linnaeus_jax.tools import analyze_debug_logs
from tests.compiling import LIKE_USERS
from tests.run.test_kill import final_parameters
from tests.step import toy
from tests.tiny import tiny_config

pytestmark = pytest.mark.slow

#: enough updates of the tiny data for one measurement of the parameters
EPOCHS = 9


def events(root: Path, event_type: str) -> list[dict[str, Any]]:
    (path,) = (root / "logs" / "debug").glob("debug_log_*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["data"] for row in rows if row["event_type"] == event_type]


def diagnosis(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, set[str]]:
    """What the analyser prints, and the signs of the summary that the run wrote."""
    (summary,) = (root / "logs" / "debug").glob("debug_summary_*.json")
    signs = {finding["sign"] for finding in json.loads(summary.read_text())["findings"]}
    capsys.readouterr()
    assert analyze_debug_logs.main([str(root / "logs" / "debug"), "--strict"]) == 2
    return capsys.readouterr().out, signs


def freeze(config: ConfigDict) -> None:
    everything = {"type": "name", "patterns": ("",), "match_type": "contains"}
    with config.unlocked():
        config.optimizer.parameter_groups.enabled = True
        config.optimizer.parameter_groups.everything = ConfigDict({"filter": everything, "frozen": True})
    complete_open_nodes(config)


def test_frozen_parameters(tmp_path, one_device, capsys):
    config = tiny_config(tmp_path / "data", train__epochs=EPOCHS)
    freeze(config)
    run(config, tmp_path / "run")
    text, signs = diagnosis(tmp_path / "run", capsys)
    (start,) = events(tmp_path / "run", "fit_start")
    assert (start["trainable_params"], start["frozen_params"]) == (0, start["total_params"])
    (moved,) = events(tmp_path / "run", "param_updates")
    assert moved["no_updates"] is True
    assert moved["num_params_updated"] == 0
    assert moved["num_params_total"] > 100
    assert "no_updates" in signs
    assert "NO parameter updates" in text
    assert "frozen" in text
    steps = [step["loss"] for step in events(tmp_path / "run", "training_step")]
    assert np.ptp(steps) < 1.0


def test_learning_rate_zero(tmp_path, capsys, monkeypatch):
    toy.register(monkeypatch)
    config = tiny_config(tmp_path / "data", model__type="toy", train__epochs=EPOCHS, lr_scheduler__base_lr=0.0)
    run(config, tmp_path / "run")
    text, signs = diagnosis(tmp_path / "run", capsys)
    (moved,) = events(tmp_path / "run", "param_updates")
    assert moved["no_updates"] is True
    assert all(norm["total_norm"] > 1e-3 for norm in events(tmp_path / "run", "gradient_stats"))
    assert {step["learning_rate"] for step in events(tmp_path / "run", "training_step")[1:]} == {0.0}
    assert "no_updates" in signs
    assert "learning rate" in text


def test_label_out_of_range(tmp_path, capsys, monkeypatch):
    """As if the labels had been numbered for another list of classes."""

    def numbered(*args: Any, **kwargs: Any) -> Any:
        built = original(*args, **kwargs)
        split = built.inputs.dataset.train
        split.table.label[split.rows[3], 0] = 11  # there are 9 classes
        return built

    original = trainer.build_experiment
    monkeypatch.setattr(trainer, "build_experiment", numbered)
    toy.register(monkeypatch)
    run(tiny_config(tmp_path / "data", model__type="toy", train__epochs=1), tmp_path / "run")
    (check,) = events(tmp_path / "run", "data_sanity_check")
    assert (check["label_max"], check["expected_max"], check["labels_valid"]) == (11, 8, False)
    assert check["tasks"]["taxa_L20"]["labels_valid"] is True
    text, signs = diagnosis(tmp_path / "run", capsys)
    assert "labels_out_of_range" in signs
    assert "taxa_L10" in text


FORMS = {
    "plain": {"debug__jsonl__enabled": False},
    "event log": {},
    "detector": {"debug__jsonl__enabled": False, "debug__underflow_overflow__enabled": True},
    "gradients": {
        "debug__jsonl__enabled": False,
        "debug__underflow_overflow__enabled": True,
        "debug__underflow_overflow__gradients": True,
    },
}


@pytest.mark.parametrize(("model", "forms"), [("toy", tuple(FORMS)), ("mFormerV1", ("plain", "gradients"))])
def test_watching_changes_nothing_that_is_learned(tmp_path, monkeypatch, one_device, model, forms):
    """Twelve updates with the event log are those without it to the last bit; under the detector they are close.

    The frames of `gradients` are those of `detector`, and more.
    """
    toy.register(monkeypatch)
    monkeypatch.setattr(compilation, "compiler_options", lambda training: LIKE_USERS)
    found = {}
    for name in forms:
        run(tiny_config(tmp_path / "data", model__type=model, train__epochs=2, **FORMS[name]), tmp_path / name)
        found[name] = final_parameters(tmp_path / name)
    before = experiment.preview_experiment(
        tiny_config(tmp_path / "data", model__type=model), RunDirectory(tmp_path)
    ).initial_state()
    leaves = jax.tree_util.tree_leaves_with_path({"params": before.params})
    start = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}

    def distance(left: dict[str, Any], right: dict[str, Any]) -> float:
        return float(np.sqrt(sum(np.sum(np.square(np.float64(left[name]) - right[name])) for name in left)))

    way = distance(found["plain"], start)
    assert way > 0.1
    if model == "toy":
        assert distance(found["event log"], found["plain"]) == 0.0
        assert distance(found["detector"], found["plain"]) <= 1e-5 * way
        assert distance(found["gradients"], found["plain"]) <= 1e-5 * way
        return
    # A constant added to everything that a LayerNorm reads has no gradient but rounding errors, which Adam turns into
    # steps of full length: this one number is noise in any run.
    noise = "['params']['aggregate']['bias']"
    compared = {name: leaf for name, leaf in found["gradients"].items() if name != noise}
    assert distance(compared, found["plain"]) <= 2e-5 * way
