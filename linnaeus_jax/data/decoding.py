"""Encoded pictures -> upright RGB pixels: the one way, for building, verifying, training and predicting.

Rules, whatever the format:

* Result: uint8 RGB, upright by the EXIF orientation (JPEG, PNG, WebP, TIFF, AVIF; the eight values of EXIF 2.32,
  4.6.4 A; an orientation written in XMP alone is not read). No colour profile is applied.
* Gray and 1 bit: three equal channels. Palette: its colours. 16 bits: the high byte; of fewer bits in 16 their highest
  eight, where the file says how many they are (sBIT of PNG, BitsPerSample and MaxSampleValue of TIFF, the largest value
  of PNM), else a warning tells of dark ones. What is transparent stands on white, as viewers show it. CMYK and YCCK:
  RGB, JPEG by Adobe's convention (inverted). Animations and pages: the first one.
  Pixels of 32 bits or floating point have no known white: refused.
* A truncated file is refused, also where its decoder would fill up the rest. JPEG data that are damaged but complete
  (stray bytes between segments, broken blocks) are read as far as libjpeg can, as every viewer does.
* Larger than `MAX_PIXELS`, or made so that decoding takes many times what its pixels need: refused before a decoder
  sees it, see `picture_costs`.

What Pillow reads follows `portable_images`, of which exports have a copy. JPEG is decoded by simplejpeg
(libjpeg-turbo), which can reduce by 1/2, 3/8, 1/4 or 1/8 in the inverse DCT; scales between 1/2 and 1 take longer than
the whole picture and are not used. OpenCV decodes the other formats, Pillow those where OpenCV breaks a rule (it does
not turn AVIF, rounds 16 bits of TIFF up, and knows nothing of what is transparent). HEIC is read where pillow-heif is
installed, turned as the file says.
"""

from __future__ import annotations

import io
import itertools
import logging
import re
import warnings
from collections.abc import Callable
from typing import Any, cast

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from linnaeus_jax.data.picture_costs import MAX_PIXELS as MAX_PIXELS
from linnaeus_jax.data.picture_costs import TooCostly as TooCostly
from linnaeus_jax.data.picture_costs import check_cost, check_pixels, check_tags
from linnaeus_jax.data.portable_images import (
    EXIF,
    FORMATS,
    TURNED,
    UPRIGHT,
    PixelsError,
    eight_bits,
    exif_orientation,
    has_transparency,
    is_heic,
    jpeg_ends,
    jpeg_segments,
    register_heif,
    rgb_pixels,
    significant_bits,
    truncated,
)

Pixels = NDArray[np.uint8]

_BY_OPENCV = ("PNG", "WEBP", "BMP", "JPEG", "JPEG2000", "PPM")
_JPEG_ERRORS = (ValueError, KeyError)  # of simplejpeg; the latter where it has no name for the sampling or colours
#: pixels of 16 bits whose high byte stays below this are told of: they have fewer bits than their file says
_DARK = 64
_dark = itertools.count(1)
logger = logging.getLogger("linnaeus_jax.data")


# What OpenCV has to say of a damaged file is in the ValueError; its own lines on stderr name no file.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
# As Pillow's warnings, of which a TIFF can bring two for each of its tags. For good, since threads decode.
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").setLevel(logging.ERROR)


def image_size(data: bytes) -> tuple[int, int]:
    """(height, width) of a picture after turning it upright, from its header alone.

    Raises:
      TooCostly: more pixels or work than is read.
      ValueError: empty, or no header that a decoder understands; the message is the reason.
    """
    check_cost(data)
    return _size(data)


def _size(data: bytes) -> tuple[int, int]:
    if data[:2] == b"\xff\xd8":
        size = _jpeg_size(data)
        if size is not None:
            return size[::-1] if _jpeg_orientation(data) >= TURNED else size
    header = _open_header(data)
    width, height = header.size
    late = data.find(b"eXIf") if header.format == "PNG" and "exif" not in header.info else -1  # behind the pixels
    orientation = exif_orientation(data[late + 4 :]) if late >= 0 else _orientation_of(header)
    return (width, height) if orientation >= TURNED else (height, width)


def read_image(data: bytes | Pixels, at_least: tuple[int, int] | None = None) -> Pixels:
    """Decodes a picture by the rules of this module.

    Args:
      data: the bytes of a file.
      at_least: (height, width) that the caller needs of the upright picture; JPEG is then decoded at the smallest
        scale (1/8, 1/4, 3/8, 1/2 or 1) at which it has both.

    Returns:
      uint8 [height, width, 3], contiguous.

    Raises:
      TooCostly: more pixels or work than is read.
      ValueError: empty, truncated, or no decoder understands it; the message is the reason.
    """
    raw = bytes(data)
    check_cost(raw)
    return _read(raw, at_least)


def _read(raw: bytes, at_least: tuple[int, int] | None) -> Pixels:
    if not raw:
        raise ValueError("empty file")
    image = _read_jpeg(raw, at_least) if raw[:2] == b"\xff\xd8" else None
    return np.ascontiguousarray(_read_other(raw) if image is None else image)


def read_reduced(data: bytes | Pixels, needed: Callable[[tuple[int, int]], tuple[int, int]]) -> tuple[Pixels, bool]:
    """A picture as of `read_image` with `at_least`, and whether it was decoded at a reduced scale.

    Args:
      needed: (height, width) of the upright picture -> that which the caller needs of it.

    Raises:
      ValueError: as `read_image`.
    """
    raw = bytes(data)
    check_cost(raw)
    if raw[:2] != b"\xff\xd8" or _jpeg_size(raw) is None:
        return _read(raw, None), False
    size = _size(raw)
    image = _read(raw, needed(size))
    return image, image.shape[:2] != size


# --- JPEG -------------------------------------------------------------------------------------------------------------


def _jpeg_orientation(raw: bytes) -> int:
    for marker, start, end in jpeg_segments(raw):
        if marker == 0xE1 and raw[start : start + 6] == EXIF:
            return exif_orientation(raw[start + 6 : end])
    return 1


def _jpeg_size(raw: bytes) -> tuple[int, int] | None:
    """(height, width) as stored; None where libjpeg-turbo does not know this kind of JPEG."""
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(raw, strict=False)
    except _JPEG_ERRORS:
        return None
    check_pixels(height, width)
    return height, width


def _read_jpeg(raw: bytes, at_least: tuple[int, int] | None) -> Pixels | None:
    size = _jpeg_size(raw)
    if size is None:
        return None
    orientation = _jpeg_orientation(raw)
    high, wide = (at_least or size)[:: -1 if at_least and orientation >= TURNED else 1]
    reducible = at_least is not None and high <= size[0] and wide <= size[1]
    scale: dict[str, Any] = {"min_height": high, "min_width": wide, "min_factor": 2} if reducible else {}
    try:
        image = simplejpeg.decode_jpeg(raw, "RGB", **scale)
    except _JPEG_ERRORS as error:
        # libjpeg only warns where data end early. Another warning may come first and hide that one.
        if "Premature end" in str(error) or not jpeg_ends(raw):
            raise ValueError(f"truncated after {len(raw)} bytes") from None
        try:
            image = simplejpeg.decode_jpeg(raw, "RGB", strict=False, **scale)
        except _JPEG_ERRORS:
            return None
    return UPRIGHT[orientation](image) if orientation > 1 else image


# --- other formats ----------------------------------------------------------------------------------------------------


def open_header(raw: bytes) -> Image.Image:
    """The picture as a Pillow image whose pixels are not read yet.

    Not by Image.open, whose warning of large pictures comes at another size and cannot be caught in a thread.

    Raises:
      TooCostly, ValueError: as `image_size`.
    """
    check_cost(raw)
    return _open_header(raw)


def _open_header(raw: bytes) -> Image.Image:
    if not raw:
        raise ValueError("empty file")
    Image.init()
    heic = is_heic(raw)
    if heic:
        register_heif()
    for name in ("HEIF",) if heic else FORMATS:
        factory, accepts = Image.OPEN.get(name, (None, None))
        if factory is None or accepts is None or accepts(raw[:16]) is not True:
            continue
        try:
            header = factory(io.BytesIO(raw), "")
        except Exception as error:  # plugins raise what their parser meets: struct.error, IndexError, SyntaxError ...
            raise ValueError(f"{len(raw)} bytes with a broken {name} header ({error})") from error
        check_pixels(header.size[1], header.size[0], name)
        check_tags((header.info.get("exif") or b"").removeprefix(EXIF))
        return header
    raise ValueError(f"{len(raw)} bytes that no image decoder understands")


def _orientation_of(header: Image.Image) -> int:
    """What is left to turn after Pillow has read the pixels; it turns TIFF itself."""
    exif = (header.info.get("exif") or b"") if header.format != "TIFF" else b""
    return exif_orientation(exif.removeprefix(EXIF))


def _read_other(raw: bytes) -> Pixels:
    if truncated(raw):
        raise ValueError(f"truncated after {len(raw)} bytes")
    header = _open_header(raw)
    bits = _bits(header, raw)
    if header.format in _BY_OPENCV and not has_transparency(header):
        depth = cv2.IMREAD_ANYDEPTH if bits < 16 else 0
        try:
            image = cv2.imdecode(np.frombuffer(raw, np.uint8), cv2.IMREAD_COLOR_RGB | depth)
        except cv2.error:  # a limit of its own
            image = None
        if image is not None:
            return _judged(eight_bits(image, bits) if image.dtype == np.uint16 else cast(Pixels, image), header, raw)
    if header.format in _BY_OPENCV and any(tile[0] in Image.DECODERS for tile in getattr(header, "tile", ())):
        # written in Python: minutes
        raise ValueError(f"{len(raw)} bytes of {header.format} that no image decoder understands")
    return _judged(_read_with_pillow(header, raw), header, raw)


def _bits(header: Image.Image, raw: bytes) -> int:
    """As `significant_bits`, also of PNM, whose header says the largest value."""
    if header.format != "PPM":
        return significant_bits(header, raw)
    match = re.match(rb"P[2356](?:\s+|#[^\n]*\n)+\d+(?:\s+|#[^\n]*\n)+\d+(?:\s+|#[^\n]*\n)+(\d{1,5})\s", raw)
    return min(max(int(match[1]).bit_length(), 8), 16) if match else 16


def _judged(image: Pixels, header: Image.Image, raw: bytes) -> Pixels:
    """The same pixels; those of 16 bits that are all dark are told of, the first time and then ever more seldom."""
    wide = raw[24:25] == b"\x10" if header.format == "PNG" else header.mode.startswith("I")
    if wide and image.max(initial=0) < _DARK and str(number := next(_dark)).rstrip("0") == "1":
        logger.warning(
            "a picture of 16 bits has no value above %d and is nearly black (number %d): its camera gave fewer bits; "
            "write into the file how many they are (sBIT of PNG, BitsPerSample of TIFF), or save it with 8 bits",
            (_DARK << 8) - 1,
            number,
        )
    return image


def _read_with_pillow(header: Image.Image, raw: bytes) -> Pixels:
    try:
        return cast(Pixels, rgb_pixels(header, raw))
    except MemoryError:
        raise ValueError("it needs more memory than there is") from None
    except PixelsError:
        raise
    except Exception as error:  # see open_header
        raise ValueError(f"{len(raw)} bytes of {header.format} that no image decoder understands ({error})") from error
