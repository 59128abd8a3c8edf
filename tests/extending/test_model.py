"""A model family in one file of the user's own is configured, checked, trained, resumed and evaluated."""

from __future__ import annotations

import json

import pytest

from linnaeus_jax.checks import config_errors
from linnaeus_jax.config import complete_open_nodes
from linnaeus_jax.config.derived import architecture
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.config.tree import assign
from linnaeus_jax.run import trainer
from tests.extending.common import EXAMPLES, train_resume_evaluate
from tests.step import toy
from tests.step.programs import build
from tests.tiny import tiny_config

PLUGIN = str(EXAMPLES / "model_example.py")
TRUNK = {
    "optimizer__parameter_groups__enabled": True,
    "optimizer__parameter_groups__trunk__filter": {"type": "stage_based", "stages": ("trunk",)},
    "optimizer__parameter_groups__trunk__lr_multiplier": 0.5,
}


def configured(directory, **settings):
    """The tiny config with the plugin and settings, keys with __ for dots."""
    config = tiny_config(directory, env__plugins=(PLUGIN,))
    import_plugins(config)
    complete_open_nodes(config)
    for key, value in {"model__type": "SmallNet", "model__variant": "narrow", **settings}.items():
        assign(config, tuple(key.split("__")), value)
    return config


@pytest.mark.slow
def test_a_family_is_trained_resumed_and_evaluated(tmp_path, monkeypatch, capsys):
    outcome = train_resume_evaluate(
        tmp_path,
        "model_example.py",
        monkeypatch,
        capsys,
        model__type="SmallNet",
        model__variant="wide",
        model__SmallNet__meta_width=6,
        optimizer__layer_decay=0.9,
        **TRUNK,
    )
    assert json.loads((outcome.run / "config.json").read_text())["model"]["SmallNet"] == {"meta_width": 6}
    assert architecture(outcome.config) == "SmallNet_wide"
    assert all(values["loss_unweighted"] > 0 for values in outcome.evaluated.values())
    outcome.config.model.SmallNet.meta_width = 5
    outcome.config.train.epochs = 3
    with pytest.raises(trainer.UserError, match=r"model.meta_width is 6 in the checkpoint and 5 in this run"):
        trainer.run(outcome.config, outcome.run)


def test_stages_and_layers_are_those_of_the_family(tmp_path):
    even, _, _ = build(configured(tmp_path, **TRUNK), tmp_path)
    decayed, _, _ = build(configured(tmp_path, optimizer__layer_decay=0.9, **TRUNK), tmp_path)
    rates = {row.name: row.lr_multiplier for row in even.settings.optimizer.rows}
    assert rates["blocks.0.weight"] == rates["blocks.1.bias"] == 0.5
    assert rates["meta.weight"] == rates["head.taxa_L10.fc.bias"] == 1.0
    slower = {row.name: row.lr_multiplier for row in decayed.settings.optimizer.rows}
    assert slower["blocks.0.weight"] == pytest.approx(0.5 * 0.9**2)
    assert slower["blocks.1.weight"] == pytest.approx(0.5 * 0.9)
    assert slower["meta.weight"] == 1.0
    assert {row.layer_type for row in even.parameters} == {"Conv2d", "Linear", "LayerNorm"}


def test_a_family_may_leave_its_layers_unnumbered(tmp_path, monkeypatch):
    toy.register(monkeypatch)
    config = tiny_config(tmp_path, model__type="toy", optimizer__layer_decay=0.9)
    with pytest.raises(
        ValueError, match=r"optimizer.layer_decay = 0.9: this model does not number its layers; set it to 1"
    ):
        build(config, tmp_path)
    config.optimizer.layer_decay = 1.0
    build(config, tmp_path)


def test_a_variant_of_another_family_is_one_error(tmp_path):
    (error,) = config_errors(configured(tmp_path, model__variant="sm"))
    assert error == "model.variant = 'sm' is unknown for SmallNet; choose one of narrow, wide"
