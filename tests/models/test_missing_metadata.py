"""Metadata that are missing: tokens of zeros, or tokens that nobody looks at, in both families."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.builds import build

COMPONENTS = (("TEMPORAL", 2), ("SPATIAL", 3))
SMALL: dict[str, dict[str, Any]] = {
    "mFormerV0": {"attention_stages__depths": (1, 1), "attention_stages__dims": (24, 32)},
    "mFormerV1": {"rope_stages__depths": (1, 1), "convnext_stages__dims": (8, 8, 24, 32)},
}


def make(kind, components=COMPONENTS, **settings):
    return build(type=kind, components=components, num_classes={"taxa_L10": 3}, img_size=48, **SMALL[kind], **settings)


class Case:
    """Features of two pictures, and what the transformer part makes of them; compiled once per family and mode."""

    def __init__(self, kind):
        self.kind = kind
        self.meta = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)
        model, image = make(kind), jnp.zeros((2, 48, 48, 3))
        tree = jax.eval_shape(model.init, jax.random.key(0), image)
        rng = np.random.default_rng(1)
        self.variables = jax.tree.map(lambda leaf: rng.normal(0, 0.3, size=leaf.shape).astype(np.float32), tree)
        features = jax.eval_shape(lambda variables: model.apply(variables, image, method="encode_image"), tree)
        self.features = rng.normal(size=features.shape).astype(np.float32)
        self.modes = {mode: self.compiled(make(kind, missing_metadata=mode)) for mode in ("zero", "mask")}

    def compiled(self, model):
        return jax.jit(
            lambda variables, meta, valid: model.apply(
                variables, self.features, meta, meta_valid_BK=valid, method="encode_tokens"
            )
        )

    def __call__(self, mode, meta, valid):
        return np.asarray(self.modes[mode](self.variables, meta, None if valid is None else jnp.asarray(valid)))


@pytest.fixture(scope="module", params=list(SMALL))
def case(request):
    return Case(request.param)


def test_with_everything_valid_both_modes_are_the_same(case):
    expected = case("zero", case.meta, [[True, True]] * 2)
    np.testing.assert_array_equal(case("zero", case.meta, [[True, False], [False, False]]), expected)
    np.testing.assert_allclose(case("mask", case.meta, [[True, True]] * 2), expected, atol=1e-6)


def test_a_masked_component_is_a_component_that_the_model_does_not_have(case):
    without = make(case.kind, components=COMPONENTS[:1], missing_metadata="mask")
    params = {name: x for name, x in case.variables["params"].items() if not name.startswith("meta_spatial")}
    expected = case.compiled(without)({**case.variables, "params": params}, case.meta[:, :2], None)
    found = case("mask", case.meta, [[True, False]] * 2)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    zeros = np.asarray([1, 1, 0, 0, 0], np.float32) * case.meta
    assert np.abs(found - case("zero", zeros, [[True, False]] * 2)).max() > 1e-3


def test_no_metadata_at_all(case):
    np.testing.assert_allclose(case("zero", None, None), case("zero", case.meta * 0, [[True, True]] * 2), atol=1e-6)
    np.testing.assert_allclose(case("mask", None, None), case("mask", case.meta, [[False, False]] * 2), atol=1e-6)


def test_validity_of_the_wrong_shape(case):
    with pytest.raises(ValueError, match=r"meta_valid has shape \(2, 3\); \[2, 2\] is needed, one per component"):
        case("mask", case.meta, np.ones((2, 3), bool))
