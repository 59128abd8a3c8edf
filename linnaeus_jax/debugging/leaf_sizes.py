"""Sizes of the elements of every leaf of a tree, with few operations for hundreds of small leaves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.learning.buckets import GATHERED_BELOW

_ROW = 512  # elements of a leaf that are reduced at once


def leaf_sizes(leaves: Sequence[jax.Array]) -> dict[str, jax.Array]:
    """What there is to know of the sizes |x| of the elements of every leaf.

    Args:
      leaves: L arrays of floats, of any shapes.

    Returns:
      float32 [L] each: `sum`, `squares` (sum of squares), `max` and `min`; the greatest is NaN where any element is.
    """
    if not leaves:
        return dict.fromkeys(("sum", "squares", "max", "min"), jnp.zeros(0))
    small = [i for i, leaf in enumerate(leaves) if leaf.size < GATHERED_BELOW]
    large = [i for i, leaf in enumerate(leaves) if leaf.size >= GATHERED_BELOW]
    found = [jnp.stack(values) for values in zip(*(_of_large(leaves[i]) for i in large), strict=True)]
    if small:
        rows = _rows([leaves[i] for i in small])
        found = [jnp.concatenate(pair) for pair in zip(rows, found)] if large else list(rows)
    order = np.argsort([*small, *large])
    total, squares, greatest, least = (values[order] for values in found)
    floats = (jax.lax.bitcast_convert_type(bits, jnp.float32) for bits in (greatest, least))
    return {"sum": total, "squares": squares} | dict(zip(("max", "min"), floats))


def _of_large(leaf: jax.Array) -> tuple[jax.Array, ...]:
    """`_reduced` of all elements, of rows first: a sum of 10⁵ terms one after the other loses a digit."""
    return _combined(_reduced(leaf.reshape(-1, math.gcd(leaf.size, 4096))), None)


def _rows(leaves: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """`_reduced` of small leaves: of rows of `_ROW` elements, then of the rows of each leaf."""
    sizes = np.array([leaf.size for leaf in leaves])
    offsets = np.cumsum(sizes) - sizes
    counts = -(-sizes // _ROW)
    leaf_of_row = np.repeat(np.arange(len(leaves)), counts)
    row_of_leaf = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    start = offsets[leaf_of_row] + row_of_leaf * _ROW
    valid = np.minimum(sizes[leaf_of_row] - row_of_leaf * _ROW, _ROW)

    vector = jnp.concatenate([leaf.astype(jnp.float32).reshape(-1) for leaf in leaves])
    place = jnp.arange(_ROW)
    elements = vector[jnp.minimum(jnp.asarray(start)[:, None] + place[None], vector.size - 1)]
    of_rows = _reduced(elements, place[None] < jnp.asarray(valid)[:, None])
    first = np.cumsum(counts) - counts
    member = np.arange(counts.max())[None] < counts[:, None]
    index = np.where(member, first[:, None] + np.arange(counts.max())[None], 0)
    return _combined(tuple(values[index] for values in of_rows), jnp.asarray(member))


_FROM = (np.float32(0), np.float32(0), np.int32(0), np.int32(np.iinfo(np.int32).max))


def _reduced(x: jax.Array, member: jax.Array | None = None) -> tuple[jax.Array, ...]:
    """Over the last axis: sum, sum of squares, and the greatest and least bits of |x|, of the elements of `member`."""
    size = jnp.abs(x.astype(jnp.float32))
    bits = jax.lax.bitcast_convert_type(size, jnp.int32)  # XLA on CPU may lose a NaN among floats
    return _combined((size, size * size, bits, bits), member)


def _combined(values: tuple[jax.Array, ...], member: jax.Array | None) -> tuple[jax.Array, ...]:
    if member is not None:
        values = tuple(jnp.where(member, x, start) for x, start in zip(values, _FROM))

    def combine(left: tuple[jax.Array, ...], right: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return (
            left[0] + right[0],
            left[1] + right[1],
            jnp.maximum(left[2], right[2]),
            jnp.minimum(left[3], right[3]),
        )

    return tuple(jax.lax.reduce(values, _FROM, combine, (values[0].ndim - 1,)))
