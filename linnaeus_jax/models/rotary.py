"""Transformer blocks with learned two-dimensional rotary position encoding.

Rotary encoding: Su et al. 2021 (RoFormer); its 2-D form for images with learned mixed frequencies: Heo et al. 2024
(RoPE-ViT). Tokens are [extra tokens ..., patches in row-major order]; only patches carry a position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from linnaeus_jax.models.layers import (
    Dropout,
    Dtype,
    LayerNorm,
    Linear,
    Mlp,
    Residual,
    Softmax,
    drop_path_scales,
    subkey,
)

ROPE_MODES = ("rotary", "cos_only")
ROPE_INITS = ("random_direction", "rope_vit")
ATTN_IMPLS = ("auto", "xla", "cudnn")


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


class RotaryAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017) whose patch queries and keys carry rotary positions.

    Logits and softmax are float32. `rope_mixed` False uses fixed axial frequencies and has no `freqs` parameter.
    `attn_impl`: `cudnn` is the fused kernel (bfloat16 on GPU, no dropout of probabilities); `xla` and `auto` the
    plain form, which is exact on every platform and may be mapped by `jax.vmap`.
    """

    num_heads: int
    rope_theta: float = 10000.0
    rope_mode: str = "rotary"
    rope_init: str = "random_direction"
    rope_mixed: bool = True
    drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    attn_impl: str = "auto"
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x_BND: jax.Array, grid: tuple[int, int], key: jax.Array | None = None) -> jax.Array:
        """Maps tokens [B, N, D] to [B, N, D]; the last H*W of them are the patches of `grid` = (H, W)."""
        batch, tokens, dim = x_BND.shape
        head_dim = dim // self.num_heads
        qkv = Linear(3 * dim, dtype=self.dtype, name="qkv")(x_BND).reshape(batch, tokens, 3, self.num_heads, head_dim)
        if self.rope_mixed:
            init = freqs_init(self.rope_init, self.rope_theta)
            angles = mixed_angles(self.param("freqs", init, (2, self.num_heads, head_dim // 2)), grid)
        else:
            angles = axial_angles(grid, head_dim, self.rope_theta)[:, None]
        extra = tokens - grid[0] * grid[1]
        angles = jnp.pad(angles, ((extra, 0), (0, 0), (0, 0)))  # angle 0: extra tokens stay as they are
        qk = rotate(qkv[:, :, :2], angles, self.rope_mode)
        out = self._attend(qk[:, :, 0], qk[:, :, 1], qkv[:, :, 2], key).reshape(batch, tokens, dim)
        out = Linear(dim, dtype=self.dtype, name="proj")(out)
        return Dropout(self.drop_rate, name="proj_drop")(out, subkey(key, 1))

    def _attend(self, q: jax.Array, k: jax.Array, v: jax.Array, key: jax.Array | None) -> jax.Array:
        scale = q.shape[-1] ** -0.5
        if self.attn_impl == "cudnn":
            return jax.nn.dot_product_attention(q, k, v, scale=scale, implementation="cudnn")
        logits = jnp.einsum("bnhd,bmhd->bhnm", q, k, preferred_element_type=jnp.float32) * scale
        probs = Dropout(self.attn_drop_rate, name="attn_drop")(Softmax(name="softmax")(logits), subkey(key, 0))
        return jnp.einsum("bhnm,bmhd->bnhd", probs.astype(v.dtype), v)


class RotaryBlock(nn.Module):
    """Pre-norm transformer block: attention, then MLP, each with its own residual sum and drop path.

    `scales_2B` are the multipliers of the two branches (None: 1), `key` that of dropout (None: off). With `remat`
    attention and MLP are recomputed in the backward pass, each on its own; norms and sums are kept.
    """

    attention: Mapping[str, Any]  # the arguments of RotaryAttention
    mlp_ratio: float = 4.0
    remat: bool = False
    prevent_cse: bool = True

    @nn.compact
    def __call__(
        self, x_BND: jax.Array, grid: tuple[int, int], scales_2B: jax.Array | None, key: jax.Array | None
    ) -> jax.Array:
        dim, dtype, drop_rate = x_BND.shape[-1], self.attention["dtype"], self.attention["drop_rate"]
        scales = (None, None) if scales_2B is None else (scales_2B[0], scales_2B[1])
        keys = (subkey(key, 0), subkey(key, 1))
        attn = RotaryAttention(**self.attention, name="attn")
        mlp = Mlp(int(dim * self.mlp_ratio), dim, drop_rate, dtype, name="mlp")

        def call_attn(module: nn.Module, x: jax.Array, key: jax.Array | None) -> jax.Array:
            return module(x, grid, key)

        def call_mlp(module: nn.Module, x: jax.Array, key: jax.Array | None) -> jax.Array:
            return module(x, key)

        if self.remat:
            call_attn = nn.remat(call_attn, prevent_cse=self.prevent_cse)
            call_mlp = nn.remat(call_mlp, prevent_cse=self.prevent_cse)
        y = call_attn(attn, LayerNorm(dtype=dtype, name="norm1")(x_BND), keys[0])
        x_BND = Residual(name="residual1")(x_BND, y, scales[0])
        y = call_mlp(mlp, LayerNorm(dtype=dtype, name="norm2")(x_BND), keys[1])
        return Residual(name="residual2")(x_BND, y, scales[1])


class RotaryStage(nn.Module):
    """A sequence of rotary blocks, one per entry of `drop_path_rates`.

    Parameters lie under the position of each block ("0", "1", ...). With `scan` they are stacked inside the step and
    one block, named "layer", is compiled for all: names, optimizer state and checkpoints do not change.
    """

    attention: Mapping[str, Any]  # the arguments of RotaryAttention
    drop_path_rates: tuple[float, ...]
    mlp_ratio: float = 4.0
    remat: bool = False
    scan: bool = False

    @nn.compact
    def __call__(self, x_BND: jax.Array, grid: tuple[int, int], *, train: bool) -> jax.Array:
        depth = len(self.drop_path_rates)
        scales_L2B: jax.Array | None = None
        keys_L: jax.Array | None = None
        if train and any(self.drop_path_rates):
            scales_L2B = drop_path_scales(self.make_rng("drop_path"), self.drop_path_rates, 2, x_BND.shape[0])
        if train and (self.attention["drop_rate"] > 0 or self.attention["attn_drop_rate"] > 0):
            keys_L = jax.random.split(self.make_rng("dropout"), depth)
        if self.scan and not self.is_initializing():
            return self._scan(x_BND, grid, scales_L2B, keys_L)
        for i in range(depth):
            block = RotaryBlock(self.attention, self.mlp_ratio, self.remat, name=str(i))
            scales_2B = None if scales_L2B is None else scales_L2B[i]
            x_BND = block(x_BND, grid, scales_2B, None if keys_L is None else keys_L[i])
        return x_BND

    def _scan(
        self, x_BND: jax.Array, grid: tuple[int, int], scales_L2B: jax.Array | None, keys_L: jax.Array | None
    ) -> jax.Array:
        depth = len(self.drop_path_rates)

        def stacked(variables: dict) -> dict:
            blocks = [variables["params"][str(i)] for i in range(depth)]
            return {"params": {"layer": jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)}}

        def one(block: nn.Module, x: jax.Array, drops: tuple) -> tuple[jax.Array, None]:
            return block(x, grid, *drops), None

        def run(stage: RotaryStage, x: jax.Array) -> jax.Array:
            block = RotaryBlock(stage.attention, stage.mlp_ratio, stage.remat, prevent_cse=False, name="layer")
            scanned = nn.scan(one, variable_axes={True: 0}, split_rngs={True: True}, length=depth)
            return scanned(block, x, (scales_L2B, keys_L))[0]

        return nn.map_variables(run, "params", trans_in_fn=stacked)(self, x_BND)
