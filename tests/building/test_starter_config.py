"""The configuration that is written beside a data set can be used as it is."""

from __future__ import annotations

import pytest

from linnaeus_jax.building.starter_config import starter_config
from linnaeus_jax.checks import config_errors
from linnaeus_jax.config import load_config
from linnaeus_jax.data.dataset import resolve_sources

TASKS = ("taxa_L10", "taxa_L20", "taxa_L33_5", "taxa_L40")
SOURCES = {"SPATIAL": ("spatial", 3), "TEMPORAL": ("temporal", 4), "ELEVATION": ("elevation_scales_100", 2)}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("known", [0, 1, 3])
@pytest.mark.parametrize("folder", ["", "/photos of 'mine'"])
@pytest.mark.parametrize("sides", ["file", "train"])
def test_it_is_right_for_every_data_set(tmp_path, ranks, known, folder, sides):
    sources = dict(list(SOURCES.items())[:known])
    text = starter_config("data/mine", "mine", TASKS[:ranks], sources, img_size=48, picture_folder=folder, sides=sides)
    path = tmp_path / "config.py"
    path.write_text(text)
    config, _ = load_config([f"--config={path}"])
    assert config_errors(config) == []
    assert config.data.task_keys_h5 == TASKS[:ranks]
    part = "train_" if sides == "train" else ""
    assert config.data.h5[f"{part}labels_path"] == str(tmp_path / "labels.h5")
    assert resolve_sources(config.data).train_images == (folder or str(tmp_path / "images.h5"))
    enabled = {name for name, node in config.data.meta.components.items() if node.enabled} if known else set()
    assert enabled == set(sources)
    assert config.data.meta.active == bool(known)
    assert all(config.data.meta.components[name].dim == width for name, (_, width) in sources.items())
