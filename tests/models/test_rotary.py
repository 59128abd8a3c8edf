import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.models import rotary
from linnaeus_jax.models.names import from_torch_layout
from tests.npz import load_npz


@pytest.fixture(scope="module")
def golden(fixtures):
    return load_npz(fixtures / "models_rope.npz")


@pytest.fixture(scope="module")
def cfg(golden):
    return json.loads(str(golden["cfg"]))


def test_positions_and_angles(golden, cfg):
    grid = tuple(cfg["grid"])
    x, y = rotary.patch_positions(grid)
    np.testing.assert_array_equal(x, golden["t_x"])
    np.testing.assert_array_equal(y, golden["t_y"])
    angles = np.asarray(jax.jit(rotary.mixed_angles, static_argnums=1)(golden["freqs"], grid))
    np.testing.assert_allclose(np.cos(angles), golden["cos"], atol=1e-5)
    np.testing.assert_allclose(np.sin(angles), golden["sin"], atol=1e-5)
    axial = jax.jit(lambda: rotary.axial_angles(grid, cfg["dim"] // cfg["heads"], cfg["theta"]))()
    np.testing.assert_allclose(axial, golden["axial/angles"], atol=1e-5)


@pytest.mark.parametrize(("mode", "prefix"), [("rotary", "rot"), ("cos_only", "cos")])
def test_rotate(golden, cfg, mode, prefix):
    rotate = jax.jit(lambda x, freqs: rotary.rotate(x, rotary.mixed_angles(freqs, tuple(cfg["grid"])), mode))
    for name in "qk":
        x = golden[name].transpose(0, 2, 1, 3)  # [B, N, heads, d]
        out = np.asarray(rotate(x, golden["freqs"])).transpose(0, 2, 1, 3)
        np.testing.assert_allclose(out, golden[f"{prefix}/{name}"], atol=1e-5)


@pytest.mark.parametrize(("mode", "prefix"), [("rotary", "rot"), ("cos_only", "cos")])
def test_whole_attention_layer(golden, cfg, mode, prefix):
    weights = {name: golden[f"attn/param/{name}"] for name in ("qkv.weight", "qkv.bias", "proj.weight", "proj.bias")}
    params = {
        layer: {
            "kernel": from_torch_layout((layer, "kernel"), weights[f"{layer}.weight"]),
            "bias": weights[f"{layer}.bias"],
        }
        for layer in ("qkv", "proj")
    }
    params["freqs"] = golden["attn/param/freqs"]
    layer = rotary.RotaryAttention(num_heads=cfg["heads"], rope_mode=mode)
    out = jax.jit(layer.apply, static_argnums=2)({"params": params}, golden["attn/x"], tuple(cfg["grid"]))
    np.testing.assert_allclose(np.asarray(out), golden[f"attn/{prefix}"], atol=1e-5)


def test_initial_frequencies_follow_the_angles(golden, cfg, monkeypatch):
    turn = jnp.asarray(golden["init/angle"] / (2 * np.pi), jnp.float32)[:, None]
    monkeypatch.setattr(rotary, "drawn", lambda key, kind, shape, dtype, finish: finish(turn))
    draw = rotary.freqs_init("random_direction", cfg["theta"])
    np.testing.assert_allclose(draw(None, golden["init/freqs"].shape), golden["init/freqs"], atol=1e-6)


def test_rope_vit_frequencies_point_along_and_across_one_direction():
    freqs = np.asarray(jax.jit(lambda key: rotary.freqs_init("rope_vit", 10.0)(key, (2, 3, 8)))(jax.random.key(0)))
    along, across = freqs[..., :4], freqs[..., 4:]
    magnitude = 10.0 ** (-4 * np.arange(4) / 16)
    np.testing.assert_allclose(np.linalg.norm(along, axis=0), np.broadcast_to(magnitude, (3, 4)), rtol=1e-5)
    np.testing.assert_allclose(np.sum(along * across, axis=0), 0.0, atol=1e-6)


@pytest.mark.parametrize(("mode", "invariant"), [("rotary", True), ("cos_only", False)])
def test_shifting_all_positions_keeps_the_logits_of_rotary_only(golden, cfg, mode, invariant):
    shift = 3.0 * golden["freqs"][0] + 2.0 * golden["freqs"][1]
    q, k = (golden[name].transpose(0, 2, 1, 3) for name in "qk")

    @jax.jit
    def logits(freqs, shift):
        angles = rotary.mixed_angles(freqs, tuple(cfg["grid"])) + shift[None]
        return jnp.einsum("bnhd,bmhd->bhnm", rotary.rotate(q, angles, mode), rotary.rotate(k, angles, mode))

    unmoved, moved = (logits(golden["freqs"], by) for by in (np.zeros_like(shift), shift))
    assert np.allclose(unmoved, moved, atol=1e-4) is invariant


def test_extra_tokens_are_not_encoded(golden, cfg):
    x = golden["q"].transpose(0, 2, 1, 3)
    zeros = np.zeros((x.shape[1], *golden["freqs"].shape[1:]), np.float32)
    turned = jax.jit(lambda x, angles: [rotary.rotate(x, angles, mode) for mode in rotary.ROPE_MODES])(x, zeros)
    for out in turned:
        np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize(
    ("channels", "heads", "shared", "tokens"), [(2, 3, False, 4), (2, 3, True, 4), (2, 1, True, 1), (4, 3, True, 4)]
)
def test_gradients_of_turned_pairs(channels, heads, shared, tokens):
    """The written backward pass is that of the formula, also where an axis that is summed or of pairs has size 1."""
    rng = np.random.default_rng(0)
    shape, shape_of_angles = (2, tokens, 2, heads, channels), (tokens, 1 if shared else heads, channels // 2)
    x, angles, weight = (rng.normal(size=of).astype(np.float32) for of in (shape, shape_of_angles, shape))

    def by_hand(x, angles):
        cos, sin = (function(angles)[None, :, None] for function in (jnp.cos, jnp.sin))
        pairs = jnp.stack([x[..., ::2] * cos - x[..., 1::2] * sin, x[..., 1::2] * cos + x[..., ::2] * sin], -1)
        return jnp.vdot(pairs.reshape(x.shape), weight)

    def ours(x, angles):
        return jnp.vdot(rotary.rotate(x, angles, "rotary"), weight)

    both = jax.jit(lambda *given: [jax.grad(function, (0, 1))(*given) for function in (ours, by_hand)])
    for found, wanted in zip(*both(x, angles), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
