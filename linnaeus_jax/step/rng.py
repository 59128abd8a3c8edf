"""Random streams: one seed, one stream per purpose, folded with the step. Nothing is stateful."""

from __future__ import annotations

import zlib

import jax


def stream(seed: int, name: str) -> jax.Array:
    """The key of the named stream; the same on every process.

    All bits of `seed` count: `jax.random.key` takes the lowest 32, every word above is folded in.

    Args:
      seed: at least 0.
    """
    key = jax.random.key(seed % 2**32)
    while seed := seed >> 32:
        key = jax.random.fold_in(key, seed % 2**32)
    return jax.random.fold_in(key, zlib.crc32(name.encode()))
