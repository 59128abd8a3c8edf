"""Pictures of any kind -> the pixels that the model sees, and what cameras write beside them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from linnaeus_jax.data.decoding import RESIZE_MODES, Pixels, read_image, resize_image
from linnaeus_jax.data.decoding import decode_image as decode_and_resize

#: name of an interpolation by Pillow -> its filter; `area` is that of training
PILLOW_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "nearest_exact": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}
INTERPOLATIONS = ("area", *PILLOW_FILTERS)

#: a file, its bytes, a Pillow image, or uint8 [h, w], [h, w, 1], [h, w, 3] or [h, w, 4]
Picture = str | os.PathLike[str] | bytes | Image.Image | NDArray[np.uint8]


class PictureError(ValueError):
    """A picture that cannot be read; the message is the reason."""


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes pixels.

    Attributes:
      size: (height, width) of what the model sees.
      resize_mode: `data.resize_mode`: squash, center_crop or pad.
      interpolation: one of `INTERPOLATIONS`; `area` as in training, the others as Pillow has them (squash only).
      reduced_decode: `data.reduced_decode`.
      mean, std: per channel, of values in [0, 1].
    """

    size: tuple[int, int]
    resize_mode: str = "squash"
    interpolation: str = "area"
    reduced_decode: bool = True
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        """Raises ValueError for what is no such preprocessing."""
        modes = RESIZE_MODES if self.interpolation == "area" else ("squash",)
        if self.interpolation not in INTERPOLATIONS or self.resize_mode not in modes:
            raise ValueError(
                f"pictures cannot be resized by {self.interpolation!r} and {self.resize_mode!r}; use one of "
                f"{', '.join(INTERPOLATIONS)}, and another mode than squash with area alone"
            )

    def read(self, picture: Picture) -> Pixels:
        """uint8 [H, W, 3] of a picture.

        Raises:
          PictureError: no file, or no picture.
        """
        out = np.empty((*self.size, 3), np.uint8)
        try:
            if isinstance(picture, (str, os.PathLike)):
                picture = Path(picture).read_bytes()
            if isinstance(picture, (bytes, bytearray, memoryview)):
                if self.interpolation == "area":
                    decode_and_resize(bytes(picture), out, mode=self.resize_mode, reduced=self.reduced_decode)
                    return out
                image = read_image(bytes(picture))
            else:
                image = _pixels(picture)
        except OSError as error:
            raise PictureError(error.strerror or str(error)) from error
        except ValueError as error:
            raise PictureError(str(error)) from error
        if self.interpolation == "area":
            resize_image(image, out, self.resize_mode)
            return out
        height, width = self.size
        resized = Image.fromarray(image).resize((width, height), PILLOW_FILTERS[self.interpolation])
        return cast(Pixels, np.asarray(resized))


def _pixels(picture: Any) -> Pixels:
    """uint8 [h, w, 3] of a Pillow image or an array."""
    if isinstance(picture, Image.Image):
        return _of_pillow(picture)
    array = np.asarray(picture)
    if array.ndim == 2:
        array = array[..., None]
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not array.size:
        raise ValueError(
            f"an array of {array.dtype} {list(array.shape)}; give uint8 pixels [height, width, 3] from 0 to 255"
        )
    return np.ascontiguousarray(np.repeat(array, 3, axis=2) if array.shape[2] == 1 else array[..., :3])


def _of_pillow(picture: Image.Image) -> Pixels:
    """uint8 [h, w, 3] by the rules of `data/decoding`: upright, colours under alpha kept, the high byte of 16 bits."""
    picture.load()  # first, since Pillow turns TIFF itself as it reads the pixels
    upright = ImageOps.exif_transpose(picture)
    if upright.mode in ("I", "F"):
        raise ValueError(f"pixels of 32 bits (mode {upright.mode}); convert them to 8 bits per channel")
    if upright.mode.startswith("I;16"):
        high = (np.asarray(upright) >> 8).astype(np.uint8)
        return np.repeat(high[..., None], 3, axis=2)
    if upright.mode == "PA":  # which Pillow does not convert at once
        upright = upright.convert("RGBA")
    return np.array(upright.convert("RGB"))
