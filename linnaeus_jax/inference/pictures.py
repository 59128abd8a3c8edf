"""Pictures of any kind -> the pixels that the model sees, and what cameras write beside them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from linnaeus_jax.data.decoding import Pixels, image_size, read_image
from linnaeus_jax.data.portable_images import rgb_pixels
from linnaeus_jax.data.preprocessing import Preprocessing


@dataclass(frozen=True, eq=False)
class Crop:
    """A part of a picture, which is cut out when it is needed.

    Attributes:
      name: for messages.
      read: gives its pixels, uint8 [h, w, 3].
    """

    name: str
    read: Callable[[], Pixels]


#: a file, its bytes, a Pillow image, or uint8 [h, w], [h, w, 1], [h, w, 3] or [h, w, 4]
Picture = str | os.PathLike[str] | bytes | Image.Image | NDArray[np.uint8] | Crop
#: share of each side that a crop keeps
CROP = 0.8
#: views in the order in which they are taken: which part of the room that a crop leaves is above it and left of it,
#: None for the whole picture; and whether it is mirrored. Whole, mirrored, the five crops, and these mirrored
_CROPS = ((0.5, 0.5), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))
VIEWS: tuple[tuple[tuple[float, float] | None, bool], ...] = (
    (None, False),
    (None, True),
    *((crop, mirrored) for mirrored in (False, True) for crop in _CROPS),
)


class PictureError(ValueError):
    """A picture that cannot be read; the message is the reason."""


def called(picture: Picture, number: int) -> str:
    """What a picture is called in messages: its path, or its number."""
    if isinstance(picture, Crop):
        return picture.name
    return str(os.fspath(picture)) if isinstance(picture, (str, os.PathLike)) else f"picture {number}"


def read_picture(picture: Picture, how: Preprocessing) -> Pixels:
    """uint8 [H, W, 3] of a picture, as `how` says.

    Raises:
      PictureError: no file, or no picture.
    """
    with _told():
        data = _bytes(picture)
        return how.resize(whole_picture(picture)) if data is None else how.decode(data)


def whole_picture(picture: Picture) -> Pixels:
    """uint8 [h, w, 3], upright, in the size that it has; raises as `read_picture`."""
    with _told():
        data = _bytes(picture)
        return _pixels(picture) if data is None else read_image(data)


def size_of(picture: Picture) -> tuple[int, int]:
    """Height and width of a picture, upright, of a file by its header; raises as `read_picture`."""
    with _told():
        data = _bytes(picture)
        height, width = _pixels(picture).shape[:2] if data is None else image_size(data)
        return height, width


def _bytes(picture: Picture) -> bytes | None:
    """Of a file; None of pixels."""
    if isinstance(picture, (str, os.PathLike)):
        return Path(picture).read_bytes()
    return bytes(picture) if isinstance(picture, (bytes, bytearray, memoryview)) else None


@contextmanager
def _told() -> Iterator[None]:
    """Raises a PictureError for whatever cannot be read."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise PictureError(getattr(error, "strerror", "") or str(error) or type(error).__name__) from error


def read_views(picture: Picture, how: Preprocessing, count: int) -> Pixels:
    """uint8 [H, W, 3] of a picture, or [count, H, W, 3] of the first of its `VIEWS`; raises as `read_picture`."""
    first = read_picture(picture, how)
    if count == 1:
        return first
    whole = whole_picture(picture)
    return np.stack([first, *(how.resize(view_of(whole, number)) for number in range(1, count))])


def view_of(pixels: Pixels, number: int) -> Pixels:
    """uint8 [h, w, 3] that one of `VIEWS` shows of a whole picture, contiguous."""
    crop, mirrored = VIEWS[number]
    if crop is not None:
        sides = [max(1, round(CROP * side)) for side in pixels.shape[:2]]
        top, left = (round(share * (side - kept)) for share, side, kept in zip(crop, pixels.shape[:2], sides))
        pixels = pixels[top : top + sides[0], left : left + sides[1]]
    return np.ascontiguousarray(pixels[:, ::-1] if mirrored else pixels)


def _pixels(picture: Any) -> Pixels:
    """uint8 [h, w, 3] of what is no file, by the rules of `data/decoding`."""
    if isinstance(picture, Crop):
        return picture.read()
    if isinstance(picture, Image.Image):
        return np.array(rgb_pixels(picture))
    array = np.asarray(picture)
    if array.ndim == 2:
        array = array[..., None]
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not array.size:
        raise ValueError(
            f"an array of {array.dtype} {list(array.shape)}; give uint8 pixels [height, width, 3] from 0 to 255"
        )
    if array.shape[2] == 4:
        return np.array(rgb_pixels(Image.fromarray(array)))
    return np.ascontiguousarray(np.repeat(array, 3, axis=2) if array.shape[2] == 1 else array)
