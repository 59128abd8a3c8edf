"""Families whose trunk is a stem, a row of blocks, and what makes features of the last one's map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from linnaeus_jax.models.depthwise import DEPTHWISE_IMPLS
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.layers import drop_path_rates, drop_path_scales

#: smallest picture: five halvings leave one place
MIN_SIZE = 32


class BlockRow(ModelFamily, kw_only=True):
    """Base of these families; their trunks can be cut before each block.

    A family makes in `setup` the `blocks` and `drop`, a `Dropout`, and defines `repeats`, `_stem` and `_pooled`.
    `drop_rate` is that of the features before the heads, `drop_path_rate` that of branches.

    Attributes:
      rate_of_last: whether the last block has the whole `drop_path_rate`; else a block after it would have it.
    """

    drop_rate: float
    drop_path_rate: float
    depthwise_impl: str

    rate_of_last: ClassVar[bool] = True
    choices: ClassVar = {"depthwise_impl": DEPTHWISE_IMPLS}
    smallest: ClassVar = MIN_SIZE

    @classmethod
    def completed(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """See `ModelFamily.completed`."""
        rate = fields["drop_rate"]
        return {**fields, "drop_rate": rate[0] if isinstance(rate, Sequence) else rate}

    @nn.nowrap
    def repeats(self) -> tuple[int, ...]:
        """Blocks of each stage."""
        raise NotImplementedError

    @property
    def trunk_blocks(self) -> int:
        """See `ModelFamily.trunk_blocks`."""
        return sum(self.repeats())

    def encode_image(
        self, image_BHWC: jax.Array, *, row_weight_B: jax.Array | None = None, train: bool = False
    ) -> jax.Array:
        """Features [B, D] of the compute dtype, a mean over the picture that is taken in float32."""
        return self.forward_suffix(
            self._begun(image_BHWC, row_weight_B, train), 0, row_weight_B=row_weight_B, train=train
        )

    def forward_suffix(
        self, x: jax.Array, block: int, *, row_weight_B: jax.Array | None = None, train: bool = False
    ) -> jax.Array:
        """See `ModelFamily.forward_suffix`."""
        x = x.astype(self.dtype)
        if block < self.trunk_blocks:
            x = self._pooled(self._run(x, range(block, self.trunk_blocks), row_weight_B, train), row_weight_B, train)
        key = self.make_rng("dropout") if train and self.drop_rate > 0 else None
        dropped: jax.Array = self.drop(x, key)
        return dropped

    def forward_prefix(self, image_BHWC: jax.Array, block: int) -> jax.Array:
        """See `ModelFamily.forward_prefix`."""
        if block == self.trunk_blocks:
            return self.encode_image(image_BHWC)
        return self._run(self._begun(image_BHWC, None, train=False), range(block), None, train=False)

    def _begun(self, image_BHWC: jax.Array, row_weight_B: jax.Array | None, train: bool) -> jax.Array:
        shape = image_BHWC.shape
        if len(shape) != 4 or shape[-1] != 3 or min(shape[1:3]) < MIN_SIZE:
            raise ValueError(f"image has shape {shape}; [B, H >= {MIN_SIZE}, W >= {MIN_SIZE}, 3] is needed")
        return self._stem(image_BHWC.astype(self.dtype), row_weight_B, train)

    def _run(self, x: jax.Array, indices: range, row_weight_B: jax.Array | None, train: bool) -> jax.Array:
        """Some of the blocks."""
        scales_LB: jax.Array | None = None
        if train and self.drop_path_rate > 0:
            (rates,) = drop_path_rates((self.trunk_blocks,), self.drop_path_rate, endpoint=self.rate_of_last)
            scales_LB = drop_path_scales(self.make_rng("drop_path"), rates, 1, x.shape[0])[:, 0]
        call = self._caller(train)
        run = nn.remat(call) if self.remat else call
        for index in indices:
            scale_B = None if scales_LB is None else scales_LB[index]
            x = run(self.blocks[index], self._before(index, x), scale_B, row_weight_B)
        return x

    def _stem(self, image_BHWC: jax.Array, row_weight_B: jax.Array | None, train: bool) -> jax.Array:
        """Pictures -> what enters the first block."""
        raise NotImplementedError

    def _pooled(self, x_BHWC: jax.Array, row_weight_B: jax.Array | None, train: bool) -> jax.Array:
        """What leaves the last block -> features."""
        raise NotImplementedError

    @nn.nowrap
    def _caller(self, train: bool) -> Callable[..., jax.Array]:
        """(block, x, scale of its branch [B], row weights [B]) -> what leaves it."""
        return lambda block, x, scale_B, weight_B: block(x, scale_B, train=train, row_weight_B=weight_B)

    def _before(self, index: int, x: jax.Array) -> jax.Array:
        """What is done before a block and belongs to it, though it is not computed again."""
        return x


def mean_of(x_BHWC: jax.Array, dtype: Any) -> jax.Array:
    """Mean [B, C] over the picture, taken in float32."""
    return jnp.mean(x_BHWC, axis=(1, 2), dtype=jnp.promote_types(x_BHWC.dtype, jnp.float32)).astype(dtype)
