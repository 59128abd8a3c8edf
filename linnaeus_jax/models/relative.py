"""Self-attention with a learned bias for every relative position of two patches (Liu et al. 2021, Swin Transformer).

A table of the grid (H, W) has one row of `heads` numbers per offset, (2H-1) * (2W-1) in row-major order of (dy, dx),
and a last row for every pair that contains an extra token.
"""

from __future__ import annotations

import math
from typing import ClassVar, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.models.initial import parameter
from linnaeus_jax.models.layers import weight_init
from linnaeus_jax.models.transformer import SelfAttention

Array = TypeVar("Array", np.ndarray, jax.Array)


def table_rows(grid: tuple[int, int]) -> int:
    """Rows of the table of a grid (H, W)."""
    return (2 * grid[0] - 1) * (2 * grid[1] - 1) + 1


def relative_position_index(grid: tuple[int, int], extra: int) -> np.ndarray:
    """Row of the table of every pair of tokens, int32 [extra + H*W, extra + H*W]; pairs are (query, key)."""
    height, width = grid
    y_P, x_P = (axis.reshape(-1) for axis in np.mgrid[:height, :width])
    dy = y_P[:, None] - y_P[None] + height - 1
    dx = x_P[:, None] - x_P[None] + width - 1
    index = np.full((extra + len(y_P),) * 2, table_rows(grid) - 1, np.int32)
    index[extra:, extra:] = dy * (2 * width - 1) + dx
    return index


def gathered_bias(table_Rh: jax.Array, grid: tuple[int, int], extra: int) -> jax.Array:
    """`table_Rh[relative_position_index(grid, extra)]` as [heads, N, N], by copies instead of a gather.

    Among the patches, row and column of a pair enter as their difference alone, so along each axis the bias is a
    Toeplitz matrix. Its gradient is then a sum of shifted slices; that of a gather would be a scatter of N * N rows.
    An extra token as query adds the same number to all keys, which a softmax does not see: the gradient through it is
    0 in exact arithmetic, so it is 0 here instead of rounding noise, which Adam would make full steps of.
    """
    (height, width), heads = grid, table_Rh.shape[1]
    offsets = table_Rh[:-1].T.reshape(heads, 2 * height - 1, 2 * width - 1)
    bias = _toeplitz(_toeplitz(offsets, height, axis=1), width, axis=3)  # [heads, y, y', x, x']
    bias = bias.transpose(0, 1, 3, 2, 4).reshape(heads, height * width, height * width)
    last = table_Rh[-1][:, None, None]
    bias = jnp.concatenate([jnp.broadcast_to(last, (heads, height * width, extra)), bias], axis=2)
    constant = jnp.broadcast_to(jax.lax.stop_gradient(last), (heads, extra, bias.shape[2]))
    return jnp.concatenate([constant, bias], axis=1)


def _toeplitz(x: jax.Array, size: int, axis: int) -> jax.Array:
    """Replaces an axis of 2 * size - 1 entries by two of `size`: entry (i, j) is x[i - j + size - 1]."""
    x = jnp.moveaxis(x, axis, -1)[..., ::-1]
    # Rows of a tiled vector that are one entry shorter than its period move by one entry per row.
    x = jnp.concatenate([x, x[..., :1]], axis=-1)
    x = jnp.broadcast_to(x[..., None, :], (*x.shape[:-1], size, 2 * size)).reshape(*x.shape[:-1], -1)
    x = x[..., size - 1 : size - 1 + size * (2 * size - 1)].reshape(*x.shape[:-1], size, -1)[..., :size]
    return jnp.moveaxis(x, (-2, -1), (axis, axis + 1))


def bicubic_matrix(old: int, new: int, *, antialias: bool = False, offset: float = 0.0) -> np.ndarray:
    """Cubic interpolation of `old` equidistant values at `new` places, float64 [new, old] (Keys 1981).

    Pixel centres are aligned. It is what torch calls bicubic with align_corners=False: a = -0.75, values beyond the
    border repeat it, no smoothing before shrinking; or with `antialias` a = -0.5, weights beyond the border are left
    out, and shrinking widens the kernel.

    Args:
      offset: added to `new` where the distance of two places is computed, as some programs do.
    """
    step = old / (new + offset)
    width = max(step, 1.0) if antialias else 1.0
    a = -0.5 if antialias else -0.75
    place = (np.arange(new)[:, None] + 0.5) * step - 0.5
    taps = np.arange(-2 * math.ceil(width) - 1, 2 * math.ceil(width) + 3) + np.floor(place).astype(int)
    distance = np.abs(place - taps) / width
    inner = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    outer = (((distance - 5) * distance + 8) * distance - 4) * a
    weights = np.where(distance <= 1, inner, np.where(distance < 2, outer, 0.0))
    if antialias:
        weights = np.where((taps >= 0) & (taps < old), weights, 0.0)
        weights /= weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((new, old))
    np.add.at(matrix, (np.arange(new)[:, None], np.clip(taps, 0, old - 1)), weights)
    return matrix


def resize_grid(grid_hwD: Array, along_y: np.ndarray, along_x: np.ndarray) -> Array:
    """[h, w, D] of NumPy or JAX resized by the matrices [h', h] and [w', w], of the same kind and dtype."""
    if isinstance(grid_hwD, np.ndarray):
        return np.einsum("yv,xu,vud->yxd", along_y, along_x, grid_hwD, optimize=True).astype(grid_hwD.dtype)
    constants = [jnp.asarray(matrix, grid_hwD.dtype) for matrix in (along_y, along_x)]
    return jnp.einsum("yv,xu,vud->yxd", *constants, grid_hwD, precision="highest")


def resize_table(table_Rh: Array, old: tuple[int, int], new: tuple[int, int]) -> Array:
    """The table of the grid `old` for the grid `new`: offsets interpolated, the row of the extra tokens kept.

    Args:
      table_Rh: float [table_rows(old), heads], of NumPy or JAX.

    Returns:
      float [table_rows(new), heads] of the same kind and dtype.

    Raises:
      ValueError: the table does not have the rows of the grid `old`.
    """
    rows, heads = table_Rh.shape
    if rows != table_rows(old):
        raise ValueError(f"a table of the grid {old} has {table_rows(old)} rows, this one {rows}")
    if old == new:
        return table_Rh
    along_y, along_x = (bicubic_matrix(2 * a - 1, 2 * b - 1) for a, b in zip(old, new))
    grid = table_Rh[:-1].reshape(2 * old[0] - 1, 2 * old[1] - 1, heads)
    resized = resize_grid(grid, along_y, along_x).reshape(-1, heads)
    join = np.concatenate if isinstance(table_Rh, np.ndarray) else jnp.concatenate
    return join([resized, table_Rh[-1:]])


class RelativeAttention(SelfAttention):
    """Self-attention with a learned bias for every relative position; queries, keys and values have no bias.

    `table_grid` is the grid (H, W) of the table. On another grid the table is resized inside the graph.
    """

    table_grid: tuple[int, int] = (1, 1)
    qkv_bias: bool = False

    learned_bias: ClassVar[bool] = True

    @nn.nowrap
    def _placed(
        self, qk_BN2hd: jax.Array, grid: tuple[int, int], padding: int
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        shape = (table_rows(self.table_grid), self.num_heads)
        table = parameter(self, "relative_position_bias_table", weight_init, shape)
        extra = qk_BN2hd.shape[1] - grid[0] * grid[1] - padding
        bias = gathered_bias(resize_table(table, self.table_grid, grid), grid, extra)
        bias = jnp.pad(bias, ((0, 0), (0, padding), (0, padding))) if padding else bias
        return qk_BN2hd[:, :, 0], qk_BN2hd[:, :, 1], bias
