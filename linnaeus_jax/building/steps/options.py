"""What a user decides about a data set that is built."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.data.metadata import BROADRANGE_2
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.reading.box_cuts import Cut
from linnaeus_jax.reading.schema import FOLDER_PLACE, PLACE

IMAGE_FORMS = ("raw", "jpeg", "original", "folder")
TEMPORAL_FORMS = ("month", "month-hour", "day", "day-hour")
SPLIT_SCHEMES = ("stratified", "random", "observer", "place", FOLDER_PLACE, "date", "given", "none")
#: scheme -> columns of the source without which it would divide nothing
SPLIT_NEEDS = {
    "observer": ("observer",),
    "place": ("latitude", "longitude"),
    FOLDER_PLACE: (PLACE,),
    "date": ("date", "month"),
}


@dataclass(frozen=True)
class BuildOptions:
    """How rows become a data set. Every field is part of what the bytes of the data set depend on.

    Attributes:
      ranks: label columns, finest first, e.g. ("L10", "L20"); empty: species, genus, family and order as far as the
        source has them, or else every rank that it has.
      images: "raw" uint8 pixels of `size`; "jpeg": re-encoded with the shorter side at `shorter_side`; "original": the
        bytes of the files, packed; "folder": none, the pictures stay where they are.
      size: side in pixels.
      resize_mode, interpolation, crop_fraction: how "raw" pictures become square, see `data.preprocessing`.
      quality: of "jpeg", 1 to 100.
      temporal: columns of `temporal`: sine and cosine of the month or of the day of the year, and of the hour.
      day_first: whether "5/6/2023" is a day in June (True) or in May (False); None: such dates are blanked.
      elevation_scales: periods in metres.
      max_uncertainty: coordinates known less precisely than this many metres are blanked.
      min_per_class: classes with fewer rows become null at their rank.
      split: how rows fall to training, validation and test.
      val, test: shares of the rows.
      seed: of the split.
      place_size: degrees of latitude and longitude of one place, for the split by place.
      boxes: how boxes are cut from the pictures; None: whole pictures.
    """

    ranks: tuple[str, ...] = ()
    images: str = "raw"
    size: int = 224
    resize_mode: str = "squash"
    interpolation: str = "area"
    crop_fraction: float = 1.0
    quality: int = 90
    temporal: str = "month"
    day_first: bool | None = None
    elevation_scales: tuple[float, ...] = BROADRANGE_2
    max_uncertainty: float = 50_000.0
    min_per_class: int = 1
    split: str = "stratified"
    val: float = 0.1
    test: float = 0.0
    seed: int = 42
    place_size: float = 0.1
    boxes: Cut | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError with every wrong value."""
        rules = {
            f"--images {self.images}: choose one of {', '.join(IMAGE_FORMS)}": self.images in IMAGE_FORMS,
            f"--temporal {self.temporal}: choose one of {', '.join(TEMPORAL_FORMS)}": self.temporal in TEMPORAL_FORMS,
            f"--split {self.split}: choose one of {', '.join(SPLIT_SCHEMES)}": self.split in SPLIT_SCHEMES,
            f"--size {self.size}: give 8 to 4096 pixels": 8 <= self.size <= 4096,
            f"--boxes needs --images raw or jpeg: {self.images} keeps whole pictures": (
                self.boxes is None or self.images in ("raw", "jpeg")
            ),
            f"--quality {self.quality}: give 1 to 100": 1 <= self.quality <= 100,
            f"--min-per-class {self.min_per_class}: give at least 1": self.min_per_class >= 1,
            f"--val {self.val} and --test {self.test}: give shares from 0 that leave rows for training": (
                self.val >= 0 and self.test >= 0 and self.val + self.test < 1
            ),
            f"--seed {self.seed}: give a number from 0": self.seed >= 0,
            f"--place-size {self.place_size}: give degrees above 0": 0 < self.place_size <= 90,
            f"--max-uncertainty {self.max_uncertainty}: give metres above 0": self.max_uncertainty > 0,
            f"--elevation-scales {self.elevation_scales}: give periods above 0 m": (
                len(self.elevation_scales) > 0 and min(self.elevation_scales) > 0
            ),
        }
        wrong = [message for message, holds in rules.items() if not holds]
        try:
            _ = self.preprocessing
        except ValueError as error:
            wrong.append(f"--resize-mode, --interpolation, --crop-fraction: {error}")
        if wrong:
            raise ConfigError(wrong)

    @property
    def preprocessing(self) -> Preprocessing:
        """How "raw" pictures become pixels."""
        return Preprocessing(
            (self.size, self.size), self.resize_mode, self.interpolation, crop_fraction=self.crop_fraction
        )

    @property
    def shorter_side(self) -> int:
        """Of "jpeg" pictures: what `crop_fraction` leaves of it has `size` pixels."""
        return math.ceil(self.size / self.crop_fraction)

    @property
    def elevation_set(self) -> str:
        """Name of the elevation data set, which says its periods."""
        if self.elevation_scales == BROADRANGE_2:
            return "elevation_broadrange_2"
        return "elevation_scales_" + "_".join(f"{scale:g}" for scale in self.elevation_scales)

    def to_json(self) -> dict[str, Any]:
        """The fields by name; those that data sets of earlier versions lack, where they are not as these were built."""
        as_before = {"interpolation": "area", "crop_fraction": 1.0, "boxes": None}
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if name not in as_before or as_before[name] != value
        }
