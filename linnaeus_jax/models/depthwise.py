"""Depthwise convolution with an implementation that suits the platform."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models.operations import together

DEPTHWISE_IMPLS = ("auto", "lax", "shift")
#: `auto` by the platform of a program that is lowered for several at once, as exports are
BY_PLATFORM = "by_platform"
#: places that a round of the kernel's gradient sums over; below the first a slice is computed for each of its readers,
#: many make the program long
LEAST_TERMS, MOST_TERMS = 16, 32

Padding = tuple[tuple[int, int], tuple[int, int]]


def depthwise_conv(
    x_BHWC: jax.Array,
    kernel_KK1C: jax.Array,
    *,
    stride: int = 1,
    padding: Padding | None = None,
    impl: str = "auto",
) -> jax.Array:
    """Convolves every channel with its own odd square kernel.

    As usual in neural networks this is a cross-correlation (the kernel is not flipped).

    Args:
      x_BHWC: float [B, H, W, C].
      kernel_KK1C: float [K, K, 1, C], K odd, of the dtype of `x_BHWC`.
      stride: of both axes.
      padding: zeros ((top, bottom), (left, right)); None: K // 2 on all sides, which keeps H and W at stride 1.
      impl: `lax` is XLA's grouped convolution; `shift` sums shifted slices and brings its own gradient, about ten
        times faster on CPU, where XLA has no good depthwise kernel; `auto` takes `shift` on CPU, else `lax`. Only
        convolutions that keep H and W have the form `shift`; the others are always `lax`. `BY_PLATFORM` leaves the
        choice to the program itself.

    Returns:
      float [B, H', W', C] of the dtype of `x_BHWC`.

    Raises:
      ValueError: unknown `impl`, or a kernel that is not odd and square with one input channel per group.
    """
    if impl not in (*DEPTHWISE_IMPLS, BY_PLATFORM):
        raise InputError(f"depthwise_impl is {impl!r}; use one of {', '.join(DEPTHWISE_IMPLS)}")
    size, width, per_group, channels = kernel_KK1C.shape
    if size != width or size % 2 == 0 or per_group != 1 or channels != x_BHWC.shape[-1]:
        raise InputError(
            f"depthwise kernel has shape {kernel_KK1C.shape}; an odd K and [K, K, 1, {x_BHWC.shape[-1]}] are needed"
        )
    same = ((size // 2, size // 2),) * 2
    padding = same if padding is None else padding
    keeps_size = stride == 1 and padding == same
    if keeps_size and (impl == "shift" or (impl == "auto" and jax.default_backend() == "cpu")):
        return _shift_conv(x_BHWC, kernel_KK1C)
    grouped = functools.partial(_grouped_conv, stride=stride, padding=padding)
    if keeps_size and impl == BY_PLATFORM:
        chosen: jax.Array = lax.platform_dependent(x_BHWC, kernel_KK1C, cpu=_shift_conv, default=grouped)
        return chosen
    return grouped(x_BHWC, kernel_KK1C)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _grouped_conv(x: jax.Array, kernel: jax.Array, stride: int, padding: Padding) -> jax.Array:
    return lax.conv_general_dilated(
        x,
        kernel,
        window_strides=(stride, stride),
        padding=padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=x.shape[-1],
    )


def _grouped_conv_fwd(
    x: jax.Array, kernel: jax.Array, stride: int, padding: Padding
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _grouped_conv(x, kernel, stride, padding), (x, kernel)


def _grouped_conv_bwd(
    stride: int, padding: Padding, saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    # As JAX derives it, but without its sharding annotation: with that, jax 0.10 cannot map the kernel's gradient over
    # several losses (vmap raises NotImplementedError).
    x, kernel = saved
    size, channels = kernel.shape[0], x.shape[-1]
    spans = [stride * (places - 1) + 1 for places in grad.shape[1:3]]
    grad_x = lax.conv_general_dilated(
        grad,
        kernel[::-1, ::-1],
        window_strides=(1, 1),
        padding=[
            (size - 1 - low, length + low - span)
            for (low, _), length, span in zip(padding, x.shape[1:3], spans, strict=True)
        ],
        lhs_dilation=(stride, stride),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=channels,
    )
    grad_kernel = lax.conv_general_dilated(
        x,
        grad,
        window_strides=(1, 1),
        padding=[
            (low, size - 1 + span - length - low)
            for (low, _), length, span in zip(padding, x.shape[1:3], spans, strict=True)
        ],
        rhs_dilation=(stride, stride),
        dimension_numbers=("CHWN", "IHWO", "HWNC"),  # the batch is summed over, each channel is a group of its own
        batch_group_count=channels,
    )
    return grad_x, grad_kernel


_grouped_conv.defvjp(_grouped_conv_fwd, _grouped_conv_bwd)


def _wide(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype that sums over taps and places are taken in."""
    return jnp.promote_types(dtype, jnp.float32)


def _pad(x: jax.Array, size: int, below: int = 0, right: int = 0) -> jax.Array:
    """Zero-pads H and W by half a kernel, and by what is given, in the dtype of the sums."""
    half = size // 2
    return jnp.pad(x.astype(_wide(x.dtype)), ((0, 0), (half, half + below), (half, half + right), (0, 0)))


def _sum_of_shifts(x: jax.Array, kernel: jax.Array) -> jax.Array:
    # XLA on CPU fuses a sum into everything that reads it, which would take all its taps again for each reader. What a
    # loop yields is computed once; of this one the compiler cannot know that it makes a single round.
    rounds = lax.optimization_barrier(jnp.int32(1))
    return lax.fori_loop(0, rounds, lambda _, value: _taps_summed(value, kernel), x)


def _taps_summed(x: jax.Array, kernel: jax.Array) -> jax.Array:
    height, width, size = x.shape[1], x.shape[2], kernel.shape[0]
    padded, taps = _pad(x, size), kernel.astype(_wide(x.dtype)).reshape(size * size, -1)
    total = jnp.zeros(x.shape, padded.dtype)
    for index in range(size * size):
        dy, dx = divmod(index, size)
        # 5 operations for each tap, whose slices are traced faster than indexing is
        tap = lax.broadcast_in_dim(lax.slice_in_dim(taps, index, index + 1), x.shape, (0, 3))
        total += lax.slice(padded, (0, dy, dx, 0), (x.shape[0], dy + height, dx + width, x.shape[3])) * tap
    return total.astype(x.dtype)


@jax.custom_vjp
def _shift_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return _sum_of_shifts(x, kernel)


def _shift_conv_fwd(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _sum_of_shifts(x, kernel), (x, kernel)


def _shift_conv_bwd(saved: tuple[jax.Array, jax.Array], grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    grad_kernel = _kernel_gradient(x, grad, kernel.shape[0]).reshape(kernel.shape).astype(kernel.dtype)
    grad_x, grad_kernel = together((x,), _sum_of_shifts(grad, kernel[::-1, ::-1]).astype(x.dtype), grad_kernel)
    return grad_x, grad_kernel


def _kernel_gradient(x: jax.Array, grad: jax.Array, size: int) -> jax.Array:
    """Sum over rows and places of `grad` times the places of `x` under the kernel: [size, size, C], in `_wide`.

    All taps are summed at once, over some places in each round of a loop: what a round reads stays in the cache, and
    its terms are one expression whose sum stays in registers. XLA computes a slice anew for each reader if these are
    fewer than `LEAST_TERMS`.
    """
    batch, height, width, channels = grad.shape
    across = -(-width // MOST_TERMS)
    columns = -(-width // across)
    rows = -(-LEAST_TERMS // columns)
    down = -(-height // rows)
    below, right = down * rows - height, across * columns - width  # zeros that fill up the last round
    padded = _pad(x, size, below, right)
    grad = jnp.pad(grad.astype(padded.dtype), ((0, 0), (0, below), (0, right), (0, 0)))

    def add(index: jax.Array, total_BKKC: jax.Array) -> jax.Array:
        zero = jnp.zeros_like(index)
        start = (zero, index // across * rows, index % across * columns, zero)
        under = lax.dynamic_slice(padded, start, (batch, rows + size - 1, columns + size - 1, channels))
        places = lax.dynamic_slice(grad, start, (batch, rows, columns, channels))
        for row in range(rows):
            for column in range(columns):
                place = places[:, row : row + 1, column : column + 1]
                place = lax.broadcast_in_dim(place, total_BKKC.shape, (0, 1, 2, 3))
                total_BKKC += under[:, row : row + size, column : column + size] * place
        return total_BKKC

    total_BKKC = lax.fori_loop(0, down * across, add, jnp.zeros((batch, size, size, channels), padded.dtype))
    return total_BKKC.sum(0)  # after the loop, so that a sharded batch needs one all-reduce


_shift_conv.defvjp(_shift_conv_fwd, _shift_conv_bwd)
