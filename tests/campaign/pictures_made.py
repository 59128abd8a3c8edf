"""Pictures that are made to keep a decoder busy or to fill the memory: small files, each of a kind that has done so.

Every generator yields (name, bytes) and draws its sizes from `rng`.
"""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

Made = Iterator[tuple[str, bytes]]
#: bytes that the server takes in a request
LARGEST = 20 * 2**20


def encoded(width: int, height: int, kind: str, **options: Any) -> bytes:
    """A black picture."""
    stream = io.BytesIO()
    Image.new("RGB", (width, height)).save(stream, kind, **options)
    return stream.getvalue()


# ---- JPEG


def jpeg_of_scans(width: int, height: int, more: int, *, first: bool = False, subsampling: int = 0) -> bytes:
    """A progressive JPEG whose last (or first) scan is repeated."""
    data = encoded(width, height, "JPEG", progressive=True, subsampling=subsampling)
    place = data.index(b"\xff\xda") if first else data.rindex(b"\xff\xda")
    end = data.index(b"\xff\xc4", place) if first else len(data) - 2
    scan = data[place:end]
    return data[:-2] + scan * min(more, LARGEST // len(scan)) + b"\xff\xd9"


def after_start(more: bytes) -> bytes:
    """A small JPEG with bytes behind its first marker."""
    data = encoded(40, 30, "JPEG")
    return data[:2] + more + data[2:]


def jpegs(rng: random.Random) -> Made:
    for side in (32, 1000, 4000, 8000):
        for more in (rng.randrange(5, 30), rng.randrange(100, 900), rng.randrange(3000, 20000)):
            first = rng.random() < 0.5
            yield f"{side} with {more} scans more", jpeg_of_scans(side, side, more, first=first and side < 8000)
    count = rng.randrange(10**6, 4_500_000)
    yield f"{count} empty segments", after_start(b"\xff\xfe\0\2" * count)
    yield f"{count} bytes of ff", after_start(b"\xff" * (4 * count))
    yield f"{count} bytes of 0 between segments", after_start(b"\0" * (4 * count))
    yield f"{count} markers that stand alone", after_start(b"\xff\x01" * count)
    yield f"{count} tables", after_start((b"\xff\xdb\0\x43\0" + bytes(range(1, 65))) * (count // 40))
    hidden = b"\xff\xfe\0\4\xff\xd9"
    data = jpeg_of_scans(4000, 4000, 1)
    scan = data[data.rindex(b"\xff\xda") : -2]
    yield (
        "scans behind an end that a comment hides",
        data[:-2] + (hidden + scan) * rng.randrange(2000, 9000) + b"\xff\xd9",
    )
    yield "scans behind bytes that are skipped", data[:-2] + (b"\0x" + scan) * rng.randrange(2000, 9000) + b"\xff\xd9"
    for name, where in (
        ("restart markers", data.index(b"\xff\xda") + 20),
        ("restart markers at the end", len(data) - 2),
    ):
        yield name, data[:where] + b"\xff\xd3" * count + data[where:]
    arithmetic = bytearray(jpeg_of_scans(4000, 4000, rng.randrange(30, 60)))
    arithmetic[arithmetic.index(b"\xff\xc2") + 1] = 0xCA
    yield "scans said to be in arithmetic coding", bytes(arithmetic)
    exif = tiff([(40000 + i, 1, 60000, 8) for i in range(5000)], bytes(100))
    yield (
        "tags of EXIF that share their value",
        after_start(b"\xff\xe1" + struct.pack(">H", 65000) + (b"Exif\0\0" + exif + bytes(65000))[:64998]),
    )


# ---- PNG


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_with(more: bytes, *, behind: bool = False) -> bytes:
    """A small PNG with chunks before or behind its pixels."""
    data = encoded(40, 30, "PNG")
    place = len(data) - 12 if behind else 33
    return data[:place] + more + data[place:]


def pngs(rng: random.Random) -> Made:
    count = rng.randrange(10**5, 10**6)
    yield f"{count} texts", png_with(chunk(b"tEXt", b"a\0b") * count)
    yield f"{count} texts behind", png_with(chunk(b"tEXt", b"a\0b") * count, behind=True)
    yield f"{count} empty parts of pixels", png_with(chunk(b"IDAT", b"") * count, behind=True)
    yield (
        f"{count} frames",
        png_with(chunk(b"acTL", struct.pack(">II", count, 0)) + chunk(b"fcTL", bytes(26)) * (count // 3)),
    )
    text = zlib.compress(bytes(10**6), 9)
    yield "texts that unpack to much", png_with(chunk(b"zTXt", b"a\0\0" + text) * rng.randrange(500, 999))
    yield "a profile that unpacks to much", png_with(chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(10**9 // 4), 9)))
    yield (
        "a damaged checksum behind",
        png_with(chunk(b"IDAT", b"")[:-1] + b"x" + chunk(b"IDAT", b"") * count, behind=True),
    )
    pixels = zlib.compress(bytes(8000 * 1001), 9)
    for side in (8000, 65000):
        head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, rng.randrange(2)))
        yield f"{side} x {side} of one bit", b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    exif = tiff([(40000 + i % 20000, 1, 10**7, 8) for i in range(900)], bytes(10**7))
    yield "tags of EXIF that share their value", png_with(chunk(b"eXIf", exif))


# ---- TIFF


def tiff(tags: list[tuple[int, int, int, int]], rest: bytes = b"") -> bytes:
    """A TIFF of one directory of (tag, type, count, value or place)."""
    head = b"II*\0" + struct.pack("<IH", 8, len(tags) % 2**16)
    return head + b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4) + rest


def _gray(width: int, height: int, *more: tuple[int, int, int, int], rest: bytes = b"") -> bytes:
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (262, 3, 1, 1), (277, 3, 1, 1), *more]
    return tiff(sorted(tags), rest)


def tile_of(width: int, height: int, compression: int = 1) -> bytes:
    """A TIFF of 32 x 32 pixels in a larger tile."""
    tiles = ((322, 4, 1, width), (323, 4, 1, height), (324, 4, 1, 8), (325, 4, 1, 900))
    return _gray(32, 32, (259, 3, 1, compression), *tiles, rest=bytes(999))


def tiffs(rng: random.Random) -> Made:
    width, height = rng.randrange(30000, 65000, 16), rng.randrange(9000, 20000, 16)
    for compression in (1, 5, 8):
        yield f"a tile of {width} x {height}, {compression}", tile_of(width, height, compression)
    tall = ((322, 4, 1, 16), (323, 4, 1, 2**20), (324, 4, 4096, 8), (325, 4, 4096, 8))
    yield "tall tiles", _gray(65535, 16, (259, 3, 1, 8), *tall, rest=bytes(2 * 4096 * 4))
    twice = ((322, 4, 1, 60000), (322, 4, 1, 16), (323, 4, 1, 11008), (324, 4, 1, 8), (325, 4, 1, 900))
    yield "a tag twice", _gray(32, 32, (259, 3, 1, 1), *twice, rest=bytes(999))
    strip = ((259, 3, 1, 1), (273, 4, 1, 8), (278, 4, 1, 2**32 - 1), (279, 4, 1, 1024))
    count = rng.randrange(1500, 65000)
    unknown = [(rng.randrange(30000, 60000), rng.randrange(1, 20), 4, rng.randrange(2**32)) for _ in range(count)]
    yield f"{count} tags", _gray(32, 32, *strip, *unknown, rest=bytes(2000))
    yield "many unknown tags", _gray(32, 32, *strip, *unknown[:900], rest=bytes(2000))
    shared = [(40000 + i, 1, 10**7, 8) for i in range(900)]
    yield "tags that share their value", _gray(32, 32, *strip, *shared, rest=bytes(10**7))
    nested = tiff(shared, bytes(10**7))
    yield "tags of EXIF that share their value", _gray(32, 32, *strip, (0x8769, 4, 1, 8), *shared[:5], rest=nested)
    for count in (100_000, rng.randrange(10**6, 2 * 10**6)):
        places = 8 + 2 + 9 * 12 + 4
        lists = ((259, 3, 1, 1), (273, 4, count, places), (278, 4, 1, 1), (279, 4, count, places + 4 * count))
        yield (
            f"{count} strips",
            _gray(1, count, *lists, rest=struct.pack("<I", 8) * count + struct.pack("<I", 1) * count),
        )
    scans = jpeg_of_scans(4000, 4000, rng.randrange(60, 99), subsampling=0)
    at = 8 + 2 + 9 * 12 + 4
    tags = [(256, 4, 1, 4000), (257, 4, 1, 4000), (258, 3, 1, 8), (259, 3, 1, 7), (262, 3, 1, 6)]
    tags += [(273, 4, 1, at), (277, 3, 1, 3), (278, 4, 1, 4000), (279, 4, 1, len(scans))]
    yield "JPEG of many scans", tiff(tags, scans)


# ---- others


def gifs(rng: random.Random) -> Made:
    data = encoded(40, 30, "GIF")
    place = data.index(b"\x2c")
    for count in (4000, rng.randrange(10**6, 9 * 10**6)):
        yield f"{count} blocks of a comment", data[:place] + b"\x21\xfe" + b"\1x" * count + b"\0" + data[place:]
        yield f"{count} comments", data[:place] + b"\x21\xfe\1x\0" * (count // 3) + data[place:]
    yield "bytes before the picture", data[:place] + b"\1" * (4 * count // 3) + data[place:]
    yield "8000 x 8000", encoded(8000, 8000, "GIF")
    yield "many frames", data[:-1] + data[place:-1] * rng.randrange(10**4, 10**5) + data[-1:]
    yield (
        "a frame larger than the picture",
        data[:place] + b"\x2c" + struct.pack("<HHHHB", 0, 0, 60000, 60000, 0) + data[place + 10 :],
    )


def webps(rng: random.Random) -> Made:
    body = encoded(40, 30, "WEBP", lossless=True)[12:]
    for count in (9000, rng.randrange(10**5, 2 * 10**6)):
        more = body + b"XXXX\0\0\0\0" * count
        yield f"{count} chunks", b"RIFF" + struct.pack("<I", len(more) + 4) + b"WEBP" + more
    yield "16383 x 8000", encoded(16383, 8000, "WEBP", lossless=True, quality=0)
    exif = tiff([(40000 + i, 1, 10**7, 8) for i in range(900)], bytes(10**7))
    yield "tags of EXIF that share their value", encoded(40, 30, "WEBP", exif=exif)


def others(rng: random.Random) -> Made:
    count = rng.randrange(5 * 10**6, 15 * 10**6)
    yield "a long comment of a PPM", b"P6 #" + b"x" * count + b"\n32 32 255\n" + bytes(3072)
    yield "many comments of a PPM", b"P6\n" + b"#\n" * (count // 2) + b"32 32 255\n" + bytes(3072)
    yield "comments between numbers of a PPM", b"P3\n32 32\n255\n1 " + b"#\n1 " * (count // 4)
    yield "a number of many digits", b"P3\n32 32\n255\n" + b"1" * count
    yield "a broken plain PPM", b"P3\n3000 3000\n255\n" + b"1 " * (count // 2) + b"x"
    yield "a cut PPM of another white", b"P6\n2000 2000\n100\n" + bytes(11_000_000)
    head = struct.pack("<IHHI", 54 + 1024 + count, 0, 0, 54 + 1024)
    bmp = b"BM" + head + struct.pack("<IiiHHIIiiII", 40, 8000, 8000, 1, 8, 1, count, 0, 0, 256, 0) + bytes(1024)
    yield "a BMP of short runs", bmp + b"\1\5" * (count // 2)
    yield "a BMP of jumps", bmp + b"\0\2\0\0" * (count // 4)
    for kind in ("AVIF", "JPEG2000"):
        yield f"{kind} of 5000 x 5000", encoded(5000, 5000, kind)
    tiles = bytearray(encoded(64, 64, "JPEG2000"))
    place = tiles.index(b"\xff\x4f\xff\x51")
    tiles[place + 8 : place + 16] = struct.pack(">II", 16000, 16000)
    tiles[place + 24 : place + 32] = struct.pack(">II", 1, 1)
    yield "a JPEG 2000 of many tiles", bytes(tiles)


GENERATORS = {"JPEG": jpegs, "PNG": pngs, "TIFF": tiffs, "GIF": gifs, "WebP": webps, "other formats": others}


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Some bytes of a picture changed: in its first 2000, where its structure is."""
    raw = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        raw[rng.randrange(min(len(raw), 2000))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(raw)


def damaged_ones(rng: random.Random, count: int) -> Iterator[tuple[str, str, bytes]]:
    """(format, name, bytes) of small sound pictures with a few bytes changed, where the structure is."""
    noise = np.random.default_rng(rng.randrange(2**32)).integers(0, 256, (60, 80, 3), np.uint8)
    sound = {}
    for kind in ("JPEG", "PNG", "TIFF", "GIF", "WEBP", "AVIF", "BMP", "PPM", "JPEG2000"):
        stream = io.BytesIO()
        Image.fromarray(noise).save(stream, kind)
        sound[kind] = stream.getvalue()
    for number in range(count):
        kind = rng.choice(sorted(sound))
        yield kind, f"damaged {number}", damaged(rng, sound[kind])
