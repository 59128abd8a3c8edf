"""mFormerV1: a ConvNeXt front, two rotary transformer stages with metadata tokens, one head per taxonomic rank.

Letters of shapes: B rows, H W image, h w grid of a stage, D channels of a stage, N tokens, M metadata components.
Token order is [class token, metadata tokens in component order, patches in row-major order].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from linnaeus_jax.models.convnext import ConvNeXtStage, Downsample, Stem
from linnaeus_jax.models.depthwise import DEPTHWISE_IMPLS
from linnaeus_jax.models.heads import ClassificationHeads, HeadSpec, head_specs
from linnaeus_jax.models.layers import ClsProjection, Conv1d, Dtype, LayerNorm, MetaHead, drop_path_rates, weight_init
from linnaeus_jax.models.registry import register_model
from linnaeus_jax.models.rotary import ATTN_IMPLS, ROPE_INITS, ROPE_MODES, RotaryStage

MIN_SIZE = 32  # four halvings after the stem's patches of 4 leave one patch

#: `depths` of the two convolutional and `rope_depths` of the two transformer stages
VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": {
        "dims": (16, 32, 96, 128),
        "depths": (1, 1),
        "rope_depths": (2, 1),
        "num_heads": (3, 4),
        "drop_path_rate": 0.0,
    },
    "sm": {
        "dims": (96, 192, 384, 768),
        "depths": (3, 3),
        "rope_depths": (5, 2),
        "num_heads": (6, 12),
        "drop_path_rate": 0.2,
    },
    "md": {
        "dims": (96, 192, 384, 768),
        "depths": (3, 3),
        "rope_depths": (10, 2),
        "num_heads": (6, 12),
        "drop_path_rate": 0.3,
    },
    "lg": {
        "dims": (192, 384, 768, 1536),
        "depths": (3, 3),
        "rope_depths": (10, 2),
        "num_heads": (12, 24),
        "drop_path_rate": 0.4,
    },
    "xl": {
        "dims": (256, 512, 1024, 2048),
        "depths": (3, 3),
        "rope_depths": (22, 2),
        "num_heads": (16, 32),
        "drop_path_rate": 0.5,
    },
}


class MFormerV1(nn.Module):
    """The network; build it with `build_model("mFormerV1", ...)`, which fills in and checks the fields.

    `encode_image`, `encode_tokens` and `classify` composed are `__call__`; they are separate so that several
    evaluations of the same images under different metadata share the convolutional part.
    """

    dims: tuple[int, ...]
    depths: tuple[int, ...]
    rope_depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    components: tuple[tuple[str, int], ...]
    head_specs: tuple[HeadSpec, ...]
    img_size: tuple[int, int]
    in_chans: int = 3
    drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    mlp_ratio: tuple[float, ...] = (4.0, 4.0)
    rope_theta: float = 10000.0
    rope_mode: str = "rotary"
    rope_init: str = "random_direction"
    rope_mixed: bool = True
    layer_scale_init_value: float = 1e-6
    only_last_cls: bool = False
    dtype: Dtype = jnp.float32
    remat: bool = False
    scan_layers: bool = False
    depthwise_impl: str = "auto"
    attn_impl: str = "auto"

    @property
    def block_depths(self) -> tuple[int, ...]:
        """Number of blocks of each stage, in the order of computation."""
        return (*self.depths, *self.rope_depths)

    @property
    def meta_dim(self) -> int:
        """Number of metadata columns."""
        return sum(dim for _, dim in self.components)

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
        self.cls_tokens = [self.param(f"cls_token_{s}", weight_init, (1, 1, self.dims[s + 1])) for s in (1, 2)]
        self.meta_heads = [
            [
                MetaHead(self.dims[s + 1], self.dtype, name=f"meta_{name.lower()}_head_{s}")
                for name, _ in self.components
            ]
            for s in (1, 2)
        ]
        self.rope_stages = [
            RotaryStage(
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

    def __call__(
        self, image_BHWC: jax.Array, meta_BD: jax.Array | None = None, *, train: bool = False
    ) -> dict[str, jax.Array]:
        """Returns {task: float32 logits [B, C]} in task order.

        Args:
          image_BHWC: float [B, H, W, in_chans], already normalised; H and W at least 32.
          meta_BD: float [B, sum of the components' columns]; a masked component is zero, None is all zero.
          train: whether dropout and drop path act, with the rng streams `dropout` and `drop_path`.

        Raises:
          ValueError: an image or metadata of the wrong shape.
        """
        return self.classify(self.encode_tokens(self.encode_image(image_BHWC, train=train), meta_BD, train=train))

    def encode_image(self, image_BHWC: jax.Array, *, train: bool = False) -> jax.Array:
        """The convolutional part, which no metadata enter: [B, H, W, in_chans] -> [B, H // 16, W // 16, dims[2]]."""
        shape = image_BHWC.shape
        if len(shape) != 4 or shape[-1] != self.in_chans or min(shape[1:3]) < MIN_SIZE:
            raise ValueError(f"image has shape {shape}; [B, H >= 32, W >= 32, {self.in_chans}] is needed")
        x = self.stem(image_BHWC.astype(self.dtype))
        for stage, downsample in zip(self.conv_stages, self.downsample[:2]):
            x = downsample(stage(x, train=train))
        return x

    def encode_tokens(
        self, features_BhwD: jax.Array, meta_BD: jax.Array | None = None, *, train: bool = False
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

    def classify(self, feats_BD: jax.Array) -> dict[str, jax.Array]:
        """Features [B, dims[3]] -> {task: float32 logits [B, C]}."""
        return self.head(feats_BD)

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


@register_model("mFormerV1", tuple(VARIANTS))
def mformer_v1(
    *,
    variant: str,
    components: Sequence[tuple[str, int]],
    num_classes: Mapping[str, int],
    img_size: int | Sequence[int],
    in_chans: int = 3,
    dims: Sequence[int] | None = None,
    depths: Sequence[int] | None = None,
    rope_depths: Sequence[int] | None = None,
    num_heads: Sequence[int] | None = None,
    drop_rate: float | None = None,
    attn_drop_rate: float | None = None,
    drop_path_rate: float | None = None,
    mlp_ratio: float | Sequence[float] = 4.0,
    heads: Mapping[str, Mapping[str, Any]] | None = None,
    **settings: Any,
) -> MFormerV1:
    """Builds mFormerV1 from a variant; None or an empty sequence takes the variant's value.

    Args:
      variant: `tiny`, `sm`, `md`, `lg` or `xl`.
      components: (name, columns) of the active metadata components in the order of their columns.
      num_classes: task -> classes, in the order of the returned logits.
      img_size: nominal size; any size of at least 32 works at run time.
      depths: blocks of the two convolutional stages; entries 3 and 4 of ConvNeXt's own list have no stage here.
      mlp_ratio: hidden width of the MLPs over the width of a block, one number or one per transformer stage.
      heads: see `head_specs`.
      settings: the remaining fields of `MFormerV1` (`rope_mode`, `remat`, `dtype`, ...).

    Raises:
      ValueError: a setting that does not fit, with its name, value and the fix.
    """
    chosen = dict(VARIANTS[variant])
    chosen.update({"drop_rate": 0.0, "attn_drop_rate": 0.0})
    given = {
        "dims": dims,
        "depths": depths,
        "rope_depths": rope_depths,
        "num_heads": num_heads,
        "drop_rate": drop_rate,
        "attn_drop_rate": attn_drop_rate,
        "drop_path_rate": drop_path_rate,
    }
    chosen.update({name: value for name, value in given.items() if value is not None and value != ()})
    for name, lengths in (("dims", (4,)), ("depths", (2, 4)), ("rope_depths", (2,)), ("num_heads", (2,))):
        chosen[name] = _positive(name, chosen[name], lengths)
    ratios = (mlp_ratio,) if isinstance(mlp_ratio, int | float) else tuple(mlp_ratio)
    size = (img_size, img_size) if isinstance(img_size, int) else tuple(int(side) for side in img_size)
    model = MFormerV1(
        **{**chosen, "depths": chosen["depths"][:2]},
        components=tuple((str(name), int(dim)) for name, dim in components),
        head_specs=head_specs(num_classes, heads),
        img_size=size,  # type: ignore[arg-type]
        in_chans=in_chans,
        mlp_ratio=tuple(map(float, ratios * 2 if len(ratios) == 1 else ratios)),
        **settings,
    )
    _check(model)
    return model


def _positive(name: str, values: Sequence[int], lengths: tuple[int, ...]) -> tuple[int, ...]:
    result = tuple(int(value) for value in values)
    if len(result) not in lengths or min(result) < 1:
        wanted = " or ".join(str(length) for length in lengths)
        raise ValueError(f"{name} is {result}; {wanted} numbers of at least 1 are needed")
    return result


def _check(model: MFormerV1) -> None:
    """Raises ValueError for the first field that cannot work."""
    if len(model.img_size) != 2 or min(model.img_size) < MIN_SIZE:
        raise ValueError(
            f"img_size is {model.img_size}; one number or (height, width) of at least {MIN_SIZE} is needed"
        )
    for name in ("drop_rate", "attn_drop_rate", "drop_path_rate"):
        if not 0.0 <= getattr(model, name) < 1.0:
            raise ValueError(f"{name} is {getattr(model, name)}; it must lie in [0, 1)")
    for name, choices in (
        ("rope_mode", ROPE_MODES),
        ("rope_init", ROPE_INITS),
        ("depthwise_impl", DEPTHWISE_IMPLS),
        ("attn_impl", ATTN_IMPLS),
    ):
        if getattr(model, name) not in choices:
            raise ValueError(f"{name} is {getattr(model, name)!r}; use one of {', '.join(choices)}")
    if len(model.mlp_ratio) != 2 or min(model.mlp_ratio) <= 0:
        raise ValueError(
            f"mlp_ratio is {model.mlp_ratio}; one positive number, or one per transformer stage, is needed"
        )
    for name in ("rope_theta", "in_chans"):
        if getattr(model, name) <= 0:
            raise ValueError(f"{name} is {getattr(model, name)}; it must be positive")
    names = [name.lower() for name, _ in model.components]
    for name, dim in model.components:
        if not name.isidentifier() or names.count(name.lower()) > 1 or dim < 1:
            raise ValueError(
                f"metadata component ({name!r}, {dim}) needs a name of letters, digits and _, used once, and at "
                "least one column"
            )
    multiple = 4 if model.rope_init == "rope_vit" or not model.rope_mixed else 2
    for heads, dim in zip(model.num_heads, model.dims[2:]):
        if dim % heads or (dim // heads) % multiple:
            raise ValueError(
                f"num_heads {model.num_heads} do not divide dims[2:] {model.dims[2:]} into heads of a width that is a "
                f"multiple of {multiple}"
            )
    if model.attn_impl == "cudnn":
        backend, bfloat16 = jax.default_backend(), jnp.dtype(model.dtype) == jnp.bfloat16
        if backend != "gpu" or not bfloat16 or model.attn_drop_rate > 0:
            raise ValueError(
                f"attn_impl is 'cudnn', which needs a GPU, bfloat16 and attn_drop_rate 0 (here: {backend}, "
                f"{jnp.dtype(model.dtype)}, {model.attn_drop_rate}); use 'auto'"
            )
