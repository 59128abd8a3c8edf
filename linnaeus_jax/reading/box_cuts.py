"""How a box is cut from its picture, the same for predicting and for building."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.decoding import Pixels
from linnaeus_jax.reading.text import printable

#: said of a box of which more than a pixel lies outside of the picture
CLIPPED = "the box reaches beyond the picture and was clipped"
WITHOUT = ("whole", "skip")
#: size of a picture of which boxes are shares
RELATIVE = (1.0, 1.0)


@dataclass(frozen=True)
class Box:
    """A box of a picture.

    Attributes:
      number: its place among all boxes of the picture in the file, from 1.
      place: left, top, width and height, of the upright picture.
      confidence: of the detector, 0 to 1; None where none is given.
      category: name of what is in it; "" where none is given.
      scale: (width, height) of the picture in the unit of `place`: 1, 1 for shares of it; None: pixels.
    """

    number: int
    place: tuple[float, float, float, float]
    confidence: float | None = None
    category: str = ""
    scale: tuple[float, float] | None = RELATIVE


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

    def leaves_out(self, box: Box) -> str:
        """Why a box is not taken, of such boxes; "" where it is."""
        if self.categories and box.category not in self.categories:
            return "they are of other categories"
        if box.confidence is not None and box.confidence < self.confidence:
            return f"their confidence is below {self.confidence:g}"
        return ""

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


def box_object(box: Box | None) -> dict[str, Any] | None:
    """As JSON types; None where all of the picture is seen."""
    if box is None:
        return None
    return {"number": box.number, "confidence": box.confidence, "category": box.category, "bbox": list(box.place)}


def seen_of(boxes: Sequence[Box], cut: Cut) -> list[tuple[Box | None, str]]:
    """What is seen of a picture: its boxes, each with why it is not, "" where it is; and None, all of it, where none
    is."""
    found: list[tuple[Box | None, str]] = [
        (box, f"boxes are left out where {why}" if (why := cut.leaves_out(box)) else "") for box in boxes
    ]
    return found if any(not why for _, why in found) else [*found, (None, "")]


def answering(scored: Sequence[tuple[Box | None, float]]) -> int:
    """The place of the box that answers for its picture: that with the largest product of the detector's confidence, 1
    where there is none, and the probability of the path's finest taxon; of equal ones the first."""
    scores = [p * (1.0 if box is None or box.confidence is None else box.confidence) for box, p in scored]
    return scores.index(max(scores))


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


def some_names(names: Sequence[str]) -> str:
    """For one line."""
    return f"{', '.join(map(printable, names[:3]))}{' ...' if len(names) > 3 else ''}"
