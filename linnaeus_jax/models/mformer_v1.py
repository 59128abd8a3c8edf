"""mFormerV1: a ConvNeXt front, two rotary transformer stages with metadata tokens, one head per taxonomic rank.

Letters of shapes are those of `models/metaformer.py`.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import flax.linen as nn
import jax

from linnaeus_jax.models.convnext import ConvNeXtStage, Downsample, Stem
from linnaeus_jax.models.layers import drop_path_rates
from linnaeus_jax.models.metaformer import SHARED_KEYS, SHARED_STAGES, MetaFormer, integers
from linnaeus_jax.models.rotary import ROPE_INITS, ROPE_MODES, RotaryAttention
from linnaeus_jax.registry import MODELS

#: variant -> its fields; `depths` are of the two convolutional and `rope_depths` of the two transformer stages
VARIANTS: dict[str, dict[str, Any]] = {
    name: dict(zip(("dims", "depths", "rope_depths", "num_heads", "drop_path_rate"), values, strict=True))
    for name, values in {
        "tiny": ((16, 32, 96, 128), (1, 1), (2, 1), (3, 4), 0.0),
        "sm": ((96, 192, 384, 768), (3, 3), (5, 2), (6, 12), 0.2),
        "md": ((96, 192, 384, 768), (3, 3), (10, 2), (6, 12), 0.3),
        "lg": ((192, 384, 768, 1536), (3, 3), (10, 2), (12, 24), 0.4),
        "xl": ((256, 512, 1024, 2048), (3, 3), (22, 2), (16, 32), 0.5),
    }.items()
}
#: field -> its key in the `model` section
KEYS = {
    **SHARED_KEYS,
    "dims": "convnext_stages.dims",
    "depths": "convnext_stages.depths",
    "rope_depths": "rope_stages.depths",
    "num_heads": "rope_stages.num_heads",
    "mlp_ratio": "rope_stages.mlp_ratio",
    "rope_mixed": "rope_stages.rope_mixed",
    "rope_theta": "rope_stages.rope_theta",
    "rope_mode": "rope_stages.rope_mode",
    "rope_init": "rope_stages.rope_init",
    "layer_scale_init_value": "convnext_stages.layer_scale_init_value",
}

#: group of parameters -> canonical names that belong to it; the first match counts
STAGES = {
    "stages.rope_freqs": re.compile(r"attn\.freqs$"),
    "stages.convnext_stages": re.compile(r"^(stem|stages\.[01]|downsample_layers\.[01])\."),
    "stages.rope_stages": re.compile(r"^(stages\.[23]|downsample_layers\.2)\."),
    **SHARED_STAGES,
}


@MODELS.register("mFormerV1")
class MFormerV1(MetaFormer):
    """The network: fields of its own beside those of `MetaFormer`."""

    dims: tuple[int, ...]
    depths: tuple[int, ...]
    rope_depths: tuple[int, ...]
    rope_theta: float
    rope_mode: str
    rope_init: str
    rope_mixed: bool
    layer_scale_init_value: float

    variants = VARIANTS
    keys = KEYS
    stage_patterns = STAGES
    choices: ClassVar = {**MetaFormer.choices, "rope_mode": ROPE_MODES, "rope_init": ROPE_INITS}

    @classmethod
    def completed(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Entries 3 and 4 of ConvNeXt's own depths have no stage here."""
        depths = fields["depths"][:2] if len(fields["depths"]) == 4 else fields["depths"]
        return {**super().completed(fields), "depths": depths}

    @property
    def block_depths(self) -> tuple[int, ...]:
        """Number of blocks of each stage, in the order of computation."""
        return (*self.depths, *self.rope_depths)

    @property
    def token_dims(self) -> tuple[int, ...]:
        """Widths of the two transformer stages."""
        return self.dims[2:]

    @nn.nowrap
    def _place(self, name: str) -> tuple[int, int] | None:
        if name.startswith("stem."):
            return -1, 0
        if down := re.match(r"downsample_layers\.([012])\.", name):
            return int(down[1]) + 1, 0
        block = re.match(r"stages\.(\d+)\.(\d+)\.", name)
        return None if block is None else (int(block[1]), int(block[2]))

    def setup(self) -> None:
        rates = drop_path_rates(self.block_depths, self.drop_path_rate)
        self.stem = Stem(self.dims[0], self.dtype, name="stem")
        self.conv_stages = [
            ConvNeXtStage(
                rates[i],
                self.layer_scale_init_value,
                self.depthwise_impl,
                self.remat,
                self.dtype,
                name=f"stages.{i}",
            )
            for i in range(2)
        ]
        self.downsample = [Downsample(self.dims[i + 1], self.dtype, name=f"downsample_layers.{i}") for i in range(3)]
        rope = {field: getattr(self, field) for field in ("rope_theta", "rope_mode", "rope_init", "rope_mixed")}
        self._setup_tokens(RotaryAttention, (rope, rope), rates[2:], ("stages.2", "stages.3"), "final_norm")
        self.setup_classifier()

    def encode_image(
        self, image_BHWC: jax.Array, *, row_weight_B: jax.Array | None = None, train: bool = False
    ) -> jax.Array:
        """The convolutional part, which no metadata enter: [B, H, W, in_chans] -> [B, H // 16, W // 16, dims[2]]."""
        x = self.stem(self._checked_image(image_BHWC))
        for stage, downsample in zip(self.conv_stages, self.downsample[:2]):
            x = downsample(stage(x, train=train))
        return x

    @nn.nowrap
    def _enter(self, x_BhwD: jax.Array) -> jax.Array:
        patches: jax.Array = self.downsample[2](x_BhwD)
        return patches

    @nn.nowrap
    def wrong_settings(self) -> dict[str, str]:
        """See `ModelFamily.wrong_settings`."""
        sizes = {"dims": 4, "depths": 2, "rope_depths": 2, "num_heads": 2}
        wrong = {**super().wrong_settings(), **integers(self, sizes)}
        if not self.layer_scale_init_value >= 0:
            wrong["layer_scale_init_value"] = "is out of range; it must be 0 or more"
        if not self.rope_theta > 0:
            wrong["rope_theta"] = "is out of range; it must be above 0"
        multiple = 4 if self.rope_init == "rope_vit" or not self.rope_mixed else 2
        if not wrong.keys() & sizes.keys():
            pairs = zip(self.num_heads, self.dims[2:])
            if any(dim % heads or (dim // heads) % multiple for heads, dim in pairs):
                wrong["num_heads"] = f"must divide dims[2:] = {self.dims[2:]} into heads of a multiple of {multiple}"
        return wrong
