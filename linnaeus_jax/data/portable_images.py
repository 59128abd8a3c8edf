"""Encoded images -> pixels -> what a model sees, as far as Pillow and NumPy alone can do it.

`decoding` and `preprocessing` follow it, and do faster what OpenCV and simplejpeg can do. An export has a copy of this
file beside its example, so that it imports nothing else.
"""

from __future__ import annotations

import io
import math
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

#: Pillow's names of the formats that are read; MPO is among JPEG
FORMATS = ("PNG", "WEBP", "BMP", "JPEG", "JPEG2000", "PPM", "TIFF", "GIF", "AVIF")
#: brands of the files that pillow-heif reads (ISO/IEC 23008-12)
HEIC = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"))
EXIF = b"Exif\0\0"
TURNED = 5  # from this orientation on, width and height are exchanged
#: EXIF orientation -> view of the stored pixels that is upright
UPRIGHT: dict[int, Callable[[Any], Any]] = {
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.swapaxes(0, 1),
    6: lambda image: image.swapaxes(0, 1)[:, ::-1],
    7: lambda image: image[::-1, ::-1].swapaxes(0, 1),
    8: lambda image: image.swapaxes(0, 1)[::-1],
}
#: name of an interpolation by Pillow -> its filter
PILLOW_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "nearest_exact": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
#: of a picture whose sides differ more than so many times the ends are cut off before the centre is resized: whole, it
#: could take all memory
LONGEST = 8
_ORIENTATION, _BITS, _LARGEST = 0x0112, 258, 281  # of TIFF


def read_all(paths: Sequence[str], **how: Any) -> Any:
    """What a model sees of files, uint8 [n, H, W, 3]; ends the program with one line for one that is not read.

    Args:
      how: of `resized`.
    """
    images = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                images.append(resized(read_rgb(file.read()), **how))
        except Exception as error:  # whatever a decoder makes of a damaged file
            sys.exit(f"{path}: {getattr(error, 'strerror', None) or error}")
    return np.stack(images)


class PixelsError(ValueError):
    """Pixels that are not read; the message is the reason."""


def read_rgb(raw: bytes) -> Any:
    """Pixels uint8 [h, w, 3] of the bytes of a file, by Pillow alone.

    Raises:
      ValueError, OSError: truncated, or of a kind that is not read; the message is the reason.
    """
    if truncated(raw):
        raise ValueError(f"truncated after {len(raw)} bytes")
    if is_heic(raw):
        register_heif()
    return rgb_pixels(Image.open(io.BytesIO(raw), formats=("HEIF",) if is_heic(raw) else FORMATS), raw)


def rgb_pixels(image: Image.Image, raw: bytes = b"") -> Any:
    """Pixels uint8 [h, w, 3] of a Pillow image: upright, on white where it is transparent, 16 bits as 8.

    Args:
      raw: the bytes of its file, which say more of PNG than Pillow does.

    Raises:
      PixelsError: without a known white.
      Exception: of whatever kind a decoder of Pillow raises for a damaged file.
    """
    image.load()  # first, since Pillow turns TIFF itself as it reads the pixels
    bits = significant_bits(image, raw)
    if image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PPM"):  # Pillow scales PPM to 16 bits
        values = np.asarray(image)
        gray = eight_bits(values, 16 if image.format == "PPM" else bits)
        if isinstance(transparent := image.info.get("transparency"), int):
            gray = np.where(values == transparent, np.uint8(255), gray)
        pixels = np.repeat(gray[..., None], 3, axis=2)
    elif image.mode in ("I", "F"):
        raise PixelsError(f"pixels of 32 bits (mode {image.mode}); save it with 8 or 16 bits per channel")
    else:
        pixels = np.asarray(on_white(image))
        if bits < 16 and pixels.max(initial=0) < 1 << bits - 8:
            raise PixelsError(
                f"{bits} bits in channels of 16, of which Pillow reads 8; save it with 8 bits per channel"
            )
    # Pillow turns TIFF itself, and pillow-heif HEIC
    exif = b"" if image.format in ("TIFF", "HEIF") else image.info.get("exif") or b""
    orientation = exif_orientation(exif.removeprefix(EXIF))
    return UPRIGHT[orientation](pixels) if orientation > 1 else pixels


def has_transparency(image: Image.Image) -> bool:
    """Whether some of its pixels may be transparent."""
    return image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info


def on_white(image: Image.Image) -> Image.Image:
    """As RGB, before a white background where it is transparent, as viewers show it."""
    if not has_transparency(image):
        return image.convert("RGB")
    colour = image.info.get("transparency")
    if isinstance(colour, tuple) and max(colour) > 255:  # of 16 bits, of which Pillow keeps the high byte
        image.info["transparency"] = tuple(value >> 8 for value in colour)
    image = image.convert("LA") if image.mode == "La" else image
    image = image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image.getchannel("A"))
    return white


def significant_bits(image: Image.Image, raw: bytes) -> int:
    """How many bits the values of an image of 16 bits have, as its file says; 16 where it does not."""
    if image.format == "TIFF":
        tags: Any = image.tag_v2  # type: ignore[attr-defined]
        largest = np.atleast_1d(tags.get(_LARGEST, 65535))
        given = [*np.atleast_1d(tags.get(_BITS, 16)), *(int(value).bit_length() for value in largest)]
        return int(np.clip(min(given), 9, 16)) if image.mode.startswith("I;16") else 16
    if image.format == "PNG" and raw[24:25] == b"\x10":
        at = raw.find(b"sBIT", 0, raw.find(b"IDAT"))
        kept = raw[at + 4 : at + 4 + int.from_bytes(raw[at - 4 : at], "big")] if at >= 0 else b""
        return min(max(kept, default=16), 16) if max(kept, default=16) > 8 else 16
    return 16


def eight_bits(values: Any, bits: int) -> Any:
    """uint8 of values with so many of 16 bits; files that have scaled them to 16 keep their high byte."""
    fits = bits == 16 or int(values.max(initial=0)) < 1 << bits
    return (values >> (bits - 8 if fits else 8)).astype(np.uint8)


def exif_orientation(tiff: bytes) -> int:
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


def jpeg_segments(raw: bytes) -> Iterator[tuple[int, int, int]]:
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


def jpeg_ends(raw: bytes) -> bool:
    """Whether the end marker follows the first scan; a thumbnail in the EXIF segment has one of its own."""
    return any(marker == 0xDA and raw.find(b"\xff\xd9", end) >= 0 for marker, _, end in jpeg_segments(raw))


def truncated(raw: bytes) -> bool:
    """Whether a file lacks its end, as far as its format says where that is."""
    if raw[:2] == b"\xff\xd8":
        return not jpeg_ends(raw)
    if raw[1:4] == b"PNG":
        return b"IEND" not in raw[-64:] and b"IEND" not in raw
    if raw[4:8] == b"jP  ":
        return b"\xff\xd9" not in raw  # the same end marker as in JPEG
    return raw[:4] == b"RIFF" and len(raw) < 8 + int.from_bytes(raw[4:8], "little")


def is_heic(raw: bytes) -> bool:
    """Whether a file is for pillow-heif."""
    return raw[4:8] == b"ftyp" and raw[8:12] in HEIC and b"avif" not in raw[16:64]


def register_heif() -> None:
    """Makes Pillow know HEIC. Raises ValueError where pillow-heif is not installed."""
    try:
        import pillow_heif
    except ModuleNotFoundError:
        raise ValueError("a HEIC picture; to read it: pip install pillow-heif") from None
    pillow_heif.register_heif_opener(thumbnails=False)


def resized(
    image: Any, size: Sequence[int], resize_mode: str, interpolation: str, crop_fraction: float, area: Any = None
) -> Any:
    """Pixels uint8 [h, w, 3] as uint8 [H, W, 3], see `Preprocessing`.

    Args:
      size: (H, W).
      area: function of (pixels, (height, width)) for the interpolation "area"; None: `by_area`.
    """

    def scaled(pixels: Any, to: tuple[int, int]) -> Any:
        if interpolation == "area":
            return (area or by_area)(pixels, to)
        return np.asarray(Image.fromarray(pixels).resize(to[::-1], PILLOW_FILTERS[interpolation]))

    height, width = size
    if resize_mode == "pad":
        high, wide = fitting(image.shape[:2], size)
        top, left = (height - high) // 2, (width - wide) // 2
        out = np.zeros((height, width, 3), np.uint8)
        out[top : top + high, left : left + wide] = scaled(image, (high, wide))
        return out
    if resize_mode == "squash":
        return scaled(image, (height, width))
    if interpolation == "area":  # the centre first
        h, w = (max(1, round(side * crop_fraction)) for side in fitting(size, image.shape[:2]))
        return scaled(_middle(image, h, w), (height, width))
    # in the order and with the rounding of torchvision's Resize and CenterCrop
    h, w = image.shape[:2]
    if max(h / w, w / h) > LONGEST:
        h, w = min(h, LONGEST * w), min(w, LONGEST * h)
        image = _middle(image, h, w)
    high, wide = math.floor(height / crop_fraction), math.floor(width / crop_fraction)
    by_height = high * w >= wide * h
    whole = (high, max(wide, int(high * w / h))) if by_height else (max(high, int(wide * h / w)), wide)
    top, left = round((whole[0] - height) / 2), round((whole[1] - width) / 2)
    return scaled(image, whole)[top : top + height, left : left + width]


def by_area(image: Any, size: Sequence[int]) -> Any:
    """Pixels uint8 [h, w, 3] as uint8 [*size, 3], each of which is the mean of what lies below it."""
    rows, columns = (_shares(now, to) for now, to in zip(image.shape[:2], size))
    return np.rint(np.einsum("ij,jkc,lk->ilc", rows, image, columns, optimize=True)).astype(np.uint8)


def _shares(now: int, to: int) -> Any:
    """float32 [to, now]: how much each of `now` pixels of a line is of each of `to` pixels."""
    ends = np.arange(to + 1)[:, None] * now / to
    overlap = np.minimum(ends[1:], np.arange(1, now + 1)) - np.maximum(ends[:-1], np.arange(now))
    return (np.maximum(overlap, 0) * to / now).astype(np.float32)


def fitting(shape: Sequence[int], box: Sequence[int]) -> tuple[int, int]:
    """(height, width) of the largest rectangle with the aspect ratio of `shape` that fits into `box`."""
    scale = min(box[0] / shape[0], box[1] / shape[1])
    h, w = (min(max(1, round(side * scale)), most) for side, most in zip(shape, box))
    return h, w


def _middle(image: Any, height: int, width: int) -> Any:
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return image[top : top + height, left : left + width]
