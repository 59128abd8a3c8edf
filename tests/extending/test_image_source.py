"""An image source in one file of the user's own: a run trains from it, resumes and is evaluated."""

from __future__ import annotations

import json
import zipfile

import cv2
import h5py
import numpy as np
import pytest

from linnaeus_jax.config.defaults import complete_open_nodes
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.image_sources import open_images
from linnaeus_jax.data.images import ImageFiles
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.run.inputs import build_inputs
from tests.extending.common import EXAMPLES, train_resume_evaluate
from tests.tiny import tiny_config, write_tiny_data

PLUGIN = EXAMPLES / "image_source_example.py"


@pytest.fixture
def archive(tmp_path):
    """The pictures of the tiny data as PNG files of twice the size, in the folder `large`."""
    labels, images = write_tiny_data(tmp_path / "data")
    path = tmp_path / "pictures.zip"
    with h5py.File(labels) as file, h5py.File(images) as pixels, zipfile.ZipFile(path, "w") as target:
        for name, image in zip(file["img_identifiers"].asstr(), pixels["images"][:], strict=True):
            large = np.repeat(np.repeat(image, 2, axis=0), 2, axis=1)
            target.writestr(f"large/{name}", cv2.imencode(".png", large[..., ::-1])[1].tobytes())
    return path


@pytest.mark.slow
def test_a_run_from_a_zip_archive(archive, tmp_path, monkeypatch, capsys):
    keys = {
        "data__h5__images_path": str(archive),
        "data__image_sources__zip__folder": "large",
        "data__prefetch__mem_cache_size": 10**7,
        "schedule__metrics__pipeline_interval": 1,
    }
    outcome = train_resume_evaluate(tmp_path, PLUGIN.name, monkeypatch, capsys, **keys)
    saved = json.loads((outcome.run / "config.json").read_text())
    assert saved["data"]["image_sources"] == {"zip": {"folder": "large"}}
    assert any(row.get("pipeline/cache/misses") for row in outcome.rows)
    other = tmp_path / "hdf5"
    plain = train_resume_evaluate(
        other, PLUGIN.name, monkeypatch, capsys, data__h5__images_path=str(tmp_path / "data" / "images.h5")
    )
    assert plain.evaluated == outcome.evaluated  # the same pixels


def config_with(archive, *plugins, **keys):
    plugins = tuple(map(str, (PLUGIN, *plugins)))
    config = tiny_config(archive.parent / "data", env__plugins=plugins, data__h5__images_path=str(archive))
    import_plugins(config)
    complete_open_nodes(config)
    config.data.image_sources.zip.update(keys)
    return config


@pytest.mark.slow
def test_worker_processes_know_the_plugins(archive, tmp_path):
    config = config_with(archive, EXAMPLES / "sampler_example.py", folder="large")
    config.data.sampler.type = "capped"
    config.data.worker_processes = 1
    inputs = build_inputs(typed(config), devices=1, output_dir=None)
    pixels = h5py.File(tmp_path / "data" / "images.h5")["images"][:]
    with inputs.train_loader(0, 1) as loader:
        (_, batch), *_ = loader
    np.testing.assert_array_equal(batch["image"], pixels[batch["row"]])


def test_what_is_refused(archive):
    with pytest.raises(ValueError, match=r"lacks 'image_0\.jpg'; set data\.image_sources\.zip\.folder"):
        _ = build_inputs(typed(config_with(archive)), devices=1, output_dir=None).images
    with pytest.raises(KeyError, match="directory"):
        config_with(archive, directory="large")
    config_with(archive)
    with pytest.raises(ValueError, match=r"data\.h5\.images_path = 'tar' is unknown; choose one of folder, h5, zip"):
        open_images(ImageFiles(archive, Preprocessing((32, 32))), "tar")
