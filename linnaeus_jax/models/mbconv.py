"""Inverted bottlenecks with squeeze-and-excitation, and the stem of MetaFormer (Diao et al. 2022), channels last.

MBConv: Sandler et al. 2018 (MobileNetV2), Tan & Le 2019 (EfficientNet); squeeze-and-excitation: Hu et al. 2018.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from linnaeus_jax.models import initial
from linnaeus_jax.models.depthwise import Padding
from linnaeus_jax.models.layers import (
    BatchNorm2d,
    Conv2d,
    Dtype,
    LayerNorm,
    Relu,
    Residual,
    Sigmoid,
    Swish,
    drop_path_scales,
)

EXPANSION = 4
SQUEEZE = 0.25
MBCONV_EPS = 0.01
#: also where a depthwise kernel has one output channel per group
conv_init = initial.fan_out_normal


def static_padding(size: int, stride: int) -> tuple[int, int]:
    """Zeros before and after an axis of a depthwise 3x3 convolution, in an image of `size` pixels along that axis.

    They are "same" padding of the image and not of the smaller map that is convolved: (1, 1) at stride 1, at stride 2
    (0, 1) for an even and (1, 1) for an odd size.
    """
    total = max((-(-size // stride) - 1) * stride + 3 - size, 0)
    return total // 2, total - total // 2


def strided(size: int, stride: int, padding: tuple[int, int]) -> int:
    """Entries that a convolution with a kernel of 3 makes of `size`."""
    return (size + sum(padding) - 3) // stride + 1


class ConvStem(nn.Module):
    """Three 3x3 convolutions, the first with stride 2: [B, H, W, in] -> [B, ceil(H/2), ceil(W/2), features].

    Children are named by their position. What follows (BatchNorm, ReLU, maximum) stands in the model.
    """

    features: int
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool, row_weight_B: jax.Array | None = None) -> jax.Array:
        def conv(features: int, stride: int, name: str) -> Conv2d:
            return Conv2d(features, 3, stride, 1, use_bias=False, dtype=self.dtype, kernel_init=conv_init, name=name)

        def norm(name: str, x: jax.Array) -> jax.Array:
            return BatchNorm2d(dtype=self.dtype, name=name)(x, train=train, row_weight_B=row_weight_B)

        x = conv(3 * (self.features // 4), 2, "0")(x)
        x = conv(self.features, 1, "3")(Relu(name="2")(norm("1", x)))
        return conv(self.features, 1, "6")(Relu(name="5")(norm("4", x)))


class MBConv(nn.Module):
    """1x1 convolution to `expansion` times the channels, depthwise, squeeze-and-excitation, 1x1 convolution.

    BatchNorm and an activation follow the first two, BatchNorm the last. An expansion of 1 leaves the first out,
    `squeeze` 0 the squeeze-and-excitation. Where shapes allow it the input is added; `scale_B` [B] are then the
    multipliers of drop connect, see `Residual`.
    """

    features: int
    stride: int
    padding: Padding
    depthwise_impl: str = "auto"
    dtype: Dtype = jnp.float32
    kernel_size: int = 3
    expansion: int = EXPANSION
    squeeze: float = SQUEEZE
    activation: type[nn.Module] = Swish
    epsilon: float = MBCONV_EPS
    momentum: float = 0.1

    @nn.compact
    def __call__(
        self,
        x_BHWC: jax.Array,
        scale_B: jax.Array | None = None,
        *,
        train: bool,
        row_weight_B: jax.Array | None = None,
    ) -> jax.Array:
        """Maps [B, H, W, C] to [B, H', W', features], H' and W' by stride and padding."""
        channels = x_BHWC.shape[-1]
        hidden, squeezed = self.expansion * channels, max(1, int(channels * self.squeeze))

        def conv(features: int, name: str, **settings: Any) -> Conv2d:
            return Conv2d(
                features, **{"kernel_size": 1, **settings}, dtype=self.dtype, kernel_init=conv_init, name=name
            )

        def norm(x: jax.Array, name: str) -> jax.Array:
            layer = BatchNorm2d(epsilon=self.epsilon, momentum=self.momentum, dtype=self.dtype, name=name)
            return layer(x, train=train, row_weight_B=row_weight_B)

        y = x_BHWC
        if self.expansion != 1:
            y = self.activation(name="act0")(norm(conv(hidden, "_expand_conv", use_bias=False)(y), "_bn0"))
        depthwise = conv(
            hidden,
            "_depthwise_conv",
            kernel_size=self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            depthwise=True,
            use_bias=False,
            depthwise_impl=self.depthwise_impl,
        )
        y = self.activation(name="act1")(norm(depthwise(y), "_bn1"))
        if self.squeeze:
            squeeze = jnp.mean(y, axis=(1, 2), keepdims=True, dtype=jnp.float32).astype(self.dtype)
            squeeze = self.activation(name="se_act")(conv(squeezed, "_se_reduce")(squeeze))
            y = y * Sigmoid(name="se_gate")(conv(hidden, "_se_expand")(squeeze))
        y = norm(conv(self.features, "_project_conv", use_bias=False)(y), "_bn2")
        if self.stride == 1 and channels == self.features:
            return Residual(name="residual")(x_BHWC, y, scale_B)
        return y


class MBConvStage(nn.Module):
    """A sequence of MBConv blocks named by their position, one per entry of `strides`.

    `drop_rate` is the rate of drop connect of every block. `symmetric` pads depthwise convolutions by 1 on all sides
    instead of by `static_padding`. With `remat`, a block keeps only its input for the backward pass and is computed
    again there; running moments move once.
    """

    features: int
    strides: tuple[int, ...]
    drop_rate: float = 0.0
    symmetric: bool = False
    depthwise_impl: str = "auto"
    remat: bool = False
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x_BHWC: jax.Array,
        image_size: tuple[int, int],
        *,
        train: bool,
        row_weight_B: jax.Array | None = None,
    ) -> jax.Array:
        """Maps [B, H, W, C] to [B, H', W', features]; `image_size` is (height, width) of the images in pixels."""
        scales_LB: jax.Array | None = None
        if train and self.drop_rate > 0:
            rates = (self.drop_rate,) * len(self.strides)
            scales_LB = drop_path_scales(self.make_rng("drop_path"), rates, 1, x_BHWC.shape[0])[:, 0]

        def call(block: nn.Module, x: jax.Array, scale_B: jax.Array | None, weight_B: jax.Array | None) -> jax.Array:
            return block(x, scale_B, train=train, row_weight_B=weight_B)

        for i, stride in enumerate(self.strides):
            padding = block_padding(image_size, stride, self.symmetric)
            block = MBConv(self.features, stride, padding, self.depthwise_impl, self.dtype, name=str(i))
            run = nn.remat(call) if self.remat else call
            x_BHWC = run(block, x_BHWC, None if scales_LB is None else scales_LB[i], row_weight_B)
        return x_BHWC


def block_padding(image_size: tuple[int, int], stride: int, symmetric: bool) -> Padding:
    """((top, bottom), (left, right)) of a depthwise convolution, see `MBConvStage`."""
    if symmetric:
        return ((1, 1), (1, 1))
    return static_padding(image_size[0], stride), static_padding(image_size[1], stride)


class PatchEmbed(nn.Module):
    """Overlapping patches, 3x3 with stride 2, then LayerNorm: [B, H, W, C] -> [B, ceil(H/2), ceil(W/2), features]."""

    features: int
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        x = Conv2d(self.features, 3, 2, 1, dtype=self.dtype, kernel_init=conv_init, name="proj")(x_BHWC)
        return LayerNorm(dtype=self.dtype, name="norm")(x)
