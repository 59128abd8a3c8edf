"""What an export reads pictures with gives what this package gives, or refuses in one line."""

from __future__ import annotations

import itertools
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from linnaeus_jax.data import portable_images
from linnaeus_jax.data.decoding import read_image
from linnaeus_jax.data.portable_images import read_rgb, resized
from linnaeus_jax.data.preprocessing import INTERPOLATIONS, RESIZE_MODES, Preprocessing
from tests.data.test_decoding import PICTURE, encoded, with_sbit

RGB, GRAY = Image.fromarray(PICTURE), Image.fromarray(PICTURE[..., 0])
WIDE = (PICTURE[..., 0].astype(np.uint16) << 8) | 9
ALPHA = np.dstack([PICTURE, PICTURE[::-1, :, 0]])
EXIF = {
    number: {"exif": b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0%c\0\0\0\0\0\0\0" % number}
    for number in range(1, 9)
}


def with_profile(image: Image.Image, kind: str) -> bytes:
    from PIL import ImageCms

    return encoded(image, kind, icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("XYZ")).tobytes())


def transparent_wide() -> bytes:
    """A PNG of 16 bits a channel, one colour of which is transparent."""
    data = cv2.imencode(".png", PICTURE.astype(np.uint16)[..., ::-1] << 8)[1].tobytes()
    chunk = b"tRNS" + np.array([v << 8 for v in PICTURE[3, 4]], ">u2").tobytes()
    at = data.index(b"IDAT") - 4
    return data[:at] + struct.pack(">I", 6) + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[at:]


KINDS: dict[str, bytes] = {
    "L": encoded(GRAY),
    "LA": encoded(Image.fromarray(ALPHA[..., 2:], "LA")),
    "I;16": encoded(WIDE),
    "I;16 tiff": encoded(WIDE, "TIFF"),
    "I;16B tiff": encoded(Image.fromarray(WIDE.astype(">u2")), "TIFF"),
    "12 of 16 bits": with_sbit(encoded(WIDE >> 4), 12, 1),
    "12 of 16 bits tiff": encoded(WIDE >> 4, "TIFF", tiffinfo={281: 4095}),
    "12 of 16 bits, not told": encoded(WIDE >> 4),
    "pgm of 12 bits": b"P5 80 60 4095\n" + (WIDE >> 4).astype(">u2").tobytes(),
    "1": encoded(GRAY.convert("1")),
    "1 tiff": encoded(GRAY.convert("1"), "TIFF"),
    "P": encoded(RGB.quantize(17)),
    "P transparent": encoded(RGB.quantize(17), transparency=3),
    "P gif": encoded(RGB.quantize(17), "GIF", transparency=3),
    "RGB transparent": encoded(RGB, transparency=tuple(PICTURE[3, 4].tolist())),
    "RGB of 16 bits": cv2.imencode(".png", PICTURE.astype(np.uint16) << 8)[1].tobytes(),
    "RGB of 16 bits transparent": transparent_wide(),
    "RGB of 16 bits tiff": cv2.imencode(".tiff", PICTURE.astype(np.uint16) << 8)[1].tobytes(),
    "RGBA": encoded(ALPHA),
    "RGBA tiff": encoded(ALPHA, "TIFF"),
    "RGBA webp": encoded(ALPHA, "WEBP", lossless=True, exact=True),
    "RGBA jp2": encoded(ALPHA, "JPEG2000"),
    "RGBA avif": encoded(ALPHA, "AVIF"),
    "bmp": encoded(RGB, "BMP"),
    "ppm": encoded(RGB, "PPM"),
    "j2k": encoded(RGB, "JPEG2000", no_jp2=True),
    "YCbCr": encoded(RGB.convert("YCbCr"), "TIFF"),
    "YCbCr jpeg": encoded(RGB, "JPEG"),
    "gray jpeg": encoded(GRAY, "JPEG"),
    "CMYK tiff": encoded(RGB.convert("CMYK"), "TIFF"),
    "CMYK jpeg": encoded(RGB.convert("CMYK"), "JPEG"),
    "mpo": encoded(RGB, "MPO", save_all=True, append_images=[RGB.transpose(Image.Transpose.ROTATE_180)]),
    "animated gif": encoded(RGB.quantize(9), "GIF", save_all=True, append_images=[GRAY.quantize(9)]),
    "animated webp": encoded(RGB, "WEBP", save_all=True, append_images=[GRAY.convert("RGB")], lossless=True),
    "animated png": encoded(RGB, save_all=True, append_images=[GRAY.convert("RGB")]),
    "profile png": with_profile(RGB, "PNG"),
    "profile jpeg": with_profile(RGB, "JPEG"),
    **{f"turned {n} {kind}": encoded(RGB, kind, **EXIF[n]) for n in EXIF for kind in ("JPEG", "PNG", "WEBP", "AVIF")},
    **{f"turned {n} TIFF": encoded(RGB, "TIFF", tiffinfo={0x0112: n}) for n in EXIF},
}  # fmt: skip
#: what is refused by both
REFUSED: dict[str, bytes] = {
    "F": encoded(GRAY.convert("F"), "TIFF"),
    "I": encoded(GRAY.convert("I"), "TIFF"),
    "no picture": b"no picture at all",
    "empty": b"",
    "ico": encoded(RGB.resize((32, 32)), "ICO"),
    **{f"truncated {kind}": encoded(RGB, kind)[:-99] for kind in ("JPEG", "PNG", "WEBP", "TIFF", "BMP")},
    "truncated mpo": KINDS["mpo"][:999],
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_is_what_this_package_reads(kind):
    want, got = read_image(KINDS[kind]), read_rgb(KINDS[kind])
    assert got.dtype == np.uint8
    assert got.shape == want.shape
    near = 2 if any(word in kind for word in ("jpeg", "JPEG", "mpo")) else 0  # two builds of libjpeg
    np.testing.assert_allclose(got.astype(int), want, rtol=0, atol=near)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_this_package_refuses(kind):
    with pytest.raises(ValueError):
        read_image(REFUSED[kind])
    with pytest.raises((ValueError, OSError)):
        read_rgb(REFUSED[kind])


def test_the_decoder_of_heic_is_needed_for_heic_alone(monkeypatch):
    def missing():
        raise ModuleNotFoundError("pillow_heif")

    monkeypatch.setattr(portable_images, "register_heif", missing)
    assert read_rgb(encoded(RGB, "PNG")).shape[-1] == 3
    with pytest.raises(ModuleNotFoundError):
        read_rgb(b"\0\0\0\x18ftypheic" + bytes(64))


def test_colours_of_fewer_bits_are_refused_where_pillow_cuts_them():
    data = with_sbit(cv2.imencode(".png", PICTURE.astype(np.uint16) << 4)[1].tobytes(), 12, 3)
    np.testing.assert_array_equal(read_image(data), PICTURE[..., ::-1])
    with pytest.raises(ValueError, match="12 bits in channels of 16, of which Pillow reads 8"):
        read_rgb(data)
    high = with_sbit(cv2.imencode(".png", PICTURE.astype(np.uint16) << 8)[1].tobytes(), 12, 3)
    np.testing.assert_array_equal(read_rgb(high), PICTURE[..., ::-1])  # as PNG has it: in the high bits
    dark = np.minimum(PICTURE, 16)  # more than 12 bits have
    read = read_rgb(with_sbit(cv2.imencode(".png", dark.astype(np.uint16) << 8)[1].tobytes(), 12, 3))
    np.testing.assert_array_equal(read, dark[..., ::-1])


@pytest.mark.parametrize(("mode", "interpolation"), list(itertools.product(RESIZE_MODES, INTERPOLATIONS)))
def test_resizing_without_opencv(mode, interpolation):
    """The mean over an area is that of OpenCV but for its rounding; the others are Pillow's in both."""
    rng = np.random.default_rng(0)
    for shape, size, crop in (((97, 131), (32, 32), 0.875), ((131, 97), (24, 40), 1.0), ((9, 14), (32, 32), 1.0)):
        image = rng.integers(0, 256, (*shape, 3), np.uint8)
        crop = crop if mode == "center_crop" else 1.0
        want = Preprocessing(size, mode, interpolation, crop_fraction=crop).resize(image)
        got = resized(image, size, mode, interpolation, crop)
        np.testing.assert_allclose(got.astype(int), want, rtol=0, atol=1 if interpolation == "area" else 0)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_a_picture_that_is_padded_lies_in_the_middle(interpolation):
    wide = resized(np.full((12, 24, 3), 200, np.uint8), (31, 32), "pad", interpolation, 1.0)
    assert np.flatnonzero(wide.any(axis=(1, 2))).tolist() == list(range(7, 23))
    assert (wide[7:23] == 200).all()
    high = resized(np.full((24, 12, 3), 200, np.uint8), (32, 31), "pad", interpolation, 1.0)
    np.testing.assert_array_equal(high, wide.swapaxes(0, 1))


def test_one_line_for_a_file_that_is_not_read(tmp_path):
    """The module alone, as an export has it."""
    source = Path(portable_images.__file__).read_text(encoding="utf-8")
    (tmp_path / "pixels.py").write_text(source, encoding="utf-8")
    (tmp_path / "a.tif").write_bytes(REFUSED["F"])
    code = (
        "import sys; sys.modules['linnaeus_jax'] = sys.modules['cv2'] = None; from pixels import read_all; "
        "read_all(sys.argv[1:], size=[8, 8], resize_mode='pad', interpolation='area', crop_fraction=1)"
    )
    for name, words in (("a.tif", "pixels of 32 bits (mode F)"), ("b.tif", "No such file or directory")):
        done = subprocess.run(
            [sys.executable, "-c", code, name], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"{name}: ")
        assert words in line
