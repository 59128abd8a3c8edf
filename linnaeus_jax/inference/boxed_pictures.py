"""Pictures with boxes in Python: a row for each box that is taken, and from these the answer for a picture."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.decoding import Pixels
from linnaeus_jax.inference import reasons
from linnaeus_jax.inference.pictures import Crop, Picture, PictureError, called, size_of, whole_picture
from linnaeus_jax.inference.results import Prediction
from linnaeus_jax.reading.box_cuts import Box, BoxError, Cut, answering, seen_of
from linnaeus_jax.reading.boxes import given_boxes


@dataclass(frozen=True, eq=False)
class BoxedPictures:
    """What is seen of some pictures, in their order.

    Attributes:
      images: what is cut out of them, and whole pictures of which no box is taken.
      picture: of each of these, the number of its picture.
      notes: of each, what must be said of it.
      seen: of every picture, its boxes and perhaps None, all of it; each with why it is left out, "" where it is not.
    """

    images: list[Picture | Crop]
    picture: list[int]
    notes: list[tuple[str, ...]]
    seen: list[list[tuple[Box | None, str]]]

    def answers(self, said: Sequence[Prediction]) -> list[Prediction]:
        """One for each picture, from one for each of `images`."""
        each, found = iter(said), list[Prediction]()
        for seen in self.seen:
            rows = [replace(left_out(why) if why else next(each), box=box) for box, why in seen]
            best = answering([(row.box, row.path[-1].probability if row.path else -1.0) for row in rows])
            found.append(replace(rows[best], boxes=tuple(row for row in rows if row.box is not None)))
        return found


def left_out(why: str) -> Prediction:
    """What is said of a box that is not looked at."""
    return Prediction((), {}, None, reason=reasons.LEFT_OUT, reason_text=why)


def boxed(pictures: Sequence[Picture], boxes: Sequence[Sequence[Any]], cut: Cut) -> BoxedPictures:
    """Cuts boxes out of pictures, once they are read.

    Args:
      boxes: of each picture, see `given_boxes`.

    Raises:
      ValueError: boxes of another number of pictures.
      UserError: a box that cannot be used.
      PictureError: a picture that cannot be read.
    """
    if len(boxes) != len(pictures):
        raise ValueError(f"boxes are of {len(boxes)} pictures, and {len(pictures)} are given; give a list for each")
    whole = functools.lru_cache(2)(lambda number: whole_picture(pictures[number]))  # boxes of one follow each other
    found = BoxedPictures([], [], [], [])
    for number, (picture, given) in enumerate(zip(pictures, boxes)):
        name = called(picture, number)
        try:
            seen, size = seen_of(given_boxes(given, cut), cut), size_of(picture) if len(given) else (0, 0)
        except (UserError, PictureError) as error:
            raise type(error)(f"{name}: {error}") from None
        for place, (box, why) in enumerate(seen):
            if why:
                continue
            image, notes = picture, tuple[str, ...]()
            if box is not None:
                try:
                    rows, columns, notes = cut.region(box, size)
                except BoxError as error:
                    seen[place] = box, str(error)
                    continue
                image = Crop(f"{name}, box {box.number}", functools.partial(_part, whole, number, rows, columns))
            found.images.append(image)
            found.picture.append(number)
            found.notes.append(notes)
        found.seen.append(seen)
    return found


def _part(whole: Callable[[int], Pixels], number: int, rows: slice, columns: slice) -> Pixels:
    return np.ascontiguousarray(whole(number)[rows, columns])
