"""Encoded pictures -> upright RGB pixels: the one way, for building, verifying, training and predicting.

Rules, whatever the format:

* Result: uint8 RGB, upright by the EXIF orientation (JPEG, PNG, WebP, TIFF, AVIF; the eight values of EXIF 2.32,
  4.6.4 A; an orientation written in XMP alone is not read). No colour profile is applied.
* Gray and 1 bit: three equal channels. Palette: its colours. 16 bits: the high byte. Alpha: dropped, the colours below
  it kept. CMYK and YCCK: RGB, JPEG by Adobe's convention (inverted). Animations and pages: the first one.
  Pixels of 32 bits or floating point have no known white: refused.
* A truncated file is refused, also where its decoder would fill up the rest. JPEG data that are damaged but complete
  (stray bytes between segments, broken blocks) are read as far as libjpeg can, as every viewer does.
* Larger than `MAX_PIXELS`, or made so that decoding takes many times what its pixels need: refused before a decoder
  sees it, see `picture_costs`.

JPEG is decoded by simplejpeg (libjpeg-turbo), which can reduce by 1/2, 3/8, 1/4 or 1/8 in the inverse DCT; scales
between 1/2 and 1 take longer than the whole picture and are not used. OpenCV decodes the other formats, Pillow those
where OpenCV breaks a rule (it does not turn AVIF, multiplies TIFF by its alpha and rounds its 16 bits up, and loses
transparent colours of GIF). HEIC is read where pillow-heif is installed, turned as the file says.
"""

from __future__ import annotations

import io
import logging
import struct
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from linnaeus_jax.data.picture_costs import MAX_PIXELS as MAX_PIXELS
from linnaeus_jax.data.picture_costs import TooCostly as TooCostly
from linnaeus_jax.data.picture_costs import check_cost, check_pixels, check_tags

Pixels = NDArray[np.uint8]

_BY_OPENCV = ("PNG", "WEBP", "BMP", "JPEG", "JPEG2000", "PPM")
_BY_PILLOW = ("TIFF", "GIF", "AVIF")
#: brands of the files that pillow-heif reads (ISO/IEC 23008-12)
_HEIC = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"))
_ORIENTATION = 0x0112
_EXIF = b"Exif\0\0"
_JPEG_ERRORS = (ValueError, KeyError)  # of simplejpeg; the latter where it has no name for the sampling or colours
_TURNED = 5  # from this orientation on, width and height are exchanged
#: EXIF orientation -> view of the stored pixels that is upright
_UPRIGHT: dict[int, Callable[[Pixels], Pixels]] = {
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.swapaxes(0, 1),
    6: lambda image: image.swapaxes(0, 1)[:, ::-1],
    7: lambda image: image[::-1, ::-1].swapaxes(0, 1),
    8: lambda image: image.swapaxes(0, 1)[::-1],
}


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
            return size[::-1] if _jpeg_orientation(data) >= _TURNED else size
    header = _open_header(data)
    width, height = header.size
    late = data.find(b"eXIf") if header.format == "PNG" and "exif" not in header.info else -1  # behind the pixels
    orientation = _exif_orientation(data[late + 4 :]) if late >= 0 else _orientation_of(header)
    return (width, height) if orientation >= _TURNED else (height, width)


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


def _exif_orientation(tiff: bytes) -> int:
    """The orientation 1 ... 8 in the first directory of EXIF data (TIFF 6.0, section 2); 1 where there is none."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2], "")
    if not order:
        return 1
    try:
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(f"{order}HH", tiff, entry)
            if tag == _ORIENTATION:
                (value,) = struct.unpack_from(order + ("I" if kind == 4 else "H"), tiff, entry + 8)
                return value if 1 <= value <= 8 else 1
    except struct.error:  # cut short
        pass
    return 1


# --- JPEG -------------------------------------------------------------------------------------------------------------


def _jpeg_segments(raw: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, first byte, end) of each segment of a JPEG stream up to the first scan (ITU-T T.81, annex B)."""
    position = 2
    while position + 4 <= len(raw) and raw[position] == 0xFF:
        marker = raw[position + 1]
        if marker == 0xFF or marker == 0x01 or 0xD0 <= marker <= 0xD7:  # padding, and markers that stand alone
            position += 1 if marker == 0xFF else 2
            continue
        end = position + 2 + int.from_bytes(raw[position + 2 : position + 4], "big")
        yield marker, position + 4, end
        if marker == 0xDA:
            return
        position = end


def _jpeg_orientation(raw: bytes) -> int:
    for marker, start, end in _jpeg_segments(raw):
        if marker == 0xE1 and raw[start : start + 6] == _EXIF:
            return _exif_orientation(raw[start + 6 : end])
    return 1


def _jpeg_ends(raw: bytes) -> bool:
    """Whether the end marker follows the first scan; a thumbnail in the EXIF segment has one of its own."""
    return any(marker == 0xDA and raw.find(b"\xff\xd9", end) >= 0 for marker, _, end in _jpeg_segments(raw))


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
    high, wide = (at_least or size)[:: -1 if at_least and orientation >= _TURNED else 1]
    reducible = at_least is not None and high <= size[0] and wide <= size[1]
    scale: dict[str, Any] = {"min_height": high, "min_width": wide, "min_factor": 2} if reducible else {}
    try:
        image = simplejpeg.decode_jpeg(raw, "RGB", **scale)
    except _JPEG_ERRORS as error:
        # libjpeg only warns where data end early. Another warning may come first and hide that one.
        if "Premature end" in str(error) or not _jpeg_ends(raw):
            raise ValueError(f"truncated after {len(raw)} bytes") from None
        try:
            image = simplejpeg.decode_jpeg(raw, "RGB", strict=False, **scale)
        except _JPEG_ERRORS:
            return None
    return _UPRIGHT[orientation](image) if orientation > 1 else image


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
    heic = raw[4:8] == b"ftyp" and raw[8:12] in _HEIC and b"avif" not in raw[16:64]
    if heic:
        _register_heif()
    for name in ("HEIF",) if heic else (*_BY_OPENCV, *_BY_PILLOW):
        factory, accepts = Image.OPEN.get(name, (None, None))
        if factory is None or accepts is None or accepts(raw[:16]) is not True:
            continue
        try:
            header = factory(io.BytesIO(raw), "")
        except Exception as error:  # plugins raise what their parser meets: struct.error, IndexError, SyntaxError ...
            raise ValueError(f"{len(raw)} bytes with a broken {name} header ({error})") from error
        check_pixels(header.size[1], header.size[0], name)
        check_tags((header.info.get("exif") or b"").removeprefix(_EXIF))
        return header
    raise ValueError(f"{len(raw)} bytes that no image decoder understands")


def _register_heif() -> None:
    """Makes Pillow know HEIC. Raises ValueError where pillow-heif is not installed."""
    try:
        import pillow_heif
    except ModuleNotFoundError:
        raise ValueError('a HEIC picture; to read it: pip install "linnaeus-jax[heic]"') from None
    pillow_heif.register_heif_opener(thumbnails=False)


def _orientation_of(header: Image.Image) -> int:
    """What is left to turn after Pillow has read the pixels; it turns TIFF itself."""
    exif = (header.info.get("exif") or b"") if header.format != "TIFF" else b""
    return _exif_orientation(exif.removeprefix(_EXIF))


def _truncated(raw: bytes) -> bool:
    if raw[:2] == b"\xff\xd8":
        return not _jpeg_ends(raw)
    if raw[1:4] == b"PNG":
        return b"IEND" not in raw[-64:] and b"IEND" not in raw
    if raw[4:8] == b"jP  ":
        return b"\xff\xd9" not in raw  # the same end marker as in JPEG
    return raw[:4] == b"RIFF" and len(raw) < 8 + int.from_bytes(raw[4:8], "little")


def _read_other(raw: bytes) -> Pixels:
    if _truncated(raw):
        raise ValueError(f"truncated after {len(raw)} bytes")
    header = _open_header(raw)
    if header.format in _BY_OPENCV:
        try:
            image = cv2.imdecode(np.frombuffer(raw, np.uint8), cv2.IMREAD_COLOR_RGB)
        except cv2.error:  # a limit of its own
            image = None
        if image is not None:
            return cast(Pixels, image)
        if any(tile[0] in Image.DECODERS for tile in getattr(header, "tile", ())):  # written in Python: minutes
            raise ValueError(f"{len(raw)} bytes of {header.format} that no image decoder understands")
    return _read_with_pillow(header, len(raw))


def _read_with_pillow(header: Image.Image, size: int) -> Pixels:
    if header.mode in ("I", "F"):
        raise ValueError(f"pixels of 32 bits (mode {header.mode}); save it with 8 or 16 bits per channel")
    try:
        if header.mode.startswith("I;16"):
            high = (np.asarray(header) >> 8).astype(np.uint8)
            image = np.repeat(high[..., None], 3, axis=2)
        else:
            image = np.asarray(header.convert("RGB"))
    except MemoryError:
        raise ValueError("it needs more memory than there is") from None
    except Exception as error:  # see open_header
        raise ValueError(f"{size} bytes of {header.format} that no image decoder understands ({error})") from error
    orientation = _orientation_of(header)
    return _UPRIGHT[orientation](image) if orientation > 1 else image
