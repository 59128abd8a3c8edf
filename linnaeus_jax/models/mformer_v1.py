"""mFormerV1: a ConvNeXt front, two rotary transformer stages with metadata tokens, one head per taxonomic rank.

Letters of shapes: B rows, H W image, h w grid of a stage, D channels of a stage, N tokens, M metadata components.
Token order is [class token, metadata tokens in component order, patches in row-major order].
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from linnaeus_jax.models.convnext import ConvNeXtStage, Downsample, Stem
from linnaeus_jax.models.depthwise import DEPTHWISE_IMPLS
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.heads import ClassificationHeads
from linnaeus_jax.models.layers import ClsProjection, Conv1d, LayerNorm, MetaHead, drop_path_rates, weight_init
from linnaeus_jax.models.rotary import ROPE_INITS, ROPE_MODES, RotaryAttention
from linnaeus_jax.models.transformer import ATTN_IMPLS, TransformerStage
from linnaeus_jax.registry import MODELS

MIN_SIZE = 32  # four halvings after the stem's patches of 4 leave one patch

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
    "dims": "convnext_stages.dims",
    "depths": "convnext_stages.depths",
    "rope_depths": "rope_stages.depths",
    "num_heads": "rope_stages.num_heads",
    "drop_rate": "drop_rate",
    "attn_drop_rate": "attn_drop_rate",
    "drop_path_rate": "drop_path_rate",
    "mlp_ratio": "rope_stages.mlp_ratio",
    "rope_mixed": "rope_stages.rope_mixed",
    "rope_theta": "rope_stages.rope_theta",
    "rope_mode": "rope_stages.rope_mode",
    "rope_init": "rope_stages.rope_init",
    "layer_scale_init_value": "convnext_stages.layer_scale_init_value",
    "only_last_cls": "only_last_cls",
    "scan_layers": "scan_layers",
    "depthwise_impl": "depthwise_impl",
    "attn_impl": "attn_impl",
}

#: group of parameters -> canonical names that belong to it; the first match counts
STAGES = {
    "stages.rope_freqs": re.compile(r"attn\.freqs$"),
    "heads.classification_heads": re.compile(r"^head\."),
    "heads.meta_heads": re.compile(r"^meta_"),
    "embeddings": re.compile(r"^cls_token"),
    "aggregation": re.compile(r"^(cl_1_fc|aggregate|final_norm)\."),
    "stages.convnext_stages": re.compile(r"^(stem|stages\.[01]|downsample_layers\.[01])\."),
    "stages.rope_stages": re.compile(r"^(stages\.[23]|downsample_layers\.2)\."),
    "norm_layers": re.compile(r"^norm_[12]\."),
}


@MODELS.register("mFormerV1")
class MFormerV1(ModelFamily):
    """The network. `KEYS` says where the fields stand in the `model` section; `in_chans` is fixed."""

    dims: tuple[int, ...]
    depths: tuple[int, ...]
    rope_depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    in_chans: int
    drop_rate: float
    attn_drop_rate: float
    drop_path_rate: float
    mlp_ratio: tuple[float, ...]
    rope_theta: float
    rope_mode: str
    rope_init: str
    rope_mixed: bool
    layer_scale_init_value: float
    only_last_cls: bool
    scan_layers: bool
    depthwise_impl: str
    attn_impl: str

    variants = VARIANTS

    @classmethod
    def build(cls, model: Mapping[str, Any], **given: Any) -> MFormerV1:
        """See `ModelFamily.build`; None or an empty tuple takes the variant's value, and a dropout rate of 0."""
        settings = {field: functools.reduce(operator.getitem, key.split("."), model) for field, key in KEYS.items()}
        fields: dict[str, Any] = {"drop_rate": 0.0, "attn_drop_rate": 0.0, **VARIANTS[model["variant"]]}
        fields |= {field: value for field, value in settings.items() if value is not None and value != ()}
        for field in ("drop_rate", "attn_drop_rate"):
            fields[field] = fields[field][0] if isinstance(fields[field], tuple) else fields[field]
        # entries 3 and 4 of ConvNeXt's own depths have no stage here; one ratio serves both stages
        fields["depths"] = fields["depths"][:2] if len(fields["depths"]) == 4 else fields["depths"]
        fields["mlp_ratio"] = tuple(map(float, fields["mlp_ratio"])) * (2 if len(fields["mlp_ratio"]) == 1 else 1)
        built = cls(**fields, in_chans=3, **given)
        if errors := list(_errors(built)):
            raise ValueError("\n".join(errors))
        return built

    @staticmethod
    def stage_of(name: str) -> str:
        """The group, one of `STAGES`, of the parameter with a canonical name; every parameter has exactly one.

        Norms inside a stage belong to the stage; `norm_layers` are those between stages.

        Raises:
          ValueError: the name belongs to no group.
        """
        for stage, pattern in STAGES.items():
            if pattern.search(name):
                return stage
        raise ValueError(f"parameter {name!r} belongs to none of the stages {', '.join(STAGES)}")

    @nn.nowrap
    def layer_index(self, name: str) -> int:
        """Depth of a parameter for layer-wise learning-rate decay (Clark et al. 2020; Bao et al. 2022 for images).

        0 is the stem, 1 ... L the blocks in the order of computation, L + 1 the heads with the aggregation and the
        norms that feed them. What enters before a stage (downsampling, class token, metadata heads, `norm_1`) counts
        as its first block.

        Raises:
          ValueError: the name belongs to no layer of the model.
        """
        depths = self.block_depths
        first = [1 + sum(depths[:stage]) for stage in range(len(depths))]
        if block := re.match(r"stages\.(\d+)\.(\d+)\.", name):
            stage, position = int(block[1]), int(block[2])
            if stage < len(depths) and position < depths[stage]:
                return first[stage] + position
        elif name.startswith("stem."):
            return 0
        elif down := re.match(r"downsample_layers\.([012])\.", name):
            return first[int(down[1]) + 1]
        elif entry := re.match(r"cls_token_([12])$|meta_\w+_head_([12])\.", name):
            return first[int(entry[1] or entry[2]) + 1]
        elif name.startswith("norm_1."):
            return first[3]
        elif re.match(r"(norm_2|final_norm|cl_1_fc|aggregate|head)\.", name):
            return sum(depths) + 1
        raise ValueError(f"parameter {name!r} belongs to no layer of a model with {depths} blocks per stage")

    @property
    def block_depths(self) -> tuple[int, ...]:
        """Number of blocks of each stage, in the order of computation."""
        return (*self.depths, *self.rope_depths)

    def setup(self) -> None:
        if self.attn_impl == "cudnn":
            backend, bfloat16 = jax.default_backend(), jnp.dtype(self.dtype) == jnp.bfloat16
            if backend != "gpu" or not bfloat16 or self.attn_drop_rate > 0:
                raise ValueError(
                    "model.attn_impl = 'cudnn' needs a GPU, bfloat16 and attn_drop_rate 0 (here: "
                    f"{backend}, {jnp.dtype(self.dtype)}, {self.attn_drop_rate}); use 'auto'"
                )
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
        self.cls_tokens = [self.param(f"cls_token_{s}", weight_init, (1, 1, self.dims[s + 1])) for s in (1, 2)]
        self.meta_heads = [
            [
                MetaHead(self.dims[s + 1], self.dtype, name=f"meta_{name.lower()}_head_{s}")
                for name, _ in self.components
            ]
            for s in (1, 2)
        ]
        self.rope_stages = [
            TransformerStage(
                RotaryAttention,
                self._attention(s),
                rates[2 + s],
                self.mlp_ratio[s],
                self.remat,
                self.scan_layers and s == 0,
                name=f"stages.{2 + s}",
            )
            for s in range(2)
        ]
        self.norm_1 = LayerNorm(dtype=self.dtype, name="norm_1")
        self.norm_2 = LayerNorm(dtype=self.dtype, name="norm_2")
        if not self.only_last_cls:
            self.cl_1_fc = ClsProjection(self.dims[3], self.dtype, name="cl_1_fc")
            self.aggregate = Conv1d(self.dtype, name="aggregate")
        self.final_norm = LayerNorm(dtype=self.dtype, name="final_norm")
        self.head = ClassificationHeads(self.head_specs, name="head")

    def _attention(self, stage: int) -> dict[str, Any]:
        return {
            "num_heads": self.num_heads[stage],
            "rope_theta": self.rope_theta,
            "rope_mode": self.rope_mode,
            "rope_init": self.rope_init,
            "rope_mixed": self.rope_mixed,
            "drop_rate": self.drop_rate,
            "attn_drop_rate": self.attn_drop_rate,
            "attn_impl": self.attn_impl,
            "dtype": self.dtype,
        }

    def encode_image(
        self, image_BHWC: jax.Array, *, row_weight_B: jax.Array | None = None, train: bool = False
    ) -> jax.Array:
        """The convolutional part, which no metadata enter: [B, H, W, in_chans] -> [B, H // 16, W // 16, dims[2]]."""
        shape = image_BHWC.shape
        if len(shape) != 4 or shape[-1] != self.in_chans or min(shape[1:3]) < MIN_SIZE:
            raise ValueError(f"image has shape {shape}; [B, H >= 32, W >= 32, {self.in_chans}] is needed")
        x = self.stem(image_BHWC.astype(self.dtype))
        for stage, downsample in zip(self.conv_stages, self.downsample[:2]):
            x = downsample(stage(x, train=train))
        return x

    def encode_tokens(
        self,
        features_BhwD: jax.Array,
        meta_BD: jax.Array | None = None,
        *,
        meta_valid_BK: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """The transformer part: output of `encode_image` and metadata -> features [B, dims[3]] for the heads."""
        meta_BD = self._checked_meta(meta_BD, features_BhwD.shape[0])
        tokens = self._with_extra_tokens(0, features_BhwD, meta_BD)
        tokens = self.norm_1(self.rope_stages[0](tokens, _grid(features_BhwD), train=train))
        cls_1, patches = tokens[:, :1], tokens[:, 1 + len(self.components) :]
        x = self.downsample[2](patches.reshape(features_BhwD.shape))
        tokens = self._with_extra_tokens(1, x, meta_BD)
        cls_2 = self.norm_2(self.rope_stages[1](tokens, _grid(x), train=train))[:, :1]
        if not self.only_last_cls:
            cls_2 = self.aggregate(jnp.concatenate([self.cl_1_fc(cls_1), cls_2], axis=1))
        return self.final_norm(cls_2)[:, 0]

    def _checked_meta(self, meta_BD: jax.Array | None, batch: int) -> jax.Array:
        if meta_BD is None:
            return jnp.zeros((batch, self.meta_dim), self.dtype)
        if meta_BD.shape != (batch, self.meta_dim):
            parts = " + ".join(f"{name} {dim}" for name, dim in self.components) or "no component"
            raise ValueError(
                f"meta has shape {meta_BD.shape}; [{batch}, {self.meta_dim}] is needed ({parts}): "
                "let the data's and the model's metadata components agree"
            )
        return meta_BD.astype(self.dtype)

    def _with_extra_tokens(self, stage: int, x_BhwD: jax.Array, meta_BD: jax.Array) -> jax.Array:
        batch, height, width, dim = x_BhwD.shape
        tokens = [jnp.broadcast_to(self.cls_tokens[stage].astype(self.dtype), (batch, 1, dim))]
        offset = 0
        for head, (_, columns) in zip(self.meta_heads[stage], self.components):
            tokens.append(head(meta_BD[:, offset : offset + columns])[:, None])
            offset += columns
        return jnp.concatenate([*tokens, x_BhwD.reshape(batch, height * width, dim)], axis=1)


def _grid(x_BhwD: jax.Array) -> tuple[int, int]:
    return x_BhwD.shape[1], x_BhwD.shape[2]


def _errors(model: MFormerV1) -> Iterator[str]:
    """What cannot work, one line each with key, value and fix."""
    sizes = {"dims": 4, "depths": 2, "rope_depths": 2, "num_heads": 2}
    wrong = {
        field: f"must be {length} integers of at least 1"
        for field, length in sizes.items()
        if len(getattr(model, field)) != length or not all(type(x) is int and x > 0 for x in getattr(model, field))
    }
    if len(model.mlp_ratio) != 2 or min(model.mlp_ratio) <= 0:
        wrong["mlp_ratio"] = "must be one number above 0, or one per transformer stage"
    for field in ("drop_rate", "attn_drop_rate", "drop_path_rate"):
        if not 0.0 <= getattr(model, field) < 1.0:
            wrong[field] = "is out of range; it must be within [0, 1)"
    if not model.layer_scale_init_value >= 0:
        wrong["layer_scale_init_value"] = "is out of range; it must be 0 or more"
    if not model.rope_theta > 0:
        wrong["rope_theta"] = "is out of range; it must be above 0"
    for field, choices in (
        ("rope_mode", ROPE_MODES),
        ("rope_init", ROPE_INITS),
        ("depthwise_impl", DEPTHWISE_IMPLS),
        ("attn_impl", ATTN_IMPLS),
    ):
        if getattr(model, field) not in choices:
            wrong[field] = f"is unknown; choose one of {', '.join(choices)}"
    multiple = 4 if model.rope_init == "rope_vit" or not model.rope_mixed else 2
    if not wrong.keys() & sizes.keys():
        pairs = zip(model.num_heads, model.dims[2:])
        if any(dim % heads or (dim // heads) % multiple for heads, dim in pairs):
            wrong["num_heads"] = f"must divide dims[2:] = {model.dims[2:]} into heads of a multiple of {multiple}"
    yield from (f"model.{KEYS[field]} = {getattr(model, field)!r} {text}" for field, text in wrong.items())
    if min(model.img_size) < MIN_SIZE:
        yield f"data.img_size = {model.img_size[0]} is out of range; it must be {MIN_SIZE} or more"
    names = [name.lower() for name, _ in model.components]
    for name, dim in model.components:
        if not name.isidentifier() or names.count(name.lower()) > 1 or dim < 1:
            yield (
                f"metadata component ({name!r}, {dim}) needs a name of letters, digits and _, used once, and at "
                "least one column"
            )
