"""Pictures and rows of a source, made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import polars as pl

from linnaeus_jax.reading.schema import SourceRows, standard_frame

LEVELS = ("L10", "L20", "L30")


def rows_of(root: Path = Path("."), levels: Sequence[str] = LEVELS, **columns: Sequence[Any]) -> SourceRows:
    """A source with the given columns; pictures are numbered where none are named."""
    count = len(next(iter(columns.values())))
    given: Mapping[str, Sequence[Any]] = {
        "line": list(range(1, count + 1)),
        "picture": [f"p{i:04d}.jpg" for i in range(count)],
        **columns,
    }
    types = {name: pl.Int64 if name == "line" else pl.String for name in given}
    return SourceRows(standard_frame(pl.DataFrame(given, types), tuple(levels)), root, tuple(levels), ())


def write_pictures(root: Path, count: int, seed: int = 0, size: tuple[int, int] = (40, 60)) -> list[str]:
    """Different small JPEGs p0000.jpg ...; their names."""
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    names = []
    for i in range(count):
        blocks = rng.integers(0, 255, (4, 6, 3), np.uint8)
        names.append(f"p{i:04d}.jpg")
        picture = cv2.resize(blocks, size[::-1], interpolation=cv2.INTER_CUBIC)
        assert cv2.imwrite(str(root / names[-1]), picture)
    return names
