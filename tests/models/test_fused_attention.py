"""Attention in one kernel: what surrounds it, checked with the portable implementation, and where it is taken."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from benchmarks.traffic import as_on_gpu, operations
from linnaeus_jax.models.rotary import RotaryAttention
from linnaeus_jax.models.transformer import fused_attention

SCALE = 0.5


def plain(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array | None, mask: jax.Array | None) -> jax.Array:
    logits = jnp.einsum("bnhd,bmhd->bhnm", q, k, preferred_element_type=jnp.float32) * SCALE
    logits = logits if bias is None else logits + bias[None]
    logits = logits if mask is None else jnp.where(mask[:, None, None], logits, -1e30)
    return jnp.einsum("bhnm,bmhd->bnhd", jax.nn.softmax(logits).astype(v.dtype), v)


@pytest.mark.parametrize(
    ("tokens", "extra", "dtype"),
    [
        (6, "", jnp.float32),
        (7, "", jnp.bfloat16),
        (7, "bias", jnp.float32),
        (6, "mask", jnp.float32),
        (7, "mask", jnp.bfloat16),
    ],
)
def test_fused_attention_is_the_plain_one(tokens: int, extra: str, dtype: Any) -> None:
    """One more token for the kernel's sake and another order of the keys change neither values nor gradients."""
    rng = np.random.default_rng(1)
    q, k, v, cotangent = jnp.asarray(rng.normal(size=(4, 2, tokens, 3, 8)), dtype)
    bias = jnp.asarray(rng.normal(size=(3, tokens, tokens)), jnp.float32) if extra == "bias" else None
    mask = jnp.asarray(rng.random((2, tokens)) < 0.6).at[:, 0].set(True) if extra == "mask" else None

    @jax.jit
    def both(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array | None) -> Any:
        def fused(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array | None) -> jax.Array:
            return fused_attention(q, k, v, SCALE, bias, mask, implementation="xla")

        results = []
        for function in (fused, lambda q, k, v, bias: plain(q, k, v, bias, mask)):
            value, pullback = jax.vjp(function, q, k, v, bias)
            results.append((value, pullback(cotangent)))
        return results

    tolerance = 1e-5 if dtype == jnp.float32 else 3e-2  # bfloat16 has 8 bits
    ours, expected = both(q, k, v, bias)
    assert ours[0].dtype == dtype
    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(
            got.astype(jnp.float32), want.astype(jnp.float32), atol=tolerance * float(jnp.abs(want).max())
        )


def test_a_bias_and_a_mask_together_are_refused() -> None:
    x, bias = jnp.zeros((1, 4, 2, 8)), jnp.zeros((2, 4, 4))
    with pytest.raises(ValueError, match=r"model.missing_metadata = 'zero'"):
        fused_attention(x, x, x, SCALE, bias, jnp.ones((1, 4), bool))


def kernels(dtype: Any, **options: Any) -> int:
    """Fused kernels of value and gradient of an attention over 3 + 4 tokens, as traced for a GPU."""
    x, grid = jnp.zeros((2, 7, 32), dtype), (2, 2)
    module = RotaryAttention(num_heads=2, dtype=dtype, **options)

    def loss(variables: Any) -> jax.Array:
        out: Any = module.apply(variables, x, grid)
        return out.astype(jnp.float32).sum()

    with as_on_gpu():
        variables = jax.eval_shape(lambda: module.init(jax.random.key(0), x, grid))
        traced = jax.make_jaxpr(jax.grad(loss))(variables)
    return sum(operation.kind == "kernel" for operation in operations(traced.jaxpr))


def test_auto_takes_the_kernel_where_it_can() -> None:
    assert kernels(jnp.bfloat16) == 2
    assert kernels(jnp.bfloat16, attn_impl="xla") == 0
    assert kernels(jnp.float32) == 0
    assert kernels(jnp.bfloat16, attn_drop_rate=0.1) == 0


def test_the_kernel_and_its_gradient_lower_for_cuda() -> None:
    """579 tokens: 577 of a picture of 384 pixels and two of metadata."""
    x = jax.ShapeDtypeStruct((2, 579, 6, 64), jnp.bfloat16)
    names = [f"__cudnn$fmhaSoftmax{which}" for which in ("", "Backward")]
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in names]

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return fused_attention(q, k, v, SCALE).astype(jnp.float32).sum()

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
    with as_on_gpu():
        text = export.export(gradient, platforms=["cuda"], disabled_checks=checks)(x, x, x).mlir_module()
    assert all(f"@{name}(" in text for name in names)
