"""How pictures become pixels: one rule for building, training, evaluation, predicting and serving."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image

from linnaeus_jax.building.steps.options import BuildOptions
from linnaeus_jax.building.steps.pixels import store
from linnaeus_jax.checks.config import config_errors
from linnaeus_jax.config.defaults import complete_open_nodes, get_config
from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.decoding import read_image
from linnaeus_jax.data.image_sources import open_images, other_resizing
from linnaeus_jax.data.images import ImageFiles, ImageSource
from linnaeus_jax.data.preprocessing import INTERPOLATIONS, PILLOW_FILTERS, RESIZE_MODES, Preprocessing
from linnaeus_jax.inference.pictures import read_picture
from linnaeus_jax.inference.server import decoder_process
from linnaeus_jax.reading.box_cuts import Cut
from tests.data.helpers import Identifiers

SIDE = 16
CROPS = [(mode, 1.0) for mode in RESIZE_MODES] + [("center_crop", 0.75)]


def smooth(height: int, width: int) -> np.ndarray:
    coarse = np.random.default_rng(height + width).integers(0, 256, (7, 9, 3), np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def encoded(image: np.ndarray, kind: str) -> bytes:
    return cv2.imencode(f".{kind}", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()


def config_of(mode: str, interpolation: str, crop_fraction: float) -> ConfigDict:
    config = complete_open_nodes(get_config())
    data = config.data
    data.img_size, data.resize_mode = 32, mode
    data.interpolation, data.crop_fraction = interpolation, crop_fraction
    return config


def first(source: ImageSource) -> np.ndarray:
    out = np.zeros((1, *source.image_shape), np.uint8)
    assert source.read(np.array([0]), out).all()
    return out[0]


def packed(path: Path, data: bytes) -> Path:
    with h5py.File(path, "w") as file:
        file["image_bytes"] = np.frombuffer(data, np.uint8)
        file["image_offsets"] = np.array([0, len(data)])
    return path


@pytest.mark.parametrize(("mode", "crop_fraction"), CROPS)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize(("kind", "shape"), [("png", (50, 90)), ("jpg", (300, 140)), ("png", (20, 20))])
def test_a_picture_has_the_same_pixels_on_every_path(tmp_path, mode, crop_fraction, interpolation, kind, shape):
    data = encoded(smooth(*shape), kind)
    (tmp_path / f"0.{kind}").write_bytes(data)
    how = Preprocessing.from_config(typed(config_of(mode, interpolation, crop_fraction)))
    files = ImageFiles(tmp_path, how, Identifiers(["0"]), kind)
    trained = first(open_images(files, "folder"))
    built = np.empty_like(trained)
    store(
        data, BuildOptions(size=32, resize_mode=mode, interpolation=interpolation, crop_fraction=crop_fraction), built
    )
    served = decoder_process.answer(data, how, 10**6, Cut())[1].partition(b"\n")[2]
    paths = {
        "packed": first(open_images(ImageFiles(packed(tmp_path / "p.h5", data), how))),
        "built": built,
        "predicted": read_picture(data, how),
        "served": np.frombuffer(served, np.uint8).reshape(trained.shape),
    }
    if kind == "png":  # of JPEG the pixels are decoded at another scale where the file is at hand
        with h5py.File(tmp_path / "raw.h5", "w") as file:
            file["images"] = read_image(data)[None]
        paths["stored raw"] = first(open_images(ImageFiles(tmp_path / "raw.h5", how)))
        paths["as an array"] = read_picture(read_image(data), how)
        paths["as an image"] = read_picture(Image.fromarray(read_image(data)), how)
    for name, pixels in paths.items():
        np.testing.assert_array_equal(pixels, trained, err_msg=name)


@pytest.mark.parametrize("interpolation", PILLOW_FILTERS)
@pytest.mark.parametrize(("crop_fraction", "resized"), [(1.0, (24, 40)), (0.75, (32, 54)), (0.875, (27, 45))])
@pytest.mark.parametrize("turned", [False, True])
def test_a_centre_by_pillow_is_that_of_resizing_the_shorter_side_and_cutting(
    interpolation, crop_fraction, resized, turned
):
    """As torchvision's Resize and CenterCrop, with the sizes that these compute."""
    image, (high, wide) = smooth(60, 102), resized
    if turned:
        image, high, wide = np.ascontiguousarray(image.swapaxes(0, 1)), wide, high
    whole = np.asarray(Image.fromarray(image).resize((wide, high), PILLOW_FILTERS[interpolation]))
    top, left = round((high - 24) / 2), round((wide - 24) / 2)
    pixels = Preprocessing((24, 24), "center_crop", interpolation, crop_fraction=crop_fraction).resize(image)
    np.testing.assert_array_equal(pixels, whole[top : top + 24, left : left + 24])


def test_a_centre_by_area_is_cut_out_first():
    image = smooth(64, 100)
    pixels = Preprocessing((24, 24), "center_crop", crop_fraction=0.75).resize(image)
    expected = cv2.resize(image[8:56, 26:74], (24, 24), interpolation=cv2.INTER_AREA)
    np.testing.assert_array_equal(pixels, expected)


@pytest.mark.parametrize("interpolation", PILLOW_FILTERS)
def test_pad_and_squash_by_pillow(interpolation):
    image, kind = smooth(40, 60), PILLOW_FILTERS[interpolation]
    padded = Preprocessing((24, 24), "pad", interpolation).resize(image, np.full((24, 24, 3), 77, np.uint8))
    np.testing.assert_array_equal(padded[4:20], np.asarray(Image.fromarray(image).resize((24, 16), kind)))
    assert not padded[:4].any()
    assert not padded[20:].any()
    squashed = Preprocessing((24, 24), interpolation=interpolation).resize(image)
    np.testing.assert_array_equal(squashed, np.asarray(Image.fromarray(image).resize((24, 24), kind)))


@pytest.mark.parametrize(("mode", "crop_fraction"), CROPS)
@pytest.mark.parametrize("interpolation", ["area", "nearest", "bicubic"])
def test_the_longest_pictures_need_little_memory(mode, crop_fraction, interpolation, monkeypatch):
    how = Preprocessing((SIDE, SIDE), mode, interpolation, crop_fraction=crop_fraction)
    largest = 0
    resize = Image.Image.resize

    def counted(self, size, *args, **keys):
        nonlocal largest
        largest = max(largest, size[0] * size[1])
        return resize(self, size, *args, **keys)

    monkeypatch.setattr(Image.Image, "resize", counted)
    for shape in ((1, 60_000), (60_000, 1), (3, 20_000), (1, 1), (2, 1)):
        pixels = how.resize(np.full((*shape, 3), (10, 200, 30), np.uint8))
        colours = set(map(tuple, pixels.reshape(-1, 3).tolist()))
        assert colours - {(0, 0, 0)} == {(10, 200, 30)}, shape
        assert mode == "pad" or len(colours) == 1, shape
    assert largest <= 10 * (SIDE / crop_fraction) ** 2


def test_a_centre_of_a_long_picture_is_its_middle():
    image = np.zeros((10, 400, 3), np.uint8)
    image[:, 195:205] = 255
    pixels = Preprocessing((10, 10), "center_crop", "bilinear").resize(image)
    assert (pixels == 255).all()


def test_reduced_decoding_leaves_enough_for_what_is_cut_out():
    data = encoded(smooth(800, 800), "jpg")
    for crop_fraction, least in ((1.0, 100), (0.5, 200), (0.25, 400)):
        how = Preprocessing((100, 100), "center_crop", crop_fraction=crop_fraction)
        expected = how.resize(read_image(data, (least, least)), linear_up_to=1.25)
        np.testing.assert_array_equal(how.decode(data), expected)


def test_by_pillow_everything_is_decoded():
    data = encoded(smooth(640, 640), "jpg")
    for interpolation, reduced in itertools.product(PILLOW_FILTERS, (True, False)):
        how = Preprocessing((64, 64), interpolation=interpolation, reduced_decode=reduced)
        np.testing.assert_array_equal(how.decode(data), how.resize(read_image(data)))


def test_raw_pictures_of_the_right_size_stay_as_they_are(tmp_path):
    """Whoever stored them made them square; a part is not cut out a second time."""
    image = smooth(32, 32)
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file["images"] = image[None]
    how = Preprocessing.from_config(typed(config_of("center_crop", "bicubic", 0.75)))
    np.testing.assert_array_equal(first(open_images(ImageFiles(tmp_path / "raw.h5", how))), image)


def test_from_config():
    config = config_of("center_crop", "lanczos", 0.875)
    config.data.reduced_decode = False
    config.aug.mean, config.aug.std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    expected = Preprocessing((32, 32), "center_crop", "lanczos", False, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 0.875)
    assert Preprocessing.from_config(typed(config)) == expected
    assert Preprocessing.from_config(typed(get_config())) == Preprocessing((384, 384))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resize_mode": "stretch"}, "resize_mode = 'stretch' is none of squash, center_crop, pad"),
        ({"interpolation": "hamming"}, "interpolation = 'hamming' is none of area, nearest"),
        ({"resize_mode": "center_crop", "crop_fraction": 0.0}, r"crop_fraction = 0.0 is not within \[0.25, 1\]"),
        ({"resize_mode": "center_crop", "crop_fraction": 1.5}, "crop_fraction = 1.5 is not within"),
        ({"resize_mode": "center_crop", "crop_fraction": float("nan")}, "crop_fraction = nan is not within"),
        ({"resize_mode": "pad", "crop_fraction": 0.9}, "crop_fraction = 0.9 has no effect with resize_mode = 'pad'"),
    ],
)
def test_what_is_no_preprocessing(fields, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing((8, 8), **fields)
    options = {"size": 8} | fields
    with pytest.raises(ConfigError, match=f"--resize-mode, --interpolation, --crop-fraction: {message}"):
        BuildOptions(**options)


def test_a_crop_that_nothing_cuts_is_an_error_of_the_configuration():
    errors = config_errors(config_of("squash", "bicubic", 0.9))
    (message,) = [error for error in errors if "crop_fraction" in error]
    assert message == (
        "data.crop_fraction = 0.9 has no effect with resize_mode = 'squash', which keeps the whole picture; set "
        "resize_mode to center_crop, or crop_fraction to 1"
    )
    assert not [error for error in config_errors(config_of("center_crop", "bicubic", 0.9)) if "crop_" in error]
    (message,) = [error for error in config_errors(config_of("center_crop", "area", 1.5)) if "crop_" in error]
    assert message.startswith("data.crop_fraction = 1.5")


@pytest.mark.parametrize(
    ("stored", "given", "said"),
    [
        ({}, ("center_crop", "bicubic", 0.875), ""),
        ({"form": "raw", "size": 32, "resize_mode": "squash"}, ("squash", "area", 1.0), ""),
        ({"form": "jpeg", "size": 32, "resize_mode": "pad"}, ("squash", "area", 1.0), ""),
        ({"form": "raw", "size": 32, "resize_mode": "of another program"}, ("squash", "area", 1.0), ""),
        (
            {"form": "raw", "size": 32, "resize_mode": "center_crop"},
            ("squash", "area", 1.0),
            "made square by center_crop, but the model is to see pictures by squash",
        ),
        (
            {"form": "raw", "size": 32, "resize_mode": "squash", "interpolation": "bicubic"},
            ("squash", "area", 1.0),
            "made square by squash, bicubic, but the model is to see pictures by squash,",
        ),
        (
            {"form": "raw", "size": 32, "resize_mode": "center_crop", "crop_fraction": 0.875},
            ("center_crop", "area", 1.0),
            "made square by center_crop, crop fraction 0.875, but the model is to see pictures by center_crop,",
        ),
        (
            {"form": "raw", "size": 48, "resize_mode": "center_crop", "crop_fraction": 0.875},
            ("center_crop", "area", 0.875),
            "of its pictures of 48 pixels the borders are cut off already.*build the data set again with --size 32",
        ),
    ],
)
def test_what_is_said_of_pictures_that_were_made_square_in_another_way(tmp_path, stored, given, said):
    labels = str(tmp_path / "labels.h5")
    with h5py.File(labels, "w") as file:
        file.create_group("metadata/image_processing").attrs.update(stored)
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file["images"] = smooth(32, 32)[None]
    how = Preprocessing.from_config(typed(config_of(*given)))
    told = other_resizing(labels, open_images(ImageFiles(tmp_path / "raw.h5", how)), how)
    assert re.search(said, told) if said else not told
    folder = open_images(ImageFiles(tmp_path, how, Identifiers(["0"]), "png"), "folder")
    assert not other_resizing(labels, folder, how)  # the files are whole
