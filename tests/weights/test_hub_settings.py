"""What lies beside a file of weights: read, adopted, asked for where it is missing, refused where it is wrong."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from safetensors.numpy import save_file

from linnaeus_jax.config import get_config, load_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.run.pretrained import adopt_source
from linnaeus_jax.weights.hub_settings import CLIP_MEAN, HubSettings, hub_settings
from linnaeus_jax.weights.importing import read_pretrained
from tests.weights.helpers import CLASSES, model_of
from tests.weights.make_hub_fixtures import described
from tests.weights.test_hub_parity import recorded

TIMM = described("convnext_tiny", {})
PROCESSOR = {
    "do_resize": True,
    "size": {"height": 64, "width": 64},
    "resample": 3,
    "do_normalize": True,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.1, 0.2, 0.3],
}
CONVNEXT = {"image_processor_type": "ConvNextImageProcessor", "crop_pct": 0.875}
CLIP = {"model_cfg": {"vision_cfg": {"image_size": 64}}, "preprocess_cfg": {}}


def beside(tmp_path, **trees) -> HubSettings:
    """What is read where these lie beside a file; `__` stands for a dot."""
    for name, tree in trees.items():
        text = tree if isinstance(tree, str) else json.dumps(tree)
        (tmp_path / name.replace("__", ".")).write_text(text)
    return hub_settings(tmp_path / "model.safetensors")


def timm(**changed):
    return {"config__json": {**TIMM, "pretrained_cfg": {**TIMM["pretrained_cfg"], **changed}}}


def processor(**changed):
    return {"preprocessor_config__json": {key: value for key, value in {**PROCESSOR, **changed}.items() if value != ()}}


def open_clip(**changed):
    return {"open_clip_config__json": {**CLIP, "preprocess_cfg": changed}}


def test_nothing_beside_a_file(tmp_path):
    assert beside(tmp_path) == HubSettings()
    assert beside(tmp_path, config__json={"version": 3, "optimizer": {}}) == HubSettings()  # of something else


@pytest.mark.parametrize(
    ("trees", "wanted"),
    [
        (timm(), ("center_crop", 64, "bicubic", 0.95)),
        (timm(crop_mode="squash", crop_pct=1.0), ("squash", 64, "bicubic", 1.0)),
        (timm(crop_mode=None, crop_pct=None, interpolation="bilinear"), ("center_crop", 64, "bilinear", 0.875)),
        ({"config__json": {"architecture": "x", **TIMM["pretrained_cfg"]}}, ("center_crop", 64, "bicubic", 0.95)),
        (processor(), ("squash", 64, "bicubic", 1.0)),
        (processor(size=64, resample=2), ("squash", 64, "bilinear", 1.0)),
        (
            processor(size={"shortest_edge": 73}, crop_size=64, do_center_crop=True),
            ("center_crop", 64, "bicubic", 64 / 73),
        ),
        (processor(size=64, crop_size={"height": 64, "width": 64}), ("center_crop", 64, "bicubic", 1.0)),
        (processor(**CONVNEXT, size={"shortest_edge": 64}), ("center_crop", 64, "bicubic", 0.875)),
        (processor(**{**CONVNEXT, "crop_pct": ()}, size=224), ("center_crop", 224, "bicubic", 0.875)),
        (processor(**CONVNEXT, size={"shortest_edge": 384}), ("squash", 384, "bicubic", 1.0)),
        (open_clip(mean=[0.5, 0.4, 0.3]), ("center_crop", 64, "bicubic", 1.0)),
        (open_clip(resize_mode="squash", size=[96, 96], interpolation="bilinear"), ("squash", 96, "bilinear", 1.0)),
        (open_clip(resize_mode="longest", fill_color=0), ("pad", 64, "bicubic", 1.0)),
    ],
)
def test_how_pictures_were_prepared(tmp_path, trees, wanted):
    pictures = beside(tmp_path, **trees).pictures
    assert pictures is not None
    found = (pictures.resize_mode, pictures.size[0], pictures.interpolation, pictures.crop_fraction)
    assert found == (*wanted[:3], pytest.approx(wanted[3], abs=1e-12))
    assert pictures.mean == pytest.approx(
        (0.5, 0.4, 0.3) if "open_clip" not in str(trees) or "mean" in str(trees) else CLIP_MEAN
    )


@pytest.mark.parametrize("cut", [224, 336, 518])
@pytest.mark.parametrize("side", [256, 342, 384, 592, 593])
def test_the_shorter_side_is_resized_to_what_is_said(tmp_path, cut, side):
    if cut > side:
        return
    pictures = beside(tmp_path, **processor(size={"shortest_edge": side}, crop_size=cut, do_center_crop=True)).pictures
    assert pictures is not None
    assert math.floor(cut / pictures.crop_fraction) == side


@pytest.mark.parametrize(
    ("changed", "numbers"),
    [
        ({}, lambda x: (x / 255 - 0.5) / 0.1),
        ({"rescale_factor": 1 / 127.5}, lambda x: (x / 127.5 - 0.5) / 0.1),
        ({"rescale_factor": 1 / 127.5, "rescale_offset": True}, lambda x: (x / 127.5 - 1 - 0.5) / 0.1),
        ({"do_rescale": False, "image_mean": [127.0] * 3, "image_std": [128.0] * 3}, lambda x: (x - 127) / 128),
        ({"do_normalize": False}, lambda x: x / 255),
        ({"image_mean": 0.5, "image_std": 0.5}, lambda x: (x / 255 - 0.5) / 0.5),
    ],
)
def test_pixels_become_the_numbers_of_the_source(tmp_path, changed, numbers):
    pictures = beside(tmp_path, **processor(**changed)).pictures
    assert pictures is not None
    x = np.arange(256.0)
    np.testing.assert_allclose((x / 255 - pictures.mean[0]) / pictures.std[0], numbers(x), atol=1e-9)


@pytest.mark.parametrize(
    ("trees", "words"),
    [
        (timm(crop_mode="border"), "crop_mode = 'border' is none of center, squash"),
        (timm(crop_mode="squash", crop_pct=0.9), "squash with crop_pct 0.9"),
        (timm(interpolation="random"), "interpolation = 'random' is none of"),
        (timm(input_size=[3, 64, 96]), "64 x 96, not one square size"),
        (timm(input_size=[1, 64, 64]), "1 channels instead of 3"),
        (processor(size={"shortest_edge": 64}), "without do_center_crop is no square"),
        (processor(size={"longest_edge": 64}), "is no size of a square"),
        (processor(crop_size=32, do_center_crop=True), "cut to 32 after they are squashed"),
        (processor(do_resize=False), "do_resize = false"),
        (processor(resample=()), "resample = None is none of 0, 1, 2, 3"),
        (processor(resample=4), "resample = 4"),
        (processor(image_mean=()), "image_mean is missing"),
        (open_clip(fill_color=255, resize_mode="longest"), "fill_color = 255; borders are black"),
    ],
)
def test_what_this_program_has_not_is_a_reason(tmp_path, trees, words):
    settings = beside(tmp_path, **trees)
    assert settings.pictures is None
    assert words in settings.reason


@pytest.mark.parametrize(
    ("trees", "words"),
    [
        (timm(mean=[0.5, 0.4]), "pretrained_cfg.mean = [0.5, 0.4] is not three numbers"),
        (timm(std=[0.1, 0.2, 0.0]), "pretrained_cfg.std = [0.1, 0.2, 0.0] is not three numbers above 0"),
        (timm(crop_pct=87.5), "crop_pct = 87.5 is not a number above 0 and at most 1"),
        (timm(input_size="224"), 'input_size = "224" is not [channels, height, width]'),
        (timm(license=3), "license = 3 is not a text"),
        ({"config__json": {**TIMM, "label_names": ["a", 3]}}, 'label_names = ["a", 3] is not a list of texts'),
        ({"config__json": {**TIMM, "num_classes": -1}}, "num_classes = -1 is not a number of classes"),
        ({"config__json": {**TIMM, "pretrained_cfg": 7}}, "pretrained_cfg = 7 is not an object"),
        ({"config__json": "{"}, "config.json is no JSON"),
        ({"config__json": "[1]"}, "config.json holds no JSON object but a list"),
        (processor(do_normalize="yes"), 'do_normalize = "yes" is not true or false'),
        (processor(rescale_factor=0), "rescale_factor = 0 is not a number above 0"),
        (processor(size={"height": 64.5, "width": 64}), "is not a size in whole pixels"),
        (processor(image_std=[0.1, None, 0.1]), "image_std = [0.1, null, 0.1] is not three numbers above 0"),
        (open_clip(size=[1, 2, 3]), "size = [1, 2, 3] is not a size"),
        ({"config__json": {"model_type": "convnext", "id2label": {"1": "x"}}}, "without gaps"),
    ],
)
def test_wrong_values_are_one_line_with_file_and_key(tmp_path, trees, words):
    with pytest.raises(UserError) as caught:
        beside(tmp_path, **trees)
    text = str(caught.value)
    assert words in text
    assert "\n" not in text
    assert str(tmp_path) in text


def test_names_of_classes(tmp_path):
    settings = beside(tmp_path, config__json={**TIMM, "num_classes": 2, "label_names": ["Parus major", "Pica pica"]})
    assert (settings.labels, settings.classes, settings.licence) == (("Parus major", "Pica pica"), 2, "mit")
    tree = {"model_type": "convnext", "id2label": {"1": "Pica pica", "0": "Parus major"}}
    assert beside(tmp_path, config__json=tree).labels == ("Parus major", "Pica pica")
    tree["id2label"] = {"0": "LABEL_0", "1": "LABEL_1"}
    assert beside(tmp_path, config__json=tree).labels == ()


# ---- a run


def test_a_run_takes_it_over(tmp_path, fixtures):
    config = get_config()
    config.model.pretrained = str(recorded(fixtures, "timm").write(tmp_path))
    _, (line,) = adopt_source(config)
    assert (config.model.type, config.data.img_size, config.data.crop_fraction) == ("ConvNeXt", 64, 0.95)
    assert tuple(config.aug.mean) == (0.5, 0.4, 0.3)
    assert "aug.std = (0.2, 0.3, 0.4)" in line


def test_a_file_alone_asks_for_what_is_not_known(tmp_path, fixtures):
    path = recorded(fixtures, "authors").write(tmp_path)
    config, _ = load_config(["--config=mformer_v1_sm", f"--config.model.pretrained={path}"])
    with pytest.raises(UserError) as caught:
        adopt_source(config)
    flags = {"data.img_size": "64", "aug.mean": "0.485,0.456,0.406", "aug.std": "0.229,0.224,0.225"}
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in (str(path), "config.json", *(f"--config.{key}=" for key in flags)))
    given = [f"--config.{key}={value}" for key, value in flags.items()]
    config, _ = load_config(["--config=mformer_v1_sm", f"--config.model.pretrained={path}", *given[1:]])
    with pytest.raises(UserError, match=r"give --config\.data\.img_size=SIDE \("):
        adopt_source(config)
    config, _ = load_config(["--config=mformer_v1_sm", f"--config.model.pretrained={path}", *given])
    adopt_source(config)
    assert (config.model.type, config.data.img_size) == ("ConvNeXt", 64)


def test_a_reason_is_said_when_it_is_asked(tmp_path, fixtures):
    source, config = recorded(fixtures, "timm"), get_config()
    path = source.write(tmp_path)
    beside(tmp_path, **timm(crop_mode="border"))
    config.model.pretrained = str(path)
    with pytest.raises(UserError, match=r"is not known: .*crop_mode = 'border' is none of center, squash; put"):
        adopt_source(config)


def test_a_text_tower_alone(tmp_path, fixtures):
    arrays = {key: x for key, x in recorded(fixtures, "open_clip").arrays.items() if not key.startswith("visual.")}
    save_file(arrays, tmp_path / "w.safetensors")
    config = get_config()
    config.model.pretrained = str(tmp_path / "w.safetensors")
    file, _ = adopt_source(config)
    assert file is not None
    with pytest.raises(UserError, match="looks like a text tower without its picture tower"):
        read_pretrained(config.model, model_of(config.model, size=64), CLASSES, file)


def test_nothing_of_a_family_is_taken_where_the_user_set_another(tmp_path, fixtures):
    path = recorded(fixtures, "timm").write(tmp_path)
    flags = [f"--config.model.pretrained={path}", "--config.model.type=mFormerV1"]
    config, _ = load_config(["--config=mformer_v1_sm", *flags])
    adopt_source(config)
    assert (config.model.variant, config.model.convnext_stages.dims, config.data.img_size) == ("sm", (), 64)
