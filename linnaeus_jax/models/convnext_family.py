"""ConvNeXt (Liu et al. 2022) and ConvNeXt V2 (Woo et al. 2023) as a family of its own, channels last.

Modules are called as by the authors, so that their files map name by name. Metadata join late.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax

from linnaeus_jax.models.block_row import BlockRow, mean_of
from linnaeus_jax.models.convnext import ACTIVATIONS, STEMS, ConvNeXtBlock, Downsample, Stem
from linnaeus_jax.models.layers import Dropout, Gelu, LayerNorm, Linear
from linnaeus_jax.registry import MODELS

#: blocks of one stage; more take minutes to trace
MAX_DEPTH = 1000
MAX_WIDTH = 65536


def _variant(width: int, third: int, drop_path_rate: float, others: int = 3) -> dict[str, Any]:
    """Four stages, each twice as wide as the one before."""
    return {
        "dims": tuple(width * 2**stage for stage in range(4)),
        "depths": (others, others, third, others),
        "drop_rate": 0.0,
        "drop_path_rate": drop_path_rate,
    }


VARIANTS: dict[str, dict[str, Any]] = {
    "test": _variant(8, 2, 0.0, 1),
    "atto": _variant(40, 6, 0.1, 2),
    "femto": _variant(48, 6, 0.1, 2),
    "pico": _variant(64, 6, 0.1, 2),
    "nano": _variant(80, 8, 0.1, 2),
    "tiny": _variant(96, 9, 0.1),
    "small": _variant(96, 27, 0.4),
    "base": _variant(128, 27, 0.5),
    "large": _variant(192, 27, 0.5),
}


@MODELS.register("ConvNeXt")
class ConvNeXt(BlockRow):
    """The network.

    Attributes:
      dims, depths: features and blocks of each stage.
      layer_scale_init_value: initial scale of each block's branch; 0: no such parameter, as in V2.
      use_grn: global response normalisation within the blocks, as in V2.
      stem: one of `STEMS`.
      act: activation, one of `ACTIVATIONS`.
      kernel_sizes: sides of the depthwise kernels, one number for all stages or one for each; odd.
      norm_eps: epsilon of the norms but the last.
      head_norm_eps: that of the last one; None: `norm_eps`.
      head_norm_first: the last norm acts before the mean over the picture, not after it.
      head_hidden_size: features that a layer with GELU makes of those of the last stage; 0: there is none.
    """

    dims: tuple[int, ...]
    depths: tuple[int, ...]
    layer_scale_init_value: float
    use_grn: bool
    stem: str
    act: str
    norm_eps: float
    head_norm_first: bool
    head_hidden_size: int
    kernel_sizes: tuple[int, ...]
    head_norm_eps: float | None

    variants: ClassVar = VARIANTS
    keys: ClassVar = {
        **{field: f"convnext_stages.{field}" for field in ("dims", "depths", "layer_scale_init_value")},
        **{
            field: f"convnext.{field}"
            for field in (
                "use_grn",
                "stem",
                "act",
                "kernel_sizes",
                "norm_eps",
                "head_norm_eps",
                "head_norm_first",
                "head_hidden_size",
            )
        },
        **{field: field for field in ("drop_rate", "drop_path_rate", "depthwise_impl")},
    }

    defaults: ClassVar = {
        "layer_scale_init_value": 1e-6,
        "use_grn": False,
        "stem": "patch",
        "act": "gelu",
        "kernel_sizes": (7,),
        "norm_eps": 1e-6,
        "head_norm_eps": None,
        "head_norm_first": False,
        "head_hidden_size": 0,
    }

    choices: ClassVar = {**BlockRow.choices, "stem": STEMS, "act": ACTIVATIONS}

    @nn.nowrap
    def wrong_settings(self) -> dict[str, str]:
        """See `ModelFamily.wrong_settings`."""
        wrong = super().wrong_settings()
        if len(self.dims) != len(self.depths) or not self.dims:
            wrong["dims"] = f"and depths = {self.depths!r} must be of one length, one number for each stage"
        for field, most in (("dims", MAX_WIDTH), ("depths", MAX_DEPTH)):
            if not all(type(each) is int and 1 <= each <= most for each in getattr(self, field)):
                wrong[field] = f"must be whole numbers from 1 to {most}"
        odd = all(type(size) is int and 1 <= size <= 31 and size % 2 for size in self.kernel_sizes)
        if not odd or len(self.kernel_sizes) not in (1, len(self.dims)):
            wrong["kernel_sizes"] = "must be one odd number from 1 to 31, or one for each stage"
        for field in ("norm_eps", "head_norm_eps"):
            if (eps := getattr(self, field)) is not None and not 0 < eps <= 1:
                wrong[field] = "is out of range; it must be within (0, 1]"
        if not 0 <= self.head_hidden_size <= MAX_WIDTH:
            wrong["head_hidden_size"] = f"must be within [0, {MAX_WIDTH}]"
        if not 0 <= self.layer_scale_init_value < math.inf:
            wrong["layer_scale_init_value"] = "is out of range; it must be 0 or more"
        return wrong

    @nn.nowrap
    def repeats(self) -> tuple[int, ...]:
        """See `BlockRow.repeats`."""
        return self.depths

    def setup(self) -> None:
        def before(stage: int) -> nn.Module:
            settings = {"dtype": self.dtype, "epsilon": self.norm_eps, "name": f"downsample_layers.{stage}"}
            if stage == 0:
                return Stem(self.dims[0], kind=self.stem, act=self.act, **settings)
            return Downsample(self.dims[stage], names=("0", "1"), **settings)

        self.downsample = [before(stage) for stage in range(len(self.dims))]
        self.blocks = [
            ConvNeXtBlock(
                self.layer_scale_init_value,
                self.depthwise_impl,
                self.dtype,
                self.norm_eps,
                self.use_grn,
                self.act,
                self.kernel_sizes[-1] if len(self.kernel_sizes) == 1 else self.kernel_sizes[stage],
                name=f"stages.{stage}.{block}",
            )
            for stage, depth in enumerate(self.depths)
            for block in range(depth)
        ]
        eps = self.norm_eps if self.head_norm_eps is None else self.head_norm_eps
        self.norm = LayerNorm(epsilon=eps, dtype=self.dtype, name="norm")
        if self.head_hidden_size:
            self.hidden = Linear(self.head_hidden_size, dtype=self.dtype, name="pre_logits")
            self.hidden_act = Gelu(name="pre_logits_act")
        self.drop = Dropout(self.drop_rate, name="drop")
        self.setup_classifier()

    @nn.nowrap
    def _starts(self) -> dict[int, int]:
        """First block of each stage -> the stage."""
        return {sum(self.depths[:stage]): stage for stage in range(len(self.depths))}

    def _stem(self, image_BHWC: jax.Array, row_weight_B: jax.Array | None, train: bool) -> jax.Array:
        x: jax.Array = self.downsample[0](image_BHWC)
        return x

    @nn.nowrap
    def _caller(self, train: bool) -> Any:
        return lambda block, x, scale_B, weight_B: block(x, scale_B)

    def _before(self, index: int, x: jax.Array) -> jax.Array:
        stage = self._starts().get(index, 0)
        return self.downsample[stage](x) if stage else x

    def _pooled(self, x_BHWC: jax.Array, row_weight_B: jax.Array | None, train: bool) -> jax.Array:
        if self.head_norm_first:
            x = mean_of(self.norm(x_BHWC), self.dtype)
        else:
            x = self.norm(mean_of(x_BHWC, self.dtype))
        return self.hidden_act(self.hidden(x)) if self.head_hidden_size else x

    @staticmethod
    def stage_of(name: str) -> str:
        """Group of a parameter: `stem`, `blocks`, `features` (the last norm), `metadata` or `heads`."""
        if name.startswith("downsample_layers.0."):
            return "stem"
        groups = {"downsample_layers": "blocks", "stages": "blocks", "fusion": "metadata", "head": "heads"}
        return groups.get(name.partition(".")[0], "features")

    def layer_index(self, name: str) -> int:
        """0 the stem, then the blocks, each with the downsampling before it, then all that follows them."""
        found = re.match(r"(downsample_layers|stages)\.(\d+)\.(\d+)\.", name)
        if found is None:
            return 1 + sum(self.depths)
        stage, block = int(found[2]), int(found[3]) if found[1] == "stages" else 0
        return 0 if found[1] != "stages" and stage == 0 else 1 + sum(self.depths[:stage]) + block


def fields_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """The network's settings as a `model` section has them."""
    return ConvNeXt.settings({**model, "type": "ConvNeXt"})
