"""EfficientNet (Tan & Le 2019), its Lite form (TensorFlow, 2020) and MobileNetV2 (Sandler et al. 2018), channels last.

One network: a stem of stride 2, inverted bottlenecks, a 1x1 convolution, the mean over the picture. The Lite form and
MobileNetV2 have no squeeze-and-excitation and ReLU6 for swish. Modules are called as in the PyTorch port whose weights
can be had (lukemelas/EfficientNet-PyTorch), so its files map name by name. Metadata join late.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax

from linnaeus_jax.models import initial
from linnaeus_jax.models.block_row import MIN_SIZE, BlockRow, mean_of
from linnaeus_jax.models.depthwise import Padding
from linnaeus_jax.models.layers import (
    BatchNorm2d,
    Conv2d,
    Dropout,
    Relu6,
    Swish,
)
from linnaeus_jax.models.mbconv import MBConv
from linnaeus_jax.registry import MODELS

EPSILON, MOMENTUM = 1e-3, 0.01
#: how convolutions are padded -> epsilon of the norms that goes with it
PADDINGS = {"same": EPSILON, "symmetric": 1e-5}
SQUEEZE = 0.25
#: (blocks, kernel, stride of the first, expansion, features) of each stage at width and depth 1
Stage = tuple[int, int, int, int, int]
EFFICIENTNET: tuple[Stage, ...] = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
MOBILENET_V2: tuple[Stage, ...] = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (3, 3, 2, 6, 32),
    (4, 3, 2, 6, 64),
    (3, 3, 1, 6, 96),
    (3, 3, 2, 6, 160),
    (1, 3, 1, 6, 320),
)


def _variant(width: float, depth: float, nominal_size: int, drop_rate: float, lite: bool = True) -> dict[str, Any]:
    return {
        "stages": EFFICIENTNET,
        "width": width,
        "depth": depth,
        "nominal_size": nominal_size,
        "drop_rate": drop_rate,
        "drop_path_rate": 0.2,
        "lite": lite,
    }


VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": _variant(0.25, 0.4, 64, 0.1),
    "b0": _variant(1.0, 1.0, 224, 0.2, False),
    "b1": _variant(1.0, 1.1, 240, 0.2, False),
    "b2": _variant(1.1, 1.2, 260, 0.3, False),
    "b3": _variant(1.2, 1.4, 300, 0.3, False),
    "lite0": _variant(1.0, 1.0, 224, 0.2),
    "lite1": _variant(1.0, 1.1, 240, 0.2),
    "lite2": _variant(1.1, 1.2, 260, 0.3),
    "lite3": _variant(1.2, 1.4, 280, 0.3),
    "lite4": _variant(1.4, 1.8, 300, 0.3),
    "mobilenet_v2": _variant(1.0, 1.0, 224, 0.2) | {"stages": MOBILENET_V2},
}


def rounded(features: float) -> int:
    """The multiple of 8 that is nearest, at least 8 and at most 10 % less."""
    nearest = max(8, int(features + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * features else nearest


def repeats_of(stages: Sequence[Stage], depth: float, lite: bool) -> tuple[int, ...]:
    """Blocks of each stage; the Lite form leaves the first and the last as they are."""
    fixed = (0, len(stages) - 1) if lite else ()
    return tuple(stage[0] if place in fixed else math.ceil(depth * stage[0]) for place, stage in enumerate(stages))


def block_features(variant: Mapping[str, Any]) -> tuple[int, ...]:
    """Features that every block of a variant gives, in order."""
    repeats = repeats_of(variant["stages"], variant["depth"], variant["lite"])
    widths = (rounded(stage[-1] * variant["width"]) for stage in variant["stages"])
    return tuple(width for width, count in zip(widths, repeats, strict=True) for _ in range(count))


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after an axis of `size` pixels, as TensorFlow's SAME: the odd one behind."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def strided_size(size: tuple[int, int], stride: int) -> tuple[int, int]:
    """Height and width after a convolution with SAME padding."""
    return -(-size[0] // stride), -(-size[1] // stride)


@MODELS.register("EfficientNet")
class EfficientNet(BlockRow):
    """The network.

    `nominal_size` is that of the pictures for which TensorFlow's SAME padding is computed: at another size it would
    differ by a pixel wherever a map has an odd side. 0: that of the pictures at hand. `conv_padding` is one of
    `PADDINGS`: TensorFlow's, or as much on all sides; `norm_eps` None the epsilon that goes with it.
    """

    stages: tuple[Stage, ...]
    width: float
    depth: float
    lite: bool
    nominal_size: int
    conv_padding: str
    norm_eps: float | None

    rate_of_last: ClassVar = False
    variants: ClassVar = VARIANTS
    keys: ClassVar = {
        "nominal_size": "efficientnet.nominal_size",
        "conv_padding": "efficientnet.padding",
        "norm_eps": "efficientnet.norm_eps",
        **{field: field for field in ("drop_rate", "drop_path_rate", "depthwise_impl")},
    }

    defaults: ClassVar = {"conv_padding": "same", "norm_eps": None}

    choices: ClassVar = {**BlockRow.choices, "conv_padding": PADDINGS}

    @nn.nowrap
    def wrong_settings(self) -> dict[str, str]:
        """See `ModelFamily.wrong_settings`."""
        wrong = super().wrong_settings()
        if self.norm_eps is not None and not 0 < self.norm_eps <= 1:
            wrong["norm_eps"] = "is out of range; it must be within (0, 1]"
        if self.nominal_size != 0 and self.nominal_size < MIN_SIZE:
            wrong["nominal_size"] = f"must be {MIN_SIZE} or more, or 0"
        return wrong

    @nn.nowrap
    def widths(self) -> tuple[int, int]:
        """Features of the stem and of the last convolution."""
        return (32, 1280) if self.lite else (rounded(32 * self.width), rounded(1280 * self.width))

    @nn.nowrap
    def repeats(self) -> tuple[int, ...]:
        """Blocks of each stage."""
        return repeats_of(self.stages, self.depth, self.lite)

    def setup(self) -> None:
        convolution = {"use_bias": False, "dtype": self.dtype, "kernel_init": initial.fan_out_normal}
        first, last = self.widths()
        size = (self.nominal_size,) * 2 if self.nominal_size else self.img_size

        epsilon = PADDINGS[self.conv_padding] if self.norm_eps is None else self.norm_eps

        def padding(kernel: int, stride: int) -> Padding:
            if self.conv_padding == "symmetric":
                return ((kernel // 2,) * 2,) * 2
            return same_padding(size[0], kernel, stride), same_padding(size[1], kernel, stride)

        self.stem = Conv2d(first, 3, 2, padding(3, 2), **convolution, name="_conv_stem")
        self.stem_norm = BatchNorm2d(epsilon=epsilon, momentum=MOMENTUM, dtype=self.dtype, name="_bn0")
        activation = Relu6 if self.lite else Swish
        self.stem_act, self.last_act = activation(name="act_stem"), activation(name="act_head")
        blocks: list[MBConv] = []
        size = strided_size(size, 2)
        for repeats, (_, kernel, stride, expansion, features) in zip(self.repeats(), self.stages, strict=True):
            for step in (stride, *(1,) * (repeats - 1)):
                block = MBConv(
                    rounded(features * self.width),
                    step,
                    padding(kernel, step),
                    self.depthwise_impl,
                    self.dtype,
                    kernel_size=kernel,
                    expansion=expansion,
                    squeeze=0.0 if self.lite else SQUEEZE,
                    activation=activation,
                    epsilon=epsilon,
                    momentum=MOMENTUM,
                    name=f"_blocks.{len(blocks)}",
                )
                blocks.append(block)
                size = strided_size(size, step)
        self.blocks = blocks
        self.last = Conv2d(last, 1, **convolution, name="_conv_head")
        self.last_norm = BatchNorm2d(epsilon=epsilon, momentum=MOMENTUM, dtype=self.dtype, name="_bn1")
        self.drop = Dropout(self.drop_rate, name="drop")
        self.setup_classifier()

    def _stem(self, image_BHWC: jax.Array, row_weight_B: jax.Array | None, train: bool) -> jax.Array:
        return self.stem_act(self.stem_norm(self.stem(image_BHWC), train=train, row_weight_B=row_weight_B))

    def _pooled(self, x_BHWC: jax.Array, row_weight_B: jax.Array | None, train: bool) -> jax.Array:
        x = self.last_act(self.last_norm(self.last(x_BHWC), train=train, row_weight_B=row_weight_B))
        return mean_of(x, self.dtype)

    @staticmethod
    def stage_of(name: str) -> str:
        """Group of a parameter: `stem`, `blocks`, `features` (the last convolution), `metadata` or `heads`."""
        groups = {"_conv_stem": "stem", "_bn0": "stem", "_blocks": "blocks", "fusion": "metadata", "head": "heads"}
        return groups.get(name.partition(".")[0], "features")

    def layer_index(self, name: str) -> int:
        """0 the stem, then the blocks, then all that follows them."""
        if name.startswith(("_conv_stem.", "_bn0.")):
            return 0
        block = re.match(r"_blocks\.(\d+)\.", name)
        return 1 + int(block[1]) if block else 1 + sum(self.repeats())
