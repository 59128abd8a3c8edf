"""Depthwise convolution with an implementation that suits the platform."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

DEPTHWISE_IMPLS = ("auto", "lax", "shift")
#: `auto` by the platform of a program that is lowered for several at once, as exports are
BY_PLATFORM = "by_platform"

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
        raise ValueError(f"depthwise_impl is {impl!r}; use one of {', '.join(DEPTHWISE_IMPLS)}")
    size, width, per_group, channels = kernel_KK1C.shape
    if size != width or size % 2 == 0 or per_group != 1 or channels != x_BHWC.shape[-1]:
        raise ValueError(
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


def _pad(x: jax.Array, size: int) -> jax.Array:
    """Zero-pads H and W by half a kernel, in float32: that is where all sums over taps are taken."""
    half = size // 2
    return jnp.pad(x.astype(jnp.float32), ((0, 0), (half, half), (half, half), (0, 0)))


def _sum_of_shifts(x: jax.Array, kernel: jax.Array) -> jax.Array:
    # XLA on CPU fuses a sum into everything that reads it, which would take all its taps again for each reader. What a
    # loop yields is computed once; of this one the compiler cannot know that it makes a single round.
    rounds = lax.optimization_barrier(jnp.int32(1))
    return lax.fori_loop(0, rounds, lambda _, value: _taps_summed(value, kernel), x)


def _taps_summed(x: jax.Array, kernel: jax.Array) -> jax.Array:
    height, width, size = x.shape[1], x.shape[2], kernel.shape[0]
    padded, taps = _pad(x, size), kernel.astype(jnp.float32)
    total = jnp.zeros(x.shape, jnp.float32)
    for dy in range(size):
        for dx in range(size):
            total += padded[:, dy : dy + height, dx : dx + width] * taps[dy, dx, 0][None, None, None]
    return total.astype(x.dtype)


@jax.custom_vjp
def _shift_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return _sum_of_shifts(x, kernel)


def _shift_conv_fwd(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _sum_of_shifts(x, kernel), (x, kernel)


def _shift_conv_bwd(saved: tuple[jax.Array, jax.Array], grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    size, batch, channels = kernel.shape[0], x.shape[0], x.shape[-1]
    padded, grad32 = _pad(x, size), grad.astype(jnp.float32)

    def tap(index: jax.Array) -> jax.Array:
        start = (jnp.zeros((), index.dtype), index // size, index % size, jnp.zeros((), index.dtype))
        return jnp.sum(lax.dynamic_slice(padded, start, grad.shape) * grad32, axis=(1, 2))

    # The batch is summed after the loop, so that a sharded batch needs one all-reduce instead of one per tap.
    taps_TBC = lax.map(tap, jnp.arange(size * size))
    assert taps_TBC.shape == (size * size, batch, channels)
    grad_kernel = jnp.sum(taps_TBC, axis=1).reshape(kernel.shape).astype(kernel.dtype)
    return _sum_of_shifts(grad, kernel[::-1, ::-1]).astype(x.dtype), grad_kernel


_shift_conv.defvjp(_shift_conv_fwd, _shift_conv_bwd)
