"""What enters a block of a trunk, as a vector: it tells whether a picture is like no training row, see `novelty`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from linnaeus_jax.models.family import ModelFamily


def can_enter(model: ModelFamily, block: int) -> bool:
    """Whether `in_two` takes that block: one behind the first, or 0 of a family whose `encode_image` gives a map."""
    return 0 < block < model.trunk_blocks or (block == 0 and model.gives_map)


def in_two(module: ModelFamily, image_BHWC: jax.Array, block: int) -> tuple[jax.Array, Any]:
    """What enters a block [B, ..., F], and what `encode_image` returns; with block 0 its map twice."""
    if not block:
        encoded = module.encode_image(image_BHWC)
        return encoded, encoded
    x = module.forward_prefix(image_BHWC, block)
    return x, module.forward_suffix(x, block)


def mean_over_places(x: jax.Array) -> jax.Array:
    """Mean float32 [B, F] of maps or tokens [B, ..., F]."""
    return jnp.mean(x, axis=tuple(range(1, x.ndim - 1)), dtype=jnp.float32)
