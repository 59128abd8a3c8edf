"""EfficientNet (Tan & Le 2019), its Lite form (TensorFlow, 2020) and MobileNetV2 (Sandler et al. 2018), channels last.

One network: a stem of stride 2, inverted bottlenecks, a 1x1 convolution, the mean over the picture. The Lite form and
MobileNetV2 have no squeeze-and-excitation and ReLU6 for swish. Modules are called as in the PyTorch port whose weights
can be had (lukemelas/EfficientNet-PyTorch), so its files map name by name. Metadata join late.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models import initial
from linnaeus_jax.models.depthwise import DEPTHWISE_IMPLS, Padding
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.layers import (
    BatchNorm2d,
    Conv2d,
    Dropout,
    Relu6,
    Swish,
    drop_path_rates,
    drop_path_scales,
)
from linnaeus_jax.models.mbconv import MBConv
from linnaeus_jax.registry import MODELS

EPSILON, MOMENTUM = 1e-3, 0.01
SQUEEZE = 0.25
#: smallest picture: five halvings leave one place
MIN_SIZE = 32

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
class EfficientNet(ModelFamily):
    """The network. `drop_rate` is that of the features before the heads, `drop_path_rate` that of branches.

    `nominal_size` is that of the pictures for which TensorFlow's SAME padding is computed: at another size it would
    differ by a pixel wherever a map has an odd side. 0: that of the pictures at hand.
    """

    stages: tuple[Stage, ...]
    width: float
    depth: float
    lite: bool
    nominal_size: int
    drop_rate: float
    drop_path_rate: float
    depthwise_impl: str

    variants: ClassVar = VARIANTS
    keys: ClassVar = {
        "nominal_size": "efficientnet.nominal_size",
        **{field: field for field in ("drop_rate", "drop_path_rate", "depthwise_impl")},
    }

    @classmethod
    def build(cls, model: Mapping[str, Any], **given: Any) -> Self:
        """See `ModelFamily.build`."""
        fields = cls.settings(model)
        rate = fields["drop_rate"]
        built = cls(**{**fields, "drop_rate": rate[0] if isinstance(rate, Sequence) else rate}, **given)
        if errors := list(built.errors()):
            raise InputError("\n".join(errors))
        return built

    @nn.nowrap
    def errors(self) -> Iterator[str]:
        """What cannot work, one line each with key, value and fix."""
        for field in ("drop_rate", "drop_path_rate"):
            if not 0.0 <= getattr(self, field) < 1.0:
                yield f"model.{field} = {getattr(self, field)!r} is out of range; it must be within [0, 1)"
        if self.depthwise_impl not in DEPTHWISE_IMPLS:
            choices = ", ".join(DEPTHWISE_IMPLS)
            yield f"model.depthwise_impl = {self.depthwise_impl!r} is unknown; choose one of {choices}"
        if self.nominal_size != 0 and self.nominal_size < MIN_SIZE:
            yield f"model.efficientnet.nominal_size = {self.nominal_size} must be {MIN_SIZE} or more, or 0"
        if min(self.img_size) < MIN_SIZE:
            yield f"data.img_size = {self.img_size[0]} is out of range; it must be {MIN_SIZE} or more"

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

        def padding(kernel: int, stride: int) -> Padding:
            return same_padding(size[0], kernel, stride), same_padding(size[1], kernel, stride)

        self.stem = Conv2d(first, 3, 2, padding(3, 2), **convolution, name="_conv_stem")
        self.stem_norm = BatchNorm2d(epsilon=EPSILON, momentum=MOMENTUM, dtype=self.dtype, name="_bn0")
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
                    epsilon=EPSILON,
                    momentum=MOMENTUM,
                    name=f"_blocks.{len(blocks)}",
                )
                blocks.append(block)
                size = strided_size(size, step)
        self.blocks = blocks
        self.last = Conv2d(last, 1, **convolution, name="_conv_head")
        self.last_norm = BatchNorm2d(epsilon=EPSILON, momentum=MOMENTUM, dtype=self.dtype, name="_bn1")
        self.drop = Dropout(self.drop_rate, name="drop")
        self.setup_classifier()

    @property
    def trunk_blocks(self) -> int:
        """See `ModelFamily.trunk_blocks`."""
        return sum(self.repeats())

    def encode_image(
        self, image_BHWC: jax.Array, *, row_weight_B: jax.Array | None = None, train: bool = False
    ) -> jax.Array:
        """Features [B, D], the mean over the picture, of the compute dtype; it is taken in float32."""
        x, scales_LB = self._begin(image_BHWC, row_weight_B, train)
        return self._features(self._run(x, slice(None), scales_LB, row_weight_B, train), row_weight_B, train)

    def encode_from(
        self, x: jax.Array, block: int, *, row_weight_B: jax.Array | None = None, train: bool = False
    ) -> jax.Array:
        """See `ModelFamily.encode_from`."""
        x = x.astype(self.dtype)
        if block == self.trunk_blocks:
            return self._dropped(x, train)
        scales_LB = self._drop_path_scales(x.shape[0]) if train else None
        return self._features(self._run(x, slice(block, None), scales_LB, row_weight_B, train), row_weight_B, train)

    def enter(self, image_BHWC: jax.Array, block: int) -> jax.Array:
        """See `ModelFamily.enter`."""
        if block == self.trunk_blocks:
            return self.encode_image(image_BHWC)
        x, _ = self._begin(image_BHWC, None, train=False)
        return self._run(x, slice(block), None, None, train=False)

    def _begin(
        self, image_BHWC: jax.Array, row_weight_B: jax.Array | None, train: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """What the stem makes of pictures, and the scales of the blocks' branches [blocks, B] in training."""
        shape = image_BHWC.shape
        if len(shape) != 4 or shape[-1] != 3 or min(shape[1:3]) < MIN_SIZE:
            raise ValueError(f"image has shape {shape}; [B, H >= {MIN_SIZE}, W >= {MIN_SIZE}, 3] is needed")
        x = self.stem(image_BHWC.astype(self.dtype))
        x = self.stem_act(self.stem_norm(x, train=train, row_weight_B=row_weight_B))
        return x, self._drop_path_scales(shape[0]) if train else None

    def _drop_path_scales(self, rows: int) -> jax.Array | None:
        if self.drop_path_rate <= 0:
            return None
        (rates,) = drop_path_rates((self.trunk_blocks,), self.drop_path_rate, endpoint=False)
        return drop_path_scales(self.make_rng("drop_path"), rates, 1, rows)[:, 0]

    def _run(
        self, x: jax.Array, which: slice, scales_LB: jax.Array | None, row_weight_B: jax.Array | None, train: bool
    ) -> jax.Array:
        """Some of the blocks."""

        def call(block: nn.Module, x: jax.Array, scale_B: jax.Array | None, weight_B: jax.Array | None) -> jax.Array:
            return block(x, scale_B, train=train, row_weight_B=weight_B)

        run = nn.remat(call) if self.remat else call
        for index in range(self.trunk_blocks)[which]:
            x = run(self.blocks[index], x, None if scales_LB is None else scales_LB[index], row_weight_B)
        return x

    def _features(self, x: jax.Array, row_weight_B: jax.Array | None, train: bool) -> jax.Array:
        x = self.last_act(self.last_norm(self.last(x), train=train, row_weight_B=row_weight_B))
        mean = jnp.mean(x, axis=(1, 2), dtype=jnp.promote_types(x.dtype, jnp.float32)).astype(self.dtype)
        return self._dropped(mean, train)

    def _dropped(self, features_BD: jax.Array, train: bool) -> jax.Array:
        key = self.make_rng("dropout") if train and self.drop_rate > 0 else None
        dropped: jax.Array = self.drop(features_BD, key)
        return dropped

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
