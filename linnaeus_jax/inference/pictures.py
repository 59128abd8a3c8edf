"""Pictures of any kind -> the pixels that the model sees, and what cameras write beside them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from linnaeus_jax.data.decoding import Pixels
from linnaeus_jax.data.portable_images import rgb_pixels
from linnaeus_jax.data.preprocessing import Preprocessing

#: a file, its bytes, a Pillow image, or uint8 [h, w], [h, w, 1], [h, w, 3] or [h, w, 4]
Picture = str | os.PathLike[str] | bytes | Image.Image | NDArray[np.uint8]


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
