import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from linnaeus_jax.models.depthwise import BY_PLATFORM, depthwise_conv


def draws(size, batch=3):
    rng = np.random.default_rng(size)
    x = rng.normal(size=(batch, 6, 5, 4)).astype(np.float32)
    kernel = rng.normal(size=(size, size, 1, 4)).astype(np.float32)
    return x, kernel, rng.normal(size=x.shape).astype(np.float32)


@pytest.mark.parametrize("size", [3, 7])
def test_shift_equals_lax_in_value_and_gradients(size):
    x, kernel, cotangent = draws(size)

    @jax.jit
    def run(x, kernel, cotangent):
        found = []
        for impl in ("shift", "lax"):
            y, pullback = jax.vjp(functools.partial(depthwise_conv, impl=impl), x, kernel)
            found.append((y, *pullback(cotangent)))
        return found

    for ours, theirs in zip(*run(x, kernel, cotangent), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 33, 4), (1, 5, 16, 2)])
def test_gradients_in_float64_whatever_the_rounds_of_the_kernel_gradient(shape):
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        x, cotangent, kernel = (rng.normal(size=size) for size in (shape, shape, (7, 7, 1, shape[-1])))
        ours, theirs = jax.jit(
            lambda x, k, g: [
                jax.vjp(functools.partial(depthwise_conv, impl=impl), x, k)[1](g) for impl in ("shift", "lax")
            ]
        )(x, kernel, cotangent)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == jnp.float64
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def test_pullback_maps_over_cotangents_and_survives_remat():
    x, kernel, cotangent = draws(3)

    @jax.jit
    def run(x, kernel, cotangent):
        y, pullback = jax.vjp(jax.checkpoint(lambda x, k: depthwise_conv(x, k, impl="shift")), x, kernel)
        return y, jax.vmap(pullback)(jnp.stack([cotangent, 2 * cotangent])), pullback(cotangent)

    y, mapped, plain = jax.device_get(run(x, kernel, cotangent))
    for several, one in zip(mapped, plain, strict=True):
        np.testing.assert_allclose(several[1], 2 * one, rtol=1e-5, atol=1e-5)
    assert y.shape == x.shape


def test_bfloat16_sums_in_float32():
    x, kernel, _ = draws(7)
    conv = jax.jit(depthwise_conv, static_argnames="impl")
    low = conv(x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16), impl="shift")
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(low, np.float32), conv(x, kernel, impl="lax"), atol=0.2, rtol=0.02)


def tensorflow_same(length, size, stride):
    total = max((-(-length // stride) - 1) * stride + size - length, 0)
    return total // 2, total - total // 2


def compared(shape, size, stride, padding, dtype=np.float32):
    """Value and gradients of the form `shift`, and those of a plain sum over taps in float64."""
    rng = np.random.default_rng(size)
    x, kernel = (rng.normal(size=of).astype(dtype) for of in (shape, (size, size, 1, shape[-1])))
    low = [(n + sum(sides) - size) // stride + 1 for n, sides in zip(shape[1:3], padding)]
    cotangent = rng.normal(size=(shape[0], *low, shape[-1])).astype(dtype)
    rows, columns = ((n - 1) * stride + 1 for n in low)
    padded, weights, grad = (
        a.astype(np.float64) for a in (np.pad(x, ((0, 0), *padding, (0, 0))), kernel[:, :, 0], cotangent)
    )
    y, grad_padded, grad_kernel = np.zeros_like(grad), np.zeros_like(padded), np.zeros_like(weights)
    for i, j in np.ndindex(size, size):
        place = (slice(None), slice(i, i + rows, stride), slice(j, j + columns, stride))
        y += padded[place] * weights[i, j]
        grad_padded[place] += grad * weights[i, j]
        grad_kernel[i, j] = (padded[place] * grad).sum((0, 1, 2))
    (top, _), (left, _) = padding
    grad_x = grad_padded[:, top : top + shape[1], left : left + shape[2]]

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def run(x, kernel, cotangent):
        y, pullback = jax.vjp(lambda *a: depthwise_conv(*a, stride=stride, padding=padding, impl="shift"), x, kernel)
        return y, *pullback(cotangent)

    return run(x, kernel, cotangent), (y, grad_x, grad_kernel[:, :, None])


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("sides", [(8, 8), (7, 10), (5, 3)])
def test_padding_of_tensorflow(size, stride, sides):
    padding = tuple(tensorflow_same(length, size, stride) for length in sides)
    for ours, theirs in zip(*compared((2, *sides, 3), size, stride, padding), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2, 4])  # 4: some entries of the input meet no tap
@pytest.mark.parametrize("padding", [((0, 0), (0, 0)), ((1, 1), (0, 1)), ((0, 2), (3, 0)), ((4, 5), (1, 4))])
def test_any_stride_and_padding(stride, padding):
    for ours, theirs in zip(*compared((2, 6, 5, 3), 3, stride, padding), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_bfloat16_with_stride_2_sums_in_float32():
    ours, theirs = compared((2, 9, 6, 16), 5, 2, ((2, 2), (1, 2)), jnp.bfloat16)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == jnp.bfloat16
        np.testing.assert_allclose(one.astype(np.float32), other, rtol=2**-8, atol=1e-6)


def test_strided_pullback_maps_over_cotangents():
    x, kernel, _ = draws(3)

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def run(x, kernel):
        y, pullback = jax.vjp(lambda x, k: depthwise_conv(x, k, stride=2, impl="shift"), x, kernel)
        cotangent = jnp.ones_like(y)
        return jax.vmap(pullback)(jnp.stack([cotangent, 2 * cotangent])), pullback(cotangent)

    for several, one in zip(*run(x, kernel)):
        np.testing.assert_allclose(several[1], 2 * one, rtol=1e-5, atol=1e-5)


def test_no_place_for_the_kernel_gives_no_rows():
    x, kernel, _ = draws(7)
    for impl in ("shift", "lax"):
        assert depthwise_conv(x, kernel, stride=2, padding=((0, 0), (1, 1)), impl=impl).shape == (3, 0, 1, 4)


def test_a_program_for_several_platforms_has_the_form_of_each():
    x, kernel, _ = draws(3)
    for stride in (1, 2):
        run = jax.jit(functools.partial(depthwise_conv, stride=stride, impl=BY_PLATFORM))
        expected = depthwise_conv(x, kernel, stride=stride, impl="lax")
        np.testing.assert_allclose(run(x, kernel), expected, rtol=0, atol=1e-5)

        def has_convolution(*platforms: str, run=run) -> bool:
            return "stablehlo.convolution" in export.export(run, platforms=platforms)(x, kernel).mlir_module()

        assert [has_convolution("cpu"), has_convolution("cuda"), has_convolution("cpu", "cuda")] == [False, True, True]


def test_errors_name_the_argument():
    x, kernel, _ = draws(3)
    with pytest.raises(ValueError, match="depthwise_impl is 'cuda'; use one of auto, lax, shift"):
        depthwise_conv(x, kernel, impl="cuda")
    with pytest.raises(ValueError, match="depthwise kernel has shape"):
        depthwise_conv(x, kernel[:2], impl="lax")


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [((1, 1), (1, 1)), ((0, 1), (1, 0)), ((0, 0), (2, 1))])
def test_gradients_of_the_grouped_form_are_those_that_jax_derives(stride, padding):
    rng = np.random.default_rng(0)
    x, kernel = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 7, 8, 3), (3, 3, 1, 3)))

    def derived(x, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (stride, stride), padding, None, None, numbers, 3)

    @jax.jit
    def run(x, kernel, cotangent):
        found = []
        for function in (derived, functools.partial(depthwise_conv, stride=stride, padding=padding, impl="lax")):
            y, pullback = jax.vjp(function, x, kernel)
            found.append((y, pullback(cotangent)))
        return found

    cotangent = rng.normal(size=jax.eval_shape(derived, x, kernel).shape).astype(np.float32)
    (y, expected), (same, gradients) = run(x, kernel, cotangent)
    np.testing.assert_array_equal(same, y)
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)


def test_gradients_of_the_grouped_form_map_over_losses_on_a_mesh():
    """As GradNorm does; what JAX derives raises NotImplementedError where arrays carry the sharding of a mesh."""
    replicated = jax.NamedSharding(jax.make_mesh((1,), ("data",)), jax.P())
    x, kernel, _ = (jax.device_put(value, replicated) for value in draws(3))

    @jax.jit
    def gradients(kernel):
        _, pullback = jax.vjp(lambda k: jnp.stack([depthwise_conv(x, k, impl="lax").sum(), k.sum()]), kernel)
        return jax.vmap(pullback)(jnp.eye(2))[0]

    np.testing.assert_allclose(gradients(kernel)[1], jnp.ones_like(kernel))
