"""EfficientNets of others: what their files need, what does not fit, and outputs as their authors' programs give them.

The outputs were recorded by `make_references`. Real pictures are compared where LINNAEUS_PICTURES names the directory
that they were recorded from.
"""

from __future__ import annotations

import os
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from linnaeus_jax.config import get_config, load_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.learning.augmentation import normalize
from linnaeus_jax.models.efficientnet import VARIANTS, block_features
from linnaeus_jax.run.pretrained import set_needs
from linnaeus_jax.weights.adopting import known_as, needs_of
from linnaeus_jax.weights.exporting import torch_state
from linnaeus_jax.weights.files import read_state
from linnaeus_jax.weights.formats.base import format_of, known_weights
from linnaeus_jax.weights.importing import read_pretrained
from linnaeus_jax.weights.locating import located
from tests.weights.helpers import CLASSES, assert_same, model_of, section, trees
from tests.weights.make_references import EVERY, drawn_pictures, real_pictures

KEYS = {"type": "EfficientNet", "variant": "tiny"}


@pytest.fixture(scope="module")
def model():
    return model_of(section(**KEYS))


@pytest.fixture(scope="module")
def published(tmp_path_factory, model):
    """A file as the port writes it: its names, a classifier, no head of ours and no metadata."""
    arrays = torch_state(model, *trees(model))
    arrays = {name: array for name, array in arrays.items() if not name.startswith(("head.", "fusion."))}
    arrays |= {"_fc.weight": np.ones((7, 1280), np.float32), "_fc.bias": np.ones(7, np.float32)}
    path = tmp_path_factory.mktemp("published") / "tiny.safetensors"
    save_file(arrays, path)
    return path


def taken(path, model, **keys):
    return read_pretrained(section(**{**KEYS, "pretrained": str(path), **keys}), model, CLASSES)


def test_all_but_the_classifier_is_taken(published, model):
    done = taken(published, model)
    params, state = trees(model)
    merged, merged_state = done.merged(*trees(model, seed=1))
    for name in ("head", "fusion"):
        params.pop(name), merged.pop(name)
    assert_same((params, state), (merged, merged_state))
    assert not done.problems
    assert not done.original
    skipped = {row.name for row in done.coverage.rows if row.status == "skipped"}
    assert {"_fc.weight", "_fc.bias"} < skipped
    record = done.to_json()
    assert record["needs"]["model.variant"] == "tiny"
    assert record["licence"] == "" == record["name"]


def test_every_variant_is_told_from_its_blocks():
    kinds = [(block_features(fields), fields["lite"]) for fields in VARIANTS.values()]
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"variant": "b0"}, ["model.variant = 'b0' does not fit", "set model.variant = 'tiny'"]),
        ({"efficientnet__nominal_size": 100}, ["model.efficientnet.nominal_size = 100", "padded for 64 px"]),
        ({"type": "mFormerV1"}, ["looks like EfficientNet", "set model.type = 'EfficientNet'"]),
        ({"pretrained_source": "metaformer"}, ["fits mFormerV0 only"]),
    ],
)
def test_settings_that_do_not_fit_say_what_to_set(published, keys, words):
    settings = section(**{**KEYS, "pretrained": str(published), **keys})
    built = model_of(section(**{**KEYS, **{key: value for key, value in keys.items() if key != "pretrained_source"}}))
    with pytest.raises(UserError) as caught:
        read_pretrained(settings, built, CLASSES)
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 400


def test_right_names_with_wrong_shapes_are_one_message(published, tmp_path, model):
    arrays = load_file(published)
    path = tmp_path / "x.safetensors"
    save_file(arrays | {"_conv_stem.weight": arrays["_conv_stem.weight"][:, :1]}, path)
    with pytest.raises(UserError, match=r"of another shape: _conv_stem.weight \(\(32, 1, 3, 3\) in the file"):
        taken(path, model)
    save_file({name: array for name, array in arrays.items() if "_blocks.3." not in name}, path)
    with pytest.raises(UserError, match=r"missing in the file: _blocks\.3\."):
        taken(path, model)


# ---- settings of the weights


def test_what_the_weights_need_becomes_the_configuration(published):
    needs = needs_of(read_state(published))
    config = get_config()
    adopted = set_needs(config, needs)
    assert not adopted.kept
    assert (config.model.type, config.model.variant, config.data.img_size) == ("EfficientNet", "tiny", 64)
    assert (config.data.resize_mode, config.data.interpolation) == ("center_crop", "bicubic")
    assert config.data.crop_fraction == pytest.approx(64 / 96, abs=1e-4)
    grey = np.arange(256) / 255
    np.testing.assert_allclose((grey - config.aug.mean[0]) / config.aug.std[0], (np.arange(256) - 127) / 128, atol=1e-6)
    (line,) = adopted.lines()
    assert "model.type = EfficientNet" in line
    assert "aug.mean = (0.498039, 0.498039, 0.498039)" in line
    assert set_needs(config, needs).lines() == []  # nothing is left to say


def test_what_the_user_set_stays(published):
    needs = needs_of(read_state(published))
    flags = ["--config.aug.mean=0.485,0.456,0.406", "--config.data.img_size=96", "--config.model.type=EfficientNet"]
    config, _ = load_config(["--config=mformer_v1_sm", *flags])
    adopted = set_needs(config, needs)
    assert tuple(config.aug.mean) == (0.485, 0.456, 0.406)  # though it is the default
    assert config.data.img_size == 96
    assert set(adopted.kept) == {"aug.mean", "data.img_size"}
    assert "aug.std" in adopted.taken
    assert "theirs: --config.data.img_size=64 --config.aug.mean=0.498" in adopted.lines()[1]
    config.model.variant = "b0"  # set in a file
    assert set_needs(config, needs).kept["model.variant"] == ("b0", "tiny")


def test_a_record_in_json_gives_the_same_settings(published):
    import json

    needs = needs_of(read_state(published))
    first, again = get_config(), get_config()
    set_needs(first, needs)
    set_needs(again, json.loads(json.dumps(needs)))
    assert first.to_dict() == again.to_dict()


# ---- published weights


def package(name: str) -> Path:
    """The file that the extra `weights` installs."""
    return Path(located(f"package:{name}"))


@pytest.mark.parametrize("name", [known.name for known in known_weights() if known.package])
def test_published_weights_are_known_by_their_digest(name):
    file = read_state(package(name))
    known = known_as(file.sha256)
    assert known is not None
    assert (known.name, known.licence) == (name, "Apache-2.0")
    assert known.megabytes == pytest.approx(file.path.stat().st_size / 1e6, abs=0.06)
    assert known.preprocessing == format_of(file).preprocessing(file)
    assert needs_of(file)["model.variant"] == name.partition("-")[2]


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "rows"), [("lite0", 48), ("lite1", 24), ("lite2", 24)])
def test_features_and_best_class_are_those_of_the_reference(fixtures, variant, rows):
    with np.load(fixtures / f"reference_efficientnet-{variant}.npz") as file_of_reference:
        reference = {name: values[:rows] for name, values in file_of_reference.items()}
    file = read_state(package(f"efficientnet-{variant}"))
    pictures = format_of(file).preprocessing(file)
    assert pictures is not None
    size = pictures.size[0]
    keys = {"type": "EfficientNet", "variant": variant, "pretrained": str(file.path)}
    model = model_of(section(**keys), size=size, components=())
    params, state = read_pretrained(section(**keys), model, CLASSES, file).merged(*trees(model))
    run = jax.jit(
        lambda x: model.apply(
            {"params": params, **state}, normalize(x, pictures.mean, pictures.std), method="encode_image"
        )
    )
    given = {"drawn": drawn_pictures(size)}
    if directory := os.environ.get("LINNAEUS_PICTURES"):
        given["real"] = real_pictures(Path(directory), size)[:rows]
    for kind, pixels in given.items():
        features = np.concatenate([run(pixels[start : start + 8]) for start in range(0, len(pixels), 8)])
        wanted = reference[f"{kind}_features"]
        scale = reference[f"{kind}_largest"][:, None]
        assert np.abs(features[:, ::EVERY] - wanted).max() <= 1e-4 * scale.min()
        logits = features @ file.arrays["_fc.weight"].T + file.arrays["_fc.bias"]
        np.testing.assert_array_equal(logits.argmax(axis=1), reference[f"{kind}_best"])
        np.testing.assert_allclose(logits.max(axis=1), reference[f"{kind}_logit"], rtol=1e-4)
