"""mFormerV0: an MBConv front, two transformer stages with relative position bias, one head per taxonomic rank.

The architecture is MetaFormer's (Diao et al. 2022). Letters of shapes are those of `models/metaformer.py`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax

from linnaeus_jax.models.layers import BatchNorm2d, MaxPool2d, Relu, drop_path_rates
from linnaeus_jax.models.mbconv import ConvStem, MBConvStage, PatchEmbed, block_padding, strided
from linnaeus_jax.models.metaformer import MIN_SIZE, SHARED_KEYS, SHARED_STAGES, MetaFormer, integers
from linnaeus_jax.models.relative import RelativeAttention
from linnaeus_jax.registry import MODELS

COMPATS = ("", "metafg")

#: variant -> its fields; `depths` are of the two convolutional and `attention_depths` of the two transformer stages
VARIANTS: dict[str, dict[str, Any]] = {
    name: dict(
        zip(
            (
                "embed_dims",
                "out_channels",
                "depths",
                "dims",
                "attention_depths",
                "num_heads",
                "drop_rate",
                "drop_path_rate",
                "attn_drop_rate",
            ),
            values,
            strict=True,
        )
    )
    for name, values in {
        "tiny": ((16, 16), (24, 32), (1, 1), (96, 128), (2, 1), (3, 4), 0.0, 0.0, 0.0),
        "sm": ((64, 96), (96, 192), (2, 3), (384, 768), (5, 2), (8, 8), 0.1, 0.2, 0.1),
        "md": ((64, 96), (96, 192), (2, 6), (384, 768), (14, 2), (8, 8), 0.0, 0.2, 0.0),
        "lg": ((128, 128), (128, 256), (2, 6), (512, 1024), (14, 2), (8, 8), 0.0, 0.3, 0.0),
    }.items()
}
#: field -> its key in the `model` section
KEYS = {
    **SHARED_KEYS,
    "embed_dims": "conv_stages.embed_dims",
    "out_channels": "conv_stages.out_channels",
    "depths": "conv_stages.depths",
    "strides": "conv_stages.stride_seqs",
    "dims": "attention_stages.dims",
    "attention_depths": "attention_stages.depths",
    "num_heads": "attention_stages.num_heads",
    "attention_strides": "attention_stages.stride_seqs",
    "mlp_ratio": "attention_stages.mlp_ratio",
    "compat": "compat",
}

#: group of parameters -> canonical names that belong to it; the first match counts
STAGES = {
    "stages.conv_stages": re.compile(r"^(stage_[012]|bn1)\."),
    "stages.transformer_stages": re.compile(r"^stage_[34]\."),
    **SHARED_STAGES,
}


@MODELS.register("mFormerV0")
class MFormerV0(MetaFormer):
    """The network: fields of its own beside those of `MetaFormer`.

    Only the first of `embed_dims` has an effect, as the width of the stem. `strides` are 1 or 2 for every block of the
    two MBConv stages. Drop connect of MBConv has the rate `drop_rate[0]`. `compat` "metafg" computes what published
    MetaFormer weights were trained with: depthwise convolutions padded by 1 on all sides, and `norm_1` on the class
    token alone.

    Any image of at least 32 pixels works. The tables of relative positions are of the grids that an image of `img_size`
    has; an image of another size resizes them inside the graph, and pads as a model built for that size.

    With `only_last_cls` there is no final norm: `norm_2` has just normalised the class token, and published weights of
    this form were trained so.
    """

    embed_dims: tuple[int, ...]
    out_channels: tuple[int, ...]
    depths: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    dims: tuple[int, ...]
    attention_depths: tuple[int, ...]
    attention_strides: tuple[tuple[int, ...], ...]
    compat: str

    variants = VARIANTS
    keys = KEYS
    stage_patterns = STAGES
    choices: ClassVar = {**MetaFormer.choices, "compat": COMPATS}

    @classmethod
    def completed(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Strides that are not given: 2 for the first block of the first MBConv and of both transformer stages."""
        fields = super().completed(fields)
        first, second = (*fields["depths"], 0, 0)[:2]
        strides = {
            "strides": (_halving(first), (1,) * len(_halving(second))),
            "attention_strides": tuple(_halving(depth) for depth in fields["attention_depths"]),
        }
        fields = {**strides, **fields}
        return fields | {name: tuple(map(_tuple, fields[name])) for name in strides}

    @property
    def block_depths(self) -> tuple[int, ...]:
        """Number of blocks of each stage, in the order of computation."""
        return (*self.depths, *self.attention_depths)

    @property
    def token_dims(self) -> tuple[int, ...]:
        """Widths of the two transformer stages."""
        return self.dims

    @property
    def norms_patches(self) -> bool:
        """Whether `norm_1` takes the patches that enter the second transformer stage, or the class token alone."""
        return self.compat != "metafg"

    @nn.nowrap
    def _place(self, name: str) -> tuple[int, int] | None:
        if name.startswith(("stage_0.", "bn1.")):
            return -1, 0
        block = re.match(r"stage_([1-9]\d*)\.(\d+)\.", name)
        return None if block is None else (int(block[1]) - 1, int(block[2]))

    @nn.nowrap
    def grids(self, image_size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Patches (h, w) of both transformer stages for an image of that height and width."""
        sizes = []
        for axis in range(2):
            size = (image_size[axis] + 3) // 4  # the stem and its maximum: two halvings, each rounded up
            for stride in (*self.strides[0], *self.strides[1]):
                size = strided(size, stride, block_padding(image_size, stride, self.compat == "metafg")[axis])
            sizes.append(((size + 1) // 2, (size + 3) // 4))
        return (sizes[0][0], sizes[1][0]), (sizes[0][1], sizes[1][1])

    def setup(self) -> None:
        self.stem = ConvStem(self.embed_dims[0], self.dtype, name="stage_0")
        self.bn1 = BatchNorm2d(dtype=self.dtype, name="bn1")
        self.act1 = Relu(name="act1")
        self.maxpool = MaxPool2d(name="maxpool")
        self.conv_stages = [
            MBConvStage(
                self.out_channels[i],
                self.strides[i],
                self.drop_rate[0],
                self.compat == "metafg",
                self.depthwise_impl,
                self.remat,
                self.dtype,
                name=f"stage_{1 + i}",
            )
            for i in range(2)
        ]
        self.patch_embeds = [PatchEmbed(self.dims[s], self.dtype, name=f"stage_{3 + s}.0.patch_embed") for s in (0, 1)]
        tables = [{"table_grid": grid} for grid in self.grids(self.img_size)]
        rates = drop_path_rates(self.attention_depths, self.drop_path_rate, endpoint=False)
        final_norm = None if self.only_last_cls else "norm"
        self._setup_tokens(RelativeAttention, tables, rates, ("stage_3", "stage_4"), final_norm)
        self.setup_classifier()

    def encode_image(
        self, image_BHWC: jax.Array, *, row_weight_B: jax.Array | None = None, train: bool = False
    ) -> jax.Array:
        """The part that no metadata enter, with the patches' embedding: [B, H, W, in_chans] -> [B, h', w', dims[0]]."""
        x = self.stem(self._checked_image(image_BHWC), train=train, row_weight_B=row_weight_B)
        x = self.maxpool(self.act1(self.bn1(x, train=train, row_weight_B=row_weight_B)))
        size = image_BHWC.shape[1], image_BHWC.shape[2]
        for stage in self.conv_stages:
            x = stage(x, size, train=train, row_weight_B=row_weight_B)
        patches: jax.Array = self.patch_embeds[0](x)
        return patches

    @nn.nowrap
    def _enter(self, x_BhwD: jax.Array) -> jax.Array:
        patches: jax.Array = self.patch_embeds[1](x_BhwD)
        return patches

    @nn.nowrap
    def wrong_settings(self) -> dict[str, str]:
        """See `ModelFamily.wrong_settings`."""
        pairs = ("out_channels", "depths", "dims", "attention_depths", "num_heads")
        wrong = {**super().wrong_settings(), **integers(self, dict.fromkeys(pairs, 2))}
        if not self.embed_dims or not all(type(dim) is int and dim >= 4 for dim in self.embed_dims):
            wrong["embed_dims"] = "must be integers of at least 4; the first is the width of the stem"
        if not wrong.keys() & {"dims", "num_heads"} and any(map(operator.mod, self.dims, self.num_heads)):
            wrong["num_heads"] = f"must divide dims = {self.dims}"
        if "depths" not in wrong and not _strides_fit(self.strides, self.depths):
            wrong["strides"] = f"must be a stride of 1 or 2 for every block of depths = {self.depths}"
        if "attention_depths" not in wrong and self.attention_strides != tuple(map(_halving, self.attention_depths)):
            wrong["attention_strides"] = (
                "must be 2 for the first block of each stage, where patches are made and extra tokens enter, and 1 for "
                f"the others of depths = {self.attention_depths}"
            )
        if not wrong and min(self.img_size) >= MIN_SIZE and min(map(min, self.grids(self.img_size))) < 1:
            wrong["strides"] = f"leave no patch of images of {self.img_size[0]} pixels; use fewer strides of 2"
        return wrong


def _halving(depth: Any) -> tuple[int, ...]:
    """Strides of a stage whose first block halves the map."""
    return (2, *(1,) * (depth - 1)) if type(depth) is int and depth > 0 else ()


def _tuple(strides: Any) -> Any:
    return tuple(strides) if isinstance(strides, Sequence) else strides


def _strides_fit(strides: Sequence[Any], depths: Sequence[int]) -> bool:
    return [len(x) if isinstance(x, tuple) else -1 for x in strides] == list(depths) and all(
        stride in (1, 2) for x in strides for stride in x
    )
