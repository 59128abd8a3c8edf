"""Attention in one kernel: what surrounds it, checked with the portable implementation, and where it is taken."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from benchmarks.traffic import as_on_gpu, operations
from linnaeus_jax.models import transformer
from linnaeus_jax.models.relative import RelativeAttention
from linnaeus_jax.models.rotary import RotaryAttention
from linnaeus_jax.models.transformer import SelfAttention, TransformerStage, fused_attention

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
    seen = rng.random((2, tokens)) < 0.6
    seen[:, 0] = True
    mask = jax.device_put(seen) if extra == "mask" else None

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
        got, want = (np.asarray(x, np.float32) for x in (got, want))
        np.testing.assert_allclose(got, want, atol=tolerance * float(np.abs(want).max()))


def test_a_bias_and_a_mask_together_are_refused() -> None:
    x, bias = jnp.zeros((1, 4, 2, 8)), jnp.zeros((2, 4, 4))
    with pytest.raises(ValueError, match=r"model.missing_metadata = 'zero'"):
        fused_attention(x, x, x, SCALE, bias, jnp.ones((1, 4), bool))


@pytest.fixture
def kernel_without_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused form, computed by XLA, leaves garbage as gradients of keys and values that are beyond the length."""

    @functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
    def spoilt(x: jax.Array, lengths_B: jax.Array | None, tokens: int) -> jax.Array:
        return x

    def pullback(tokens: int, lengths_B: jax.Array | None, grad: jax.Array) -> Any:
        beyond = jnp.arange(tokens)[None] >= (tokens if lengths_B is None else lengths_B[:, None])
        return jnp.where(beyond[..., None, None], jnp.nan, grad), None

    spoilt.defvjp(lambda x, lengths_B, tokens: (x, lengths_B), pullback)
    plain_form = jax.nn.dot_product_attention

    def attention(q: jax.Array, k: jax.Array, v: jax.Array, *rest: Any, **options: Any) -> jax.Array:
        lengths_B = options["key_value_seq_lengths"]
        k, v = (spoilt(x, lengths_B, x.shape[1]) for x in (k, v))
        return plain_form(q, k, v, *rest, **{**options, "implementation": "xla"})

    monkeypatch.setattr(jax.nn, "dot_product_attention", attention)


GRID = (2, 2)
KINDS: dict[type[SelfAttention], dict[str, Any]] = {RotaryAttention: {}, RelativeAttention: {"table_grid": GRID}}


def stage_of(kind: type[SelfAttention], impl: str, rates: tuple[float, ...], **options: Any) -> TransformerStage:
    settings = {"num_heads": 2, "drop_rate": 0.0, "attn_drop_rate": 0.0, "dtype": jnp.float32, **KINDS[kind]}
    return TransformerStage(kind, {**settings, "attn_impl": impl}, rates, mlp_ratio=1.0, **options)


def stage_run(kind: type[SelfAttention], impl: str, x: jax.Array, mask: jax.Array | None, **options: Any) -> Any:
    """(output, gradients) of a stage of one block with random parameters."""
    stage = stage_of(kind, impl, (0.4,), **options)
    rng = np.random.default_rng(2)
    shapes = jax.eval_shape(lambda key: stage.init(key, x, GRID, train=False), jax.random.key(0))["params"]
    params = jax.tree.map(lambda leaf: np.asarray(0.3 * rng.normal(size=leaf.shape), np.float32), shapes)
    cotangent = rng.normal(size=x.shape).astype(np.float32)

    @jax.jit
    def both(params: Any, x: jax.Array) -> Any:
        def run(params: Any, x: jax.Array) -> Any:
            rngs = {"drop_path": jax.random.key(3)}
            return stage.apply({"params": params}, x, GRID, train=True, key_mask_BN=mask, rngs=rngs)

        out, pullback = jax.vjp(run, params, x)
        return out, pullback(cotangent)

    return both(params, x)


@pytest.mark.usefixtures("kernel_without_device")
@pytest.mark.parametrize(
    ("kind", "tokens", "masked", "options"),
    [
        (RelativeAttention, 7, False, {}),
        (RotaryAttention, 7, True, {"scan": True, "remat": True}),
    ],
)
def test_a_stage_that_is_padded_once_is_the_plain_one(kind: Any, tokens: int, masked: bool, options: Any) -> None:
    """Values and gradients, those of the bias tables too; and nothing of a gradient beyond the length is used."""
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, tokens, 16)), jnp.float32)
    valid = np.ones((2, tokens), bool)
    valid[0, 1] = valid[1, 1:3] = False
    mask = jax.device_put(valid) if masked else None
    found, expected = (stage_run(kind, impl, x, mask, **options) for impl in ("cudnn", "xla"))
    assert found[0].shape == x.shape
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * max(1.0, float(np.abs(other).max())))


@pytest.mark.usefixtures("kernel_without_device")
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_padded_once_in_a_stage(kind: type[SelfAttention], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    original = transformer.fused_attention

    def note(q: jax.Array, *rest: Any, padding: int, **options: Any) -> jax.Array:
        sizes.append((q.shape[1], padding))
        return original(q, *rest, padding=padding, **options)

    monkeypatch.setattr(transformer, "fused_attention", note)
    stage = stage_of(kind, "cudnn", (0.0, 0.0))
    for tokens in (7, 6):
        x = jnp.zeros((1, tokens, 16))
        out, _ = jax.eval_shape(lambda x: stage.init_with_output(jax.random.key(0), x, GRID, train=False), x)
        assert out.shape == x.shape
    assert sizes == [(8, 1), (8, 1), (6, 0), (6, 0)]


@pytest.mark.usefixtures("kernel_without_device")
def test_dropped_keys_are_dropped_for_all_queries_of_a_head() -> None:
    """The whole value of a token in a head is left out, or 1 / (1 - rate) of it taken: the same draws in both forms."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 32)), jnp.float32)
    seen: list[tuple[jax.Array, Any]]

    def collect(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        out = call(*args, **kwargs)
        if context.module.name == "attn_drop":
            seen.append((args[0], out))
        return out

    @functools.partial(jax.jit, static_argnums=0)
    def run(rate: float, variables: Any) -> Any:
        """(outputs of both forms, what was dropped from and what was left in each)."""
        nonlocal seen
        seen, outputs = [], []
        for impl in ("xla", "cudnn"):
            module = RotaryAttention(4, rope_mixed=False, attn_drop_kind="keys", attn_impl=impl, attn_drop_rate=rate)
            with nn.intercept_methods(collect):
                outputs.append(module.apply(variables, x, (2, 3), jax.random.key(1)))
        return outputs, seen

    kernels = {"qkv": (32, 96), "proj": (32, 32)}
    variables = {
        "params": {
            name: {
                "kernel": np.cos(np.arange(a * b, dtype=np.float32)).reshape(a, b) / 4,
                "bias": np.zeros(b, np.float32),
            }
            for name, (a, b) in kernels.items()
        }
    }
    (plain, fused), kept_of = jax.device_get(run(0.5, variables))
    assert len(kept_of) == 2
    np.testing.assert_allclose(plain, fused, atol=1e-5)
    for values, out in kept_of:
        kept = out / values
        assert set(kept.ravel()) == {0.0, 2.0}
        np.testing.assert_array_equal(kept, np.broadcast_to(kept[..., :1], (2, 6, 4, 8)))
        assert 0.2 < kept[..., 0].mean() / 2 < 0.8
    plain, fused = run(0.0, variables)[0]
    np.testing.assert_allclose(plain, fused, atol=1e-5)


def kernels(dtype: Any, kind: type[SelfAttention] = RotaryAttention, **options: Any) -> int:
    """Fused kernels of value and gradient of an attention over 3 + 4 tokens, as traced for a GPU."""
    x, grid = jnp.zeros((2, 7, 32), dtype), (2, 2)
    module: Any = kind(num_heads=2, dtype=dtype, **KINDS[kind], **options)

    def loss(variables: Any) -> jax.Array:
        out: Any = module.apply(variables, x, grid)
        return out.astype(jnp.float32).sum()

    with as_on_gpu():
        variables = jax.eval_shape(lambda: module.init(jax.random.key(0), x, grid))
        traced = jax.make_jaxpr(jax.grad(loss))(variables)
    return sum(operation.kind == "kernel" for operation in operations(traced.jaxpr))


@pytest.mark.tricks
def test_auto_takes_the_kernel_where_it_can() -> None:
    assert kernels(jnp.bfloat16) == 2
    assert kernels(jnp.bfloat16, attn_impl="xla") == 0
    assert kernels(jnp.float32) == 0
    assert kernels(jnp.bfloat16, attn_drop_rate=0.1) == 0
    assert kernels(jnp.bfloat16, attn_drop_rate=0.1, attn_drop_kind="keys") == 2


def test_a_learned_bias_takes_the_kernel_where_it_is_asked_for() -> None:
    assert kernels(jnp.bfloat16, RelativeAttention) == 0
    assert kernels(jnp.bfloat16, RelativeAttention, attn_impl="cudnn") == 2


@pytest.mark.parametrize(("bias", "kind"), [(False, "fmhaSoftmax"), (True, "fmhaScaleBiasSoftmax")])
def test_the_kernel_and_its_gradient_lower_for_cuda(bias: bool, kind: str) -> None:
    """579 tokens: 577 of a picture of 384 pixels and two of metadata."""
    x = jax.ShapeDtypeStruct((2, 579, 6, 64), jnp.bfloat16)
    arguments = (x, x, x, *([jax.ShapeDtypeStruct((6, 579, 579), jnp.float32)] if bias else []))
    names = [f"__cudnn${kind}{which}" for which in ("", "Backward")]
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in names]

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array | None = None) -> jax.Array:
        return fused_attention(q, k, v, SCALE, bias).astype(jnp.float32).sum()

    gradient = jax.jit(jax.grad(loss, argnums=tuple(range(len(arguments)))))
    with as_on_gpu():
        text = export.export(gradient, platforms=["cuda"], disabled_checks=checks)(*arguments).mlir_module()
    assert all(f"@{name}(" in text for name in names)
