"""Bias tables of relative positions at another resolution."""

from __future__ import annotations

import math


def grid_of(rows: int, img_size: tuple[int, int] | None) -> tuple[int, int] | None:
    """The grid (H, W) whose table has `rows` = (2H - 1)(2W - 1) + 1 rows.

    Args:
      img_size: (height, width) of the images, whose sides have the ratio of the grid's; None: square.

    Returns:
      None where there is no such grid.
    """
    area, (height, width) = rows - 1, img_size or (1, 1)
    options = []
    for side in range(1, area + 1, 2):
        if area % side == 0 and (area // side) % 2:
            options.append(((side + 1) // 2, (area // side + 1) // 2))
    if not options:
        return None
    ratio = height / width
    best = min(options, key=lambda grid: abs(math.log(grid[0] / grid[1] / ratio)))
    # a grid is the image divided by a power of two, rounded; one step of the shorter side is the most it can be off
    off = abs(best[0] - best[1] * ratio)
    return best if off < max(1.0, ratio) and (img_size is not None or best[0] == best[1]) else None
