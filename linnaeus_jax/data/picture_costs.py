"""What a picture would cost to decode, by its structure alone: checked before any decoder sees it.

A small file can be made so that it keeps a decoder busy for minutes, or takes gigabytes: a progressive JPEG whose scan
is repeated a thousand times, a TIFF of a few pixels in a tile of 60,000 x 11,000, a million empty parts. The bounds
here lie far above what cameras and programs write. They are chosen so that the worst file that is accepted takes a few
seconds. Their own cost is small beside decoding: parts are counted up to the bound, the rest is searched by C code.
"""

from __future__ import annotations

import re
import struct

import numpy as np
from numpy.typing import NDArray

MAX_PIXELS = 2**28
#: of formats whose decoders need 20 to 40 bytes for a pixel; the others need up to 14
MAX_PIXELS_OF = dict.fromkeys(("JPEG2000", "AVIF", "HEIF"), 2**27)
#: components times pixels that the scans of a JPEG may go over, 1 ns each; progressive ones have about 14 per pixel
MAX_SAMPLES = 2**32
#: what arithmetic coding takes longer than Huffman's
ARITHMETIC = 8
MAX_SCANS = 1000
#: segments of a JPEG, chunks of a PNG before its pixels, chunks of a WebP, blocks of a GIF before its first picture
MAX_SEGMENTS, MAX_CHUNKS, MAX_RIFF_CHUNKS, MAX_BLOCKS = 10_000, 1000, 10_000, 4096
#: chunks of a PNG in all; strips or tiles of a TIFF, tiles of a JPEG 2000
MAX_PNG_CHUNKS, MAX_TILES, MAX_JP2_TILES = 2**17, 2**17, 2**14
MAX_TAGS = 1000
#: pixels that the tiles of a TIFF may have together, whatever the size of the picture
LEAST_TILED = 2**24
#: bytes that stand for nothing between the segments of a JPEG; of the header of a PPM
MAX_FILL = MAX_HEADER = 2**16

_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_PNM_HEADER = re.compile(rb"P[14]\s+\d+\s+\d+\s|P\w+\s+\d+\s+\d+\s+[-+.\d]+\s")
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE = (0x01, 0xD8)
#: the beginning of a scan's header, which says how long it is and how many components it has
_SCAN = re.compile(rb"\xff\xda\x00(?:\x08\x01|\x0a\x02|\x0c\x03|\x0e\x04)")
#: type of a tag -> bytes of one value
_TAG_BYTES = np.zeros(2**16, np.int64)
_TAG_BYTES[1:19] = 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8
_EXIF_IFD, _GPS_IFD = 0x8769, 0x8825


class TooCostly(ValueError):
    """A picture that would take too much time or memory; the message says what it has too much of."""


class TooManyPixels(TooCostly):
    """A picture larger than `MAX_PIXELS`, or than what its format may have."""


def check_pixels(height: int, width: int, kind: str = "") -> None:
    """Raises TooManyPixels.

    Args:
      kind: Pillow's name of the format.
    """
    most = MAX_PIXELS_OF.get(kind, MAX_PIXELS)
    if height * width > most:
        raise TooManyPixels(f"{width} x {height} pixels, more than {most} are not read")


def check_cost(raw: bytes) -> None:
    """Raises TooCostly for the bytes of a file that would keep its decoder busy. What is no picture passes."""
    if raw[:2] == b"\xff\xd8":
        _check_jpeg(raw)
    elif raw[:4] == b"\x89PNG":
        _check_png(raw)
    elif raw[:3] == b"GIF":
        _check_gif(raw)
    elif raw[:4] == b"RIFF":
        _check_riff(raw)
    elif raw[:2] in (b"II", b"MM"):
        check_tags(raw)
        _check_tiles(raw)
    elif raw[:1] == b"P":
        _check_pnm(raw)
    elif raw[4:8] == b"jP  " or raw[:4] == b"\xff\x4f\xff\x51":
        _check_jpeg2000(raw)


def _check_jpeg(raw: bytes) -> None:
    """Segments as libjpeg finds them: whatever lies between two of them is skipped."""
    position, fill, segments, scans, components, pixels, weight = 2, 0, 0, 0, 0, 0, 1
    while (found := _JPEG_MARKER.search(raw, position)) is not None:
        marker, start = raw[found.end() - 1], found.end()
        segments += 1
        fill += 0 if scans else found.start() - position
        if segments > MAX_SEGMENTS or fill > MAX_FILL:
            what = f"{MAX_SEGMENTS} segments" if fill <= MAX_FILL else f"{MAX_FILL} bytes between its segments"
            raise TooCostly(f"a JPEG with more than {what}, which is not read")
        if marker == 0xD9:
            return
        if marker in _SOF and len(raw) >= start + 7:
            height, width = struct.unpack_from(">HH", raw, start + 3)
            check_pixels(height, width)
            pixels, weight = max(pixels, height * width), ARITHMETIC if marker > 0xC8 else weight
        elif marker == 0xDA:
            scans, components = scans + 1, components + (raw[start + 2] if start + 2 < len(raw) else 0)
            if scans > MAX_SCANS or weight * components * pixels > MAX_SAMPLES:
                raise TooCostly(f"a JPEG of {pixels} pixels with {scans} or more scans, which would take too long")
        position = start if marker in _ALONE else start + max(2, int.from_bytes(raw[start : start + 2], "big"))


def _check_png(raw: bytes) -> None:
    position, chunks, has_pixels = 8, 0, False
    while position + 8 <= len(raw):
        has_pixels = has_pixels or raw[position + 4 : position + 8] == b"IDAT"
        chunks += 1
        most = MAX_PNG_CHUNKS if has_pixels else MAX_CHUNKS
        if chunks > most:
            raise TooCostly(f"a PNG with more than {most} chunks{'' if has_pixels else ' before its pixels'}")
        position += 12 + int.from_bytes(raw[position : position + 4], "big")


def _check_riff(raw: bytes) -> None:
    position, chunks = 12, 0
    while position + 8 <= len(raw):
        size = int.from_bytes(raw[position + 4 : position + 8], "little")
        if raw[position : position + 4] == b"EXIF":
            check_tags(raw[position + 8 : position + 8 + size].removeprefix(b"Exif\0\0"))
        chunks += 1
        if chunks > MAX_RIFF_CHUNKS:
            raise TooCostly(f"a WebP with more than {MAX_RIFF_CHUNKS} chunks")
        position += 8 + size + size % 2


def _check_gif(raw: bytes) -> None:
    """Blocks before the first picture, which Pillow joins."""
    position, blocks = 13, 0
    if len(raw) > 10 and raw[10] & 0x80:
        position += 3 << (raw[10] & 7) + 1
    while position < len(raw) and raw[position] != 0x2C:
        blocks += 1
        if raw[position] == 0x21:
            position += 2
            while position < len(raw) and raw[position] and blocks <= MAX_BLOCKS:
                position, blocks = position + raw[position] + 1, blocks + 1
        if blocks > MAX_BLOCKS:
            raise TooCostly(f"a GIF with more than {MAX_BLOCKS} blocks before its first picture")
        position += 1


def _check_pnm(raw: bytes) -> None:
    """Pillow reads the header byte by byte."""
    if len(raw) > MAX_HEADER and raw[1:2] in b"0123456fy":
        header = re.sub(rb"#[^\r\n]*", b"", raw[:MAX_HEADER])
        if _PNM_HEADER.match(header) is None:
            raise TooCostly(f"a header of more than {MAX_HEADER} bytes")


def _check_jpeg2000(raw: bytes) -> None:
    """Boxes (ISO/IEC 15444-1, annex I), which Pillow reads one by one, and the size of what they hold."""
    start, position, boxes = 0 if raw[:4] == b"\xff\x4f\xff\x51" else -1, 0, 0
    while start < 0 and position + 8 <= len(raw):
        size, kind = int.from_bytes(raw[position : position + 4], "big"), raw[position + 4 : position + 8]
        head = 16 if size == 1 else 8
        size = int.from_bytes(raw[position + 8 : position + 16], "big") if size == 1 else size
        boxes += 1
        if boxes > MAX_CHUNKS:
            raise TooCostly(f"a JPEG 2000 with more than {MAX_CHUNKS} boxes before its pixels")
        if kind == b"jp2c":
            start = position + head
        position += head if kind == b"jp2h" or size < head else size  # boxes of the header are looked at, too
    if start < 0 or len(raw) < start + 40:
        return
    width, height, left, top, tile_width, tile_height, tile_left, tile_top = struct.unpack_from(">8I", raw, start + 8)
    check_pixels(max(0, height - top), max(0, width - left), "JPEG2000")
    across, down = (
        -(-max(0, width - tile_left) // (tile_width or 1)),
        -(-max(0, height - tile_top) // (tile_height or 1)),
    )
    if across * down > MAX_JP2_TILES:
        raise TooCostly(f"a JPEG 2000 of {across * down} tiles, more than {MAX_JP2_TILES} are not read")


# --- TIFF, which is also what EXIF data are ---------------------------------------------------------------------------


class _Directory:
    """The tags of one directory of a TIFF (TIFF 6.0, section 2; BigTIFF)."""

    def __init__(self, raw: bytes, big: bool, order: str, start: int) -> None:
        self._raw, self._order = raw, order
        form = f"{order}Q" if big else f"{order}H"
        width = struct.calcsize(form)
        count = struct.unpack_from(form, raw, start)[0] if 0 <= start <= len(raw) - width else 0
        if count > MAX_TAGS:
            raise TooCostly(f"{count} tags, more than {MAX_TAGS} are not read")
        long = "u8" if big else "u4"
        kind = np.dtype([("tag", f"{order}u2"), ("type", f"{order}u2"), ("count", order + long), ("at", order + long)])
        first = start + width
        count = max(0, min(count, (len(raw) - first) // kind.itemsize))
        self._tags = np.frombuffer(raw, kind, count, first) if count else np.zeros(0, kind)
        self._inline, self._places = 8 if big else 4, first + kind.itemsize - (8 if big else 4)
        self._step = kind.itemsize

    def read_bytes(self) -> float:
        """Of all values that lie elsewhere in the file."""
        size = self._tags["count"].astype(np.float64) * _TAG_BYTES[self._tags["type"]]
        left = np.maximum(0.0, len(self._raw) - self._tags["at"].astype(np.float64))
        return float(np.minimum(size, left)[size > self._inline].sum())

    def values(self, tag: int) -> NDArray[np.int64]:
        """Whole numbers of a tag; none where there is no such tag.

        Raises:
          TooCostly: the tag is given twice, so that decoders may take another one than this.
        """
        rows = np.flatnonzero(self._tags["tag"] == tag)
        if len(rows) > 1:
            raise TooCostly(f"tag {tag} is given {len(rows)} times")
        if not len(rows):
            return np.zeros(0, np.int64)
        row = self._tags[rows[0]]
        size = int(_TAG_BYTES[row["type"]])
        count = int(row["count"])
        if size == 0 or int(row["type"]) in (5, 10, 11, 12):
            return np.zeros(0, np.int64)
        start = int(row["at"]) if count * size > self._inline else self._places + int(rows[0]) * self._step
        count = max(0, min(count, (len(self._raw) - start) // size))
        found = np.frombuffer(self._raw, f"{self._order}u{size}", count, start) if count else np.zeros(0)
        return found.astype(np.int64)

    def one(self, tag: int, default: int = 0) -> int:
        """The first number of a tag."""
        found = self.values(tag)
        return int(found[0]) if len(found) else default


def _directory(raw: bytes, start: int | None = None) -> _Directory | None:
    """A directory of a TIFF, by default its first one; None where it is no TIFF."""
    order = {b"II": "<", b"MM": ">"}.get(raw[:2])
    if order is None or len(raw) < 16 or raw[2:4] not in (b"\0*", b"*\0", b"\0+", b"+\0"):
        return None
    big = 43 in raw[2:4]
    if start is None:
        (start,) = struct.unpack_from(f"{order}Q", raw, 8) if big else struct.unpack_from(f"{order}I", raw, 4)
    return _Directory(raw, big, order, start)


def check_tags(raw: bytes) -> None:
    """Checks the directories of a TIFF, or of EXIF data, that are read whole: the first one, those of camera and place.

    Raises:
      TooCostly: too many tags, or many of them that share the same long value.
    """
    first = _directory(raw)
    if first is None:
        return
    starts = [int(start) for tag in (_EXIF_IFD, _GPS_IFD) for start in first.values(tag)[:1]]
    for directory in (first, *(_directory(raw, start) for start in starts)):
        if directory is not None and directory.read_bytes() > 4 * len(raw) + 2**20:
            raise TooCostly("tags whose values are many times larger than the file")


def _check_tiles(raw: bytes) -> None:
    """Checks the strips or tiles of a TIFF's first picture.

    Raises:
      TooCostly: too many of them, or with many times the pixels of the picture.
    """
    tags = _directory(raw)
    if tags is None:
        return
    width, height = tags.one(256), tags.one(257)
    tile_width, tile_height = tags.one(322, width), tags.one(323, min(height, tags.one(278, height)))
    offsets, sizes = (
        np.concatenate([tags.values(strips), tags.values(tiles)]) for strips, tiles in ((273, 324), (279, 325))
    )
    if len(offsets) > MAX_TILES:
        raise TooCostly(f"{len(offsets)} strips or tiles, more than {MAX_TILES} are not read")
    if min(width, height, tile_width, tile_height) < 1:
        return
    padded = -(-width // tile_width) * tile_width * -(-height // tile_height) * tile_height
    if padded > max(LEAST_TILED, 4 * width * height):
        raise TooCostly(f"{width} x {height} pixels in tiles of {tile_width} x {tile_height}, which is not read")
    if tags.one(259) in (6, 7) and len(offsets):  # JPEG: of every tile libtiff reads all scans
        scans = np.array([found.start() for found in _SCAN.finditer(raw)], np.int64)
        ends = offsets + sizes if len(sizes) == len(offsets) else np.full(len(offsets), len(raw))
        most = int((np.searchsorted(scans, ends) - np.searchsorted(scans, offsets)).max())
        if most > MAX_SCANS or 3 * most * padded > MAX_SAMPLES:
            raise TooCostly(
                f"a TIFF of {width * height} pixels in JPEG with {most} scans, which takes too long to read"
            )
