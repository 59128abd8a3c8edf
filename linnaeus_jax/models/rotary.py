"""Self-attention with learned two-dimensional rotary position encoding.

Rotary encoding: Su et al. 2021 (RoFormer); its 2-D form for images with learned mixed frequencies: Heo et al. 2024
(RoPE-ViT). Tokens are [extra tokens ..., patches in row-major order]; only patches carry a position.
"""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from linnaeus_jax.models.layers import Dtype
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
    freqs_2hj = freqs_2hj.astype(jnp.float32)
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
        phi = jax.random.uniform(key, (heads, 1), dtype, 0.0, 2 * jnp.pi)
        if init == "random_direction":
            magnitude = theta ** (-jnp.arange(pairs, dtype=dtype) / pairs)
        else:
            magnitude = jnp.tile(theta ** (-2.0 * jnp.arange(pairs // 2, dtype=dtype) / pairs), 2)
            phi = phi + jnp.repeat(jnp.asarray([0.0, jnp.pi / 2], dtype), pairs // 2)[None]
        return jnp.stack([magnitude[None] * jnp.cos(phi), magnitude[None] * jnp.sin(phi)])

    return draw


def rotate(x: jax.Array, angles_Nhj: jax.Array, mode: str) -> jax.Array:
    """Encodes positions into queries or keys `x` [B, N, ..., heads, d], pairing channels (2j, 2j+1).

    `rotary` turns each pair by its angle; `cos_only` multiplies both by the cosine, which some published
    checkpoints were trained with. The arithmetic is float32; the result has the dtype of `x`.
    """
    batch_axes = x.ndim - 4
    angles = jnp.expand_dims(angles_Nhj, (0, *range(2, 2 + batch_axes)))
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if mode == "rotary":
        first, second = first * cos - second * sin, first * sin + second * cos
    else:
        first, second = first * cos, second * cos
    return jnp.stack([first, second], axis=-1).reshape(x.shape).astype(x.dtype)


class RotaryAttention(SelfAttention):
    """Self-attention whose patch queries and keys carry rotary positions; extra tokens carry none.

    `rope_mixed` False uses fixed axial frequencies and has no `freqs` parameter.
    """

    rope_theta: float = 10000.0
    rope_mode: str = "rotary"
    rope_init: str = "random_direction"
    rope_mixed: bool = True

    @nn.nowrap
    def _placed(self, qk_BN2hd: jax.Array, grid: tuple[int, int]) -> tuple[jax.Array, jax.Array | None]:
        head_dim = qk_BN2hd.shape[-1]
        if self.rope_mixed:
            init = freqs_init(self.rope_init, self.rope_theta)
            angles = mixed_angles(self.param("freqs", init, (2, self.num_heads, head_dim // 2)), grid)
        else:
            angles = axial_angles(grid, head_dim, self.rope_theta)[:, None]
        extra = qk_BN2hd.shape[1] - grid[0] * grid[1]
        angles = jnp.pad(angles, ((extra, 0), (0, 0), (0, 0)))  # angle 0: extra tokens stay as they are
        return rotate(qk_BN2hd, angles, self.rope_mode), None
