"""What the model sees for a request, a row for each picture or box, and what is said of the pictures from these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.inference.boxed_pictures import left_out
from linnaeus_jax.reading.box_cuts import Box, answering, box_object


class Row(NamedTuple):
    """A picture, or a box of it.

    Attributes:
      picture: its number.
      box: what of it is seen; None: all of it.
      pixels: uint8 [H, W, 3]; None: the box is not looked at.
      why: not; "" where it is.
      notes: what must be said of it.
    """

    picture: int
    box: Box | None
    pixels: NDArray[np.uint8] | None = None
    why: str = ""
    notes: tuple[str, ...] = ()


def of_rows(rows: Sequence[Row], said: Sequence[Any]) -> list[Any]:
    """What is said of every row with its box, by what is said of those with pixels; None where there is no answer."""
    each = iter(said)
    every = [left_out(row.why).to_json() if row.pixels is None else next(each) for row in rows]
    return [one and {**one, "box": box_object(row.box)} for row, one in zip(rows, every)]


def of_pictures(rows: Sequence[Row], said: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """`PictureOut` of each picture as JSON types; None where the outputs of the model are not finite.

    Args:
      rows: of all pictures, at least one of each.
      said: see `of_rows`.
    """
    found = []
    for number, name in enumerate(names):
        mine = [(row.box, one) for row, one in zip(rows, said, strict=True) if row.picture == number]
        scores = [-2.0 if one is None else one["path"][-1]["probability"] if one["path"] else -1.0 for _, one in mine]
        _, best = mine[answering([(box, score) for (box, _), score in zip(mine, scores)])]
        boxes = [one for box, one in mine if box is not None]
        found.append(best and {"image": name, **best, "boxes": boxes})
    return found
