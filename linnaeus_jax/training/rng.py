"""Random streams: one seed, one stream per purpose, folded with the step. Nothing is stateful."""

from __future__ import annotations

import zlib

import jax


def stream(seed: int, name: str) -> jax.Array:
    """The key of the named stream; the same on every process."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
