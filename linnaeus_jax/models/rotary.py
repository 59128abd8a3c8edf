"""Self-attention with learned two-dimensional rotary position encoding.

Rotary encoding: Su et al. 2021 (RoFormer); its 2-D form for images with learned mixed frequencies: Heo et al. 2024
(RoPE-ViT). Tokens are [extra tokens ..., patches in row-major order]; only patches carry a position.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from linnaeus_jax import backend
from linnaeus_jax.models.initial import drawn, parameter
from linnaeus_jax.models.layers import Dtype
from linnaeus_jax.models.operations import DerivedByHand, wide
from linnaeus_jax.models.transformer import SelfAttention

ROPE_MODES = ("rotary", "cos_only")
ROPE_INITS = ("random_direction", "rope_vit")


def patch_positions(grid: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    """Column x and row y of each of the H*W patches of `grid` = (H, W), float32 [H*W], in patch units."""
    index = jnp.arange(grid[0] * grid[1])
    return (index % grid[1]).astype(jnp.float32), (index // grid[1]).astype(jnp.float32)


def mixed_angles(freqs_2hj: jax.Array, grid: tuple[int, int]) -> jax.Array:
    """Angles x * freqs[0] + y * freqs[1] in radians, float32 [H*W, heads, d/2], of learned frequencies."""
    x_P, y_P = patch_positions(grid)
    freqs_2hj = freqs_2hj.astype(wide(freqs_2hj.dtype))
    return x_P[:, None, None] * freqs_2hj[0][None] + y_P[:, None, None] * freqs_2hj[1][None]


def axial_angles(grid: tuple[int, int], head_dim: int, theta: float) -> jax.Array:
    """Fixed angles in radians, float32 [H*W, d/2]: half of the pairs turn with x, the other half with y.

    The frequencies of both halves are theta ** (-4 j / d) for j < d/4; d must be a multiple of 4.
    """
    freqs_j = theta ** (-4.0 * jnp.arange(head_dim // 4, dtype=jnp.float32) / head_dim)
    x_P, y_P = patch_positions(grid)
    return jnp.concatenate([x_P[:, None] * freqs_j[None], y_P[:, None] * freqs_j[None]], axis=-1)


def freqs_init(init: str, theta: float) -> Callable[..., jax.Array]:
    """Initial frequencies [2, heads, d/2], each head turned by a random angle phi.

    `random_direction`: magnitudes theta ** (-2 j / d), all along phi. `rope_vit` (Heo et al. 2024): magnitudes
    theta ** (-4 j / d) for j < d/4, once along phi and once across it.
    """

    def draw(key: jax.Array, shape: tuple[int, int, int], dtype: Dtype = jnp.float32) -> jax.Array:
        _, heads, pairs = shape
        count = pairs if init == "random_direction" else pairs // 2
        turns = [0.0] if init == "random_direction" else [0.0, math.pi / 2]
        magnitude = np.tile(theta ** (-np.arange(count) / count), len(turns))
        across = np.repeat(turns, count)

        def turned(unit_h1: Any) -> Any:
            xp = unit_h1.__array_namespace__()
            phi = unit_h1 * np.float32(2 * math.pi) + xp.asarray(across[None], np.float32)
            return xp.asarray(magnitude[None, None], np.float32) * xp.stack([xp.cos(phi), xp.sin(phi)])

        return drawn(key, "uniform", (heads, 1), dtype, turned)

    return draw


def rotate(x: jax.Array, angles_Nhj: jax.Array, mode: str) -> jax.Array:
    """Encodes positions into queries or keys `x` [B, N, ..., heads, d], pairing channels (2j, 2j+1).

    `rotary` turns each pair by its angle; `cos_only` multiplies both by the cosine, which some published
    checkpoints were trained with. The arithmetic is float32; the result has the dtype of `x`.
    """
    angles = jnp.expand_dims(angles_Nhj, (0, *range(2, x.ndim - 2)))
    if mode == "rotary":
        return _turn(x, angles)
    cos = jnp.repeat(jnp.cos(angles), 2, axis=-1)
    return (x.astype(wide(x.dtype)) * cos).astype(x.dtype)


@DerivedByHand
def _turn(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Pairs of channels of `x` turned by `angles`, which have a pair for a channel and 1 for axes that share them."""
    return _turned(x, angles, 1.0).astype(x.dtype)


def _turned(x: jax.Array, angles: jax.Array, sign: float) -> jax.Array:
    cos, sin = (jnp.repeat(function(angles), 2, axis=-1) for function in (jnp.cos, jnp.sin))
    return x.astype(wide(x.dtype)) * cos + _quarter_turn(x) * (sign * sin)


def _quarter_turn(x: jax.Array) -> jax.Array:
    """(a, b) -> (-b, a) of every pair of channels, in the dtype of arithmetic."""
    turned: jax.Array = backend.TURNS_AS_PRODUCTS.by_platform(_quarter_turn_by_product, _quarter_turn_by_pairs, x)
    return turned.astype(wide(x.dtype))


def _quarter_turn_by_pairs(x: jax.Array) -> jax.Array:
    # A reversal is computed within what reads it; two stacked halves would be stored.
    pairs = lax.rev(x.reshape(*x.shape[:-1], -1, 2), (x.ndim,))
    first = lax.broadcasted_iota(jnp.uint8, pairs.shape, x.ndim) == 0
    return jnp.where(first, -pairs, pairs).reshape(x.shape)


def _quarter_turn_by_product(x: jax.Array) -> jax.Array:
    """Exact, since each sum has one term that is not 0; the code that XLA makes of pairs on CPU is slow."""
    turn = np.kron(np.eye(x.shape[-1] // 2), np.asarray([[0.0, 1.0], [-1.0, 0.0]]))
    return x @ jnp.asarray(turn, x.dtype)


def _turn_fwd(x: jax.Array, angles: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    turned = _turn(x, angles)
    return turned, (turned, angles)


def _turn_bwd(saved: tuple[jax.Array, jax.Array], grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    turned, angles = saved
    by_angle = grad.astype(angles.dtype) * _quarter_turn(turned)
    batch, *shape = by_angle.shape
    if backend.SUMS_AS_PRODUCTS.here():
        by_angle = (jnp.ones((1, batch), by_angle.dtype) @ by_angle.reshape(batch, -1)).reshape(1, *shape)
    else:
        by_angle = by_angle.sum(0, keepdims=True)
    shared = tuple(axis for axis in range(1, angles.ndim - 1) if angles.shape[axis] == 1 != by_angle.shape[axis])
    by_angle = by_angle.sum(shared, keepdims=True)
    by_angle = by_angle.reshape(*angles.shape, 2).sum(-1)
    return _turned(grad, angles, -1.0).astype(grad.dtype), by_angle


_turn.defvjp(_turn_fwd, _turn_bwd)


class RotaryAttention(SelfAttention):
    """Self-attention whose patch queries and keys carry rotary positions; extra tokens carry none.

    `rope_mixed` False uses fixed axial frequencies and has no `freqs` parameter.
    """

    rope_theta: float = 10000.0
    rope_mode: str = "rotary"
    rope_init: str = "random_direction"
    rope_mixed: bool = True

    @nn.nowrap
    def _placed(
        self, qk_BN2hd: jax.Array, grid: tuple[int, int], padding: int
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        head_dim = qk_BN2hd.shape[-1]
        if self.rope_mixed:
            init = freqs_init(self.rope_init, self.rope_theta)
            angles = mixed_angles(parameter(self, "freqs", init, (2, self.num_heads, head_dim // 2)), grid)
        else:
            angles = axial_angles(grid, head_dim, self.rope_theta)[:, None]
        extra = qk_BN2hd.shape[1] - grid[0] * grid[1] - padding
        angles = jnp.pad(angles, ((extra, padding), (0, 0), (0, 0)))  # angle 0: other tokens stay as they are
        if not backend.ROTATED_APART.here():
            qk_BN2hd = rotate(qk_BN2hd, angles, self.rope_mode)
            return qk_BN2hd[:, :, 0], qk_BN2hd[:, :, 1], None
        # each on its own: both are stored where the kernel reads them
        q, k = (rotate(qk_BN2hd[:, :, which], angles, self.rope_mode) for which in range(2))
        return q, k, None
