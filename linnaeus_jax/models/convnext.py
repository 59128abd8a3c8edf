"""ConvNeXt stem, blocks, stages and downsampling (Liu et al. 2022, "A ConvNet for the 2020s"), channels last."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from linnaeus_jax.models.initial import constant, parameter
from linnaeus_jax.models.layers import Conv2d, Dtype, Gelu, LayerNorm, Linear, Residual, drop_path_scales

CONVNEXT_EPS = 1e-6


class Stem(nn.Module):
    """4x4 patches without overlap, then LayerNorm: [B, H, W, in] -> [B, H // 4, W // 4, features]."""

    features: int
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        x = Conv2d(self.features, 4, stride=4, dtype=self.dtype, name="0")(image)
        return LayerNorm(epsilon=CONVNEXT_EPS, dtype=self.dtype, name="1")(x)


class Downsample(nn.Module):
    """LayerNorm, then a 2x2 convolution of stride 2: [B, H, W, C] -> [B, H // 2, W // 2, features]."""

    features: int
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = LayerNorm(epsilon=CONVNEXT_EPS, dtype=self.dtype, name="norm")(x)
        return Conv2d(self.features, 2, stride=2, dtype=self.dtype, name="conv")(x)


class ConvNeXtBlock(nn.Module):
    """x + drop_path(gamma * pw2(GELU(pw1(LN(dwconv7x7(x)))))); without gamma where `layer_scale` <= 0."""

    layer_scale: float = 1e-6
    depthwise_impl: str = "auto"
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x_BHWC: jax.Array, scale_B: jax.Array | None = None) -> jax.Array:
        dim = x_BHWC.shape[-1]
        y = Conv2d(
            dim, 7, padding=3, depthwise=True, depthwise_impl=self.depthwise_impl, dtype=self.dtype, name="dwconv"
        )(x_BHWC)
        y = LayerNorm(epsilon=CONVNEXT_EPS, dtype=self.dtype, name="norm")(y)
        hidden = Linear(4 * dim, dtype=self.dtype, name="pwconv1")(y)
        y = Linear(dim, dtype=self.dtype, name="pwconv2")(Gelu(name="act")(hidden), gelu_of=hidden)
        if self.layer_scale > 0:
            gamma = parameter(self, "gamma", constant(self.layer_scale), (dim,))
            y = y * gamma.astype(self.dtype)[None, None, None]
        return Residual(name="residual")(x_BHWC, y, scale_B)


class ConvNeXtStage(nn.Module):
    """A sequence of blocks named by their position, one per entry of `drop_path_rates`.

    With `remat`, a block keeps only its input for the backward pass and is computed again there.
    """

    drop_path_rates: tuple[float, ...]
    layer_scale: float = 1e-6
    depthwise_impl: str = "auto"
    remat: bool = False
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x_BHWC: jax.Array, *, train: bool) -> jax.Array:
        scales_LB: jax.Array | None = None
        if train and any(self.drop_path_rates):
            scales_LB = drop_path_scales(self.make_rng("drop_path"), self.drop_path_rates, 1, x_BHWC.shape[0])[:, 0]

        def call(block: nn.Module, x: jax.Array, scale_B: jax.Array | None) -> jax.Array:
            return block(x, scale_B)

        for i in range(len(self.drop_path_rates)):
            block = ConvNeXtBlock(self.layer_scale, self.depthwise_impl, self.dtype, name=str(i))
            run = nn.remat(call) if self.remat else call
            x_BHWC = run(block, x_BHWC, None if scales_LB is None else scales_LB[i])
        return x_BHWC
