"""The whole model beside one without optimisations, and by the plain formulas, from which JAX derives gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax import backend
from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.tree import assign
from linnaeus_jax.models import layers, operations, rotary, transformer
from linnaeus_jax.models.factory import build_model
from linnaeus_jax.models.names import abstract_variables

CLASSES = {"taxa_L10": 7, "taxa_L20": 4}
SMALL = {
    "convnext_stages.depths": (1, 1),
    "convnext_stages.dims": (8, 8, 16, 16),
    "convnext_stages.layer_scale_init_value": 0.5,
    "rope_stages.depths": (1, 1),
    "rope_stages.num_heads": (2, 2),
}
#: numbers of an array from which some operations choose another way, here so few that the model takes it
LITTLE = {"WORTH_A_LOOP": 2, "WORTH_FREEING": 2}


def small_model():
    config = get_config()
    config.model.variant = "tiny"
    for key, value in SMALL.items():
        assign(config, ("model", *key.split(".")), value)
    components = [("TEMPORAL", 2), ("SPATIAL", 3)]
    return build_model(config.model, components=components, num_classes=CLASSES, img_size=32, dtype=jnp.float64)


def use_plain_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    def layer_norm(x, scale, bias, epsilon, dtype):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        row = (1,) * (x.ndim - 1)
        y = (x - mean) / jnp.sqrt(variance + epsilon) * scale.reshape(*row, -1) + bias.reshape(*row, -1)
        return y.astype(dtype)

    def linear(x, kernel, bias, precision=None):
        return x @ kernel + bias.reshape(*(1,) * (x.ndim - 1), -1)

    def patch_conv(x, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, kernel.shape[:2], "VALID", dimension_numbers=numbers)

    def depthwise_conv(x, kernel, *, stride, padding, impl):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), padding, dimension_numbers=numbers, feature_group_count=x.shape[-1]
        )

    def turn(x, angles):
        first, second = x[..., 0::2], x[..., 1::2]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.stack([first * cos - second * sin, first * sin + second * cos], axis=-1).reshape(x.shape)

    def logits(q, k, scale):
        return jnp.einsum("bnhd,bmhd->bhnm", q, k) * scale

    monkeypatch.setattr(operations, "gelu", lambda x: jax.nn.gelu(x, approximate=False))
    monkeypatch.setattr(operations, "matmul", lambda x, kernel, precision=None: x @ kernel)
    monkeypatch.setattr(operations, "linear", linear)
    monkeypatch.setattr(operations, "linear_of_gelu", lambda y, x, *rest: linear(y, *rest))
    monkeypatch.setattr(operations, "patch_conv", patch_conv)
    monkeypatch.setattr(operations, "layer_norm", layer_norm)
    monkeypatch.setattr(layers, "depthwise_conv", depthwise_conv)
    monkeypatch.setattr(rotary, "_turn", turn)
    monkeypatch.setattr(transformer, "attention_logits", logits)


def loss_and_gradients(model, params, image, meta, label):
    @jax.jit  # of its own: nothing that was traced with other formulas is used
    def run(params):
        def loss(params):
            logits = model.apply({"params": params}, image, meta)
            rows = jnp.arange(len(label))
            return -sum(jax.nn.log_softmax(z)[rows, label % z.shape[1]].mean() for z in logits.values())

        return jax.value_and_grad(loss)(params)

    return run(params)


@pytest.mark.slow  # three models of float64 are compiled twice
@pytest.mark.parametrize("large", [False, True], ids=["as it is", "as with large arrays"])
def test_losses_and_gradients_in_float64(monkeypatch, large):
    model, rng = small_model(), np.random.default_rng(0)
    for name, value in LITTLE.items() if large else ():
        monkeypatch.setattr(operations, name, value)
    with jax.enable_x64(True):

        def drawn(path, like):
            mean = 1.0 if path[-1].key == "scale" else 0.0
            width = np.prod(like.shape[:-1]) ** -0.5 if len(like.shape) > 1 else 0.1
            return jnp.asarray(rng.normal(mean, width, like.shape))

        params = jax.tree_util.tree_map_with_path(drawn, abstract_variables(model)["params"])
        image, meta = jnp.asarray(rng.normal(size=(3, 32, 32, 3))), jnp.asarray(rng.normal(size=(3, 5)))
        label = jnp.asarray([0, 3, 5])
        ours = loss_and_gradients(model, params, image, meta, label)
        monkeypatch.setenv(backend.PLAIN, "all")
        plainly = loss_and_gradients(model, params, image, meta, label)
        monkeypatch.delenv(backend.PLAIN)
        use_plain_formulas(monkeypatch)
        theirs = loss_and_gradients(model, params, image, meta, label)
    assert ours[0].dtype == jnp.float64
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-12)
    np.testing.assert_allclose(plainly[0], theirs[0], rtol=1e-12)
    for others in (theirs, plainly):
        for one, other in zip(jax.tree.leaves(ours[1]), jax.tree.leaves(others[1]), strict=True):
            assert one.dtype == jnp.float64
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)
