"""A run on the features of two trunks, from its sources to a bundle."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

import linnaeus_jax
from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.saved import config_from_json
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.inference.bundle.bundle import bundle_of_run
from linnaeus_jax.inference.bundle.files import read_bundle, write_bundle
from linnaeus_jax.inference.files.exporting import write_export
from linnaeus_jax.reporting.report import write_report
from linnaeus_jax.run import stored, trainer
from linnaeus_jax.run.evaluate import evaluate, load, parse_phases
from linnaeus_jax.run.experiment import preview_experiment
from linnaeus_jax.run.pretrained import initial_weights, read_initial_weights
from linnaeus_jax.weights.exporting import torch_state
from tests.tiny import tiny_config
from tests.weights.helpers import model_of, section, trees


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> tuple[str, str]:
    """Two files of tiny EfficientNets with other numbers."""
    directory, paths = tmp_path_factory.mktemp("sources"), []
    model = model_of(section(type="EfficientNet", variant="tiny"), components=())
    for seed in range(2):
        params, state = trees(model, seed)
        params = jax.tree.map(lambda leaf: leaf / np.sqrt(np.prod(leaf.shape[:-1])) if leaf.ndim > 1 else leaf, params)
        state = jax.tree.map(lambda leaf: np.abs(leaf) + 0.5, state)
        arrays = torch_state(model, params, state)
        paths.append(directory / f"{seed}.safetensors")
        save_file({name: array for name, array in arrays.items() if not name.startswith("head.")}, paths[-1])
    return str(paths[0]), str(paths[1])


def config_of(data: Path, sources: tuple[str, ...], **overrides: Any) -> Any:
    settings = {"train__tune": "head", "train__tune_views": 1, "train__epochs": 2, "data__meta__active": True}
    config = tiny_config(data, **settings | overrides)
    default = get_config().model
    for name in ("convnext_stages", "rope_stages"):
        config.model[name] = default[name]
    config.model.features = sources
    return config


def test_what_is_stored_belongs_to_the_weights_of_all(tmp_path, sources):
    """And heads and metadata alone train."""
    config = config_of(tmp_path, sources)
    directory = RunDirectory(tmp_path / "run")
    experiment = preview_experiment(config, directory, initial_weights=read_initial_weights)
    assert experiment.program.stored is not None
    assert experiment.program.stored.shape == (1, 2560)
    assert experiment.weights is not None
    rows = experiment.program.settings.optimizer.rows
    stage_of = type(experiment.program.model).stage_of
    assert {stage_of(row.name) for row in rows if row.optimizer != "frozen"} == {"heads", "metadata"}
    params, state = experiment.weights.merged(*trees(experiment.program.model))
    digests = []
    for place in range(3):  # as read, and with one number of a trunk changed
        if place:
            params[f"trunks_{place - 1}"]["_conv_stem"]["kernel"] += 1
        numbers: Any = SimpleNamespace(params=params, model_state=state)
        digests.append(stored._digest_of_weights(experiment, numbers))
    assert len(set(digests)) == 3
    # the configuration that was settled comes back whole
    again = config_from_json(json.loads(json.dumps(config.to_dict())))
    assert again.model.trunks == config.model.trunks


@pytest.mark.slow
def test_heads_on_two_trunks_from_sources_to_a_bundle(tmp_path, one_device, sources):
    data, run = tmp_path / "data", tmp_path / "run"
    limited = config_of(data, sources)
    limited.debug.early_exit_after_n_optimizer_steps = 7
    trainer.run(limited, run)
    whole = trainer.run(config_of(data, sources), run)  # it goes on
    directory = RunDirectory(run)
    record = json.loads((directory.metadata / "pretrained.json").read_text())
    assert [file["path"] for file in record["files"]] == list(sources)
    assert initial_weights(directory) == "0.safetensors + 1.safetensors, licence unknown"
    write_report([run], run / "report.html")
    text = (run / "report.html").read_text().replace("<wbr>", "")
    assert all(source in text for source in sources)

    # pictures say what was stored of them
    result = evaluate(load(run, "newest"), parse_phases("val", ["TEMPORAL", "SPATIAL"]))
    assert result.metrics["val"]["loss"] == pytest.approx(whole["final_val_loss"], rel=1e-4)

    # the bundle holds both trunks, and is enough alone
    bundle = bundle_of_run(run)
    write_bundle(bundle, tmp_path / "bundle")
    for source in sources:
        Path(source).unlink()
    read = read_bundle(tmp_path / "bundle")
    assert {"trunks_0", "trunks_1"} < set(read.variables["params"])
    about = json.loads((tmp_path / "bundle" / "bundle.json").read_text())
    assert "features" not in about["model"]
    assert about["facts"]["initial weights"] == initial_weights(directory)
    with h5py.File(data / "images.h5") as file:
        pictures = file["images"][:4]
    one, other = (linnaeus_jax.load(path).predict(list(pictures)) for path in (run, tmp_path / "bundle"))
    for mine, theirs in zip(one, other, strict=True):
        assert [taxon.taxon_id for taxon in mine.path] == [taxon.taxon_id for taxon in theirs.path]
        assert mine.path[-1].probability == pytest.approx(theirs.path[-1].probability, abs=1e-6)
    write_export(read, tmp_path / "export", ("cpu",))
    assert (tmp_path / "export").is_dir()

    # everything may go on from the bundle
    config = config_of(data, ())
    config.model.pretrained, config.train.tune = str(tmp_path / "bundle"), "full"
    experiment = preview_experiment(config, RunDirectory(tmp_path / "x"), initial_weights=read_initial_weights)
    assert config.model.type == "Joined"
    assert experiment.weights is not None
    assert not experiment.weights.coverage.of("initial", "other shape")
