"""Every kind of picture becomes the pixels that its rule says, or is refused with a reason."""

from __future__ import annotations

import io
import itertools
import struct
import tracemalloc
import zlib
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from linnaeus_jax.data import decoding
from linnaeus_jax.data.decoding import (
    MAX_PIXELS,
    image_size,
    read_image,
)
from linnaeus_jax.data.preprocessing import RESIZE_MODES, Preprocessing
from tests.data.helpers import golden_pixels
from tests.npz import load_npz

LOSSLESS: dict[str, dict[str, Any]] = {"PNG": {}, "TIFF": {}, "BMP": {}, "WEBP": {"lossless": True, "exact": True}}


def smooth(height: int, width: int, seed: int = 0) -> np.ndarray:
    """uint8 [height, width, 3] without symmetry, which JPEG keeps well."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


PICTURE = smooth(60, 80)


def encoded(image: Image.Image | np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(stream, kind, **options)
    return stream.getvalue()


def by_pillow(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def assert_read(data: bytes, want: np.ndarray, within: int = 0) -> None:
    got = read_image(data)
    assert got.dtype == np.uint8
    assert got.flags.c_contiguous
    assert got.shape == want.shape
    assert np.abs(got.astype(int) - want).max() <= within
    assert image_size(data) == got.shape[:2]


def three(gray: np.ndarray) -> np.ndarray:
    return np.repeat(gray[..., None], 3, axis=2)


# ---- orientation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", "AVIF"])
def test_orientation(kind, orientation):
    """As Pillow turns it, and as the table of EXIF says where the picture's (row 0, column 0) comes to lie."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(PICTURE, kind, exif=exif, quality=90, lossless=True)
    assert_read(data, by_pillow(data))
    upright = read_image(data)
    assert upright.shape[:2] == ((60, 80) if orientation < 5 else (80, 60))
    row, column = {1: (0, 0), 2: (0, -1), 3: (-1, -1), 4: (-1, 0), 5: (0, 0), 6: (0, -1), 7: (-1, -1), 8: (-1, 0)}[
        orientation
    ]
    assert np.abs(upright[row, column].astype(int) - PICTURE[0, 0]).max() <= (2 if kind in LOSSLESS else 40)


def jpeg_with(segment: bytes) -> bytes:
    """A JPEG of PICTURE with one more APP1 segment in front."""
    data = encoded(PICTURE, "JPEG")
    return data[:2] + b"\xff\xe1" + struct.pack(">H", 2 + len(segment)) + segment + data[2:]


def exif_block(order: str, kind: int, value: int) -> bytes:
    head = {"<": b"II", ">": b"MM"}[order] + struct.pack(f"{order}HI", 42, 8)
    entries = [(0x010F, 2, 1, 0), (0x0112, kind, 1, value)]
    body = struct.pack(f"{order}H", len(entries))
    for tag, of_kind, count, number in entries:
        short = of_kind == 3
        packed = struct.pack(f"{order}HH", number, 0) if short else struct.pack(f"{order}I", number)
        body += struct.pack(f"{order}HHI", tag, of_kind, count) + packed
    return b"Exif\0\0" + head + body + b"\0\0\0\0"


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4])
def test_orientation_in_both_byte_orders(order, kind):
    data = jpeg_with(exif_block(order, kind, 6))
    assert_read(data, by_pillow(data))
    assert image_size(data) == (80, 60)


@pytest.mark.parametrize(
    "segment",
    [
        b"http://ns.adobe.com/xap/1.0/\0<x/>",
        b"Exif\0\0",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        exif_block("<", 3, 6)[:-10],
        exif_block("<", 3, 9),
        exif_block(">", 3, 0),
    ],
)
def test_unusable_exif_turns_nothing(segment):
    assert_read(jpeg_with(segment), read_image(encoded(PICTURE, "JPEG")))


def test_orientation_after_the_pixels_of_a_png():
    chunk = b"eXIf" + exif_block(">", 3, 6)[6:]
    data = encoded(PICTURE)
    data = data[:-12] + struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[-12:]
    assert image_size(data) == read_image(data).shape[:2]
    damaged = data.replace(b"IDAT", b"IDAT" + b"\0" * 40, 1)
    assert image_size(damaged) == (80, 60)
    with pytest.raises(ValueError, match="no image decoder understands"):
        read_image(damaged)


# ---- kinds of pixels -------------------------------------------------------------------------------------------------

GRAY = np.arange(256, dtype=np.uint8).reshape(16, 16)


@pytest.mark.parametrize("kind", [*LOSSLESS, "GIF", "PPM", "JPEG2000"])
def test_gray_and_one_bit(kind):
    assert_read(encoded(GRAY, kind, **LOSSLESS.get(kind, {})), three(GRAY))
    if kind not in ("WEBP", "JPEG2000"):
        assert_read(encoded(Image.fromarray(GRAY > 99), kind), three(np.where(GRAY > 99, 255, 0)))


@pytest.mark.parametrize("colours", [2, 17, 200])
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "GIF"])
def test_palette(kind, colours):
    image = Image.fromarray(PICTURE).quantize(colours)
    want = np.asarray(image.convert("RGB"))
    assert_read(encoded(image, kind), want)
    if kind in ("PNG", "GIF"):
        assert_read(encoded(image, kind, transparency=1), np.where(np.asarray(image)[..., None] == 1, 255, want))


def on_white(colours: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Colours [h, w, 3] below alpha [h, w] as viewers show them."""
    share = alpha[..., None] / 255
    return np.rint(colours * share + 255 * (1 - share)).astype(np.uint8)


@pytest.mark.parametrize("kind", [*LOSSLESS, "AVIF"])
def test_what_is_transparent_stands_on_white(kind):
    alpha = np.random.default_rng(0).integers(0, 256, (60, 80, 1), np.uint8)
    rgba = np.concatenate([PICTURE, alpha], axis=2)
    data = encoded(rgba, kind, **LOSSLESS.get(kind, {}))
    stored = np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))
    assert_read(data, on_white(stored[..., :3], stored[..., 3]))
    if kind not in ("AVIF", "BMP"):  # Pillow writes BMP without saying that it has transparency
        assert_read(data, on_white(PICTURE, alpha[..., 0]))
    opaque = np.concatenate([PICTURE, np.full_like(alpha, 255)], axis=2)
    if kind in LOSSLESS:
        assert_read(encoded(opaque, kind, **LOSSLESS.get(kind, {})), PICTURE)
    if kind in ("PNG", "TIFF"):
        gray = np.concatenate([three(GRAY)[..., :1], GRAY[::-1, :, None]], axis=2)
        assert_read(encoded(Image.fromarray(gray, "LA"), kind), on_white(three(GRAY), GRAY[::-1]))


def test_one_transparent_colour_of_a_png():
    colour = tuple(PICTURE[3, 4].tolist())
    is_it = np.equal(PICTURE, colour).all(axis=2, keepdims=True)
    assert_read(encoded(PICTURE, transparency=colour), np.where(is_it, 255, PICTURE))
    assert_read(encoded(GRAY, transparency=7), three(np.where(GRAY == 7, 255, GRAY)))
    wide = GRAY.astype(np.uint16) << 8 | 5
    assert_read(encoded(wide, transparency=0x0705), three(np.where(GRAY == 7, 255, GRAY)))
    data = cv2.imencode(".png", PICTURE.astype(np.uint16)[..., ::-1] << 8)[1].tobytes()
    value = np.array([v << 8 for v in colour], ">u2").tobytes()
    chunk = struct.pack(">I", 6) + b"tRNS" + value + struct.pack(">I", zlib.crc32(b"tRNS" + value))
    at = data.index(b"IDAT") - 4
    assert_read(data[:at] + chunk + data[at:], np.where(is_it, 255, PICTURE))


@pytest.mark.parametrize("extension", [".png", ".tiff"])
def test_sixteen_bits_give_their_high_byte(extension):
    low = np.random.default_rng(0).integers(0, 256, (60, 80, 4)).astype(np.uint16)
    wide = np.concatenate([PICTURE[..., ::-1], PICTURE[..., :1]], axis=2).astype(np.uint16) * 256 + low
    transparent = on_white(PICTURE, PICTURE[..., 0])
    for image, want in ((wide, transparent), (wide[..., :3], PICTURE), (wide[..., 0], three(PICTURE[..., 2]))):
        assert_read(cv2.imencode(extension, image)[1].tobytes(), want)


def with_sbit(data: bytes, bits: int, channels: int) -> bytes:
    """A PNG that says how many of its bits count."""
    chunk = b"sBIT" + bytes([bits] * channels)
    return data[:33] + struct.pack(">I", channels) + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[33:]


@pytest.mark.parametrize("bits", [10, 12, 14])
def test_fewer_than_sixteen_bits_are_scaled_where_the_file_says_how_many(bits, caplog):
    values = (PICTURE.astype(np.uint16) << bits - 8) | 1
    gray = values[..., 0]
    for data, want in (
        (with_sbit(encoded(gray), bits, 1), three(PICTURE[..., 0])),
        (with_sbit(cv2.imencode(".png", values[..., ::-1])[1].tobytes(), bits, 3), PICTURE),
        (encoded(gray, "TIFF", tiffinfo={281: (1 << bits) - 1}), three(PICTURE[..., 0])),
        (b"P5 80 60 %d\n" % ((1 << bits) - 1) + gray.astype(">u2").tobytes(), three(PICTURE[..., 0])),
        (b"P6\n# by hand\n80 60\n%d\n" % ((1 << bits) - 1) + values.astype(">u2").tobytes(), PICTURE),
    ):
        assert_read(data, want)
    # as the standard wants it: stretched over all of the sixteen bits
    assert_read(with_sbit(encoded(gray << 16 - bits), bits, 1), three(PICTURE[..., 0]))
    assert not caplog.records


def test_eight_of_sixteen_bits_are_no_fewer_than_sixteen():
    """No program writes 8 bits in 16 as they are; files that say so have been scaled."""
    values = PICTURE[..., 0].astype(np.uint16)
    assert_read(with_sbit(encoded(values), 8, 1), three(np.zeros_like(PICTURE[..., 0])))
    assert_read(with_sbit(encoded(values), 9, 1), three(PICTURE[..., 0] >> 1))


def test_dark_pictures_of_sixteen_bits_are_told_of_and_counted(caplog, monkeypatch):
    monkeypatch.setattr(decoding, "_dark", itertools.count(1))
    values = PICTURE[..., 0].astype(np.uint16) << 4
    for kind in ("PNG", "TIFF") * 6:
        assert_read(encoded(values, kind), three(PICTURE[..., 0] >> 4))
    assert [record.args[1] for record in caplog.records] == [1, 10]
    assert "has no value above 16383 and is nearly black (number 1)" in caplog.text
    read_image(encoded(PICTURE // 200))  # of eight bits
    assert len(caplog.records) == 2


def test_pixels_without_a_known_white_are_refused():
    for mode in ("I", "F"):
        with pytest.raises(ValueError, match="pixels of 32 bits"):
            read_image(encoded(Image.fromarray(PICTURE[..., 0]).convert(mode), "TIFF"))


def test_cmyk():
    """Adobe's inverted CMYK, YCCK, and CMYK without Adobe's marker."""
    cmyk = Image.fromarray(PICTURE).convert("CMYK")
    data = encoded(cmyk, "JPEG", quality=95)
    adobe = data.index(b"Adobe") - 4
    without = data[:adobe] + data[adobe + 2 + int.from_bytes(data[adobe + 2 : adobe + 4], "big") :]
    ycck = simplejpeg.encode_jpeg(np.asarray(cmyk), 95, "CMYK", "444")
    assert simplejpeg.decode_jpeg_header(ycck)[2] == "YCCK"
    for one in (data, without, ycck):
        assert_read(one, by_pillow(one), within=1)
    assert np.abs(read_image(data).astype(int) - PICTURE).mean() < 3
    assert_read(encoded(cmyk, "TIFF"), PICTURE)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF", "AVIF"])
def test_the_first_of_several_pictures(kind):
    first, second = (Image.fromarray(GRAY[::step].copy()) for step in (1, -1))
    data = encoded(first, kind, save_all=True, append_images=[second], lossless=True, quality=100)
    assert_read(data, by_pillow(data))
    assert np.abs(read_image(data).astype(int) - three(GRAY)).max() <= (9 if kind == "AVIF" else 0)


@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411"])
def test_jpeg_of_every_sampling(subsampling):
    data = simplejpeg.encode_jpeg(PICTURE, 90, "RGB", subsampling)
    assert_read(data, by_pillow(data))


def test_progressive_and_gray_jpeg():
    for image in (PICTURE, PICTURE[..., 0]):
        data = encoded(image, "JPEG", progressive=True)
        assert_read(data, by_pillow(data))


def test_jpeg_that_only_the_general_path_knows():
    """Chroma sampled more finely than luminance: libjpeg-turbo's own interface has no name for it."""
    data = bytearray(encoded(PICTURE, "JPEG", subsampling=0, quality=95))
    frame = data.index(b"\xff\xc0")
    data[frame + 11] = 0x31  # three columns of luminance blocks
    with pytest.raises(ValueError, match="subsampling"):
        simplejpeg.decode_jpeg_header(bytes(data))
    assert image_size(bytes(data)) == (60, 80)
    assert read_image(bytes(data)).shape == (60, 80, 3)
    with pytest.raises(ValueError, match="truncated after"):
        read_image(bytes(data[:-2]))


# ---- reduced scale ---------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 310), st.integers(1, 310), st.integers(1, 8))
@example(256, 512, 120, 250, 4)
@example(256, 512, 120, 250, 5)  # the first that is turned
def test_reduced_decode_has_at_least_what_is_wanted(height, width, high, wide, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(smooth(height, width), "JPEG", exif=exif)
    full, part = read_image(data), read_image(data, (high, wide))
    factors = [1, 1 / 2, 3 / 8, 1 / 4, 1 / 8]
    sides = [tuple(int(-(-side * factor // 1)) for side in full.shape[:2]) for factor in factors]
    enough = [side for side in sides if side[0] >= high and side[1] >= wide]
    assert part.shape[:2] == (enough[-1] if enough else full.shape[:2])
    if part.shape == full.shape:
        np.testing.assert_array_equal(part, full)


@pytest.mark.parametrize("mode", RESIZE_MODES)
@pytest.mark.parametrize("shape", [(640, 640), (900, 400), (400, 900)])
def test_reduced_decode_looks_like_full_decode(mode, shape):
    data = encoded(smooth(*shape), "JPEG", quality=95)
    full, part = (np.empty((64, 64, 3), np.uint8) for _ in range(2))
    Preprocessing(full.shape[:2], mode, reduced_decode=False).decode(data, full)
    Preprocessing(part.shape[:2], mode).decode(data, part)
    assert 0 < np.abs(full.astype(int) - part).mean() < 2


@pytest.mark.parametrize(("side", "how"), [(600, cv2.INTER_LINEAR), (1280, cv2.INTER_LINEAR), (768, cv2.INTER_AREA)])
def test_a_small_rest_after_reduced_decoding_is_linear(side, how):
    data, out = encoded(smooth(side, side), "JPEG"), np.empty((128, 128, 3), np.uint8)
    Preprocessing(out.shape[:2]).decode(data, out)
    part = read_image(data, (128, 128))
    np.testing.assert_array_equal(out, cv2.resize(part, (128, 128), interpolation=how))
    Preprocessing(out.shape[:2], reduced_decode=False).decode(data, out)
    np.testing.assert_array_equal(out, cv2.resize(read_image(data), (128, 128), interpolation=cv2.INTER_AREA))


def test_what_was_not_reduced_keeps_the_area_rule():
    out = np.empty((64, 64, 3), np.uint8)
    for kind, side in (("PNG", 70), ("JPEG", 70)):
        data = encoded(smooth(side, side), kind)
        Preprocessing(out.shape[:2]).decode(data, out)
        np.testing.assert_array_equal(out, cv2.resize(read_image(data), (64, 64), interpolation=cv2.INTER_AREA))


# ---- resizing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", range(7))
def test_golden_resize(fixtures, case):
    arrays = load_npz(fixtures / "data_resize.npz")
    image, want = arrays[f"in{case}"], arrays[f"out{case}"]
    out = np.empty_like(want)
    Preprocessing(out.shape[:2]).resize(image, out)
    assert np.abs(out.astype(int) - want).max() <= 1
    decoded = np.empty_like(want)
    Preprocessing(decoded.shape[:2]).decode(encoded(image), decoded)
    np.testing.assert_array_equal(decoded, out)


def test_modes_of_pictures_that_are_not_square():
    wide = smooth(40, 60)
    out = np.empty((20, 20, 3), np.uint8)
    Preprocessing(out.shape[:2], "center_crop").resize(wide, out)
    np.testing.assert_array_equal(out, cv2.resize(wide[:, 10:50], (20, 20), interpolation=cv2.INTER_AREA))
    Preprocessing(out.shape[:2], "pad").resize(wide, out)
    np.testing.assert_array_equal(out[3:16], cv2.resize(wide, (20, 13), interpolation=cv2.INTER_AREA))
    assert not out[:3].any()
    assert not out[16:].any()
    Preprocessing(out.shape[:2], "squash").resize(wide, out)
    np.testing.assert_array_equal(out, cv2.resize(wide, (20, 20), interpolation=cv2.INTER_AREA))
    with pytest.raises(ValueError, match="resize_mode = 'stretch' is none of squash, center_crop, pad"):
        Preprocessing(out.shape[:2], "stretch").resize(wide, out)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 40), st.sampled_from(RESIZE_MODES))
def test_resizing_keeps_a_plain_colour(height, width, side, mode):
    image = np.full((height, width, 3), (10, 200, 30), np.uint8)
    out = np.full((side, side, 3), 77, np.uint8)
    Preprocessing(out.shape[:2], mode).resize(image, out)
    coloured = (out == (10, 200, 30)).all(-1)
    assert (coloured | ~out.any(-1)).all()
    rows, columns = coloured.any(1), coloured.any(0)
    assert coloured.sum() == rows.sum() * columns.sum()
    if mode != "pad" or height == width:
        assert coloured.all()
    else:
        assert max(rows.sum(), columns.sum()) == side


@pytest.mark.parametrize("mode", RESIZE_MODES)
def test_equal_size_is_copied(mode):
    image = golden_pixels(1)[0]
    out = np.empty_like(image)
    Preprocessing(out.shape[:2], mode).decode(encoded(image), out)
    np.testing.assert_array_equal(out, image)


# ---- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*LOSSLESS, "JPEG", "GIF", "PPM", "AVIF", "JPEG2000"])
def test_truncated_files_are_refused(kind):
    noise = np.random.default_rng(0).integers(0, 256, (50, 60, 3), np.uint8)
    data = encoded(noise, kind, **LOSSLESS.get(kind, {}))
    for kept in (len(data) - 14, len(data) * 3 // 4, len(data) // 2, 209, 40, 8, 3):
        with pytest.raises(ValueError, match=r"^(truncated after \d+ bytes|\d+ bytes (with|of|that).*)$"):
            read_image(data[:kept])
    if kind in ("PNG", "JPEG", "WEBP"):
        with pytest.raises(ValueError, match=rf"^truncated after {len(data) - 5} bytes$"):
            read_image(data[:-5])
    with pytest.raises(ValueError, match="empty file"):
        read_image(b"")
    with pytest.raises(ValueError, match="no image decoder understands"):
        read_image(b"text, not a picture")


def test_a_truncated_file_with_a_thumbnail_is_refused():
    """The thumbnail in the EXIF segment ends with the marker that ends the file."""
    segment = b"Exif\0\0" + b"II*\0\x08\0\0\0\0\0\0\0\0\0" + encoded(PICTURE[:16, :16], "JPEG")
    data = jpeg_with(segment)
    assert_read(data, read_image(encoded(PICTURE, "JPEG")))
    for kept in (len(data) - 2, len(data) - 40):
        assert b"\xff\xd9" in data[:kept]
        with pytest.raises(ValueError, match=rf"^truncated after {kept} bytes$"):
            read_image(data[:kept])


def test_damage_that_libjpeg_mends_is_read():
    """Stray bytes before a marker are a warning of libjpeg; one hides the warning of an early end."""
    data = encoded(PICTURE, "JPEG")
    stray = data[:-2] + b"\0\0\0\0\0\0\0\0" + data[-2:]
    scan = data.index(b"\xff\xda")
    between = data[:scan] + b"\0\0\0" + data[scan:]
    for one in (stray, between):
        with pytest.raises(ValueError, match="extraneous"):
            simplejpeg.decode_jpeg(one, "RGB")
    assert_read(stray, by_pillow(data))
    with pytest.raises(ValueError, match="truncated"):
        read_image(stray[:-2])
    assert_read(data + b"trailing bytes", by_pillow(data))


def png_header(width: int, height: int) -> bytes:
    """A PNG of a few kB that says it is large."""
    chunks = [
        b"IHDR" + struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0),
        b"IDAT" + zlib.compress(bytes(2_000_000), 9),
        b"IEND",
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks
    )


def test_large_pictures_are_refused_before_their_pixels_are_allocated():
    png = png_header(65000, 65000)
    jpeg = bytearray(encoded(PICTURE, "JPEG"))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", 65000, 65000)
    assert len(png) < 5000
    tracemalloc.start()
    for data in (png, bytes(jpeg)):
        for action in (read_image, image_size, lambda one: read_image(one, (32, 32))):
            with pytest.raises(ValueError, match=rf"^65000 x 65000 pixels, more than {MAX_PIXELS} are not read$"):
                action(data)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    assert image_size(png_header(12000, 12000)) == (12000, 12000)  # above Pillow's own limit, without its warning


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"]), st.data())
def test_damaged_files_are_read_or_refused(kind, data):
    """Whatever bytes change: a picture of the header's size, or one ValueError of one line."""
    exif = Image.Exif()
    exif[0x0112] = 6
    raw = bytearray(encoded(PICTURE[:20, :24], kind, exif=exif))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    reasons, shapes = [], []
    for look in (image_size, lambda data: read_image(data).shape[:2]):
        try:
            shapes.append(look(bytes(raw)))
        except ValueError as error:
            reasons.append(str(error))
    assert len(set(shapes)) <= 1
    assert "\n" not in "".join(reasons)
