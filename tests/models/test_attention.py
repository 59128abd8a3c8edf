"""What both attentions share: masks of keys, and stages that are scanned, recomputed or of another grid."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.models.relative import RelativeAttention, relative_position_index, resize_table, table_rows
from linnaeus_jax.models.rotary import RotaryAttention
from linnaeus_jax.models.transformer import TransformerStage, attention_logits

GRID, EXTRA, DIM = (2, 3), 3, 8
KINDS = {
    "rotary": RotaryAttention(2, rope_theta=10.0),
    "axial": RotaryAttention(2, rope_mixed=False),
    "relative": RelativeAttention(2, table_grid=GRID),
}


def draw(layer):
    """Random parameters, none of them 0, and tokens [2, 9, 8]."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda key: layer.init(key, jnp.ones((1, 9, DIM)), GRID), jax.random.key(0))["params"]
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    return params, rng.normal(size=(2, 9, DIM)).astype(np.float32)


def attention64(kind, params, x, keep):
    """The layer in float64, each row's attention over the tokens `keep` of it alone; by loops, in NumPy."""
    params, x = jax.tree.map(lambda a: np.asarray(a, np.float64), (params, x))
    qkv = x @ params["qkv"]["kernel"] + params["qkv"].get("bias", 0.0)
    q, k, v = np.moveaxis(qkv.reshape(*x.shape[:2], 3, 2, DIM // 2), 2, 0)
    bias = np.zeros((2, 9, 9))
    if kind == "relative":
        bias = params["relative_position_bias_table"][relative_position_index(GRID, EXTRA)].transpose(2, 0, 1)
    else:
        axial = np.asarray([[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2])  # the first pair turns with x, the second with y
        freqs_x, freqs_y = params.get("freqs", axial)
        for p in range(6):
            angle = (p % 3) * freqs_x + (p // 3) * freqs_y
            for z in (q, k):
                turned = (z[:, EXTRA + p, :, 0::2] + 1j * z[:, EXTRA + p, :, 1::2]) * np.exp(1j * angle)
                z[:, EXTRA + p, :, 0::2], z[:, EXTRA + p, :, 1::2] = turned.real, turned.imag
    out = np.zeros_like(q)
    for b in range(2):
        for h in range(2):
            logits = (q[b, :, h] @ k[b, keep[b], h].T) * (DIM // 2) ** -0.5 + bias[h][:, keep[b]]
            probs = np.exp(logits - logits.max(axis=1, keepdims=True))
            out[b, :, h] = probs / probs.sum(axis=1, keepdims=True) @ v[b, keep[b], h]
    return out.reshape(x.shape) @ params["proj"]["kernel"] + params["proj"]["bias"]


@pytest.mark.parametrize("kind", list(KINDS))
def test_masked_keys_are_removed_keys(kind):
    layer = KINDS[kind]
    params, x = draw(layer)
    assert ("freqs" in params) is (kind == "rotary")
    mask = np.ones((2, 9), bool)
    mask[0, 1], mask[1, 1:3] = False, False
    keep = [np.flatnonzero(row) for row in mask]
    out: Any = layer.apply({"params": params}, x, GRID, key_mask_BN=mask)
    np.testing.assert_allclose(out, attention64(kind, params, x, keep), atol=2e-5)
    full: Any = layer.apply({"params": params}, x, GRID)
    np.testing.assert_allclose(full, attention64(kind, params, x, [np.arange(9)] * 2), atol=2e-5)
    assert np.abs(full - out).max() > 1e-2


def stage_run(stage, params, x, mask=None):
    """(loss, gradients) of a training step with all random parts."""
    keys = {"dropout": jax.random.key(1), "drop_path": jax.random.key(2)}

    def loss(params, x):
        out = stage.apply({"params": params}, x, GRID, train=True, key_mask_BN=mask, rngs=keys)
        return jnp.sum(out * jnp.cos(jnp.arange(float(out.size))).reshape(out.shape))

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(params, x)


@pytest.mark.slow
def test_remat_and_scan_of_a_stage_with_relative_positions_and_a_mask_change_nothing():
    settings = {"num_heads": 2, "table_grid": GRID, "drop_rate": 0.2, "attn_drop_rate": 0.2, "dtype": jnp.float32}
    plain, other = (
        TransformerStage(RelativeAttention, settings, (0.1, 0.4), remat=form, scan=form) for form in (False, True)
    )
    x = jax.random.normal(jax.random.key(0), (3, 9, DIM))
    mask = jnp.ones((3, 9), bool).at[1, 1].set(False)
    params = jax.jit(lambda key: plain.init(key, x, GRID, train=False))(jax.random.key(3))["params"]
    expected, ours = (stage_run(stage, params, x, mask) for stage in (plain, other))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4), ours, expected)
    shapes = (
        jax.eval_shape(lambda key, s=s: s.init(key, x, GRID, train=False), jax.random.key(0)) for s in (plain, other)
    )
    assert len({str(jax.tree.map(jnp.shape, tree)) for tree in shapes}) == 1


def test_another_grid_is_a_layer_of_that_grid_with_a_resized_table():
    layer = KINDS["relative"]
    params, _ = draw(layer)
    grid, x = (3, 2), np.random.default_rng(1).normal(size=(2, 9, DIM)).astype(np.float32)
    other = layer.clone(table_grid=grid)

    def resized(params):
        table = resize_table(jnp.asarray(params["relative_position_bias_table"]), GRID, grid)
        return {**params, "relative_position_bias_table": table}

    def loss(params, layer, change):
        return jnp.sum(jnp.sin(layer.apply({"params": change(params)}, x, grid)))

    assert table_rows(grid) == table_rows(GRID)  # the number of rows alone would not tell
    run = jax.jit(jax.value_and_grad(loss), static_argnums=(1, 2))
    found, expected = run(params, layer, dict), run(params, other, resized)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)
    assert np.abs(found[1]["relative_position_bias_table"]).min() > 0


def test_gradients_of_logits_are_those_of_the_plain_product():
    rng = np.random.default_rng(0)
    q, k, weight = (
        jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((2, 5, 3, 4), (2, 6, 3, 4), (2, 3, 5, 6))
    )

    def plain(q, k):
        return (jnp.einsum("bnhd,bmhd->bhnm", q, k) * 0.3 * weight).sum()

    found = jax.grad(lambda q, k: (attention_logits(q, k, 0.3) * weight).sum(), argnums=(0, 1))(q, k)
    for one, other in zip(found, jax.grad(plain, argnums=(0, 1))(q, k), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
