"""What mFormerV0 and mFormerV1 share: two transformer stages over class token, metadata tokens and patches.

The idea is MetaFormer's (Diao et al. 2022). Letters of shapes: B rows, H W image, h w grid of a stage, D channels of a
stage, N tokens, K metadata components. Token order is [class token, metadata tokens in component order, patches in
row-major order].
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models.depthwise import DEPTHWISE_IMPLS
from linnaeus_jax.models.family import LATE, TOKENS, ModelFamily
from linnaeus_jax.models.initial import parameter
from linnaeus_jax.models.layers import ClsProjection, Conv1d, LayerNorm, MetaHead, weight_init
from linnaeus_jax.models.transformer import (
    ATTN_DROP_KINDS,
    ATTN_IMPLS,
    SelfAttention,
    TransformerStage,
    check_attn_impl,
)

MIN_SIZE = 32  # five halvings leave one patch
MAX_DEPTH = 1000  # of one stage; more takes minutes to trace

#: groups of parameters that both families have -> canonical names that belong to them
SHARED_STAGES = {
    "heads.classification_heads": re.compile(r"^head\."),
    "heads.meta_heads": re.compile(r"^(meta_|fusion\.)"),
    "embeddings": re.compile(r"^cls_token"),
    "aggregation": re.compile(r"^(cl_1_fc|aggregate|final_norm|norm)\."),
    "norm_layers": re.compile(r"^norm_[12]\."),
}


#: fields that have the names of their keys
SHARED_KEYS = {
    field: field
    for field in (
        *("drop_rate", "attn_drop_rate", "attn_drop_kind", "drop_path_rate"),
        *("only_last_cls", "scan_layers", "depthwise_impl", "attn_impl"),
    )
}


class MetaFormer(ModelFamily, kw_only=True):
    """Base of the two families. `keys` says where a family's fields stand in the `model` section; `in_chans` is fixed.

    A family makes in `setup` its convolutional part and, by `_setup_tokens`, the rest. `encode_image` ends with the
    patches of the first transformer stage, `_enter` brings what leaves that to the grid and the width of the second.
    Rates and ratios are one number per transformer stage.
    """

    num_heads: tuple[int, ...]
    mlp_ratio: tuple[float, ...]
    drop_rate: tuple[float, ...]
    attn_drop_rate: tuple[float, ...]
    drop_path_rate: float
    only_last_cls: bool
    scan_layers: bool
    depthwise_impl: str
    attn_impl: str
    attn_drop_kind: str
    in_chans: int

    stage_patterns: ClassVar[Mapping[str, re.Pattern[str]]] = SHARED_STAGES
    fusions: ClassVar = (TOKENS, LATE)
    gives_map: ClassVar = True
    defaults: ClassVar = {"drop_rate": 0.0, "attn_drop_rate": 0.0}
    choices: ClassVar = {
        "depthwise_impl": DEPTHWISE_IMPLS,
        "attn_impl": ATTN_IMPLS,
        "attn_drop_kind": ATTN_DROP_KINDS,
    }
    smallest: ClassVar = MIN_SIZE

    @classmethod
    def completed(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """See `ModelFamily.completed`."""
        fields = {**fields, "in_chans": 3}
        for field in ("mlp_ratio", "drop_rate", "attn_drop_rate"):
            value = fields[field] if isinstance(fields[field], Sequence) else (fields[field],)
            fields[field] = tuple(map(float, value)) * (2 if len(value) == 1 else 1)
        return fields

    @classmethod
    def stage_of(cls, name: str) -> str:  # type: ignore[override]  # called like the static method that it overrides
        """The group of the parameter with a canonical name; every parameter has exactly one.

        Norms inside a stage belong to the stage; `norm_layers` are those between stages.

        Raises:
          ValueError: the name belongs to no group.
        """
        for stage, pattern in cls.stage_patterns.items():
            if pattern.search(name):
                return stage
        raise ValueError(f"parameter {name!r} belongs to none of the stages {', '.join(cls.stage_patterns)}")

    @property
    def block_depths(self) -> tuple[int, ...]:
        """Number of blocks of each of the four stages, in the order of computation."""
        raise NotImplementedError

    @property
    def token_dims(self) -> tuple[int, ...]:
        """Widths of the two transformer stages."""
        raise NotImplementedError

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
        place = self._place(name)
        if entry := re.match(r"cls_token_([12])$|meta_\w+_head_([12])\.", name):
            place = int(entry[1] or entry[2]) + 1, 0
        elif name.startswith("norm_1."):
            place = 3, 0
        elif re.match(r"(norm_2|final_norm|norm|cl_1_fc|aggregate|fusion|head)\.", name):
            return sum(depths) + 1
        if place is None or place[0] >= len(depths) or place[1] >= depths[place[0]]:
            raise ValueError(f"parameter {name!r} belongs to no layer of a model with {depths} blocks per stage")
        return 0 if place[0] < 0 else 1 + sum(depths[: place[0]]) + place[1]

    @nn.nowrap
    def _place(self, name: str) -> tuple[int, int] | None:
        """(stage, block) of a parameter of the four stages and their entries, stage -1 for the stem; None: another."""
        raise NotImplementedError

    @nn.nowrap
    def errors(self) -> Iterator[str]:
        """See `ModelFamily.errors`."""
        if max(self.block_depths) > MAX_DEPTH:
            yield f"the stages have {self.block_depths} blocks, and each may have {MAX_DEPTH}; lower their depths"
        yield from super().errors()
        names = [name.lower() for name, _ in self.components]
        for name, dim in self.components:
            if not name.isidentifier() or names.count(name.lower()) > 1 or dim < 1:
                yield (
                    f"metadata component ({name!r}, {dim}) needs a name of letters, digits and _, used once, and at "
                    "least one column"
                )

    @nn.nowrap
    def wrong_settings(self) -> dict[str, str]:
        """See `ModelFamily.wrong_settings`."""
        wrong = super().wrong_settings()
        if len(self.mlp_ratio) != 2 or min(self.mlp_ratio) <= 0:
            wrong["mlp_ratio"] = "must be one number above 0, or one per transformer stage"
        for field in ("drop_rate", "attn_drop_rate"):
            if len(getattr(self, field)) != 2 or not all(0.0 <= rate < 1.0 for rate in getattr(self, field)):
                wrong[field] = "must be one number within [0, 1), or one per transformer stage"
        return wrong

    @nn.nowrap
    def _setup_tokens(
        self,
        attention_type: type[SelfAttention],
        attention: Sequence[Mapping[str, Any]],
        drop_path_rates: Sequence[tuple[float, ...]],
        stage_names: Sequence[str],
        final_norm: str | None,
    ) -> None:
        """Makes everything behind the convolutions; `attention` are the arguments that the family's attention adds."""
        dims = self.token_dims
        self.cls_tokens = [parameter(self, f"cls_token_{s + 1}", weight_init, (1, 1, dims[s])) for s in range(2)]
        self.meta_heads = [
            [MetaHead(dims[s], self.dtype, name=f"meta_{n.lower()}_head_{s + 1}") for n, _ in self._token_components]
            for s in range(2)
        ]
        self.transformer_stages = [
            TransformerStage(
                attention_type,
                {**self._attention(s), **attention[s]},
                drop_path_rates[s],
                self.mlp_ratio[s],
                self.remat,
                self.scan_layers and s == 0,
                name=stage_names[s],
            )
            for s in range(2)
        ]
        self.norm_1 = LayerNorm(dtype=self.dtype, name="norm_1")
        self.norm_2 = LayerNorm(dtype=self.dtype, name="norm_2")
        if not self.only_last_cls:
            self.cl_1_fc = ClsProjection(dims[1], self.dtype, name="cl_1_fc")
            self.aggregate = Conv1d(self.dtype, name="aggregate")
        self.final_norm = None if final_norm is None else LayerNorm(dtype=self.dtype, name=final_norm)

    @nn.nowrap
    def _attention(self, stage: int) -> dict[str, Any]:
        check_attn_impl(self.attn_impl, self.dtype, self.attn_drop_rate[stage], self.attn_drop_kind)
        return {
            "num_heads": self.num_heads[stage],
            "drop_rate": self.drop_rate[stage],
            "attn_drop_rate": self.attn_drop_rate[stage],
            "attn_impl": self.attn_impl,
            "attn_drop_kind": self.attn_drop_kind,
            "dtype": self.dtype,
        }

    @property
    def _token_components(self) -> tuple[tuple[str, int], ...]:
        """The metadata components that are tokens."""
        return () if self.fuses_late else self.components

    @property
    def norms_patches(self) -> bool:
        """Whether `norm_1` takes the patches that enter the second transformer stage, or the class token alone."""
        return True

    @nn.nowrap
    def _enter(self, x_BhwD: jax.Array) -> jax.Array:
        """The patches of the second transformer stage, [B, h', w', D'], from those that leave the first."""
        raise NotImplementedError

    def encode_tokens(
        self,
        features: jax.Array,
        meta_BD: jax.Array | None = None,
        *,
        meta_valid_BK: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """The transformer part: output of `encode_image` and metadata -> features [B, D] for the heads."""
        if self.fuses_late:
            features = self._encode(features, jnp.zeros((features.shape[0], 0), self.dtype), None, train)
            return super().encode_tokens(features, meta_BD, meta_valid_BK=meta_valid_BK, train=train)
        visible_BN = self._visible(meta_BD, meta_valid_BK, features.shape[0])
        return self._encode(features, self.checked_meta(meta_BD, features.shape[0]), visible_BN, train)

    @nn.nowrap
    def _encode(self, features: jax.Array, meta_BD: jax.Array, visible_BN: jax.Array | None, train: bool) -> jax.Array:
        tokens = self._transform(0, features, meta_BD, visible_BN, train)
        tokens = self.norm_1(tokens) if self.norms_patches else tokens
        cls_1, patches = tokens[:, :1], tokens[:, 1 + len(self._token_components) :]
        cls_1 = cls_1 if self.norms_patches else self.norm_1(cls_1)
        x = self._enter(patches.reshape(features.shape))
        tokens = self._transform(1, x, meta_BD, visible_BN, train)
        feats = self.norm_2(tokens)[:, :1]
        if not self.only_last_cls:
            feats = self.aggregate(jnp.concatenate([self.cl_1_fc(cls_1), feats], axis=1))
        return (feats if self.final_norm is None else self.final_norm(feats))[:, 0]

    @nn.nowrap
    def _transform(
        self, stage: int, x_BhwD: jax.Array, meta_BD: jax.Array, visible_BN: jax.Array | None, train: bool
    ) -> jax.Array:
        batch, height, width, dim = x_BhwD.shape
        tokens = [jnp.broadcast_to(self.cls_tokens[stage].astype(self.dtype), (batch, 1, dim))]
        offset = 0
        for head, (_, columns) in zip(self.meta_heads[stage], self._token_components):
            tokens.append(head(meta_BD[:, offset : offset + columns])[:, None])
            offset += columns
        tokens_BND = jnp.concatenate([*tokens, x_BhwD.reshape(batch, height * width, dim)], axis=1)
        if visible_BN is not None:
            visible_BN = jnp.concatenate([visible_BN, jnp.ones((batch, height * width), bool)], axis=1)
        output: jax.Array = self.transformer_stages[stage](
            tokens_BND, (height, width), train=train, key_mask_BN=visible_BN
        )
        return output

    @nn.nowrap
    def _checked_image(self, image_BHWC: jax.Array) -> jax.Array:
        shape = image_BHWC.shape
        if len(shape) != 4 or shape[-1] != self.in_chans or min(shape[1:3]) < MIN_SIZE:
            raise InputError(
                f"image has shape {shape}; [B, H >= {MIN_SIZE}, W >= {MIN_SIZE}, {self.in_chans}] is needed"
            )
        return image_BHWC.astype(self.dtype)

    @nn.nowrap
    def _visible(self, meta_BD: jax.Array | None, meta_valid_BK: jax.Array | None, batch: int) -> jax.Array | None:
        """Which extra tokens others may look at, bool [B, 1 + K]; None: all. The class token always is."""
        visible_BK = self.visible_components(meta_BD, meta_valid_BK, batch)
        return None if visible_BK is None else jnp.concatenate([jnp.ones((batch, 1), bool), visible_BK], axis=1)


def integers(model: MetaFormer, sizes: Mapping[str, int]) -> dict[str, str]:
    """Errors of fields that must be that many integers of at least 1, see `wrong_settings`."""
    return {
        field: f"must be {length} integers of at least 1"
        for field, length in sizes.items()
        if len(getattr(model, field)) != length or not all(type(x) is int and x > 0 for x in getattr(model, field))
    }
