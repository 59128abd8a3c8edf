"""How a box is cut from its picture, the same for predicting and for building."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.decoding import Pixels
from linnaeus_jax.reading.boxes import Box, BoxFile
from linnaeus_jax.reading.text import printable

#: said of a box of which more than a pixel lies outside of the picture
CLIPPED = "the box reaches beyond the picture and was clipped"
WITHOUT = ("whole", "skip")


class BoxError(ValueError):
    """A box that cannot be cut from its picture; the message is the reason."""


@dataclass(frozen=True)
class Cut:
    """Which boxes are taken, and how.

    Attributes:
      margin: added on every side, as a share of the longer side of the box.
      confidence: least one of the detector; boxes without one are taken.
      min_side: of the shorter side of the box, in pixels.
      square: the shorter side is made as long as the longer one; the square is moved into the picture where it fits.
      categories: names of what is taken; none: all.
      without: "whole": pictures without a box are taken as they are; "skip": they are left out.
    """

    margin: float = 0.1
    confidence: float = 0.2
    min_side: int = 0
    square: bool = False
    categories: tuple[str, ...] = ()
    without: str = WITHOUT[0]

    def __post_init__(self) -> None:
        """Raises UserError for what cannot be."""
        if not 0 <= self.margin <= 10:
            raise UserError(f"--box-margin is {self.margin:g}; give a share of the longer side, from 0 to 10")
        if not 0 <= self.confidence <= 1:
            raise UserError(f"--box-confidence is {self.confidence:g}; give a number from 0 to 1")
        if self.min_side < 0:
            raise UserError(f"--box-min-side is {self.min_side}; give a number of pixels")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "categories": list(self.categories)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Cut:
        """The inverse of `to_json`. Raises UserError for what is no such thing."""
        try:
            return cls(**{**fields, "categories": tuple(fields.get("categories", ()))})
        except TypeError as error:
            raise UserError(f"{str(fields)[:100]} are no settings of boxes: {error}") from None

    def choose(self, found: BoxFile) -> tuple[dict[str, list[Box]], Counter[str]]:
        """The boxes that are taken of every picture that the file names, and why others are not -> how many.

        Raises:
          UserError: categories that the file does not name.
        """
        names = set(found.categories.values())
        if unknown := [name for name in self.categories if name not in names]:
            known = f"it has {printable(', '.join(sorted(names)))}" if names else "it names none"
            raise UserError(f"--box-categories {unknown[0]}: {found.path} names no such category; {known}")
        left: Counter[str] = Counter()
        taken: dict[str, list[Box]] = {}
        for name, boxes in found.boxes.items():
            kept = taken[name] = []
            for box in boxes:
                if self.categories and box.category not in self.categories:
                    left["they are of other categories"] += 1
                elif box.confidence is not None and box.confidence < self.confidence:
                    left[f"their confidence is below {self.confidence:g}"] += 1
                else:
                    kept.append(box)
        return taken, left

    def region(self, box: Box, size: tuple[int, int]) -> tuple[slice, slice, tuple[str, ...]]:
        """Rows and columns of the upright picture that are cut out, at least one pixel of each, and notes.

        Args:
          size: height and width of the picture.

        Raises:
          BoxError: the box lies outside, is too small, or is of the picture before it was turned.
        """
        height, width = size
        scale = box.scale or (width, height)
        if scale == (height, width) != (width, height) and box.scale is not None:
            raise BoxError("it was drawn before the picture was turned upright (EXIF): the sides are swapped")
        left, top, wide, high = (
            number * side / of for number, side, of in zip(box.place, (width, height) * 2, scale * 2)
        )
        edges = [(left, left + wide, width), (top, top + high, height)]
        if not all(start < most and end > 0 for start, end, most in edges):
            raise BoxError(f"it lies outside of the picture of {width} x {height} pixels")
        inside = [(max(start, 0.0), min(end, most)) for start, end, most in edges]
        lengths = [end - start for start, end in inside]
        if min(lengths) < self.min_side:
            raise BoxError(f"its shorter side is {min(lengths):.0f} pixels, less than {self.min_side}")
        margin = self.margin * max(lengths)
        sides = [max(lengths)] * 2 if self.square else lengths
        columns, rows = (
            _within((start + end - side) / 2 - margin, side + 2 * margin, most, self.square)
            for (start, end), side, (_, _, most) in zip(inside, sides, edges)
        )
        beyond = any(start < -1 or end > most + 1 for start, end, most in edges)
        return rows, columns, (CLIPPED,) * beyond

    def pixels(self, picture: Pixels, box: Box) -> tuple[Pixels, tuple[str, ...]]:
        """uint8 [h, w, 3] cut from an upright picture, contiguous, and notes. Raises BoxError as `region`."""
        rows, columns, notes = self.region(box, cast(tuple[int, int], picture.shape[:2]))
        return np.ascontiguousarray(picture[rows, columns]), notes


def _within(start: float, length: float, most: int, move: bool) -> slice:
    """Pixels of a line, of `most` that there are; `move`: where it fits, it is moved and not clipped."""
    if move:
        start = min(max(start, 0.0), max(most - length, 0.0))
    first = min(max(math.floor(start + 0.5), 0), most - 1)
    return slice(first, max(min(math.floor(start + length + 0.5), most), first + 1))


def differing(one: Cut, other: Cut) -> list[str]:
    """Settings that are not the same, with the value of each, such as "margin 0.1, not 0.2"."""
    pairs = zip(one.to_json().items(), other.to_json().values(), strict=True)
    return [f"{name} {a}, not {b}" for (name, a), b in pairs if a != b and name != "without"]


def of_facts(facts: Mapping[str, Any]) -> Cut | None:
    """How boxes were cut for the training of a model, by the facts of its bundle; None: not, or not known."""
    return Cut.from_json(facts["boxes"]) if "boxes" in facts else None


def from_training(cut: Cut | None, stored: Cut | None, advice: str = "give --boxes") -> str:
    """What must be known where a model was trained on other boxes, or on boxes at all; "" for nothing.

    Args:
      cut: what is asked for; None: whole pictures.
      stored: of the training; None: it had whole pictures, or is of an earlier version.
      advice: what to do about whole pictures.
    """
    if stored is None:
        return ""
    if cut is None:
        return f"the model was trained on boxes cut from pictures, and whole ones look different to it; {advice}"
    others = "; ".join(differing(cut, stored))
    return f"boxes are taken otherwise than for the training of the model: {others}" if others else ""


def said(found: BoxFile, left: Mapping[str, int], absent: Sequence[str] = ()) -> list[str]:
    """What a file holds that is not used, one line each.

    Args:
      left: of `Cut.choose`.
      absent: names of pictures that are not there.
    """
    lines = found.said()
    if left:
        reasons = "; ".join(f"{count:,}, since {reason}" for reason, count in left.items())
        lines.append(f"{found.path.name}: {sum(left.values()):,} boxes are not taken: {reasons}")
    if absent:
        lines.append(f"{found.path} names {len(absent):,} pictures that are not given: {some_names(absent)}")
    return lines


def some_names(names: Sequence[str]) -> str:
    """For one line."""
    return f"{', '.join(map(printable, names[:3]))}{' ...' if len(names) > 3 else ''}"
