"""Features from a source of the user's own: heads train on them, and nothing is computed of pictures."""

from __future__ import annotations

import json

import numpy as np
import pytest

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.run import trainer
from linnaeus_jax.run.evaluate import evaluate, load, parse_phases
from linnaeus_jax.run.experiment import preview_experiment
from tests.extending.common import EXAMPLES
from tests.tiny import tiny_config, write_tiny_data


@pytest.fixture
def config(tmp_path):
    """Of heads on 1,280 features that tell the species apart; pictures there are none."""
    _, images = write_tiny_data(tmp_path / "data")
    config = tiny_config(tmp_path / "data", train__tune="head", env__plugins=(str(EXAMPLES / "features_example.py"),))
    import_plugins(config)
    default = get_config().model
    for section in ("convnext_stages", "rope_stages"):
        config.model[section] = default[section]
    config.model.type, config.model.variant = "EfficientNet", "tiny"
    rng = np.random.default_rng(0)
    colours = np.stack([image.mean(axis=(0, 1)) for image in pixels_of(images)]) / 255
    features = np.concatenate([10 * colours, rng.normal(size=(len(colours), 1277)) / 50], axis=1)
    np.save(tmp_path / "features.npy", features.astype(np.float16))
    images.unlink()
    config.data.h5.images_path = str(tmp_path / "features.npy")
    return config


def pixels_of(images):
    import h5py

    with h5py.File(images) as file:
        return file["images"][:]


def test_a_source_of_features_is_read_as_it_is(config, tmp_path):
    experiment = preview_experiment(config, RunDirectory(tmp_path / "run"))
    assert experiment.inputs.images["train"].image_shape == (1280,)
    with experiment.inputs.train_loader(0) as loader:
        _, batch = next(loader)
    assert batch["image"].dtype == np.float16
    features = np.load(config.data.h5.images_path)
    np.testing.assert_array_equal(batch["image"], features[batch["row"]])


@pytest.mark.parametrize(
    ("tune", "words"), [("full", "set train.tune='head'"), ("last:1", r"last:1 stores float16 \[1")]
)
def test_features_that_nothing_takes_are_an_error(config, tmp_path, tune, words):
    config.train.tune = tune
    with pytest.raises(UserError, match=rf"features\.npy: float16 \[1280\] of each row.*{words}"):
        preview_experiment(config, RunDirectory(tmp_path / "run"))


@pytest.mark.slow
def test_a_run_from_features(config, tmp_path):
    config.train.epochs, config.lr_scheduler.base_lr = 8, 1e-2
    config.schedule.validation.interval_epochs = config.schedule.validation.mask_meta_interval_epochs = 4
    config.train.fit_heads = False  # with more features of noise than rows discriminants do not last at such a rate
    final = trainer.run(config, tmp_path / "run")
    assert final["final_val_non_null/acc1_taxa_L10"] > 60  # of 8 species
    assert not (tmp_path / "run" / "stored").exists()
    result = evaluate(load(tmp_path / "run", "newest"), parse_phases("val", ["TEMPORAL", "SPATIAL"]))
    rows = [json.loads(line) for line in (tmp_path / "run" / "logs" / "metrics_log.jsonl").read_text().splitlines()]
    last = [row["val/loss"] for row in rows if "val/loss" in row][-1]
    assert result.metrics["val"]["loss"] == pytest.approx(last, rel=1e-5)
