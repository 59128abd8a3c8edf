"""Which grid a bias table of relative positions belongs to."""

from __future__ import annotations

import math

from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.relative import table_rows

#: how the names of such tables end
TABLE = ".relative_position_bias_table"


def grid_of(rows: int, model: ModelFamily, img_size: tuple[int, int] | None) -> tuple[int, int] | None:
    """The grid (H, W) whose table has `rows` rows.

    Args:
      model: of whose kind the table is.
      img_size: (height, width) of the images that it was trained on; None: unknown, and taken to be square.

    Returns:
      None where there is no such grid.
    """
    if img_size is not None:
        grids = [grid for grid in model.grids(img_size) if table_rows(grid) == rows]
        if grids:
            return grids[0]
    side = (math.isqrt(max(rows - 1, 0)) + 1) // 2
    return (side, side) if side and table_rows((side, side)) == rows else None
