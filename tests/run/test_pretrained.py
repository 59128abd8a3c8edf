"""A run that starts from the weights of another one, or of a file."""

from __future__ import annotations

import json
import shutil

import h5py
import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from safetensors.numpy import load_file, save_file

from linnaeus_jax.config.defaults import complete_open_nodes
from linnaeus_jax.config.errors import ConfigError, UserError
from linnaeus_jax.files import DIGESTS, RunDirectory
from linnaeus_jax.reporting.report import write_report
from linnaeus_jax.run import pretrained, trainer
from linnaeus_jax.run.experiment import preview_experiment
from linnaeus_jax.run.pretrained import adopt_source, read_initial_weights
from linnaeus_jax.run.saved_weights import read_run
from linnaeus_jax.tools import evaluate, export_weights
from tests.conftest import use_one_device
from tests.step import toy
from tests.tiny import tiny_config


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The data and a finished run of one epoch, with a moving average."""
    with pytest.MonkeyPatch.context() as patch:
        toy.register(patch)
        use_one_device(patch)
        directory = tmp_path_factory.mktemp("first")
        trainer.run(configured(directory), directory / "run")
        yield directory


def configured(first, **overrides):
    settings = {"model__type": "toy", "model__variant": "statistics", "train__epochs": 1, "train__ema__enabled": True}
    return tiny_config(first / "data", **settings | {"data__batch_size": 32, "aug__hflip_prob": 0.0} | overrides)


@pytest.mark.slow
def test_a_run_takes_the_weights_of_another_once(first, tmp_path, one_device, monkeypatch):
    source = first / "source"
    shutil.copytree(first / "run", source)
    config = configured(first, model__pretrained=str(source), train__seed=3)
    directory = RunDirectory(tmp_path / "run")

    # ---- the state of step 0
    experiment = preview_experiment(config, directory, initial_weights=read_initial_weights)
    state, saved = jax.device_get(experiment.initial_state()), read_run(source)
    assert saved.weights == "ema"
    for tree in (state.params, state.ema):
        jax.tree.map(np.testing.assert_array_equal, tree, saved.params)
    jax.tree.map(np.testing.assert_array_equal, state.model_state, saved.model_state)
    assert int(state.step) == 0
    fresh = jax.device_get(jax.jit(experiment.program.initial_state)())
    jax.tree.map(np.testing.assert_array_equal, state.opt_state, fresh.opt_state)
    assert not np.array_equal(jax.tree.leaves(fresh.params)[-1], jax.tree.leaves(state.params)[-1])

    # ---- the record of the run
    trainer.run(config, directory.root)
    record = json.loads((directory.metadata / "pretrained.json").read_text())
    assert record["files"][0]["path"] == str(saved.path)
    assert record["files"][0]["sha256"] == saved.state_file().sha256
    assert record["coverage"]["counts"]["loaded"] == len(jax.tree.leaves((state.params, state.model_state)))
    report = directory.root / "report.html"
    read, check = [], RunDirectory.check

    def noted(run, path):
        read.append(path)
        check(run, path)

    monkeypatch.setattr(RunDirectory, "check", noted)
    write_report([directory.root], report)
    assert "Initial weights" in report.read_text()
    digests = json.loads((directory.root / DIGESTS).read_text())
    found = {path.relative_to(directory.root).as_posix() for path in read if path.is_file()}
    assert "config.json" in found <= set(digests)  # damage would be seen

    # ---- resuming does not look at them again
    shutil.rmtree(source)
    config.train.epochs = 2
    trainer.run(config, directory.root)
    assert json.loads((directory.metadata / "pretrained.json").read_text()) == record
    with pytest.raises(UserError, match="source"):
        trainer.run(config, tmp_path / "other")


def test_what_cannot_be_read_leaves_the_run_directory_untouched(first, tmp_path):
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{}")
    for path in (broken, tmp_path / "missing.safetensors", tmp_path):
        with pytest.raises(UserError, match=str(path)):
            trainer.run(configured(first, model__pretrained=str(path)), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_run_that_goes_on_needs_what_it_has_recorded(first, tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.metadata.mkdir(parents=True)
    record = {"loaded": [], "needs": {"aug.mean": [0.5, 0.5, 0.5], "data.interpolation": "bicubic"}}
    (directory.metadata / "pretrained.json").write_text(json.dumps(record))
    config = configured(first, model__pretrained=str(tmp_path / "gone.pth"))
    file, (line,) = adopt_source(config, directory)
    assert file is None
    assert config.aug.mean == (0.5, 0.5, 0.5)
    assert config.data.interpolation == "bicubic"
    assert "aug.mean = (0.5, 0.5, 0.5), data.interpolation = bicubic" in line
    with pytest.raises(UserError, match="gone"):
        adopt_source(config)


def test_unreadable_weights_are_told_with_all_other_errors(first, tmp_path):
    config = configured(first, model__pretrained=str(tmp_path / "gone.pth"), train__clip_mode="x")
    with pytest.raises(ConfigError) as caught:
        preview_experiment(config, RunDirectory(tmp_path / "run"), initial_weights=read_initial_weights)
    assert "train.clip_mode" in str(caught.value)
    assert "gone.pth does not exist" in str(caught.value)


def test_contradictions_are_config_errors(first, tmp_path):
    config = configured(first, model__pretrained="a.pth", model__pretrained_convnext="b.pth")
    with pytest.raises(ConfigError, match=r"model.pretrained_convnext = 'b.pth' is read with"):
        trainer.run(config, tmp_path / "run")


@pytest.mark.slow
def test_what_the_weights_lack_is_a_group(first, tmp_path):
    """The filter `initialization`, also where the run goes on and the weights are gone."""
    source = tmp_path / "weights.safetensors"
    assert export_weights.main([str(first / "run"), str(source)]) == 0
    arrays, (lacking, *_) = load_file(source), sorted(load_file(source))
    save_file({name: array for name, array in arrays.items() if name != lacking}, source)
    config = configured(first, model__pretrained=str(source), model__pretrained_strict=False)
    with config.unlocked():
        config.optimizer.parameter_groups.enabled = True
        new = {"filter": {"type": "initialization"}, "lr_multiplier": 10.0}
        config.optimizer.parameter_groups.new = ConfigDict(new)
    complete_open_nodes(config)
    directory = RunDirectory(tmp_path / "run")

    def group() -> list[str]:
        experiment = preview_experiment(config, directory, initial_weights=read_initial_weights)
        return [row.name for row in experiment.program.settings.optimizer.rows if row.group == "new"]

    assert group() == [lacking]
    trainer.run(config, directory.root)
    source.unlink()
    config.train.epochs = 2
    trainer.run(config, directory.root)
    assert evaluate.main([str(directory.root), "--json"]) == 0
    config.model.pretrained = ""
    with pytest.raises(ConfigError, match="needs pretrained weights to compare with"):
        trainer.run(config, tmp_path / "other")


def test_pictures_that_are_square_already_say_how_new_ones_become_so(tmp_path):
    config = tiny_config(tmp_path)
    assert pretrained._already_square(config) == {}  # nothing says how they were made
    with h5py.File(tmp_path / "labels.h5", "a") as file:
        group = file["metadata"].create_group("image_processing")
        group.attrs.update({"form": "raw", "size": 32, "resize_mode": "pad"})
    square = {"data.resize_mode": "pad", "data.interpolation": "area", "data.crop_fraction": 1.0}
    assert pretrained._already_square(config) == square
    config.data.h5.labels_path = str(tmp_path / "missing.h5")
    assert pretrained._already_square(config) == {}  # who reads the labels says so
    config.data.h5.labels_path = ""
    assert pretrained._already_square(config) == {}
