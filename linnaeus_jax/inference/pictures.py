"""Pictures of any kind -> the pixels that the model sees, and what cameras write beside them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from linnaeus_jax.data.decoding import Pixels, read_image
from linnaeus_jax.data.portable_images import rgb_pixels
from linnaeus_jax.data.preprocessing import Preprocessing

#: a file, its bytes, a Pillow image, or uint8 [h, w], [h, w, 1], [h, w, 3] or [h, w, 4]
Picture = str | os.PathLike[str] | bytes | Image.Image | NDArray[np.uint8]
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


def read_picture(picture: Picture, how: Preprocessing) -> Pixels:
    """uint8 [H, W, 3] of a picture, as `how` says.

    Raises:
      PictureError: no file, or no picture.
    """
    try:
        if isinstance(picture, (str, os.PathLike)):
            picture = Path(picture).read_bytes()
        if isinstance(picture, (bytes, bytearray, memoryview)):
            return how.decode(bytes(picture))
        return how.resize(_pixels(picture))
    except (OSError, ValueError) as error:
        raise PictureError(getattr(error, "strerror", "") or str(error) or type(error).__name__) from error


def read_views(picture: Picture, how: Preprocessing, count: int) -> Pixels:
    """uint8 [H, W, 3] of a picture, or [count, H, W, 3] of the first of its `VIEWS`; raises as `read_picture`."""
    first = read_picture(picture, how)
    if count == 1:
        return first
    if isinstance(picture, (str, os.PathLike)):
        picture = Path(picture).read_bytes()
    whole = read_image(bytes(picture)) if isinstance(picture, (bytes, bytearray, memoryview)) else _pixels(picture)
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
    """uint8 [h, w, 3] of a Pillow image or an array, by the rules of `data/decoding`."""
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
