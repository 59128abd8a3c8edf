"""What a model family is; `models/factory.py` builds one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models.fusion import LateFusion
from linnaeus_jax.models.heads import ClassificationHeads, HeadSpec
from linnaeus_jax.models.layers import Dtype
from linnaeus_jax.models.settings import Settings

#: random streams that a model may draw from in training
RNG_STREAMS = ("dropout", "drop_path", "gumbel")
#: how metadata join: beside the finished features, or as tokens beside the patches
LATE, TOKENS = "late", "tokens"


class ModelFamily(Settings, nn.Module, kw_only=True):
    """Base of the model families, each registered with `@MODELS.register("Name")` and chosen by `model.type`.

    A classifier is a trunk, metadata and heads. A family defines the trunk: `setup`, which makes its modules and calls
    `setup_classifier`, and `encode_image`, the part that no metadata enter, apart so that several evaluations of the
    same images under different metadata share it. Metadata join late (`LateFusion`), or the family
    defines `encode_tokens`, in which they meet the picture; one that has both says so in `fusions`. A family whose
    `encode_image` is a row of blocks may also define `trunk_blocks`, `forward_prefix` and `forward_suffix`,
    so that what its first blocks make of a picture is computed once.
    What a family keeps besides parameters, such as running statistics, lies in the collection `batch_stats`; it moves
    where `train` is set and the caller has made it mutable.
    Further fields are settings, see `Settings`: those with a default value are the keys `model.<Name>.<field>`, the
    others stand in `variants`. Parameters have the names of their modules; where these are those of a torch model, so
    are the canonical names (`models/names.py`).

    Attributes:
      components: (name, columns) of every metadata component, in the order of the columns of `meta_BD`.
      head_specs: one head per task; `ClassificationHeads(head_specs)` makes them.
      img_size: (height, width) of the images in pixels.
      dtype: dtype of the computation; parameters are float32.
      remat: whether the backward pass computes activations again to save memory.
      missing_metadata: what stands for a component that is missing or masked: `zero`, the token of a zero vector; or
        `mask`, nothing, since no other token attends to it.
      metadata_fusion: `late` or `tokens`; "" in a way that only the family knows.
      weight_init: how weights of linear maps and convolutions begin that have no initial values of their own, one of
        `initial.WEIGHT_INITS`.
      fusions: what `metadata_fusion` may be, the default first; empty: the family has no choice.
      gives_map: whether `encode_image` gives a map [B, h, w, D] of the picture.
      layer_index: depth of the parameter with a canonical name, 0 at the input and largest at the heads, for
        `optimizer.layer_decay`; None: the family does not number its layers.
    """

    components: tuple[tuple[str, int], ...]
    head_specs: tuple[HeadSpec, ...]
    img_size: tuple[int, int]
    dtype: Dtype
    remat: bool
    missing_metadata: str
    metadata_fusion: str = dataclasses.field(default="", metadata={"given": True})
    weight_init: str = dataclasses.field(default="normal", metadata={"given": True})

    fusions: ClassVar[Sequence[str]] = ()
    gives_map: ClassVar[bool] = False
    layer_index: ClassVar[Callable[[Any, str], int] | None] = None

    @nn.nowrap
    def setup_classifier(self) -> None:
        """Makes what is not the trunk's: heads, and the fusion where metadata join late. Called in `setup`."""
        self.head = ClassificationHeads(self.head_specs, name="head")
        if self.components and self.fuses_late:
            self.fusion = LateFusion(dtype=self.dtype, name="fusion")

    @staticmethod
    def stage_of(name: str) -> str:
        """Group of the parameter with a canonical name, for filters of type `stage_based`: its outermost module."""
        return name.partition(".")[0]

    @nn.nowrap
    def grids(self, image_size: tuple[int, int]) -> tuple[tuple[int, int], ...]:
        """Grids (h, w) of patches that tables of relative positions belong to, for images of that height and width."""
        return ()

    @nn.nowrap
    def resized(self, name: str, array: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, str] | None:
        """An array of weights that were trained with pictures of another size, for this model.

        Args:
          name: canonical name of the leaf.
          array: what the weights have, in PyTorch's layout.
          shape: of the leaf.

        Returns:
          The array and a remark about how; None: its shape does not depend on the size of pictures.
        """
        return None

    @nn.nowrap
    def visible_components(
        self, meta_BD: jax.Array | None, meta_valid_BK: jax.Array | None, batch: int
    ) -> jax.Array | None:
        """Which metadata components are known, bool [B, K]; None: with `missing_metadata` "zero" all count.

        Raises:
          ValueError: another shape than one per component.
        """
        shape = (batch, len(self.components))
        if meta_valid_BK is not None and meta_valid_BK.shape != shape:
            raise InputError(
                f"meta_valid has shape {meta_valid_BK.shape}; [{batch}, {shape[1]}] is needed, one per component"
            )
        if self.missing_metadata == "zero" or not self.components:
            return None
        if meta_valid_BK is None or meta_BD is None:
            return jnp.full(shape, meta_BD is not None)
        return meta_valid_BK.astype(bool)

    @property
    def fuses_late(self) -> bool:
        """Whether metadata join beside the finished features."""
        if type(self).encode_tokens is ModelFamily.encode_tokens:
            return True
        return (self.metadata_fusion or next(iter(self.fusions), "")) == LATE

    @property
    def meta_dim(self) -> int:
        """Number of metadata columns."""
        return sum(columns for _, columns in self.components)

    @nn.nowrap
    def checked_meta(self, meta_BD: jax.Array | None, batch: int) -> jax.Array:
        """The metadata [batch, D] in the compute dtype, zeros where there are none.

        Raises:
          ValueError: another shape than the components say.
        """
        if meta_BD is None:
            return jnp.zeros((batch, self.meta_dim), self.dtype)
        if meta_BD.shape != (batch, self.meta_dim):
            parts = " + ".join(f"{name} {dim}" for name, dim in self.components) or "no component"
            raise InputError(
                f"meta has shape {meta_BD.shape}; [{batch}, {self.meta_dim}] is needed ({parts}): "
                "let the data's and the model's metadata components agree"
            )
        return meta_BD.astype(self.dtype)

    def __call__(
        self,
        image_BHWC: jax.Array,
        meta_BD: jax.Array | None = None,
        *,
        meta_valid_BK: jax.Array | None = None,
        row_weight_B: jax.Array | None = None,
        train: bool = False,
        refine: bool = True,
        block: int | None = None,
    ) -> dict[str, jax.Array]:
        """Returns {task: float32 logits [B, C]} in task order.

        Args:
          image_BHWC: float [B, H, W, 3], already normalised; with `block` what enters that block, see `forward_prefix`.
          meta_BD: float [B, sum of the components' columns]; a masked component is zero, None is all zero.
          meta_valid_BK: bool [B, K], present and unmasked components; None: all of a `meta_BD` that is given.
          row_weight_B: float [B]; rows of weight 0 fill up a batch and count in no statistic of it. None: all count.
          train: whether dropout, drop path and statistics of the batch act, with the streams `RNG_STREAMS`.
          refine: False gives the logits of every head by itself, without those of the coarser ranks.
        """
        feats_BD = self.embed(
            image_BHWC, meta_BD, meta_valid_BK=meta_valid_BK, row_weight_B=row_weight_B, train=train, block=block
        )
        return self.classify(feats_BD, train=train, refine=refine)

    @nn.nowrap
    def embed(
        self,
        image_BHWC: jax.Array,
        meta_BD: jax.Array | None = None,
        *,
        meta_valid_BK: jax.Array | None = None,
        row_weight_B: jax.Array | None = None,
        train: bool = False,
        block: int | None = None,
    ) -> jax.Array:
        """Features [B, D] of pictures and metadata, as the heads get them; arguments as of a call."""
        if block is None:
            features = self.encode_image(image_BHWC, row_weight_B=row_weight_B, train=train)
        else:
            features = self.forward_suffix(image_BHWC, block, row_weight_B=row_weight_B, train=train)
        return self.encode_tokens(features, meta_BD, meta_valid_BK=meta_valid_BK, train=train)

    def encode_image(self, image_BHWC: jax.Array, *, row_weight_B: jax.Array | None = None, train: bool = False) -> Any:
        """The part that no metadata enter: images -> features of any shape."""
        raise NotImplementedError

    @property
    def trunk_blocks(self) -> int:
        """Blocks of `encode_image` before each of which it can be cut in two; 0: it cannot be cut."""
        return 0

    def forward_prefix(self, image_BHWC: jax.Array, block: int) -> jax.Array:
        """The first part, outside of training: what enters a block; with `trunk_blocks` what leaves the last."""
        raise NotImplementedError

    def forward_suffix(
        self, x: jax.Array, block: int, *, row_weight_B: jax.Array | None = None, train: bool = False
    ) -> Any:
        """The second part: what `forward_prefix` returned -> what `encode_image` returns."""
        raise NotImplementedError

    def encode_tokens(
        self,
        features: Any,
        meta_BD: jax.Array | None = None,
        *,
        meta_valid_BK: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """Output of `encode_image` and metadata -> features [B, D] for the heads; here: late fusion of [B, D]."""
        if not self.components:
            return jnp.asarray(features)
        batch = features.shape[0]
        known_BK = self.visible_components(meta_BD, meta_valid_BK, batch)
        meta_BD = self.checked_meta(meta_BD, batch)
        if known_BK is not None:
            columns = np.repeat(np.arange(len(self.components)), [count for _, count in self.components])
            meta_BD = jnp.where(known_BK[:, columns], meta_BD, jnp.zeros_like(meta_BD))
        fused: jax.Array = self.fusion(features, meta_BD, known_BK)
        return fused

    def classify(self, feats_BD: jax.Array, *, train: bool = False, refine: bool = True) -> dict[str, jax.Array]:
        """Features [B, D] -> {task: float32 logits [B, C]}."""
        logits: dict[str, jax.Array] = self.head(feats_BD, train=train, refine=refine)
        return logits
