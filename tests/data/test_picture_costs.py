"""Pictures that would keep a decoder busy are refused by their structure; what programs write is read as ever."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import time
from typing import Any

import cv2
import numpy as np
import pillow_heif
import pytest
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from linnaeus_jax.data import picture_costs
from linnaeus_jax.data.decoding import TooCostly, image_size, open_header, read_image
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.reading.exif import observation_of
from tests.campaign.pictures_made import after_start, chunk, encoded, jpeg_of_scans, png_with, tiff, tile_of

SCAN_BEHIND_HIDDEN_END = b"\xff\xfe\0\4\xff\xd9"
#: one tile, whose width is an empty tag: that of the picture
EMPTY = [(256, 4, 1, 32), (257, 4, 1, 32), (322, 4, 0, 0), (323, 4, 1, 2**30), (324, 4, 1, 8), (325, 4, 1, 9)]
SHARED = tiff([(40000 + i, 1, 500_000, 8) for i in range(900)], bytes(500_000))


def hidden_scans() -> bytes:
    data = jpeg_of_scans(64, 64, 1)
    return data[:-2] + (SCAN_BEHIND_HIDDEN_END + data[data.rindex(b"\xff\xda") : -2]) * 1200 + b"\xff\xd9"


def strips(count: int) -> bytes:
    """A TIFF of one column, each of whose pixels has a strip."""
    at = 8 + 2 + 9 * 12 + 4
    tags = [(256, 4, 1, 1), (257, 4, 1, count), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    tags += [(273, 4, count, at), (277, 3, 1, 1), (278, 4, 1, 1), (279, 4, count, at + 4 * count)]
    return tiff(tags, struct.pack("<I", 8) * count + struct.pack("<I", 1) * count)


JP2 = encoded(40, 30, "JPEG2000")
SIZES, MANY = (struct.pack(">8I", *each) for each in ((40, 30, 0, 0, 40, 30, 0, 0), (999, 999, 0, 0, 1, 1, 0, 0)))
GIF = encoded(40, 30, "GIF")
TILE = [(256, 16, 1, 32), (257, 16, 1, 32), (322, 16, 1, 60000), (323, 16, 1, 11008), (324, 16, 1, 8), (325, 16, 1, 9)]
COSTLY = {
    "scans": (jpeg_of_scans(64, 64, 1000), "or more scans"),
    "scans of many pixels": (jpeg_of_scans(4000, 4000, 300), "a JPEG of 16000000 pixels with"),
    "scans behind a hidden end": (hidden_scans(), "or more scans"),
    "segments": (after_start(b"\xff\xfe\0\2" * 1_000_000), "10000 segments"),
    "fill": (after_start(b"\xff" * 5_000_000), "65536 bytes between its segments"),
    "zeros": (after_start(b"\0" * 5_000_000), "65536 bytes between its segments"),
    "markers that stand alone": (after_start(b"\xff\x01" * 1_000_000), "10000 segments"),
    "texts": (png_with(chunk(b"tEXt", b"a\0b") * 100_000), "1000 chunks before its pixels"),
    "parts of pixels": (png_with(chunk(b"IDAT", b"") * 200_000, behind=True), "131072 chunks"),
    "EXIF of PNG": (png_with(chunk(b"eXIf", SHARED)), "many times larger than the file"),
    "EXIF of WebP": (encoded(40, 30, "WEBP", exif=SHARED), "many times larger than the file"),
    "EXIF behind a chunk of one byte": (
        b"RIFF\0\0\x10\0WEBPXXXX\1\0\0\0x\0EXIF" + struct.pack("<I", len(SHARED)) + SHARED,
        "many times larger than the file",
    ),
    "tile": (tile_of(60000, 11008), "32 x 32 pixels in tiles of 60000 x 11008"),
    "tile of a BigTIFF": (
        b"II+\0" + struct.pack("<HHQQ", 8, 0, 16, len(TILE)) + b"".join(struct.pack("<HHQQ", *tag) for tag in TILE),
        "32 x 32 pixels in tiles of 60000 x 11008",
    ),
    "tile of a width that is not told": (tiff(EMPTY), "32 x 32 pixels in tiles of 32 x 1073741824"),
    "tags": (tiff([(40000 + i % 20000, 2, 4, 65) for i in range(65535)]), "65535 tags"),
    "tags that share a value": (SHARED, "many times larger than the file"),
    "tag twice": (tiff([(322, 4, 1, 16), (322, 4, 1, 60000)], bytes(20)), "tag 322 is given 2 times"),
    "strips": (strips(200_000), "200000 strips"),
    "blocks": (GIF[:13] + b"\x21\xfe" + b"\1x" * 1_000_000 + b"\0" + GIF[13:], "4096 blocks"),
    "blocks behind a palette": (
        GIF[:10] + b"\xf7\0\0" + b"," * 768 + b"\x21\xfe" + b"\1x" * 5000 + b"\0" + GIF[13:],
        "4096 blocks",
    ),
    "chunks": (b"RIFF" + struct.pack("<I", 800_004) + b"WEBP" + b"XXXX\0\0\0\0" * 100_000, "10000 chunks"),
    "comment": (b"P6 #" + b"x" * 3_000_000 + b"\n32 32 255\n" + bytes(3072), "header of more than 65536 bytes"),
    "boxes": (JP2[:12] + b"\0\0\0\x08free" * 500_000 + JP2[12:], "1000 boxes before its pixels"),
    "boxes of the header": (
        JP2[:12] + struct.pack(">I", 4_000_008) + b"jp2h" + b"\0\0\0\x08free" * 500_000 + JP2[12:],
        "1000 boxes before its pixels",
    ),
    "a hidden JPEG 2000": (
        JP2[:12] + struct.pack(">I", 60) + b"uuid\xff\x4f\xff\x51" + bytes(48) + JP2[12:].replace(SIZES, MANY),
        "998001 tiles",
    ),
    "JPEG 2000": (
        JP2[JP2.index(b"\xff\x4f\xff\x51") :].replace(SIZES, MANY),
        "998001 tiles",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COSTLY)
def test_refused_by_its_structure(name):
    """Before anything is decoded, at once, by every door."""
    data, words = COSTLY[name]
    started = time.process_time()
    for door in (image_size, read_image, open_header, Preprocessing((8, 8)).decode):
        with pytest.raises(TooCostly, match=words) as refused:
            door(data)
        assert "\n" not in str(refused.value)
    observation_of(data)
    assert time.process_time() - started < 2


#: what there may be at the most -> a file with so many, and the number
LIMITS = {
    "segments of a JPEG": (lambda count: b"\xff\xd8" + b"\xff\xfe\0\2" * count, 10_000),
    "bytes between its segments": (lambda count: b"\xff\xd8" + bytes(count) + b"\xff\xd9", 65_536),
    "chunks of a PNG": (lambda count: b"\x89PNG\r\n\x1a\n" + chunk(b"IDAT", b"") * count, 131_072),
    "chunks before its pixels": (lambda count: b"\x89PNG\r\n\x1a\n" + chunk(b"tEXt", b"") * count, 1000),
    "chunks, the last one cut": (
        lambda count: b"\x89PNG\r\n\x1a\n" + chunk(b"tEXt", b"") * (count - 1) + b"\0\0\0\0tEXt",
        1000,
    ),
    "chunks of a WebP": (lambda count: b"RIFF\0\0\0\0WEBP" + b"XXXX\0\0\0\0" * count, 10_000),
    "blocks of a GIF": (lambda count: b"GIF89a" + bytes(7) + b"\x21\xfe" + b"\1x" * (count - 1) + b"\0,", 4096),
    "boxes of a JPEG 2000": (lambda count: b"\0\0\0\x08jP  " + b"\0\0\0\x08free" * (count - 1), 1000),
    "tags of a TIFF": (lambda count: tiff([(40000 + i, 3, 1, 1) for i in range(count)]), 1000),
    "strips": (strips, 131_072),
}


@pytest.mark.parametrize("name", LIMITS)
def test_the_most_are_read(name):
    of_count, most = LIMITS[name]
    picture_costs.check_cost(of_count(most))
    with pytest.raises(TooCostly):
        picture_costs.check_cost(of_count(most + 1))


def test_the_most_scans_are_read():
    more = picture_costs.MAX_SCANS - jpeg_of_scans(8, 8, 0).count(b"\xff\xda")
    picture_costs.check_cost(jpeg_of_scans(8, 8, more))
    with pytest.raises(TooCostly, match="scans"):
        picture_costs.check_cost(jpeg_of_scans(8, 8, more + 1))


def test_work_is_bounded_by_scans_and_pixels():
    """What the largest usual JPEG takes is allowed, a third more is not."""
    data = bytearray(jpeg_of_scans(64, 64, 0))
    frame = data.index(b"\xff\xc2")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 2**14, 2**14)
    picture_costs.check_cost(bytes(data))  # 14 components of 10 scans
    scan = bytes(data[data.rindex(b"\xff\xda") : -2])
    with pytest.raises(TooCostly, match="a JPEG of 268435456 pixels"):
        picture_costs.check_cost(bytes(data[:-2]) + 4 * scan + b"\xff\xd9")
    data[frame + 1] = 0xCA  # in arithmetic coding, which takes longer
    with pytest.raises(TooCostly):
        picture_costs.check_cost(bytes(data))


NOISE = np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)


def saved(kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(NOISE).save(stream, kind, **options)
    return stream.getvalue()


def with_exif() -> bytes:
    exif = Image.Exif()
    exif[0x010F] = "maker"
    exif.get_ifd(0x8769)[0x927C] = bytes(60000)
    exif.get_ifd(0x8825)[2] = (48.0, 12.0, 0.0)
    return exif.tobytes()


MORE = [Image.fromarray(np.full((90, 120, 3), i, np.uint8)) for i in range(60)]
USUAL = {
    "20 scans": lambda: jpeg_of_scans(640, 480, 10),
    "many segments": lambda: after_start((b"\xff\xee\xff\xff" + bytes(65533)) * 150),
    "an appended picture": lambda: saved("JPEG") + jpeg_of_scans(64, 64, 2000),
    "EXIF": lambda: saved("JPEG", exif=with_exif()),
    "restart markers": lambda: cv2.imencode(".jpg", NOISE, [cv2.IMWRITE_JPEG_RST_INTERVAL, 1])[1].tobytes(),
    "PNG of many parts": lambda: png_with(chunk(b"tEXt", b"a\0b") * 900) ,
    "interlaced PNG": lambda: saved("PNG", optimize=True),
    "pages": lambda: saved("TIFF", save_all=True, append_images=MORE),
    "pages in JPEG": lambda: saved("TIFF", compression="jpeg", save_all=True, append_images=MORE[:3]),
    "strips": lambda: saved("TIFF", compression="tiff_lzw", tiffinfo={278: 1}),
    "TIFF with EXIF": lambda: saved("TIFF", exif=with_exif()),
    "large strips": lambda: saved("TIFF", tiffinfo={278: 2**32 - 1}),
    "one column of strips": lambda: strips(20_000),
    "animation": lambda: saved("GIF", save_all=True, append_images=MORE, comment=b"x" * 5000),
    "moving WebP": lambda: saved("WEBP", save_all=True, append_images=MORE[:20]),
    "PPM with a comment": lambda: b"P6\n# made by hand\n40 30\n255\n" + bytes(range(200)) * 18,
    "a bitmap without a white pixel": lambda: b"P4\n1024 1024\n" + b"\xff" * 2**17,
    "a PPM of blanks": lambda: b"P6\n300 300\n255\n" + b" " * 270000,
    "plain PPM": lambda: b"P3\n40 300 255\n" + b"7 " * 36000,
}  # fmt: skip


@pytest.mark.parametrize("name", USUAL)
def test_what_programs_write_is_read(name):
    data = USUAL[name]()
    with Image.open(io.BytesIO(data)) as image:
        want = np.asarray(image.convert("RGB"))
    got = read_image(data)
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)
    open_header(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "JPEG2000", "PPM"])
def test_a_file_that_ends_anywhere_is_no_surprise(kind):
    """What is cut is left to the decoder."""
    data = encoded(40, 30, kind)
    for stop in range(min(len(data), 1200)):
        picture_costs.check_cost(data[:stop])


@pytest.mark.parametrize("begins", [b"MM", b"II", b"P6", b"PK\3\4", b"GIF", b"RIFF", b"jP  ", b"\0\0\0\x0cjP  ", b"BM"])
def test_what_only_begins_like_a_picture_is_none(begins):
    for rest in (b"", b"\xff" * 100_000, b"x, " * 40_000):
        with pytest.raises(ValueError):
            read_image(begins + rest)
    with pytest.raises(ValueError, match="no image decoder understands"):
        read_image(b"MMany words" * 10_000)


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\x4f\xff\x51" + b"\xff" * 30,  # a stream of code that ends within its sizes
        b"\0\0\0\x0cjP  \r\n\x87\n" + (8 + 200).to_bytes(4, "big") + b"jp2h" + b"\xff" * 200,  # none at all
    ],
    ids=["cut", "no code"],
)
def test_sizes_that_a_jpeg_2000_does_not_hold_are_not_judged(raw):
    picture_costs._check_jpeg2000(raw)


def test_values_of_tags_have_the_sizes_that_pillow_reads():
    """And those of BigTIFF, which has whole numbers of 64 bits beside them."""
    sizes = {kind: size for kind, (size, _) in ImageFileDirectory_v2._load_dispatch.items()} | {17: 8, 18: 8}
    found = picture_costs._TAG_BYTES
    assert {kind: int(found[kind]) for kind in np.flatnonzero(found)} == sizes


def test_each_strip_of_a_jpeg_in_tiff_has_scans_of_its_own():
    """Of 1,250 strips in a file each is one scan."""
    picture = np.zeros((20_000, 16, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "TIFF", compression="jpeg", tiffinfo={278: 16})
    assert len(picture_costs._SCAN.findall(out.getvalue())) > picture_costs.MAX_SCANS
    assert read_image(out.getvalue()).shape == picture.shape


def test_pillow_says_nothing(tmp_path):
    """Two warnings for each tag of a TIFF would fill the log of a server."""
    strip = [(256, 4, 1, 32), (257, 4, 1, 32), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    strip += [(273, 4, 1, 8), (277, 3, 1, 1), (278, 4, 1, 32), (279, 4, 1, 1024)]
    (tmp_path / "a.tif").write_bytes(tiff([*strip, *((n, 3, 2, 10**6) for n in range(256, 900))], bytes(2000)))
    (tmp_path / "b.tif").write_bytes(tiff([*strip, *((n, 12, 9000, 2**31) for n in range(40000, 40400))], bytes(2000)))
    program = (
        "import sys\nfrom linnaeus_jax.data.decoding import read_image, open_header\nfor path in sys.argv[1:]:\n"
        "    for door in (read_image, open_header, lambda raw: open_header(raw).getexif()):\n"
        "        try:\n            door(open(path, 'rb').read())\n        except ValueError:\n            pass"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "a.tif", "b.tif"],
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_heic(monkeypatch):
    pillow_heif.register_heif_opener(thumbnails=False)
    smooth = cv2.resize(NOISE[:6, :8], (120, 90), interpolation=cv2.INTER_CUBIC)
    stream = io.BytesIO()
    Image.fromarray(smooth).save(stream, "HEIF", quality=95)
    data = stream.getvalue()
    assert data[8:12] == b"heic"
    assert image_size(data) == read_image(data).shape[:2] == (90, 120)
    assert np.abs(read_image(data).astype(int) - smooth).mean() < 4
    with pytest.raises(ValueError, match="HEIF"):
        read_image(data[: len(data) // 2])
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(ValueError, match=r"a HEIC picture; to read it: pip install pillow-heif"):
        read_image(data)
