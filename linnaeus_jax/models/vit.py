"""Vision transformer (Dosovitskiy et al. 2021) in the forms that published weights have.

One row of pre-norm blocks over [class token, registers, patches]. The fields say what differs: DeiT III and DINO scale
the branches, CLIP normalises before the first block, SigLIP has no class token and pools by attention, DINOv3 turns
queries and keys instead of adding positions, EVA-02 does both and normalises within the branches. Modules are called as
in timm (Wightman 2019), but for the tokens and the table of positions, which lie in `patch_embed`. Letters of shapes
are those of `models/metaformer.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models.family import LATE, TOKENS, ModelFamily
from linnaeus_jax.models.layers import ACTIVATIONS, LayerNorm, Linear, MetaHead, drop_path_rates
from linnaeus_jax.models.metaformer import MAX_DEPTH
from linnaeus_jax.models.transformer import ATTN_DROP_KINDS, ATTN_IMPLS, TransformerStage, check_attn_impl
from linnaeus_jax.models.vit_parts import (
    POSITIONS,
    ROPES,
    SUB_NORMS,
    AttentionPool,
    PatchEmbed,
    PlacedAttention,
    resize_positions,
)
from linnaeus_jax.registry import MODELS

POOLS, NORMS = ("token", "avg", "map"), ("tokens", "features", "none")
TABLE = "patch_embed.pos_embed"


def _variant(dim: int, depth: int, heads: int, patch: int) -> dict[str, Any]:
    return {
        "patch_size": patch,
        "dim": dim,
        "depth": depth,
        "num_heads": heads,
        "hidden": 4 * dim,
        "activation": "gelu",
        "layer_scale": 0.0,
        "epsilon": 1e-6,
        "qkv_bias": True,
        "patch_bias": True,
        "class_token": True,
        "registers": 0,
        "positions": "antialias",
        "placed_tokens": 1,
        "rope": "",
        "rope_grid": 16,
        "sub_norm": "",
        "pre_norm": False,
        "pool": "token",
        "norm": "tokens",
        "projection": 0,
    }


VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": _variant(48, 2, 3, 16),
    "s16": _variant(384, 12, 6, 16),
    "s14": _variant(384, 12, 6, 14),
    "b16": _variant(768, 12, 12, 16),
    "b14": _variant(768, 12, 12, 14),
    "l16": _variant(1024, 24, 16, 16),
    "l14": _variant(1024, 24, 16, 14),
}
#: fields that other families have, too
SHARED_KEYS = ("drop_rate", "attn_drop_rate", "attn_drop_kind", "drop_path_rate", "attn_impl", "scan_layers")
#: fields that stand in the section `model.vit`
FORM = tuple(VARIANTS["tiny"])


@MODELS.register("ViT")
class ViT(ModelFamily):
    """The network; for what its fields mean see `model.vit` in `config/defaults.py`.

    With metadata as tokens `encode_image` ends with the patches and the blocks follow in `encode_tokens`, so the trunk
    cannot be cut; with late fusion `encode_image` gives the features.
    """

    patch_size: int
    dim: int
    depth: int
    num_heads: int
    hidden: int
    activation: str
    layer_scale: float
    epsilon: float
    qkv_bias: bool
    patch_bias: bool
    class_token: bool
    registers: int
    positions: str
    placed_tokens: int
    rope: str
    rope_grid: int
    sub_norm: str
    pre_norm: bool
    pool: str
    norm: str
    projection: int
    drop_rate: float
    attn_drop_rate: float
    attn_drop_kind: str
    drop_path_rate: float
    attn_impl: str
    scan_layers: bool

    variants: ClassVar = VARIANTS
    fusions: ClassVar = (LATE, TOKENS)
    keys: ClassVar = {
        **{field: f"vit.{field}" for field in FORM},
        **{field: field for field in SHARED_KEYS},
    }

    defaults: ClassVar = {"drop_rate": 0.0, "attn_drop_rate": 0.0, "drop_path_rate": 0.0}

    choices: ClassVar = {
        "activation": ACTIVATIONS,
        "positions": POSITIONS,
        "rope": ROPES,
        "sub_norm": SUB_NORMS,
        "pool": POOLS,
        "norm": NORMS,
        "attn_impl": ATTN_IMPLS,
        "attn_drop_kind": ATTN_DROP_KINDS,
    }

    @classmethod
    def completed(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """See `ModelFamily.completed`; dropout and drop path are off unless they are set."""
        rates = {field: fields[field] for field in ("drop_rate", "attn_drop_rate")}
        firsts = {field: float(x[0] if isinstance(x, Sequence) else x) for field, x in rates.items()}
        return {**fields, **firsts}

    @nn.nowrap
    def errors(self) -> Iterator[str]:
        """See `ModelFamily.errors`."""
        yield from super().errors()
        if min(self.img_size) < self.patch_size:
            yield (
                f"data.img_size = {self.img_size[0]} is out of range; it must be {self.patch_size} or more, the side "
                "of a patch"
            )

    @nn.nowrap
    def wrong_settings(self) -> dict[str, str]:
        """See `ModelFamily.wrong_settings`."""
        wrong = super().wrong_settings()
        sizes = ("patch_size", "dim", "depth", "num_heads", "hidden", "rope_grid")
        least = {**dict.fromkeys(sizes, 1), "registers": 0}
        for field, low in least.items():
            if getattr(self, field) < low:
                wrong[field] = f"must be {low} or more"
        if self.depth > MAX_DEPTH:
            wrong["depth"] = f"must be {MAX_DEPTH} or less"
        for field in ("layer_scale", "projection"):
            if not getattr(self, field) >= 0:
                wrong[field] = "must be 0 or more"
        if not self.epsilon > 0:
            wrong["epsilon"] = "must be above 0"
        if not wrong.keys() & {"dim", "num_heads"}:
            multiple = 4 if self.rope else 1
            if self.dim % self.num_heads or self.dim // self.num_heads % multiple:
                wrong["num_heads"] = f"must divide dim = {self.dim} into heads of a multiple of {multiple}"
        if "registers" not in wrong and self.placed_tokens not in range(self.prefix_tokens + 1):
            wrong["placed_tokens"] = f"must be 0 to {self.prefix_tokens}, the class token and the registers"
        if self.pool == "token" and not self.class_token:
            wrong["pool"] = "needs model.vit.class_token; use 'avg' or 'map'"
        return wrong

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the patches: class token and registers."""
        return int(self.class_token) + self.registers

    @nn.nowrap
    def grid_of(self, size: tuple[int, int]) -> tuple[int, int]:
        """Grid (h, w) of patches of a picture of that height and width."""
        return size[0] // self.patch_size, size[1] // self.patch_size

    def setup(self) -> None:
        check_attn_impl(self.attn_impl, self.dtype, self.attn_drop_rate, self.attn_drop_kind)
        shared = {"dtype": self.dtype}
        self.patch_embed = PatchEmbed(
            self.dim,
            self.patch_size,
            self.grid_of(self.img_size),
            self.patch_bias,
            self.class_token,
            self.registers,
            self.positions,
            self.placed_tokens,
            **shared,
            name="patch_embed",
        )
        self.norm_pre = LayerNorm(self.epsilon, **shared, name="norm_pre") if self.pre_norm else None
        self.blocks = TransformerStage(
            PlacedAttention,
            {
                "num_heads": self.num_heads,
                "drop_rate": self.drop_rate,
                "attn_drop_rate": self.attn_drop_rate,
                "attn_drop_kind": self.attn_drop_kind,
                "attn_impl": self.attn_impl,
                "qkv_bias": self.qkv_bias,
                "rope": self.rope,
                "rope_grid": self.rope_grid,
                "norm_epsilon": self.epsilon if self.sub_norm in ("attention", "both") else 0.0,
                **shared,
            },
            drop_path_rates((self.depth,), self.drop_path_rate)[0],
            self.hidden / self.dim,
            self.remat,
            self.scan_layers,
            {
                "epsilon": self.epsilon,
                "activation": self.activation,
                "layer_scale": self.layer_scale,
                "mlp_norm": self.sub_norm in ("mlp", "both"),
            },
            name="blocks",
        )
        self.final_norm = LayerNorm(self.epsilon, **shared, name="norm") if self.norm == "tokens" else None
        self.fc_norm = LayerNorm(self.epsilon, **shared, name="fc_norm") if self.norm == "features" else None
        if self.pool == "map":
            self.attn_pool = AttentionPool(
                self.num_heads, self.hidden, self.activation, self.epsilon, **shared, name="attn_pool"
            )
        self.proj = Linear(self.projection, use_bias=False, **shared, name="proj") if self.projection else None
        if not self.fuses_late:
            self.meta_heads = [MetaHead(self.dim, **shared, name=f"meta_{n.lower()}_head") for n, _ in self.components]
        self.setup_classifier()

    @property
    def trunk_blocks(self) -> int:
        """See `ModelFamily.trunk_blocks`."""
        return self.depth if self.fuses_late else 0

    def encode_image(
        self, image_BHWC: jax.Array, *, row_weight_B: jax.Array | None = None, train: bool = False
    ) -> jax.Array:
        """Features [B, D] of the compute dtype; with metadata as tokens the patches [B, h, w, D]."""
        patches = self._patches(image_BHWC)
        if not self.fuses_late:
            return patches
        return self._features(self._run(patches, slice(None), train))

    def forward_prefix(self, image_BHWC: jax.Array, block: int) -> jax.Array:
        """See `ModelFamily.forward_prefix`."""
        if block == self.trunk_blocks:
            return self.encode_image(image_BHWC)
        return self._run(self._patches(image_BHWC), slice(block), train=False)

    def forward_suffix(
        self, x: jax.Array, block: int, *, row_weight_B: jax.Array | None = None, train: bool = False
    ) -> jax.Array:
        """See `ModelFamily.forward_suffix`; of pictures of the size `img_size`."""
        x = x.astype(self.dtype)
        if block == self.trunk_blocks:
            return x
        grid = self.grid_of(self.img_size)
        return self._features(self.blocks(x, grid, train=train, which=slice(block, None)))

    def encode_tokens(
        self,
        features: jax.Array,
        meta_BD: jax.Array | None = None,
        *,
        meta_valid_BK: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """See `ModelFamily.encode_tokens`; with metadata as tokens these stand between the others and the patches."""
        if not self.fuses_late:
            return self._encode_with(features, meta_BD, meta_valid_BK, train)
        return super().encode_tokens(features, meta_BD, meta_valid_BK=meta_valid_BK, train=train)

    @nn.nowrap
    def _encode_with(
        self, patches_BhwD: jax.Array, meta_BD: jax.Array | None, meta_valid_BK: jax.Array | None, train: bool
    ) -> jax.Array:
        """Features [B, D] of patches and tokens of metadata."""
        batch, height, width, _ = patches_BhwD.shape
        visible_BK = self.visible_components(meta_BD, meta_valid_BK, batch)
        meta_BD, offset, extra = self.checked_meta(meta_BD, batch), 0, []
        for head, (_, columns) in zip(self.meta_heads, self.components):
            extra.append(head(meta_BD[:, offset : offset + columns])[:, None])
            offset += columns
        tokens = self._tokens(patches_BhwD)
        before, patches = tokens[:, : self.prefix_tokens], tokens[:, self.prefix_tokens :]
        mask_BN = None
        if visible_BK is not None:
            ones = [jnp.ones((batch, count), bool) for count in (self.prefix_tokens, height * width)]
            mask_BN = jnp.concatenate([ones[0], visible_BK, ones[1]], axis=1)
        tokens = jnp.concatenate([before, *extra, patches], axis=1)
        tokens = self.blocks(tokens, (height, width), train=train, key_mask_BN=mask_BN)
        return self._features(jnp.concatenate([tokens[:, : self.prefix_tokens], tokens[:, -height * width :]], axis=1))

    @nn.nowrap
    def _patches(self, image_BHWC: jax.Array) -> jax.Array:
        shape, least = image_BHWC.shape, self.patch_size
        if len(shape) != 4 or shape[-1] != 3 or min(shape[1:3]) < least:
            raise InputError(f"image has shape {shape}; [B, H >= {least}, W >= {least}, 3] is needed")
        patches: jax.Array = self.patch_embed(image_BHWC.astype(self.dtype))
        return patches

    @nn.nowrap
    def _run(self, patches_BhwD: jax.Array, which: slice, train: bool) -> jax.Array:
        """What leaves some of the first blocks, without metadata."""
        _, height, width, _ = patches_BhwD.shape
        tokens: jax.Array = self.blocks(self._tokens(patches_BhwD), (height, width), train=train, which=which)
        return tokens

    @nn.nowrap
    def _tokens(self, patches_BhwD: jax.Array) -> jax.Array:
        """What enters the first block, without metadata: [B, N, D]."""
        batch, height, width, dim = patches_BhwD.shape
        prefix = self.patch_embed.prefix()
        prefix = jnp.broadcast_to(prefix, (batch, *prefix.shape[1:]))
        tokens = jnp.concatenate([prefix, patches_BhwD.reshape(batch, height * width, dim)], axis=1)
        return tokens if self.norm_pre is None else self.norm_pre(tokens)

    @nn.nowrap
    def _features(self, tokens_BND: jax.Array) -> jax.Array:
        """Features [B, D] of what leaves the last block, without metadata."""
        x = tokens_BND[:, :1] if self.pool == "token" else tokens_BND[:, self.prefix_tokens :]
        x = x if self.final_norm is None else self.final_norm(x)
        if self.pool == "token":
            x = x[:, 0]
        elif self.pool == "avg":
            x = jnp.mean(x, axis=1, dtype=jnp.promote_types(x.dtype, jnp.float32)).astype(self.dtype)
        else:
            x = self.attn_pool(x)
        x = x if self.fc_norm is None else self.fc_norm(x)
        return x if self.proj is None else self.proj(x)

    @nn.nowrap
    def resized(self, name: str, array: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, str] | None:
        """See `ModelFamily.resized`; a table is taken to be of a square grid."""
        new, count = self.grid_of(self.img_size), array.shape[1] - self.placed_tokens if array.ndim == 3 else 0
        side = int(max(count, 0) ** 0.5)
        if name != TABLE or side < 1 or side**2 != count or array.shape[2:] != shape[2:]:
            return None
        how = f"{self.positions}, {side}x{side} to {new[0]}x{new[1]} positions"
        return resize_positions(array, self.placed_tokens, (side, side), new, self.positions), how

    @staticmethod
    def stage_of(name: str) -> str:
        """Group of a parameter: `stem`, `blocks`, `features` (norm, pooling, projection), `metadata` or `heads`."""
        groups = {"patch_embed": "stem", "norm_pre": "stem", "blocks": "blocks", "fusion": "metadata", "head": "heads"}
        first = name.partition(".")[0]
        return "metadata" if first.startswith("meta_") else groups.get(first, "features")

    def layer_index(self, name: str) -> int:
        """0 what makes the tokens, then the blocks, then all that follows them; tokens of metadata enter the first."""
        if name.startswith(("patch_embed.", "norm_pre.")):
            return 0
        block = re.match(r"blocks\.(\d+)\.", name)
        return 1 + int(block[1]) if block else 1 if name.startswith("meta_") else 1 + self.depth
