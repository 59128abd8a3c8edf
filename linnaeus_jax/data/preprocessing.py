"""How a picture becomes what a model sees: one object for building, training, evaluation, predicting and serving.

Area interpolation weighs every pixel by how much of it lies below the new one (OpenCV). The other interpolations are
Pillow's, as torchvision and timm use them, so that weights from there see the pixels that they were trained on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import cv2
import numpy as np

from linnaeus_jax.config.sections.data import LEAST_CROP
from linnaeus_jax.data.decoding import Pixels, read_image, read_reduced
from linnaeus_jax.data.portable_images import PILLOW_FILTERS, fitting, resized

if TYPE_CHECKING:
    from linnaeus_jax.config.typed import Config

RESIZE_MODES = ("squash", "center_crop", "pad")
INTERPOLATIONS = ("area", *PILLOW_FILTERS)
#: side in pixels up to which the published weights were found to see more in larger pictures (docs/results.md)
BEST_SIDE = 320
#: keys of the configuration that `Preprocessing.from_config` reads
KEYS = (
    "data.img_size",
    "data.resize_mode",
    "data.interpolation",
    "data.crop_fraction",
    "data.reduced_decode",
    "aug.mean",
    "aug.std",
)
#: how many times a JPEG decoded at reduced scale may shrink by linear interpolation: the inverse DCT has averaged its
#: pixels already, and up to here it is as near to the area of the whole picture, in a fifth of the time
LINEAR_UP_TO = 1.25


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes pixels, and pixels the numbers that enter the model.

    Attributes:
      size: (height, width) of what the model sees.
      resize_mode: "squash" gives up the aspect ratio; "center_crop" keeps a centred part with that of `size`; "pad"
        keeps everything, centred between black borders.
      interpolation: one of `INTERPOLATIONS`.
      reduced_decode: decode JPEG at a reduced scale where that still has every pixel needed, and finish a small rest
        linearly, see `LINEAR_UP_TO`; with "area" alone, since the other interpolations are to be Pillow's.
      mean, std: per channel, of values in [0, 1], see `learning.augmentation.normalize`.
      crop_fraction: share of the shorter side that "center_crop" keeps.
    """

    size: tuple[int, int]
    resize_mode: str = "squash"
    interpolation: str = "area"
    reduced_decode: bool = True
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    crop_fraction: float = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError for what is no such preprocessing."""
        for value, name, choices in (
            (self.resize_mode, "resize_mode", RESIZE_MODES),
            (self.interpolation, "interpolation", INTERPOLATIONS),
        ):
            if value not in choices:
                raise ValueError(f"{name} = {value!r} is none of {', '.join(choices)}")
        if not LEAST_CROP <= self.crop_fraction <= 1:
            raise ValueError(f"crop_fraction = {self.crop_fraction} is not within [{LEAST_CROP}, 1]")
        if conflict := crop_conflict(self.resize_mode, self.crop_fraction):
            raise ValueError(conflict)

    @classmethod
    def from_config(cls, config: Config) -> Preprocessing:
        """That of a run with this configuration."""
        data, aug = config.data, config.aug
        return cls(
            (data.img_size, data.img_size),
            data.resize_mode,
            data.interpolation,
            bool(data.reduced_decode),
            tuple(aug.mean),
            tuple(aug.std),
            float(data.crop_fraction),
        )

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Preprocessing:
        """The inverse of `dataclasses.asdict`, as JSON keeps it; TypeError, ValueError for what is no preprocessing."""
        made: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
        }
        return cls(**made)

    @property
    def resizing(self) -> str:
        """In words, such as "center_crop, bicubic, crop fraction 0.875"; what is usual is not said."""
        words = [self.resize_mode]
        words += [self.interpolation] if self.interpolation != "area" else []
        words += [f"crop fraction {self.crop_fraction:g}"] if self.crop_fraction != 1 else []
        return ", ".join(words)

    def decode(self, data: bytes | Pixels, out: Pixels | None = None) -> Pixels:
        """The encoded picture as uint8 [H, W, 3], in `out` if that is given.

        Raises:
          ValueError: as `decoding.read_image`.
        """
        if self.interpolation != "area" or not self.reduced_decode:
            return self.resize(read_image(data), out)
        image, is_reduced = read_reduced(data, self._needed)
        return self.resize(image, out, linear_up_to=LINEAR_UP_TO if is_reduced else 0.0)

    def resize(self, image: Pixels, out: Pixels | None = None, *, linear_up_to: float = 0.0) -> Pixels:
        """Pixels uint8 [h, w, 3] as uint8 [H, W, 3], in `out` if that is given; at equal size they are copied.

        Args:
          linear_up_to: linear interpolation in place of area where no side shrinks more than so many times.
        """
        out = np.empty((*self.size, 3), np.uint8) if out is None else out
        area = functools.partial(_by_area, linear_up_to=linear_up_to)
        out[...] = resized(image, self.size, self.resize_mode, self.interpolation, self.crop_fraction, area)
        return out

    def _needed(self, shape: tuple[int, int]) -> tuple[int, int]:
        """(height, width) below which a picture of `shape` must not be reduced."""
        if self.resize_mode == "pad":
            return fitting(shape, self.size)
        return math.ceil(self.size[0] / self.crop_fraction), math.ceil(self.size[1] / self.crop_fraction)


def crop_conflict(resize_mode: str, crop_fraction: float) -> str:
    """What is wrong where a part is to be cut out by a mode that cuts nothing; "" for nothing."""
    if crop_fraction == 1 or resize_mode == "center_crop":
        return ""
    return (
        f"crop_fraction = {crop_fraction} has no effect with resize_mode = {resize_mode!r}, which keeps the whole "
        "picture; set resize_mode to center_crop, or crop_fraction to 1"
    )


def _by_area(image: Pixels, size: tuple[int, ...], linear_up_to: float) -> Pixels:
    height, width = size
    if image.shape[:2] == (height, width):
        return image
    linear = max(image.shape[0] / height, image.shape[1] / width) <= linear_up_to
    interpolation = cv2.INTER_LINEAR if linear else cv2.INTER_AREA
    return cast(Pixels, cv2.resize(image, (width, height), interpolation=interpolation))
