"""The arithmetic of BatchNorm on accelerators, where what costs time is how often a map is read.

The moments come from one pass over the map, the gradient from one pass for its sums and one for itself. CPUs, whose
compiler fuses differently, take `layers.batch_moments` and what JAX derives. Both are one function, up to rounding.
Letters of shapes: B rows, H W places, C channels. Arithmetic is float32, or float64 where the input is.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.models.operations import wide

Moments = tuple[jax.Array, jax.Array, jax.Array]
#: the collection of `moment_counts`; as many batches as leave momentum as it is, however small
MOMENT_COUNTS, MANY_BATCHES = "moment_counts", 1 << 30


def one_pass_moments(x_BHWC: jax.Array, row_weight_B: jax.Array | None) -> Moments:
    """Mean and biased variance [C] of the rows whose weight is not 0, and how many values [] they are of.

    Sums and sums of squares of one row are of the deviations from one of its values, so that a mean that is large
    against the deviations costs no digits; rows are then put together by their means (Chan et al. 1983). No device
    needs the values of another one until then.
    """
    batch, height, width, _ = x_BHWC.shape
    places = height * width
    shift_B11C = x_BHWC[:, height // 2 : height // 2 + 1, width // 2 : width // 2 + 1]
    shift_B11C = shift_B11C.astype(dtype := wide(x_BHWC.dtype))
    deviation = x_BHWC.astype(dtype) - shift_B11C
    sum_BC, square_BC = deviation.sum(axis=(1, 2)), jnp.square(deviation).sum(axis=(1, 2))
    mean_BC = shift_B11C[:, 0, 0] + sum_BC / places
    square_BC = jnp.maximum(square_BC - jnp.square(sum_BC) / places, 0.0)

    counts_B1 = jnp.ones((batch, 1), bool) if row_weight_B is None else (row_weight_B > 0)[:, None]
    rows = counts_B1.sum(dtype=dtype)
    mean = jnp.where(counts_B1, mean_BC, 0.0).sum(axis=0) / jnp.maximum(rows, 1.0)
    square_BC += places * jnp.square(mean_BC - mean[None])
    count = rows * places
    return mean, jnp.where(counts_B1, square_BC, 0.0).sum(axis=0) / jnp.maximum(count, 1.0), count


@functools.partial(jax.custom_vjp, nondiff_argnums=(6,))
def normalise(
    x_BHWC: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    mean: jax.Array,
    inverse: jax.Array,
    share_B: jax.Array,
    dtype: Any,
) -> jax.Array:
    """(x - mean) * inverse * scale + bias, of `dtype`, where mean and 1 / deviation `inverse` [C] are moments of `x`.

    The gradient of `x` is that through the moments, too: they get none of their own. `share_B` says how much a value of
    each row weighs in a mean: 1 / (number of values), and 0 for rows that do not count.
    """
    factor = inverse * scale
    return ((x_BHWC.astype(mean.dtype) - _channels(mean)) * _channels(factor) + _channels(bias)).astype(dtype)


def _channels(x_C: jax.Array) -> jax.Array:
    return x_C[None, None, None]


def _normalise_fwd(
    x: jax.Array, scale: jax.Array, bias: jax.Array, mean: jax.Array, inverse: jax.Array, share: jax.Array, dtype: Any
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return normalise(x, scale, bias, mean, inverse, share, dtype), (x, scale, mean, inverse, share)


def _normalise_bwd(dtype: Any, saved: tuple[jax.Array, ...], grad: jax.Array) -> tuple[jax.Array | None, ...]:
    x, scale, mean, inverse, share_B = saved
    normal = (x.astype(mean.dtype) - _channels(mean)) * _channels(inverse)
    grad = grad.astype(mean.dtype)
    grad_bias, grad_scale = grad.sum(axis=(0, 1, 2)), (grad * normal).sum(axis=(0, 1, 2))
    through_moments = _channels(grad_bias) + normal * _channels(grad_scale)
    grad_x = _channels(inverse * scale) * (grad - share_B[:, None, None, None] * through_moments)
    return grad_x.astype(x.dtype), grad_scale.astype(scale.dtype), grad_bias.astype(scale.dtype), None, None, None


normalise.defvjp(_normalise_fwd, _normalise_bwd)


# ---- how many batches running moments are of


def moment_counts(batch_stats: Any) -> Any:
    """How many batches the running moments of each `BatchNorm2d` are of, int32 [] or as many as scans stack.

    None where they are what a layer begins with; where they are anything else, such as those of published weights, so
    many that momentum needs no correction.

    Args:
      batch_stats: the collection, of arrays of the device, of the host or of a trace.
    """
    if "running_mean" not in batch_stats:
        below = {name: moment_counts(tree) for name, tree in batch_stats.items() if isinstance(tree, Mapping)}
        return {name: tree for name, tree in below.items() if tree}
    begins = (batch_stats["running_mean"] == 0).all(-1) & (batch_stats["running_var"] == 1).all(-1)
    return {"batches": jnp.where(begins, 0, MANY_BATCHES)}


def with_moment_counts(model_state: Any, stored: Mapping[str, Any] | None = None) -> Any:
    """The collections with the counts of batches that running moments are of, as far as there are any.

    Args:
      stored: what `stored_moment_counts` gave; None or nothing: they follow from the moments, see `moment_counts`.
    """
    counts = moment_counts(model_state.get("batch_stats", {}))
    if stored:
        counts = jax.tree.map_with_path(lambda path, x: np.asarray(stored[jax.tree_util.keystr(path)], x.dtype), counts)
    return {**model_state, MOMENT_COUNTS: counts} if counts else model_state


def stored_moment_counts(counts: Any) -> dict[str, Any]:
    """The collection `MOMENT_COUNTS`, fetched, as counts of batches by name."""
    leaves = jax.tree_util.tree_leaves_with_path(counts)
    return {jax.tree_util.keystr(path): np.asarray(leaf).tolist() for path, leaf in leaves}
