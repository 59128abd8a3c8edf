"""Pictures of any kind become the pixels that the model sees."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.inference.pictures import PictureError, read_picture
from tests.npz import load_npz

NOISE = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def encoded(form: str, orientation: int = 1, image: np.ndarray = NOISE) -> bytes:
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    options: Any = {"WEBP": {"lossless": True}, "JPEG": {"quality": 95}}.get(form, {})
    Image.fromarray(image).save(buffer, form, exif=exif, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_normalised_pixels_of_the_original(fixtures, kind):
    golden = load_npz(fixtures / "observability_image_preproc.npz")
    expected = golden[f"out_{kind}"]
    preprocessing = Preprocessing(expected.shape[1:], interpolation=kind)
    for picture in (golden[f"in_{kind}"], encoded("PNG", image=golden[f"in_{kind}"])):
        values = read_picture(picture, preprocessing) / np.float32(255)
        result = (values - np.array(preprocessing.mean, np.float32)) / np.array(preprocessing.std, np.float32)
        np.testing.assert_allclose(result.transpose(2, 0, 1), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP", "JPEG"])
@pytest.mark.parametrize("orientation", [1, 6, 3])
def test_every_way_to_give_a_picture_is_the_same(form, orientation, tmp_path):
    raw = encoded(form, orientation)
    path = tmp_path / "picture"
    path.write_bytes(raw)
    upright = np.rot90(NOISE, {1: 0, 6: -1, 3: 2}[orientation])
    preprocessing = Preprocessing(upright.shape[:2], reduced_decode=False)
    expected = read_picture(raw, preprocessing)
    if form != "JPEG":
        np.testing.assert_array_equal(expected, upright)
    forms: list[Any] = [path, str(path), Image.open(path), bytearray(raw), memoryview(raw)]
    for picture in forms:
        # Pillow and simplejpeg each bring a libjpeg of their own
        np.testing.assert_allclose(
            read_picture(picture, preprocessing).astype(int), expected, rtol=0, atol=2 if form == "JPEG" else 0
        )


def test_arrays_and_images_of_all_modes():
    preprocessing = Preprocessing((20, 30))
    gray = NOISE[..., 0]
    for picture in (gray, gray[..., None], Image.fromarray(gray)):
        np.testing.assert_array_equal(read_picture(picture, preprocessing), np.repeat(gray[..., None], 3, axis=2))
    alpha = np.dstack([NOISE, gray])
    for picture in (Image.fromarray(NOISE), NOISE, np.dstack([NOISE, np.full_like(gray, 255)])):
        np.testing.assert_array_equal(read_picture(picture, preprocessing), NOISE)
    shares = gray[..., None] / 255
    for picture in (alpha, Image.fromarray(alpha)):
        want = np.rint(NOISE * shares + 255 * (1 - shares))
        np.testing.assert_array_equal(read_picture(picture, preprocessing), want)
    for mode in ("1", "LA", "P", "PA", "RGBX", "RGBa", "CMYK", "YCbCr", "HSV", "I;16"):
        assert read_picture(Image.new(mode, (9, 9)), preprocessing).shape == (20, 30, 3), mode
    high = Image.fromarray(gray.astype(np.uint16) * 256 + 77)
    np.testing.assert_array_equal(read_picture(high, preprocessing)[..., 1], gray)


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        ("/nowhere/a.jpg", "No such file or directory"),
        ("/", "Is a directory"),
        (b"", "empty file"),
        (b"not a picture", "no image decoder understands"),
        (encoded("JPEG")[:400], "truncated"),
        (encoded("PNG")[:400], "truncated"),
        (NOISE.astype(np.float32), "an array of float32 .*; give uint8 pixels"),
        (NOISE[..., :2], "give uint8 pixels"),
        (NOISE[:0], "give uint8 pixels"),
        (Image.new("F", (4, 4)), "pixels of 32 bits"),
        (Image.new("I", (4, 4)), "pixels of 32 bits"),
    ],
)
def test_what_is_no_picture(model, picture, message):
    with pytest.raises(PictureError, match=message):
        read_picture(picture, Preprocessing((8, 8)))
    with pytest.raises(PictureError, match=f"^(/.*|picture 1): .*{message}"):
        model.read([NOISE, picture])
