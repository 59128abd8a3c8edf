"""Building blocks shared by the model families.

Modules keep the class names that PyTorch users know (`Linear`, `Conv2d`, `LayerNorm`): filters by layer type, traces
and the overflow detector show them. Activations, softmax and residual sums are modules without parameters, so that
`nn.intercept_methods` sees their values too. Parameters are float32; `dtype` is the compute dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.dtypes import promote_dtype
from jax import lax

from linnaeus_jax import backend
from linnaeus_jax.models import batch_norm, initial, operations
from linnaeus_jax.models.depthwise import Padding, depthwise_conv
from linnaeus_jax.models.initial import Initializer

# ---- The maximum over windows of 3x3 with stride 2, with a gradient that accelerators compute from what was the
# largest
#
# What JAX derives makes XLA look for the largest value of each window again and scatter into a map of zeros. CPUs,
# where that was not measured, keep it.


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


# ----------------------------------------------------------------------------------------------------------------------


Dtype = Any
weight_init = initial.normal(initial.STDDEV)  # of tokens, tables and heads


class Linear(nn.Dense):
    """Affine map of the last axis; weights of `initial.weight`, bias 0."""

    kernel_init: Initializer = initial.weight
    bias_init: Initializer = initial.zeros

    @nn.compact
    def __call__(self, x: jax.Array, gelu_of: jax.Array | None = None) -> jax.Array:
        """Maps [..., D] to [..., features]. `gelu_of`: what `x` is the GELU of, kept in its place for the gradient."""
        kernel = initial.parameter(self, "kernel", self.kernel_init, (x.shape[-1], self.features), self.param_dtype)
        bias = (
            initial.parameter(self, "bias", self.bias_init, (self.features,), self.param_dtype)
            if self.use_bias
            else None
        )
        x, kernel, bias = promote_dtype(x, kernel, bias, dtype=self.dtype)
        if bias is None:
            return operations.matmul(x, kernel, self.precision)
        if gelu_of is not None and gelu_of.dtype == x.dtype:
            return operations.linear_of_gelu(x, gelu_of, kernel, bias, self.precision)
        return operations.linear(x, kernel, bias, self.precision)


class LayerNorm(nn.LayerNorm):
    """Normalisation over the last axis with scale and bias, see `operations.layer_norm`."""

    epsilon: float = 1e-5
    scale_init: Initializer = initial.ones
    bias_init: Initializer = initial.zeros

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]  # of all that Flax offers, this is used
        """Maps [..., D] to [..., D]."""
        scale = initial.parameter(self, "scale", self.scale_init, (x.shape[-1],), self.param_dtype)
        bias = initial.parameter(self, "bias", self.bias_init, (x.shape[-1],), self.param_dtype)
        return operations.layer_norm(x, scale, bias, self.epsilon, self.dtype or x.dtype)


class Conv2d(nn.Module):
    """2-D convolution of [B, H, W, C] with explicit padding; weights of `initial.weight`, bias 0.

    `padding` is one number for all four sides or ((top, bottom), (left, right)). A depthwise convolution has as many
    features as channels.
    """

    features: int
    kernel_size: int
    stride: int = 1
    padding: int | Padding = 0
    depthwise: bool = False
    use_bias: bool = True
    dtype: Dtype = jnp.float32
    depthwise_impl: str = "auto"
    kernel_init: Initializer = initial.weight

    @nn.compact
    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        in_channels = 1 if self.depthwise else x_BHWC.shape[-1]
        shape = (self.kernel_size, self.kernel_size, in_channels, self.features)
        kernel = initial.parameter(self, "kernel", self.kernel_init, shape).astype(self.dtype)
        bias = initial.parameter(self, "bias", initial.zeros, (self.features,)) if self.use_bias else None
        x_BHWC = x_BHWC.astype(self.dtype)
        padding = ((self.padding,) * 2,) * 2 if isinstance(self.padding, int) else self.padding
        if self.depthwise:
            y = depthwise_conv(x_BHWC, kernel, stride=self.stride, padding=padding, impl=self.depthwise_impl)
        elif self.kernel_size == self.stride == 1 and padding == ((0, 0), (0, 0)):
            y = operations.matmul(x_BHWC, kernel[0, 0])  # it runs on more threads where a loop is around it
        elif self.kernel_size == self.stride and padding == ((0, 0), (0, 0)):
            y = operations.patch_conv(x_BHWC, kernel)
        else:
            y = lax.conv_general_dilated(
                x_BHWC, kernel, (self.stride,) * 2, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        return y if bias is None else y + bias.astype(self.dtype)[None, None, None]


class BatchNorm2d(nn.Module):
    """Normalisation of every channel over rows and places (Ioffe & Szegedy 2015), in float32.

    In training the moments are those of the whole micro-batch: under `jit` over a mesh they are taken over all devices.
    Rows of weight 0 fill up a batch and count in no moment. The running moments, collection `batch_stats`, follow
    torch's rule: new = (1 - momentum) * old + momentum * batch, where the variance that is kept is the unbiased one
    and the variance that normalises the biased one. They stay as they are where the caller has not made the collection
    mutable, or where no row counts.

    Where the caller gives the collection of `batch_norm.moment_counts`, momentum is corrected for the start: batch k,
    from 1, has the share max(momentum, 10 / (k + 9)). So the running moments hold nothing of the 0 and 1 that they
    begin with, and follow the weights, which change most at first, closely; see docs/decisions/models.md.
    """

    epsilon: float = 1e-5
    momentum: float = 0.1
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x_BHWC: jax.Array, *, train: bool, row_weight_B: jax.Array | None = None) -> jax.Array:
        """Maps [B, H, W, C] to [B, H, W, C] of `dtype`."""
        shape = (x_BHWC.shape[-1],)
        scale = initial.parameter(self, "scale", initial.ones, shape)
        bias = initial.parameter(self, "bias", initial.zeros, shape)
        running_mean = self.variable("batch_stats", "running_mean", jnp.zeros, shape, jnp.float32)
        running_var = self.variable("batch_stats", "running_var", jnp.ones, shape, jnp.float32)
        one_pass = train and backend.ONE_PASS_MOMENTS.here()
        x_BHWC = x_BHWC if one_pass else x_BHWC.astype(jnp.float32)
        if not train:
            mean, var = running_mean.value, running_var.value
        else:
            if one_pass:
                mean, var, count = batch_norm.one_pass_moments(lax.stop_gradient(x_BHWC), row_weight_B)
            else:
                mean, var, count = batch_moments(x_BHWC, row_weight_B)
            if self.is_mutable_collection("batch_stats") and not self.is_initializing():
                unbiased = var * (count / jnp.maximum(count - 1.0, 1.0))
                share = jnp.where(count > 0, self._share(count > 0), 0.0)
                running_mean.value = (1.0 - share) * running_mean.value + share * mean
                running_var.value = (1.0 - share) * running_var.value + share * unbiased
        if one_pass:
            counts_B = jnp.ones(x_BHWC.shape[0]) if row_weight_B is None else row_weight_B > 0
            share_B = counts_B / jnp.maximum(count, 1.0)
            inverse = lax.rsqrt(var + self.epsilon)
            return batch_norm.normalise(x_BHWC, scale, bias, mean, inverse, share_B, self.dtype)
        factor = jax.lax.rsqrt(var + self.epsilon) * scale
        y = (x_BHWC - mean[None, None, None]) * factor[None, None, None] + bias[None, None, None]
        return y.astype(self.dtype)

    def _share(self, counts: jax.Array) -> float | jax.Array:
        """The weight of this batch in the running moments; `counts`: bool [], whether any of its rows does."""
        if not self.has_variable(batch_norm.MOMENT_COUNTS, "batches"):
            return self.momentum
        batches: nn.Variable[jax.Array] = self.variable(batch_norm.MOMENT_COUNTS, "batches", jnp.zeros, (), jnp.int32)
        batches.value = batches.value + counts
        return jnp.maximum(self.momentum, 10.0 / (batches.value + 9.0))


def batch_moments(x_BHWC: jax.Array, row_weight_B: jax.Array | None) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mean and biased variance [C] of the rows whose weight is not 0, and how many values [] they are of."""
    batch, height, width, _ = x_BHWC.shape
    counts_B = jnp.ones(batch) if row_weight_B is None else (row_weight_B > 0).astype(jnp.float32)
    counts_B111 = counts_B[:, None, None, None]
    count = counts_B.sum() * (height * width)
    divisor = jnp.maximum(count, 1.0)
    mean = jnp.sum(x_BHWC * counts_B111, axis=(0, 1, 2)) / divisor
    var = jnp.sum(jnp.square(x_BHWC - mean[None, None, None]) * counts_B111, axis=(0, 1, 2)) / divisor
    return mean, var, count


class MaxPool2d(nn.Module):
    """Maximum over windows of 3x3 with stride 2 and a border of -inf: halves H and W, rounded up."""

    @nn.compact
    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        return max_pool(x_BHWC)


class Gelu(nn.Module):
    """Exact GELU, x * Phi(x) (Hendrycks & Gimpel 2016)."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return operations.gelu(x)


class QuickGelu(nn.Module):
    """x * sigmoid(1.702 x), an approximation of GELU (Hendrycks & Gimpel 2016) that some weights were trained with."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return x * jax.nn.sigmoid(1.702 * x)


class GeluTanh(nn.Module):
    """The other approximation, x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x**3)))."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.gelu(x, approximate=True)


class Relu(nn.Module):
    """max(x, 0)."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(x)


class Relu6(nn.Module):
    """min(max(x, 0), 6)."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu6(x)


class Swish(nn.Module):
    """x * sigmoid(x) (Ramachandran et al. 2017)."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return operations.swish(x) if backend.SWISH_FROM_INPUT.here() else jax.nn.silu(x)


class Sigmoid(nn.Module):
    """1 / (1 + exp(-x))."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(x)


class Softmax(nn.Module):
    """Softmax over the last axis, taken and returned in float32; entries where `where` is False get 0.

    At least one entry must be left. Their logits become the least float32 instead of -inf: the result is the same, and
    a search for infinities finds none.
    """

    @nn.compact
    def __call__(self, logits: jax.Array, *, where: jax.Array | None = None) -> jax.Array:
        logits = logits.astype(operations.wide(logits.dtype))
        if where is not None:
            logits = jnp.where(where, logits, jnp.finfo(logits.dtype).min)
        return jax.nn.softmax(logits, axis=-1)


class Residual(nn.Module):
    """x + scale_B * branch: the residual sum with stochastic depth (Huang et al. 2016).

    `scale_B` [B] holds 0 for dropped rows and 1 / (1 - rate) for kept ones, see `drop_path_scales`; None keeps all.
    """

    @nn.compact
    def __call__(self, x: jax.Array, branch: jax.Array, scale_B: jax.Array | None = None) -> jax.Array:
        if scale_B is not None:
            branch = branch * scale_B.astype(branch.dtype).reshape(-1, *(1,) * (branch.ndim - 1))
        return x + branch


def drop_path_rates(depths: Sequence[int], rate: float, *, endpoint: bool = True) -> list[tuple[float, ...]]:
    """Per-block rates of stochastic depth, rising linearly from 0 over all blocks; one tuple per stage.

    The last block has `rate`; without `endpoint` the block after it would have.
    """
    rates = np.linspace(0.0, rate, sum(depths), endpoint=endpoint).tolist()
    ends = np.cumsum(depths).tolist()
    return [tuple(rates[end - depth : end]) for depth, end in zip(depths, ends)]


def drop_path_scales(key: jax.Array, rates: Sequence[float], branches: int, batch: int) -> jax.Array:
    """Multipliers [L, branches, B] float32 of the residual branches of L blocks, drawn independently.

    Each is 0 with the probability of its block's rate, else 1 / (1 - rate), so that the expectation is 1. They are
    drawn outside the blocks, hence recomputed and scanned blocks see the same draws as plain ones.
    """
    keep_L = 1.0 - jnp.asarray(rates, jnp.float32)[:, None, None]
    return jax.random.bernoulli(key, keep_L, (len(rates), branches, batch)) / keep_L


class Dropout(nn.Module):
    """Inverted dropout (Srivastava et al. 2014) with an explicit key; the identity where `key` is None.

    Values along `shared_axes` are dropped together.
    """

    rate: float
    shared_axes: tuple[int, ...] = ()

    @nn.compact
    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        if key is None or self.rate == 0.0:
            return x
        shared = {axis % x.ndim for axis in self.shared_axes}
        shape = tuple(1 if axis in shared else length for axis, length in enumerate(x.shape))
        keep = jax.random.bernoulli(key, 1.0 - self.rate, shape)
        return jnp.where(keep, x / (1.0 - self.rate), jnp.zeros_like(x))


def subkey(key: jax.Array | None, index: int) -> jax.Array | None:
    """The `index`-th key derived from `key`; None of None."""
    return None if key is None else jax.random.fold_in(key, index)


#: activation of an MLP -> its module; with `swiglu` it acts on the first half of what `fc1` gives, which then
#: multiplies the second half (Shazeer 2020)
ACTIVATIONS: dict[str, Callable[..., nn.Module]] = {
    "gelu": Gelu,
    "quick_gelu": QuickGelu,
    "gelu_tanh": GeluTanh,
    "swiglu": Swish,
}


class Mlp(nn.Module):
    """Linear, activation, dropout, norm, Linear, dropout over the last axis. `key` None: no dropout.

    `norm_epsilon` 0: there is no norm.
    """

    hidden: int
    features: int
    drop_rate: float = 0.0
    dtype: Dtype = jnp.float32
    activation: str = "gelu"
    norm_epsilon: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        gated, act = self.activation == "swiglu", ACTIVATIONS[self.activation](name="act")
        hidden = Linear(self.hidden * (1 + gated), dtype=self.dtype, name="fc1")(x)
        x = act(hidden[..., : self.hidden]) * hidden[..., self.hidden :] if gated else act(hidden)
        x = Dropout(self.drop_rate, name="drop1")(x, subkey(key, 0))
        x = LayerNorm(self.norm_epsilon, dtype=self.dtype, name="norm")(x) if self.norm_epsilon else x
        kept = self.activation == "gelu" and not (self.norm_epsilon or (key is not None and self.drop_rate > 0))
        x = Linear(self.features, dtype=self.dtype, name="fc2")(x, gelu_of=hidden if kept else None)
        return Dropout(self.drop_rate, name="drop2")(x, subkey(key, 1))


class LayerScale(nn.Module):
    """A learned factor of every channel (Touvron et al. 2021), `initial` at first."""

    initial: float
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        gamma = initial.parameter(self, "gamma", initial.constant(self.initial), x.shape[-1:])
        return x * gamma.astype(self.dtype).reshape(*(1,) * (x.ndim - 1), -1)


class ResNorm(nn.Module):
    """x + LN(ReLU(W2 LN(ReLU(W1 x)))), the residual block of the metadata heads (MetaFormer, Diao et al. 2022)."""

    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = Relu(name="nonlin1")(Linear(x.shape[-1], dtype=self.dtype, name="w1")(x))
        y = LayerNorm(dtype=self.dtype, name="norm_fn1")(y)
        y = Relu(name="nonlin2")(Linear(x.shape[-1], dtype=self.dtype, name="w2")(y))
        y = LayerNorm(dtype=self.dtype, name="norm_fn2")(y)
        return Residual(name="residual")(x, y)


class MetaHead(nn.Module):
    """Embeds one metadata component [B, dim] as one token [B, features]; children are named by their position."""

    features: int
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, meta: jax.Array) -> jax.Array:
        x = Linear(self.features, dtype=self.dtype, name="0")(meta)
        x = LayerNorm(dtype=self.dtype, name="2")(Relu(name="1")(x))
        return ResNorm(dtype=self.dtype, name="3")(x)


class ClsProjection(nn.Module):
    """Brings the class token of the first transformer stage to the width of the second: Mlp, LayerNorm."""

    features: int
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = Mlp(x.shape[-1], self.features, dtype=self.dtype, name="0")(x)
        return LayerNorm(dtype=self.dtype, name="1")(x)


class Conv1d(nn.Module):
    """Weighted sum of two tokens, w0 * a + w1 * b + bias with scalar weights: a 1-D convolution from 2 channels to 1.

    `bias` never gets a gradient where a LayerNorm follows; it is kept so that published weights map one to one.
    """

    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, tokens_B2D: jax.Array) -> jax.Array:
        kernel = initial.parameter(self, "kernel", initial.uniform(-(0.5**0.5), 0.5**0.5), (1, 2, 1)).astype(self.dtype)
        bias = initial.parameter(self, "bias", initial.zeros, (1,)).astype(self.dtype)
        return jnp.sum(tokens_B2D * kernel, axis=1, keepdims=True) + bias[None, None]
