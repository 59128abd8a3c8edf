"""Depthwise convolution with an implementation that suits the platform."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from linnaeus_jax import backend
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models.operations import materialize, release_residuals

DEPTHWISE_IMPLS = ("auto", "lax", "shift")
#: `auto` by the platform of a program that is lowered for several at once, as exports are
BY_PLATFORM = "by_platform"
#: places that a round of the kernel's gradient sums over; below the first a slice is computed for each of its readers,
#: many make the program long
LEAST_TERMS, MOST_TERMS = 16, 32

Shape = tuple[int, ...]
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
        times faster on CPU, where XLA has no good depthwise kernel; `auto` takes `shift` on CPU, else `lax`.
        `BY_PLATFORM` leaves the choice to the program itself.

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
    padding = ((size // 2,) * 2,) * 2 if padding is None else padding
    shift, grouped = (functools.partial(form, stride=stride, padding=padding) for form in (_shift_conv, _grouped_conv))
    if impl == "lax" or min(_places(x_BHWC.shape[1:3], size, stride, padding)) < 1:  # no place, no slices
        return grouped(x_BHWC, kernel_KK1C)
    if impl == BY_PLATFORM:
        chosen: jax.Array = backend.SHIFTED_DEPTHWISE.by_platform(shift, grouped, x_BHWC, kernel_KK1C)
        return chosen
    form = shift if impl == "shift" or backend.SHIFTED_DEPTHWISE.here() else grouped
    return form(x_BHWC, kernel_KK1C)


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


def _pad(x: jax.Array, padding: Padding) -> jax.Array:
    """Zero-pads H and W, in the dtype of the sums."""
    return jnp.pad(x.astype(_wide(x.dtype)), ((0, 0), *padding, (0, 0)))


def _places(lengths: Sequence[int], size: int, stride: int, padding: Padding) -> tuple[int, int]:
    """Height and width of the result, 0 or less where the kernel does not fit in."""
    height, width = ((n + sum(sides) - size) // stride + 1 for n, sides in zip(lengths, padding, strict=True))
    return height, width


def _weighted(padded: jax.Array, tap_1C: jax.Array, start: tuple[int, int], shape: Shape, stride: int = 1) -> jax.Array:
    """What one tap adds to sums of `shape`: every `stride`-th place of `padded` from `start` on, times the tap."""
    (top, left), (batch, height, width, channels) = start, shape
    end = (batch, top + (height - 1) * stride + 1, left + (width - 1) * stride + 1, channels)
    tap = lax.broadcast_in_dim(tap_1C, shape, (0, 3))
    return lax.slice(padded, (0, top, left, 0), end, None if stride == 1 else (1, stride, stride, 1)) * tap


def _sum_of_shifts(x: jax.Array, kernel: jax.Array, stride: int, padding: Padding) -> jax.Array:
    # XLA on CPU fuses a sum into everything that reads it, which would take all its taps again for each reader. What a
    # loop yields is computed once.
    shape = (x.shape[0], *_places(x.shape[1:3], kernel.shape[0], stride, padding), x.shape[3])
    if shape != x.shape or not backend.COMPUTED_ONCE.here():
        return materialize(_taps_summed(x, kernel, shape, stride, padding))
    # The single iteration of this loop is hidden from the compiler.
    rounds = lax.optimization_barrier(jnp.int32(1))
    return lax.fori_loop(0, rounds, lambda _, value: _taps_summed(value, kernel, shape, stride, padding), x)


def _taps_summed(x: jax.Array, kernel: jax.Array, shape: Shape, stride: int, padding: Padding) -> jax.Array:
    size = kernel.shape[0]
    padded, taps = _pad(x, padding), kernel.astype(_wide(x.dtype)).reshape(size * size, -1)
    total = jnp.zeros(shape, padded.dtype)
    for index in range(size * size):
        # slices are traced faster than indexing is
        total += _weighted(padded, lax.slice_in_dim(taps, index, index + 1), divmod(index, size), shape, stride)
    return total.astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _shift_conv(x: jax.Array, kernel: jax.Array, stride: int, padding: Padding) -> jax.Array:
    return _sum_of_shifts(x, kernel, stride, padding)


def _shift_conv_fwd(
    x: jax.Array, kernel: jax.Array, stride: int, padding: Padding
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _sum_of_shifts(x, kernel, stride, padding), (x, kernel)


def _shift_conv_bwd(
    stride: int, padding: Padding, saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    grad_kernel = _kernel_gradient(x, grad, kernel.shape[0], stride, padding)
    grad_kernel = grad_kernel.reshape(kernel.shape).astype(kernel.dtype)
    if stride == 1 and grad.shape == x.shape:
        (top, bottom), (left, right) = padding
        grad_x = _sum_of_shifts(grad, kernel[::-1, ::-1], 1, ((bottom, top), (right, left)))
    else:
        grad_x = _input_gradient(grad, kernel, stride, padding, x.shape)
    grad_x, grad_kernel = release_residuals((x,), grad_x.astype(x.dtype), grad_kernel)
    return grad_x, grad_kernel


def _input_gradient(grad: jax.Array, kernel: jax.Array, stride: int, padding: Padding, shape: Shape) -> jax.Array:
    """Gradient of an input of `shape`, in `_wide`.

    Rows whose index leaves the same remainder met the same taps, every `stride`-th, and so did columns: one sum of
    shifts for each pair of remainders, where a convolution would multiply the zeros that it puts between places.
    """
    batch, *lengths, channels = shape
    # Row `stride * j + remainder` met tap `first + stride * q` at place `j + ahead - q`.
    met = [[divmod(remainder + low, stride) for remainder in range(stride)] for low, _ in padding]
    part = (batch, *(-(-length // stride) for length in lengths), channels)
    low = -(-kernel.shape[0] // stride) - 1
    high = [max(j + ahead[-1][0] - n, 0) for j, ahead, n in zip(part[1:3], met, grad.shape[1:3], strict=True)]
    padded, taps = _pad(grad, ((low, high[0]), (low, high[1]))), kernel.astype(_wide(grad.dtype))[:, :, 0]

    def part_of(row: tuple[int, int], column: tuple[int, int]) -> jax.Array:
        total = jnp.zeros(part, padded.dtype)
        for down, y in enumerate(range(row[1], taps.shape[0], stride)):
            for across, x in enumerate(range(column[1], taps.shape[0], stride)):
                start = (low + row[0] - down, low + column[0] - across)
                total += _weighted(padded, taps[y, x][None], start, part)
        return total

    rows = [jnp.stack([part_of(row, column) for column in met[1]], axis=3) for row in met[0]]
    whole = jnp.stack(rows, axis=2).reshape(batch, part[1] * stride, part[2] * stride, channels)
    return whole[:, : lengths[0], : lengths[1]]


def _kernel_gradient(x: jax.Array, grad: jax.Array, size: int, stride: int, padding: Padding) -> jax.Array:
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
    (top, bottom), (left, outside) = padding
    padded = _pad(x, ((top, bottom + below * stride), (left, outside + right * stride)))
    grad = jnp.pad(grad.astype(padded.dtype), ((0, 0), (0, below), (0, right), (0, 0)))
    reach = tuple((places - 1) * stride + size for places in (rows, columns))

    def add(index: jax.Array, total_BKKC: jax.Array) -> jax.Array:
        zero = jnp.zeros_like(index)
        first = (index // across * rows, index % across * columns)
        under_first = first if stride == 1 else (first[0] * stride, first[1] * stride)
        under = lax.dynamic_slice(padded, (zero, *under_first, zero), (batch, *reach, channels))
        places = lax.dynamic_slice(grad, (zero, *first, zero), (batch, rows, columns, channels))
        for row in range(rows):
            for column in range(columns):
                place = places[:, row : row + 1, column : column + 1]
                place = lax.broadcast_in_dim(place, total_BKKC.shape, (0, 1, 2, 3))
                y, x = row * stride, column * stride
                total_BKKC += under[:, y : y + size, x : x + size] * place
        return total_BKKC

    total_BKKC = lax.fori_loop(0, down * across, add, jnp.zeros((batch, size, size, channels), padded.dtype))
    return total_BKKC.sum(0)  # after the loop, so that a sharded batch needs one all-reduce


_shift_conv.defvjp(_shift_conv_fwd, _shift_conv_bwd)
