"""ConvNeXt as a family: what the contract of all families does not see."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models.convnext import GlobalResponseNorm
from linnaeus_jax.models.convnext_family import VARIANTS
from tests.models.builds import build

SETTINGS: dict[str, Any] = {"type": "ConvNeXt", "components": (), "num_classes": {"species": 3}, "img_size": 32}
FAST: Any = {"xla_backend_optimization_level": 0}


def test_variants_are_the_published_ones():
    sizes = {name: (fields["dims"], fields["depths"]) for name, fields in VARIANTS.items()}
    assert sizes["atto"] == ((40, 80, 160, 320), (2, 2, 6, 2))
    assert sizes["nano"] == ((80, 160, 320, 640), (2, 2, 8, 2))
    assert sizes["tiny"] == ((96, 192, 384, 768), (3, 3, 9, 3))
    assert sizes["large"] == ((192, 384, 768, 1536), (3, 3, 27, 3))
    assert len({*sizes.values()}) == len(sizes)


def test_global_response_norm_of_a_channel_that_is_zero_everywhere():
    """Rows that fill up a batch are black: their channels may be 0, where a norm has no gradient."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 3, 4)).astype(np.float32)
    x[1], x[0, ..., 2] = 0, 0
    params = {"gamma": jnp.ones(4), "beta": jnp.zeros(4)}

    def run(params: Any, x: Any) -> Any:
        return GlobalResponseNorm().apply({"params": params}, x)

    gradients_of = jax.grad(lambda *args: run(*args).sum(), argnums=(0, 1))
    run_all = jax.jit(lambda *args: (run(*args), gradients_of(*args)), compiler_options=FAST)
    norms = np.linalg.norm(x.reshape(2, 9, 4), axis=1)
    share = norms / (norms.mean(axis=1, keepdims=True) + 1e-6)
    found, gradients = run_all(params, x)
    np.testing.assert_allclose(found, x + x * share[:, None, None], rtol=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


def test_a_trunk_that_is_cut_computes_the_same():
    keys: dict[str, Any] = {
        "convnext__use_grn": True,
        "convnext__head_norm_first": True,
        "convnext__kernel_sizes": (1,),
    }
    keys |= {"convnext_stages__dims": (8, 16, 32), "convnext_stages__depths": (1, 1, 2)}
    model, image = build(**SETTINGS, variant="test", depthwise_impl="lax", **keys), np.ones((1, 32, 32, 3), np.float32)
    assert model.trunk_blocks == 4
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)
    rng = np.random.default_rng(0)
    variables = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), shapes)

    def all_ways(x: Any) -> Any:
        whole = model.apply(variables, x, method="encode_image")
        inner = [model.apply(variables, x, block, method="forward_prefix") for block in (2, 3, 4)]
        parts = [model.apply(variables, x, n, method="forward_suffix") for x, n in zip(inner, (2, 3, 4))]
        return whole, inner, parts

    whole, inner, parts = jax.jit(all_ways, compiler_options=FAST)(image)
    # block 2 is the first of the third stage: what enters it is not yet made smaller
    assert [x.shape[1:] for x in inner] == [(4, 4, 16), (2, 2, 32), (32,)]
    for part in parts:
        np.testing.assert_allclose(part, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"convnext_stages__dims": (8, 16)}, "dims = (8, 16) and depths = (1, 1, 2, 1) must be of one length"),
        (
            {"convnext_stages__depths": (1, 0, 1, 1)},
            "model.convnext_stages.depths = (1, 0, 1, 1) must be whole numbers from 1",
        ),
        ({"convnext__stem": "conv"}, "model.convnext.stem = 'conv' is unknown; choose one of patch"),
        ({"convnext__act": "relu"}, "model.convnext.act = 'relu' is unknown"),
        ({"convnext__kernel_sizes": (7, 4, 7, 7)}, "model.convnext.kernel_sizes = (7, 4, 7, 7) must be one odd"),
        ({"convnext__kernel_sizes": (7, 7)}, "model.convnext.kernel_sizes = (7, 7) must be one odd number"),
        ({"convnext__norm_eps": 0.0}, "model.convnext.norm_eps = 0.0 is out of range"),
        ({"convnext__head_norm_eps": 2.0}, "model.convnext.head_norm_eps = 2.0 is out of range"),
        ({"convnext__head_hidden_size": -1}, "model.convnext.head_hidden_size = -1 must be within"),
        ({"convnext_stages__layer_scale_init_value": -1.0}, "layer_scale_init_value = -1.0 is out of range"),
        ({"drop_path_rate": 1.0}, "model.drop_path_rate = 1.0 is out of range"),
        ({"depthwise_impl": "x"}, "model.depthwise_impl = 'x' is unknown"),
        ({"img_size": 16}, "data.img_size = 16 is out of range"),
    ],
)
def test_settings_that_cannot_work_are_errors(keys, words):
    with pytest.raises(InputError) as caught:
        build(**{**SETTINGS, "variant": "test", **keys})
    assert words in str(caught.value)
