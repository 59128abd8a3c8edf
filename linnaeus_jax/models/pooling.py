"""The maximum over windows of 3x3 with stride 2, with a gradient that accelerators compute from what was the largest.

What JAX derives makes XLA look for the largest value of each window again and scatter into a map of zeros. CPUs, where
that was not measured, keep it.
"""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from linnaeus_jax import backend

SIZE, STRIDE = 3, 2


def max_pool(x_BHWC: jax.Array) -> jax.Array:
    """Maximum over windows of 3x3 with stride 2 and a border of -inf: [B, H, W, C] -> [B, ceil(H/2), ceil(W/2), C].

    The gradient goes to the largest value of a window, to the first one in row-major order where several are.
    """
    return _with_places(x_BHWC, x_BHWC.shape[1:3]) if backend.POOL_BY_PLACE.here() else _reduced(x_BHWC)


def _reduced(x: jax.Array) -> jax.Array:
    return nn.max_pool(x, (SIZE, SIZE), strides=(STRIDE, STRIDE), padding=((1, 1), (1, 1)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _with_places(x: jax.Array, size: tuple[int, int]) -> jax.Array:
    return _reduced(x)


def _with_places_fwd(x: jax.Array, size: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    """The maxima, and for each the number of its place within the window, uint8."""
    batch, channels = x.shape[0], x.shape[3]
    windows = [-(-length // STRIDE) for length in size]
    sides = [(1, STRIDE * count - length, 0) for count, length in zip(windows, size, strict=True)]
    padded = lax.pad(x, jnp.asarray(-jnp.inf, x.dtype), ((0, 0, 0), *sides, (0, 0, 0)))

    def under(number: int) -> jax.Array:
        first = divmod(number, SIZE)
        end = [tap + STRIDE * (count - 1) + 1 for tap, count in zip(first, windows, strict=True)]
        return lax.slice(padded, (0, *first, 0), (batch, *end, channels), (1, STRIDE, STRIDE, 1))

    largest = under(0)
    place = jnp.zeros(largest.shape, jnp.uint8)
    for number in range(1, SIZE * SIZE):
        value = under(number)
        place = jnp.where(value > largest, jnp.uint8(number), place)
        largest = jnp.maximum(largest, value)
    return largest, place


def _with_places_bwd(size: tuple[int, int], place: jax.Array, grad: jax.Array) -> tuple[jax.Array]:
    zero = jnp.zeros((), grad.dtype)

    def spread(number: int) -> jax.Array:
        """The gradients of the windows whose largest value is at this place, where they belong in the map."""
        sides = []
        for tap, length, windows in zip(divmod(number, SIZE), size, grad.shape[1:3], strict=True):
            sides.append((tap - 1, length - tap - STRIDE * (windows - 1), STRIDE - 1))
        return lax.pad(jnp.where(place == number, grad, zero), zero, ((0, 0, 0), *sides, (0, 0, 0)))

    total = spread(0)
    for number in range(1, SIZE * SIZE):
        total += spread(number)
    return (total,)


_with_places.defvjp(_with_places_fwd, _with_places_bwd)
