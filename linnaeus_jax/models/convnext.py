"""ConvNeXt stem, blocks, stages and downsampling (Liu et al. 2022, "A ConvNet for the 2020s"), channels last.

The second version (Woo et al. 2023) has global response normalisation in its blocks.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from linnaeus_jax.models.initial import constant, parameter, zeros
from linnaeus_jax.models.layers import (
    Conv2d,
    Dtype,
    Gelu,
    GeluTanh,
    LayerNorm,
    Linear,
    Residual,
    Swish,
    drop_path_scales,
)
from linnaeus_jax.models.operations import wide

CONVNEXT_EPS = 1e-6
ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": Gelu, "gelu_tanh": GeluTanh, "silu": Swish}
STEMS = ("patch", "overlap", "overlap_tiered", "overlap_act")


class Stem(nn.Module):
    """Makes a map of a quarter of the picture's sides: [B, H, W, in] -> [B, H // 4, W // 4, features].

    `kind` is "patch", 4x4 patches without overlap, or two 3x3 convolutions of stride 2, after which a map has
    ceil(H / 4) rows: "overlap", "overlap_tiered" (the first with half of the features) or "overlap_act" (with `act`
    between them). LayerNorm follows. Children are named by their position.
    """

    features: int
    dtype: Dtype = jnp.float32
    epsilon: float = CONVNEXT_EPS
    kind: str = "patch"
    act: str = "gelu"

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        if self.kind == "patch":
            x, last = Conv2d(self.features, 4, stride=4, dtype=self.dtype, name="0")(image), 1
        else:
            first, last = tiered(self.features) if self.kind == "overlap_tiered" else self.features, 2
            x = Conv2d(first, 3, 2, 1, dtype=self.dtype, name="0")(image)
            if self.kind == "overlap_act":
                x, last = ACTIVATIONS[self.act](name="1")(x), 3
            x = Conv2d(self.features, 3, 2, 1, dtype=self.dtype, name=str(last - 1))(x)
        return LayerNorm(epsilon=self.epsilon, dtype=self.dtype, name=str(last))(x)


def tiered(features: int) -> int:
    """Features of the first convolution of the stem "overlap_tiered": half, as a multiple of 8 not much below."""
    half = features // 2
    nearest = max(8, (half + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * half else nearest


class Downsample(nn.Module):
    """LayerNorm, then a 2x2 convolution of stride 2: [B, H, W, C] -> [B, H // 2, W // 2, features].

    `names` are those of the two.
    """

    features: int
    dtype: Dtype = jnp.float32
    epsilon: float = CONVNEXT_EPS
    names: tuple[str, str] = ("norm", "conv")

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = LayerNorm(epsilon=self.epsilon, dtype=self.dtype, name=self.names[0])(x)
        return Conv2d(self.features, 2, stride=2, dtype=self.dtype, name=self.names[1])(x)


class GlobalResponseNorm(nn.Module):
    """x + gamma * x * n + beta, n the L2 norm of each channel over the picture by the mean of these over the channels.

    Norms are taken in float32. Of a channel that is 0 everywhere the gradient is that of n = 0.
    """

    dtype: Dtype = jnp.float32
    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        shape = x_BHWC.shape[-1:]
        gamma, beta = (parameter(self, name, zeros, shape).astype(self.dtype) for name in ("gamma", "beta"))
        squares = jnp.sum(jnp.square(x_BHWC.astype(wide(x_BHWC.dtype))), axis=(1, 2), keepdims=True)
        norms = jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1.0)), 0.0)
        share = norms / (jnp.mean(norms, axis=-1, keepdims=True) + self.epsilon)
        return x_BHWC + gamma[None, None, None] * (x_BHWC * share.astype(x_BHWC.dtype)) + beta[None, None, None]


class ConvNeXtBlock(nn.Module):
    """x + drop_path(gamma * pw2(GELU(pw1(LN(dwconv7x7(x)))))); without gamma where `layer_scale` <= 0.

    With `use_grn` a `GlobalResponseNorm` follows GELU, in place of which `act` may be another of `ACTIVATIONS`.
    """

    layer_scale: float = 1e-6
    depthwise_impl: str = "auto"
    dtype: Dtype = jnp.float32
    epsilon: float = CONVNEXT_EPS
    use_grn: bool = False
    act: str = "gelu"
    kernel_size: int = 7

    @nn.compact
    def __call__(self, x_BHWC: jax.Array, scale_B: jax.Array | None = None) -> jax.Array:
        dim = x_BHWC.shape[-1]
        y = Conv2d(
            dim,
            self.kernel_size,
            padding=self.kernel_size // 2,
            depthwise=True,
            depthwise_impl=self.depthwise_impl,
            dtype=self.dtype,
            name="dwconv",
        )(x_BHWC)
        y = LayerNorm(epsilon=self.epsilon, dtype=self.dtype, name="norm")(y)
        hidden = Linear(4 * dim, dtype=self.dtype, name="pwconv1")(y)
        y = ACTIVATIONS[self.act](name="act")(hidden)
        if self.use_grn:
            y = GlobalResponseNorm(dtype=self.dtype, name="grn")(y)
        is_gelu = self.act == "gelu" and not self.use_grn
        y = Linear(dim, dtype=self.dtype, name="pwconv2")(y, gelu_of=hidden if is_gelu else None)
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
