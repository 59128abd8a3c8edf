"""How a picture becomes what a model sees: one object for building, training, evaluation, predicting and serving."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from PIL import Image

from linnaeus_jax.data.decoding import RESIZE_MODES, Pixels, decode_image, read_image, resize_image

if TYPE_CHECKING:
    from ml_collections import ConfigDict

#: name of an interpolation by Pillow -> its filter
PILLOW_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "nearest_exact": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}
INTERPOLATIONS = ("area", *PILLOW_FILTERS)


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes pixels, and pixels the numbers that enter the model.

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

    @classmethod
    def from_config(cls, config: ConfigDict) -> Preprocessing:
        """That of a run with this configuration."""
        data, aug = config.data, config.aug
        return cls(
            (data.img_size, data.img_size),
            data.resize_mode,
            "area",
            bool(data.reduced_decode),
            tuple(aug.mean),
            tuple(aug.std),
        )

    def decode(self, data: bytes) -> Pixels:
        """uint8 [H, W, 3] of an encoded picture.

        Raises:
          ValueError: as `decoding.read_image`.
        """
        if self.interpolation != "area":
            return self.resize(read_image(data))
        out = np.empty((*self.size, 3), np.uint8)
        decode_image(data, out, mode=self.resize_mode, reduced=self.reduced_decode)
        return out

    def resize(self, image: Pixels) -> Pixels:
        """uint8 [H, W, 3] of pixels uint8 [h, w, 3]."""
        if self.interpolation == "area":
            out = np.empty((*self.size, 3), np.uint8)
            resize_image(image, out, self.resize_mode)
            return out
        height, width = self.size
        resized = Image.fromarray(image).resize((width, height), PILLOW_FILTERS[self.interpolation])
        return cast(Pixels, np.asarray(resized))
