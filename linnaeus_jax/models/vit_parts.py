"""What the vision transformer is made of: tokens with positions, attention that turns patches, pooling by attention."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from linnaeus_jax.models.initial import parameter
from linnaeus_jax.models.layers import Conv2d, Dtype, LayerNorm, Linear, Mlp, Residual, Softmax, weight_init
from linnaeus_jax.models.operations import add_to_rows
from linnaeus_jax.models.relative import Array, bicubic_matrix, resize_grid
from linnaeus_jax.models.rotary import rotate
from linnaeus_jax.models.transformer import SelfAttention, attention_logits

#: how a table of positions is resized -> arguments of `bicubic_matrix`; "": there is no table
POSITIONS: dict[str, dict[str, Any]] = {
    "": {},
    "bicubic": {},
    "antialias": {"antialias": True},
    "offset": {"offset": 0.1},
}
#: DINOv3's rotary positions: the precision that the periods are rounded to
PERIODS: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
#: kinds of rotary positions; "": none
ROPES = ("", *PERIODS, "grid")
DINOV3_BASE, GRID_BASE = 100.0, 10000.0
#: of what a norm acts on before the last map: nothing, the MLPs, the attention, or both
SUB_NORMS = ("", "mlp", "attention", "both")


def resize_positions(table_1ND: Array, placed: int, old: tuple[int, int], new: tuple[int, int], how: str) -> Array:
    """A table of positions of the grid `old` for the grid `new`; its first `placed` entries are kept.

    Args:
      table_1ND: float [1, placed + h * w, D], of NumPy or JAX.
      how: one of `POSITIONS`.
    """
    if old == new:
        return table_1ND
    along_y, along_x = (bicubic_matrix(a, b, **POSITIONS[how]) for a, b in zip(old, new))
    dim = table_1ND.shape[2]
    resized = resize_grid(table_1ND[0, placed:].reshape(*old, dim), along_y, along_x).reshape(1, -1, dim)
    join = np.concatenate if isinstance(table_1ND, np.ndarray) else jnp.concatenate
    return join([table_1ND[:, :placed], resized], axis=1)


def rope_angles(grid: tuple[int, int], head_dim: int, rope: str, rope_grid: int) -> np.ndarray:
    """Angles in radians, float32 [h * w, d / 2]: half turn with y, half with x.

    Of DINOv3 (Siméoni et al. 2025), `rope` float32 or bfloat16: places run from -1 to 1 along each side, whatever the
    grid; the periods are 100 ** (4 k / d) for k < d / 4. Of EVA-02 (Fang et al. 2023), `rope` grid: places are those of
    a grid of `rope_grid` x `rope_grid` patches that is stretched over the picture, times 10000 ** (-4 k / d).
    """
    count = head_dim // 4
    share, stretched = np.arange(count, dtype=np.float32) / np.float32(count), rope == "grid"
    periods = np.float32(GRID_BASE if stretched else DINOV3_BASE) ** share
    sides = [np.arange(side, dtype=np.float32) for side in grid]
    if stretched:
        sides = [places / np.float32(len(places)) * np.float32(rope_grid) for places in sides]
    else:
        periods = periods.astype(PERIODS[rope]).astype(np.float32)
        sides = [(places + np.float32(0.5)) / np.float32(len(places)) * 2 - 1 for places in sides]
    places = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2, 1)
    turns = places * (1 / periods) if stretched else np.float32(2 * np.pi) * places / periods
    return turns.reshape(len(places), -1).astype(np.float32)


class PlacedAttention(SelfAttention):
    """Self-attention whose patches are turned by `rope_angles`, as far as `rope` says so."""

    rope: str = ""
    rope_grid: int = 16

    @nn.nowrap
    def _placed(
        self, qk_BN2hd: jax.Array, grid: tuple[int, int], padding: int
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        if self.rope:
            angles = rope_angles(grid, qk_BN2hd.shape[-1], self.rope, self.rope_grid)[:, None]
            extra = qk_BN2hd.shape[1] - len(angles) - padding
            angles = np.pad(angles, ((extra, padding), (0, 0), (0, 0)))
            qk_BN2hd = rotate(qk_BN2hd, jnp.asarray(angles), "rotary")
        return qk_BN2hd[:, :, 0], qk_BN2hd[:, :, 1], None


class PatchEmbed(nn.Module):
    """Patches, class token and registers with their positions; `grid` is that of the table."""

    features: int
    patch_size: int
    grid: tuple[int, int]
    use_bias: bool
    class_token: bool
    registers: int
    positions: str
    placed_tokens: int
    dtype: Dtype = jnp.float32

    def setup(self) -> None:
        self.proj = Conv2d(
            self.features, self.patch_size, self.patch_size, use_bias=self.use_bias, dtype=self.dtype, name="proj"
        )
        if self.class_token:
            self.cls_token = parameter(self, "cls_token", weight_init, (1, 1, self.features))
        if self.registers:
            self.reg_token = parameter(self, "reg_token", weight_init, (1, self.registers, self.features))
        if self.positions:
            entries = self.placed_tokens + self.grid[0] * self.grid[1]
            self.pos_embed = parameter(self, "pos_embed", weight_init, (1, entries, self.features))

    def __call__(self, image_BHWC: jax.Array) -> jax.Array:
        """Patches [B, h, w, D] with their positions; places at the border that fill no patch are left out."""
        x_BhwD: jax.Array = self.proj(image_BHWC)
        if not self.positions:
            return x_BhwD
        grid = x_BhwD.shape[1:3]
        table = resize_positions(self.pos_embed, self.placed_tokens, self.grid, (grid[0], grid[1]), self.positions)
        return add_to_rows(x_BhwD, table[0, self.placed_tokens :].reshape(x_BhwD.shape[1:]).astype(self.dtype))

    def prefix(self) -> jax.Array:
        """Class token and registers with their positions, [1, n, D]."""
        tokens = [self.cls_token] if self.class_token else []
        tokens += [self.reg_token] if self.registers else []
        prefix = jnp.concatenate([*tokens, jnp.zeros((1, 0, self.features))], axis=1)
        if self.positions and self.placed_tokens:
            placed = prefix[:, : self.placed_tokens] + self.pos_embed[:, : self.placed_tokens]
            prefix = jnp.concatenate([placed, prefix[:, self.placed_tokens :]], axis=1)
        return prefix.astype(self.dtype)


class AttentionPool(nn.Module):
    """One learned query looks at all tokens, then an MLP: [B, N, D] -> [B, D] (Zhai et al. 2022)."""

    num_heads: int
    hidden: int
    activation: str
    epsilon: float
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x_BND: jax.Array) -> jax.Array:
        batch, tokens, dim = x_BND.shape
        latent = parameter(self, "latent", weight_init, (1, 1, dim)).astype(self.dtype)
        heads = (self.num_heads, dim // self.num_heads)
        q = Linear(dim, dtype=self.dtype, name="q")(latent).reshape(1, 1, *heads)
        kv = Linear(2 * dim, dtype=self.dtype, name="kv")(x_BND).reshape(batch, tokens, 2, *heads)
        q = jnp.broadcast_to(q, (batch, 1, *heads))
        probs = Softmax(name="softmax")(attention_logits(q, kv[:, :, 0], heads[1] ** -0.5)).astype(kv.dtype)
        out = jnp.einsum("bhnm,bhmd->bhnd", probs, kv[:, :, 1].swapaxes(1, 2)).swapaxes(1, 2)
        x = Linear(dim, dtype=self.dtype, name="proj")(out.reshape(batch, 1, dim))
        y = LayerNorm(self.epsilon, dtype=self.dtype, name="norm")(x)
        y = Mlp(self.hidden, dim, dtype=self.dtype, activation=self.activation, name="mlp")(y)
        pooled: jax.Array = Residual(name="residual")(x, y)
        return pooled[:, 0]
