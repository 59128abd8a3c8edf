"""A small convolutional network whose features meet the metadata before the heads.

Set `model.type = "SmallNet"` and `model.variant` to "narrow" or "wide"; `model.SmallNet.meta_width` is an option.
"""

from __future__ import annotations

import re
from typing import ClassVar

import jax
import jax.numpy as jnp

from linnaeus_jax.models import ModelFamily
from linnaeus_jax.models.layers import Conv2d, LayerNorm, Linear
from linnaeus_jax.registry import MODELS


@MODELS.register("SmallNet")
class SmallNet(ModelFamily):
    """Convolutions of stride 2, their mean over the image, metadata beside it, LayerNorm, one head per task."""

    widths: tuple[int, ...]
    meta_width: int = 8

    variants: ClassVar = {"narrow": {"widths": (4, 8)}, "wide": {"widths": (8, 16, 32)}}

    def __post_init__(self) -> None:
        if self.meta_width < 1:
            raise ValueError(f"model.SmallNet.meta_width = {self.meta_width} must be 1 or more")
        super().__post_init__()

    def setup(self) -> None:
        self.blocks = [
            Conv2d(width, 3, stride=2, padding=1, dtype=self.dtype, name=f"blocks.{i}")
            for i, width in enumerate(self.widths)
        ]
        self.meta = Linear(self.meta_width, dtype=self.dtype, name="meta")
        self.norm = LayerNorm(dtype=self.dtype, name="norm")
        self.setup_classifier()  # the heads

    def encode_image(
        self, image_BHWC: jax.Array, *, row_weight_B: jax.Array | None = None, train: bool = False
    ) -> jax.Array:
        for block in self.blocks:
            image_BHWC = jax.nn.gelu(block(image_BHWC))
        return image_BHWC.mean(axis=(1, 2))

    def encode_tokens(
        self,
        features: jax.Array,
        meta_BD: jax.Array | None = None,
        *,
        meta_valid_BK: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        meta_BD = self.checked_meta(meta_BD, features.shape[0])
        return self.norm(jnp.concatenate([features, self.meta(meta_BD)], axis=1))

    @staticmethod
    def stage_of(name: str) -> str:
        return "trunk" if name.startswith("blocks.") else "top"

    def layer_index(self, name: str) -> int:
        block = re.match(r"blocks\.(\d+)\.", name)
        return int(block[1]) if block else len(self.widths)
