"""Dropout and drop path: what is dropped, what is kept, and that no two places of a model draw the same."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.models.layers import Dropout, Mlp
from linnaeus_jax.models.relative import RelativeAttention
from linnaeus_jax.models.rotary import RotaryAttention
from linnaeus_jax.models.transformer import TransformerBlock, TransformerStage
from tests.weights.helpers import SMALL, SMALL_V0, model_of, section

ATTENTION: dict[type[nn.Module], dict[str, Any]] = {RelativeAttention: {"table_grid": (2, 2)}, RotaryAttention: {}}


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.9])
def test_what_is_kept_is_scaled_by_what_is_dropped(rate):
    """The expectation is the input: values are 0 with probability `rate`, else divided by 1 - rate."""
    x = jnp.full((100, 100), 3.0)
    out = np.asarray(Dropout(rate).apply({}, x, jax.random.key(0)))
    kept = out != 0
    np.testing.assert_allclose(out[kept], 3.0 / (1 - rate), rtol=1e-6)
    assert abs(kept.mean() - (1 - rate)) < 0.02
    np.testing.assert_array_equal(Dropout(rate).apply({}, x, None), x)


def keys_of(module: nn.Module, *arguments: Any) -> dict[str, bytes]:
    """Path of each call of dropout -> the key that it is given."""
    keys: dict[str, jax.Array] = {}

    def collect(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        if isinstance(context.module, Dropout) and context.method_name == "__call__":
            path = "/".join(context.module.path)
            assert path not in keys
            keys[path] = jax.random.key_data(args[1])
        return call(*args, **kwargs)

    variables = jax.eval_shape(lambda key: module.init(key, *arguments), jax.random.key(0))
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), variables)

    @jax.jit
    def run(variables: Any) -> dict[str, jax.Array]:
        with nn.intercept_methods(collect):
            module.apply(variables, *arguments)
        return keys

    return {path: np.asarray(key).tobytes() for path, key in run(zeros).items()}


def test_the_two_dropouts_of_an_mlp_have_keys_of_their_own():
    keys = keys_of(Mlp(4, 4, drop_rate=0.5), jnp.ones((2, 4)), jax.random.key(1))
    assert keys.keys() == {"drop1", "drop2"}
    assert len(set(keys.values())) == 2


@pytest.mark.parametrize("kind", ATTENTION)
def test_every_dropout_of_a_block_has_a_key_of_its_own(kind):
    common = {"num_heads": 2, "drop_rate": 0.5, "attn_drop_rate": 0.5, "dtype": jnp.float32}
    block = TransformerBlock(kind, {**common, **ATTENTION[kind]})
    keys = keys_of(block, jnp.ones((1, 5, 8)), (2, 2), None, jax.random.key(1))
    assert keys.keys() == {"attn/attn_drop", "attn/proj_drop", "mlp/drop1", "mlp/drop2"}
    assert len(set(keys.values())) == 4


@pytest.mark.parametrize(
    ("keys", "depths", "wanted"),
    [
        (SMALL, {"rope_stages__depths": (3, 1)}, [(0.24, 0.36, 0.48), (0.6,)]),
        (SMALL_V0, {"attention_stages__depths": (3, 1)}, [(0.0, 0.15, 0.3), (0.45,)]),
    ],
)
def test_the_rates_of_drop_path_in_the_models(keys, depths, wanted):
    """Those of mFormerV1 rise over all blocks to the rate; those of mFormerV0 would reach it after the last block."""
    model = model_of(section(**{**keys, **depths}, drop_path_rate=0.6), size=64)
    stages: list[tuple[float, ...]] = []

    def collect(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        if isinstance(context.module, TransformerStage) and context.method_name == "__call__":
            stages.append(context.module.drop_path_rates)
        return call(*args, **kwargs)

    with nn.intercept_methods(collect):
        jax.eval_shape(lambda key: model.init(key, jnp.zeros((1, 64, 64, 3))), jax.random.key(0))
    for found, rates in zip(stages, wanted, strict=True):
        np.testing.assert_allclose(found, rates, atol=1e-6)
