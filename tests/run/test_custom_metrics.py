"""A plugin's metrics and subsets in a whole run: logged, early stop, ranking of checkpoints, and evaluated again."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from linnaeus_jax.config import ConfigError
from linnaeus_jax.metrics import custom
from linnaeus_jax.run import evaluate as evaluation_of_runs
from linnaeus_jax.run import trainer
from linnaeus_jax.tools import evaluate
from tests.plugins import forget_plugins
from tests.run.test_trainer import rows_of
from tests.step import toy
from tests.tiny import TASKS, tiny_config

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

PLUGIN = '''
from linnaeus_jax.metrics import register, register_subset

def doubt(inputs):
    best = inputs.probabilities["taxa_L10"].max(axis=1)
    return ((1 - best) * inputs.weight).sum(), inputs.weight.sum()

def known_places(inputs):
    """The same in every epoch; lower in phases that mask the place."""
    return (inputs.meta_valid[:, 1] * inputs.weight).sum(), inputs.weight.sum()

def rows_in_woods(inputs):
    return (inputs.row * (inputs.subsets["habitat"] == 1) * inputs.weight).sum(), inputs.weight.sum()

register("doubt", doubt, higher_is_better=False)
register("known_places", known_places)
register("rows_in_woods", rows_in_woods, phases=("val",))
register_subset("north", lambda split: split.meta[:, 4] > 0)
'''


def configured(directory: Path):
    config = tiny_config(directory, model__type="toy", env__plugins=(str(directory / "plugin.py"),), train__epochs=8)
    config.schedule.validation.interval_epochs = config.schedule.validation.mask_meta_interval_epochs = 1
    config.schedule.checkpoint.interval_epochs = 1
    config.schedule.checkpoint.keep_top_n, config.schedule.checkpoint.keep_last_n = 5, 5
    config.schedule.checkpoint.best_metric = "val_doubt"
    config.train.early_stop.active = True
    config.train.early_stop.metric = "val/known_places"
    config.train.early_stop.patience_steps = 12
    return config


def test_a_plugin_drives_a_run_and_its_evaluation(tmp_path, monkeypatch, capsys):
    forget_plugins()
    toy.register(monkeypatch)
    config = configured(tmp_path)
    (tmp_path / "plugin.py").write_text(PLUGIN)
    with h5py.File(tmp_path / "labels.h5", "r+") as file:
        file["subset_habitat"] = np.where(np.arange(120) % 3 == 0, "lake", "wood").astype(object)

    # ---- what is unknown is refused before anything is written
    for key, name, error in (
        ("doubts", "no known metric", ConfigError),
        ("subset/habitat/sea/acc1_taxa_L10", "there are .*habitat/lake, habitat/wood", trainer.UserError),
    ):
        wrong = config.copy_and_resolve_references()
        wrong.schedule.checkpoint.best_metric = f"val/{key}"
        with pytest.raises(error, match=name):
            trainer.run(wrong, tmp_path / "none")
        assert not (tmp_path / "none").exists()

    # ---- the run
    forget_plugins()
    final = trainer.run(config, tmp_path / "run")
    epochs = [row for row in rows_of(tmp_path / "run") if row["event"] == "epoch"]
    assert epochs[-1]["early_stop/reason"] == "patience"
    assert [row["global_step"] for row in epochs] == [6, 12, 18]  # of 48: best at 6, patience of 12
    last = epochs[-1]
    dataset = evaluation_of_runs.load(tmp_path / "run").dataset
    val = dataset.val
    assert last["val/known_places"] == epochs[0]["val/known_places"] == pytest.approx(val.meta_valid[:, 1].mean())
    assert last["val_mask_meta/known_places"] == 0
    woods = val.rows % 3 != 0
    assert last["val/rows_in_woods"] == pytest.approx((val.rows * woods).mean())
    assert (last["val/subset/habitat/wood/count"], last["val/subset/habitat/lake/count"]) == (
        woods.sum(),
        (~woods).sum(),
    )
    north = val.meta[:, 4] > 0
    assert (last["val/subset/north/true/count"], last["val/subset/north/false/count"]) == (north.sum(), (~north).sum())
    for task in TASKS:
        parts = [
            last[f"val/subset/habitat/{name}/{what}"] for name in ("wood", "lake") for what in (f"acc1_{task}", "count")
        ]
        assert (parts[0] * parts[1] + parts[2] * parts[3]) / len(val) == pytest.approx(last[f"val/acc1_{task}"])
    assert final["final_val_doubt"] == pytest.approx(min(row["val/doubt"] for row in epochs))
    assert any("train/doubt" in row for row in rows_of(tmp_path / "run"))

    # ---- the ranking, and the evaluation of its best in a new process
    forget_plugins()
    assert not custom.registered("val", {})
    capsys.readouterr()
    assert evaluate.main([str(tmp_path / "run"), "--checkpoint=best", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    best = min(epochs, key=lambda row: row["val/doubt"])
    assert found["step"] == best["global_step"]
    for phase in ("val", "val_mask_meta"):
        values = found["phases"][phase]
        for name in ("doubt", "known_places", "rows_in_woods", "subset/north/true/acc1_taxa_L10", "aurc_taxa_L10"):
            assert values[name] == pytest.approx(best[f"{phase}/{name}"], rel=1e-5), name
