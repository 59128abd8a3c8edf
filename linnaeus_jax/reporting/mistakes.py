"""The mistakes of the last validation, with thumbnails, for the report."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.credits import read_credits
from linnaeus_jax.files import write_json

if TYPE_CHECKING:
    from linnaeus_jax.data.images import ImageSource

log = logging.getLogger("linnaeus_jax")

#: task -> `pairs` and `confident` as of `metrics.mistakes`, the latter with `image`, a JPEG in base64,
#: and what is known of `file`, `license`, `rights_holder` and `source_doi`
MISTAKES_FILE = "assets/validation_mistakes.json"
#: longer side of a thumbnail in pixels
SIDE = 112


def thumbnail(image: np.ndarray, side: int = SIDE) -> str:
    """uint8 [H, W, 3] RGB -> base64 of a JPEG with at most `side` pixels a side."""
    scale = min(1.0, side / max(image.shape[:2]))
    size = (max(1, round(scale * image.shape[1])), max(1, round(scale * image.shape[0])))
    small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    _, data = cv2.imencode(".jpg", cv2.cvtColor(small, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 80])
    return base64.b64encode(data.tobytes()).decode()


def write_mistakes(
    path: Path, mistakes: Mapping[str, Mapping[str, list[dict[str, Any]]]], images: ImageSource, labels: str
) -> None:
    """Writes the mistakes of every task with a picture of each confident one, and whose picture it is.

    Args:
      mistakes: task -> result of `metrics.mistakes.Mistakes`.
      images: of the validation split, by row.
      labels: its labels file.
    """

    from linnaeus_jax.data.images import input_dtype

    def credits(rows: NDArray[np.int64]) -> list[dict[str, str]]:
        try:
            return read_credits(labels, rows)
        except (OSError, ValueError) as error:  # moved or replaced since the start: no reason to end the run
            log.warning("pictures are shown without their licences: %s", error)
            return [{} for _ in rows]

    def thumbnails(rows: NDArray[np.int64]) -> list[str]:
        if input_dtype(images) != np.uint8:  # features, of which there is nothing to show
            return [""] * len(rows)
        pixels = np.empty((len(rows), *images.image_shape), np.uint8)
        images.read(rows, pixels)
        return list(map(thumbnail, pixels))

    write_json(path, with_pictures(mistakes, thumbnails, credits))


def with_pictures(
    mistakes: Mapping[str, Mapping[str, list[dict[str, Any]]]],
    thumbnails: Callable[[NDArray[np.int64]], Sequence[str]],
    credits: Callable[[NDArray[np.int64]], Sequence[Mapping[str, str]]],
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The mistakes of every task, each confident one with `image` and with what is known of whose picture it is.

    Args:
      thumbnails, credits: of rows int64 [n], distinct and ascending: JPEGs in base64, and as of `read_credits`.
    """
    rows = np.array(sorted({entry["row"] for one in mistakes.values() for entry in one["confident"]}), np.int64)
    facts = {
        row: {"image": image, **credit}
        for row, image, credit in zip(rows.tolist(), thumbnails(rows), credits(rows), strict=True)
    }
    return {
        task: {**one, "confident": [entry | facts[entry["row"]] for entry in one["confident"]]}
        for task, one in mistakes.items()
    }
