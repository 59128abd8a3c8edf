"""Operations with derivatives of their own: less is kept for the backward pass, and less is moved in it.

Each is a `jax.custom_vjp`: reverse mode only, which may be mapped, recomputed and scanned; without
`backend.HAND_WRITTEN_GRADIENTS` it is the function alone. Arithmetic is float32, or float64 where the input is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from jax import export, lax

from linnaeus_jax import backend

PrecisionLike = Any
T = TypeVar("T")
#: elements of an array below which computing it twice costs less than a loop
WORTH_A_LOOP = 2**16
#: elements of an array from which freeing it early is worth a loop
WORTH_FREEING = 2**20


class DerivedByHand(Generic[T]):
    """A function with a derivative of its own, given to `defvjp` as that of a `jax.custom_vjp`.

    Args:
      function: of positional arguments; JAX derives it where `backend.HAND_WRITTEN_GRADIENTS` is off.
      nondiff_argnums: arguments that are no arrays.
    """

    def __init__(self, function: Callable[..., T], nondiff_argnums: tuple[int, ...] = ()) -> None:
        functools.update_wrapper(self, function)
        self._plain, self._by_hand = function, jax.custom_vjp(function, nondiff_argnums=nondiff_argnums)
        self.defvjp = self._by_hand.defvjp

    def __call__(self, *args: Any) -> T:
        by_hand: Callable[..., T] = self._by_hand
        return (by_hand if backend.HAND_WRITTEN_GRADIENTS.here() else self._plain)(*args)


def wide(dtype: Any) -> jnp.dtype:
    """The dtype that arithmetic is done in which `dtype` is too narrow for: float32, or float64 for float64."""
    return jnp.promote_types(dtype, jnp.float32)


@DerivedByHand
def gelu(x: jax.Array) -> jax.Array:
    """x * Phi(x) (Hendrycks & Gimpel 2016), exact; the backward pass needs `x` alone."""
    x_wide = x.astype(wide(x.dtype))
    return (x_wide * _normal_cdf(x_wide)).astype(x.dtype)


def _normal_cdf(x: jax.Array) -> jax.Array:
    return 0.5 + 0.5 * lax.erf(x * math.sqrt(0.5))


def _normal_cdf_no_cse(x: jax.Array) -> jax.Array:
    """The same in another form, which XLA's common subexpression elimination does not recognise: the backward pass
    computes it again instead of keeping the result of the forward pass."""
    return 0.5 - 0.5 * lax.erf(x * -math.sqrt(0.5))


def _gelu_fwd(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return gelu(x), x


def _gelu_bwd(x: jax.Array, grad: jax.Array) -> tuple[jax.Array]:
    x_wide = x.astype(wide(x.dtype))
    # Of a base 2 exponential XLA on CPU makes faster code.
    density = jnp.exp2(x_wide * x_wide * (-0.5 / math.log(2.0))) * (1.0 / math.sqrt(2.0 * math.pi))
    cdf = _normal_cdf_no_cse if x.size >= WORTH_FREEING else _normal_cdf
    return (((cdf(x_wide) + x_wide * density) * grad).astype(x.dtype),)


gelu.defvjp(_gelu_fwd, _gelu_bwd)


@DerivedByHand
def swish(x: jax.Array) -> jax.Array:
    """x * sigmoid(x) (Ramachandran et al. 2017); the backward pass needs `x` alone."""
    # The product has the dtype of x: where XLA stores it for several readers, it stores what is computed last.
    return x * lax.logistic(x.astype(wide(x.dtype))).astype(x.dtype)


def _swish_fwd(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return swish(x), x


def _swish_bwd(x: jax.Array, grad: jax.Array) -> tuple[jax.Array]:
    x_wide = x.astype(wide(x.dtype))
    share = lax.logistic(x_wide)
    return ((share * (1.0 + x_wide * (1.0 - share)) * grad).astype(x.dtype),)


swish.defvjp(_swish_fwd, _swish_bwd)


@functools.partial(DerivedByHand, nondiff_argnums=(2,))
def matmul(x: jax.Array, kernel: jax.Array, precision: PrecisionLike = None) -> jax.Array:
    """x @ kernel of [..., D] and [D, F], of one dtype."""
    return lax.dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())), precision)


def _matmul_fwd(x: jax.Array, kernel: jax.Array, precision: PrecisionLike) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return matmul(x, kernel, precision), (x, kernel)


def _matmul_bwd(precision: PrecisionLike, saved: tuple[jax.Array, jax.Array], grad: jax.Array) -> tuple[jax.Array, ...]:
    return release_residuals((saved[0], grad), *_gradients_of_product(precision, saved, grad))


def _gradients_of_product(
    precision: PrecisionLike, saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    grad_x = lax.dot_general(grad, kernel, (((x.ndim - 1,), (1,)), ((), ())), precision)
    rows = tuple(range(x.ndim - 1))
    contract = ((rows, rows), ((), ()))
    # CPU programs transpose the left operand in memory: it shall be the narrower one, and computed before that.
    if x.shape[-1] <= grad.shape[-1] or not backend.NARROW_OPERAND_LEFT.here():
        grad_kernel = lax.dot_general(materialize(x), grad, contract, precision)
    else:  # the barrier, or the compiler exchanges the operands
        grad_kernel = lax.optimization_barrier(lax.dot_general(materialize(grad), x, contract, precision)).T
    return grad_x, grad_kernel


matmul.defvjp(_matmul_fwd, _matmul_bwd)


@functools.partial(DerivedByHand, nondiff_argnums=(3,))
def linear(x: jax.Array, kernel: jax.Array, bias: jax.Array, precision: PrecisionLike = None) -> jax.Array:
    """x @ kernel + bias of [..., D], [D, F] and [F], of one dtype."""
    return matmul(x, kernel, precision) + _as_row(bias, x.ndim)


def _linear_fwd(
    x: jax.Array, kernel: jax.Array, bias: jax.Array, precision: PrecisionLike
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return linear(x, kernel, bias, precision), (x, kernel)


def _linear_bwd(precision: PrecisionLike, saved: tuple[jax.Array, jax.Array], grad: jax.Array) -> tuple[jax.Array, ...]:
    grad_x, grad_kernel = _gradients_of_product(precision, saved, grad)
    return release_residuals((saved[0], grad), grad_x, grad_kernel, _sum_of_columns(grad).astype(grad.dtype))


linear.defvjp(_linear_fwd, _linear_bwd)


@DerivedByHand
def add_to_rows(x: jax.Array, row: jax.Array) -> jax.Array:
    """x + row of [B, ...] and [...], of one dtype: the same for every row of the batch, such as positions.

    XLA on a GPU likes to sum over what lies last, and stores the tokens of all blocks so for the sake of this sum
    (a tenth of a ViT-S's update); a barrier before it ends that.
    """
    return x + row[None]


def _add_to_rows_fwd(x: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
    return add_to_rows(x, row), None


def _add_to_rows_bwd(_: None, grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    terms = lax.optimization_barrier(grad) if backend.SUMMED_IN_ORDER.here() else grad
    return grad, jnp.sum(terms, axis=0, dtype=wide(grad.dtype)).astype(grad.dtype)


add_to_rows.defvjp(_add_to_rows_fwd, _add_to_rows_bwd)


@functools.partial(DerivedByHand, nondiff_argnums=(4,))
def linear_of_gelu(
    y: jax.Array, x: jax.Array, kernel: jax.Array, bias: jax.Array, precision: PrecisionLike = None
) -> jax.Array:
    """y @ kernel + bias where y is `gelu(x)`: on CPUs the backward pass makes a large y again from x, which GELU keeps.

    The gradient of the arguments is that of y alone; that of x comes through `gelu`.
    """
    return linear(y, kernel, bias, precision)


def _linear_of_gelu_fwd(
    y: jax.Array, x: jax.Array, kernel: jax.Array, bias: jax.Array, precision: PrecisionLike
) -> tuple[jax.Array, tuple[jax.Array | None, ...]]:
    # XLA on GPU would make both y in the forward pass and store them.
    made_again = x.size >= WORTH_FREEING and backend.REMADE_GELU.here()
    kept = (None, x) if made_again else (y, None)
    return linear(y, kernel, bias, precision), (*kept, kernel)


def _linear_of_gelu_bwd(
    precision: PrecisionLike, saved: tuple[Any, Any, jax.Array], grad: jax.Array
) -> tuple[jax.Array | None, ...]:
    y, x, kernel = saved
    if y is None:
        x_wide = x.astype(wide(x.dtype))
        y = (x_wide * _normal_cdf_no_cse(x_wide)).astype(x.dtype)
    grad_y, grad_kernel, grad_bias = _linear_bwd(precision, (y, kernel), grad)
    return grad_y, None, grad_kernel, grad_bias


linear_of_gelu.defvjp(_linear_of_gelu_fwd, _linear_of_gelu_bwd)


@DerivedByHand
def patch_conv(x_BHWC: jax.Array, kernel_SSCF: jax.Array) -> jax.Array:
    """Convolution with squares of S x S places without overlap: [B, H, W, C] -> [B, H // S, W // S, F].

    Places at the lower and right border that fill no square are left out. The gradients are matrix products.
    """
    strides, numbers = kernel_SSCF.shape[:2], ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x_BHWC, kernel_SSCF, strides, "VALID", dimension_numbers=numbers)


def _patch_conv_fwd(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return patch_conv(x, kernel), (x, kernel)


def _patch_conv_bwd(saved: tuple[jax.Array, jax.Array], grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    batch, height, width, channels = x.shape
    (rows, columns), size = grad.shape[1:3], kernel.shape[0]
    by_square = kernel.reshape(-1, kernel.shape[-1])
    squares = materialize(x)[:, : rows * size, : columns * size].reshape(batch, rows, size, columns, size, channels)
    squares = squares.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows, columns, -1)
    grad_squares, grad_kernel = _gradients_of_product(None, (squares, by_square), grad)
    grad_x = grad_squares.reshape(batch, rows, columns, size, size, channels).transpose(0, 1, 3, 2, 4, 5)
    grad_x = grad_x.reshape(batch, rows * size, columns * size, channels)
    outside = (0, height - rows * size), (0, width - columns * size)
    return jnp.pad(grad_x, ((0, 0), *outside, (0, 0))), grad_kernel.reshape(kernel.shape)


patch_conv.defvjp(_patch_conv_fwd, _patch_conv_bwd)


def materialize(x: jax.Array) -> jax.Array:
    """`x`; CPU programs store it once in its own layout, instead of fusing its computation into each of its readers."""
    open_ended = any(map(export.is_symbolic_dim, x.shape))  # a program for any number of rows
    if not open_ended and x.size < WORTH_A_LOOP:
        return x
    found: jax.Array = backend.COMPUTED_ONCE.by_platform(_opaque_identity, lambda x: x, x)
    return found


def release_residuals(kept: tuple[jax.Array, ...], *gradients: jax.Array) -> tuple[jax.Array, ...]:
    """`gradients`; CPU programs compute all of them before any is used, so that the residuals `kept` can be freed.

    XLA would schedule the gradients of parameters, which no other operation needs, last, and keep their residuals until
    then.
    """
    if max(x.size for x in kept) < WORTH_FREEING:
        return gradients
    found: tuple[jax.Array, ...] = backend.RELEASED_EARLY.by_platform(
        lambda *arrays: _opaque_identity(arrays), lambda *arrays: arrays, *gradients
    )
    return found


def _opaque_identity(arrays: Any) -> Any:
    # XLA on CPU fuses what computes an array into each of its readers, optimization barriers or not, but never across
    # a loop. The number of iterations is 0, which the barrier hides from the compiler.
    rounds = lax.optimization_barrier(jnp.int32(0))
    return lax.fori_loop(0, rounds, lambda _, values: jax.tree.map(lambda value: value + value, values), arrays)


@functools.partial(DerivedByHand, nondiff_argnums=(3, 4))
def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float, dtype: Any) -> jax.Array:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis (Ba et al. 2016), of `dtype`.

    The variance is the biased one, of deviations from the mean; of numbers narrower than float32 mean and mean square
    are taken in one pass, with sums in float32. The backward pass needs `x` with two numbers for each row.
    """
    return _layer_norm_fwd(x, scale, bias, epsilon, dtype)[0]


def _layer_norm_fwd(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float, dtype: Any) -> Any:
    x_wide, channels = x.astype(wide(x.dtype)), x.shape[-1]
    mean = _sum_of_row(x) / channels
    if x.dtype == x_wide.dtype:
        variance = _sum_of_row(jnp.square(x - mean)) / channels
    else:
        variance = jnp.maximum(_product_of_rows(x, x) / channels - jnp.square(mean), 0.0)
    inverse = lax.rsqrt(variance + epsilon)
    y = (x_wide - mean) * inverse * _as_row(scale, x.ndim) + _as_row(bias, x.ndim)
    return y.astype(dtype), (x, mean, inverse, scale)


def _layer_norm_bwd(epsilon: float, dtype: Any, saved: Any, grad: jax.Array) -> Any:
    x, mean, inverse, scale = saved
    # Products below are of the cotangent's dtype, sums of float32 or wider.
    normal = ((x.astype(mean.dtype) - mean) * inverse).astype(grad.dtype)
    scaled = grad * _as_row(scale, x.ndim).astype(grad.dtype)
    shared = _sum_of_row(scaled) / x.shape[-1], _product_of_rows(scaled, normal) / x.shape[-1]
    grad_x = inverse * (scaled - shared[0] - normal * shared[1])
    grad_scale, grad_bias = _product_of_columns(grad, normal), _sum_of_columns(grad)
    grad_scale, grad_bias = grad_scale.astype(scale.dtype), grad_bias.astype(scale.dtype)
    return release_residuals((x,), grad_x.astype(x.dtype), grad_scale, grad_bias)


layer_norm.defvjp(_layer_norm_fwd, _layer_norm_bwd)


def _as_row(x_C: jax.Array, ndim: int) -> jax.Array:
    return x_C.reshape(*(1,) * (ndim - 1), -1)


def _sum(axes: int | tuple[int, ...], product: Callable[..., jax.Array], *factors: jax.Array) -> jax.Array:
    """Sums of what the factors, of one dtype, make together, in float32 or wider; an axis -1 stays with size 1.

    On a CPU a sum of narrow numbers is the `product` of matrices that it is equal to, so that no wide copy of the
    numbers is read. Elsewhere it is a reduction, which XLA fuses with what makes the numbers; a product it does not.
    """
    dtype = wide(factors[0].dtype)
    if factors[0].dtype != dtype and backend.SUMS_AS_PRODUCTS.here():
        return product(*factors, preferred_element_type=dtype)
    terms = [factor.astype(dtype) for factor in factors]
    return jnp.sum(functools.reduce(jnp.multiply, terms), axis=axes, keepdims=axes == -1)


def _sum_of_row(x: jax.Array) -> jax.Array:
    """Sums over the last axis, which stays with size 1; float32 or wider."""

    def product(x: jax.Array, **dtype: Any) -> jax.Array:
        return jnp.einsum("...c,c->...", x, jnp.ones(x.shape[-1:], x.dtype), **dtype)[..., None]

    return _sum(-1, product, x)


def _product_of_rows(x: jax.Array, y: jax.Array) -> jax.Array:
    """Sums of x * y over the last axis, which stays with size 1; float32 or wider."""
    return _sum(-1, lambda x, y, **dtype: jnp.einsum("...c,...c->...", x, y, **dtype)[..., None], x, y)


def _sum_of_columns(x: jax.Array) -> jax.Array:
    """Sums [C] over all axes but the last; float32 or wider."""

    def product(x: jax.Array, **dtype: Any) -> jax.Array:
        rows = x.reshape(-1, x.shape[-1])
        return jnp.einsum("n,nc->c", jnp.ones(rows.shape[:1], x.dtype), rows, **dtype)

    return _sum(tuple(range(x.ndim - 1)), product, x)


def _product_of_columns(x: jax.Array, y: jax.Array) -> jax.Array:
    """Sums [C] of x * y over all axes but the last; float32 or wider."""

    def product(x: jax.Array, y: jax.Array, **dtype: Any) -> jax.Array:
        return jnp.einsum("nc,nc->c", *(z.reshape(-1, z.shape[-1]) for z in (x, y)), **dtype)

    return _sum(tuple(range(x.ndim - 1)), product, x, y)
