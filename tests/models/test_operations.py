"""Operations with derivatives of their own: equal to what JAX derives from the plain formula."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax import backend
from linnaeus_jax.models import operations
from linnaeus_jax.models.rotary import rotate
from linnaeus_jax.models.transformer import attention_logits


def plain_layer_norm(x, scale, bias):
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale[None, None] + bias[None, None]


def plain_turn(x, angles):
    first, second = x[..., 0::2], x[..., 1::2]
    cos, sin = (jnp.expand_dims(f(angles), (0, 2)) for f in (jnp.cos, jnp.sin))
    return jnp.stack([first * cos - second * sin, first * sin + second * cos], axis=-1).reshape(x.shape)


def plain_logits(q, k):
    return jnp.einsum("bnhd,bmhd->bhnm", q, k) / 3.0


def plain_patch_conv(x, kernel):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, kernel.shape[:2], "VALID", dimension_numbers=numbers)


def plain_linear(x, kernel, bias):
    return x @ kernel + bias[None, None]


#: name -> own form, plain form, shapes of the arguments
CASES: dict[str, tuple[Callable[..., jax.Array], Callable[..., jax.Array], list[tuple[int, ...]]]] = {
    "gelu": (operations.gelu, lambda x: jax.nn.gelu(x, approximate=False), [(2, 3, 5)]),
    "swish": (operations.swish, jax.nn.silu, [(2, 3, 5)]),
    "matmul to more": (operations.matmul, jnp.matmul, [(2, 3, 4), (4, 6)]),
    "matmul to fewer": (operations.matmul, jnp.matmul, [(2, 3, 6), (6, 4)]),
    "matmul of many": (operations.matmul, jnp.matmul, [(2, 4200, 8), (8, 9)]),
    "convolution of patches": (operations.patch_conv, plain_patch_conv, [(2, 5, 4, 3), (2, 2, 3, 6)]),
    "the same for every row": (operations.add_to_rows, lambda x, row: x + row[None], [(2, 3, 4, 5), (3, 4, 5)]),
    "linear": (operations.linear, plain_linear, [(2, 3, 4), (4, 6), (6,)]),
    "linear of many": (operations.linear, plain_linear, [(2, 4200, 150), (150, 9), (9,)]),
    "linear of GELU": (
        lambda x, kernel, bias: operations.linear_of_gelu(operations.gelu(x), x, kernel, bias),
        lambda x, kernel, bias: plain_linear(jax.nn.gelu(x, approximate=False), kernel, bias),
        [(2, 3, 4), (4, 6), (6,)],
    ),
    "linear of much GELU": (
        lambda x, kernel, bias: operations.linear_of_gelu(operations.gelu(x), x, kernel, bias),
        lambda x, kernel, bias: plain_linear(jax.nn.gelu(x, approximate=False), kernel, bias),
        [(2, 4200, 150), (150, 3), (3,)],
    ),
    "layer norm": (
        lambda x, scale, bias: operations.layer_norm(x, scale, bias, 1e-5, x.dtype),
        plain_layer_norm,
        [(2, 3, 5), (5,), (5,)],
    ),
    "rotation": (lambda x, angles: rotate(x, angles, "rotary"), plain_turn, [(2, 3, 2, 4, 6), (3, 4, 3)]),
    "rotation, one angle for all heads": (
        lambda x, angles: rotate(x, angles, "rotary"),
        plain_turn,
        [(2, 3, 2, 4, 6), (3, 1, 3)],
    ),
    "logits": (lambda q, k: attention_logits(q, k, 1 / 3), plain_logits, [(2, 3, 4, 5), (2, 6, 4, 5)]),
}


def with_gradients(function, arguments, cotangent):
    """Values and gradients for a cotangent and its double, mapped as GradNorm does."""

    @jax.jit
    def run(arguments, cotangent):
        y, pullback = jax.vjp(jax.checkpoint(function), *arguments)
        return y, jax.vmap(pullback)(jnp.stack([cotangent, 2 * cotangent]))

    return run(arguments, cotangent)


@pytest.mark.parametrize("name", list(CASES))
def test_values_and_gradients_in_float64(name):
    own, plain, shapes = CASES[name]
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        arguments = [jnp.asarray(rng.normal(size=shape)) for shape in shapes]
        cotangent = jnp.asarray(rng.normal(size=jax.eval_shape(plain, *arguments).shape))
        ours, theirs = (with_gradients(function, arguments, cotangent) for function in (own, plain))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert one.dtype == jnp.float64
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("target", ["cpu", "gpu"])
@pytest.mark.parametrize("name", ["gelu", "layer norm", "the same for every row", "linear", "rotation", "logits"])
def test_narrow_numbers_are_summed_in_float32(name, target):
    """Values and gradients of bfloat16 arguments, next to those of the same numbers in float32."""
    own, plain, shapes = CASES[name]
    rng = np.random.default_rng(1)
    arguments = [jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in shapes]
    if name == "rotation":
        arguments[1] = arguments[1].astype(jnp.float32)  # angles
    cotangent = jnp.asarray(rng.normal(size=jax.eval_shape(own, *arguments).shape), jnp.bfloat16)
    wide = [x.astype(jnp.float32) for x in arguments]
    if name == "logits":
        cotangent = cotangent.astype(jnp.float32)
    with backend.tracing_for(target):
        ours = with_gradients(own, arguments, cotangent)
    theirs = with_gradients(plain, wide, cotangent.astype(jnp.float32))
    for one, other, argument in zip(ours[1], theirs[1], arguments, strict=True):
        assert one.dtype == argument.dtype
        np.testing.assert_allclose(one.astype(np.float32), other, rtol=0.02, atol=0.02 * float(jnp.abs(other).max()))


def test_gelu_far_from_zero():
    x = jnp.asarray([-1e4, -40.0, -6.0, 6.0, 40.0, 1e4], jnp.float32)
    y, pullback = jax.vjp(operations.gelu, x)
    np.testing.assert_allclose(y, jnp.maximum(x, 0.0), atol=1e-6)
    np.testing.assert_allclose(pullback(jnp.ones_like(x))[0], x > 0, atol=1e-6)


@pytest.mark.tricks
def test_no_loop_stands_in_a_program_for_other_platforms():
    """There the host would have to wait for it."""
    x, kernel = jnp.ones((8192, 8)), jnp.ones((8, 9))

    def gradients(x, kernel):
        return jax.grad(lambda *arguments: operations.matmul(*arguments).sum(), (0, 1))(x, kernel)

    loops = [
        "stablehlo.while" in jax.export.export(jax.jit(gradients), platforms=[platform])(x, kernel).mlir_module()
        for platform in ("cpu", "cuda")
    ]
    assert loops == [True, False]


def test_once_takes_any_number_of_rows():
    """A program that is exported has no size by which its worth could be judged."""
    (rows,) = jax.export.symbolic_shape("b")
    shape = jax.ShapeDtypeStruct((rows, 3), np.float32)
    made = jax.export.export(jax.jit(lambda x: operations.materialize(x + 1)))(shape)
    np.testing.assert_array_equal(made.call(np.zeros((2, 3), np.float32)), np.ones((2, 3)))


@pytest.mark.tricks
@pytest.mark.parametrize(("name", "needed"), [("layer norm", 0), ("linear", 3), ("rotation", 0)])
def test_sums_are_products_on_a_cpu_alone(name, needed):
    """Elsewhere a product with ones would be a kernel of its own, which reads again what it sums."""
    own, _, shapes = CASES[name]
    arguments = [jnp.ones(shape, jnp.bfloat16) for shape in shapes]
    if name == "rotation":
        arguments[1] = arguments[1].astype(jnp.float32)  # angles

    def products(target, platform):
        def gradients(*arguments):
            y, pullback = jax.vjp(own, *arguments)
            return y, pullback(y)

        with backend.tracing_for(target):
            lowered = jax.jit(gradients).trace(*arguments).lower(lowering_platforms=(platform,))
        return lowered.as_text().count("dot_general")

    assert products("gpu", "cuda") == needed < products("cpu", "cpu")
