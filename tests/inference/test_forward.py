"""The compiled forward pass: the same logits however rows are batched, and no program but one per bucket."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from linnaeus_jax.inference.forward import BLOCK, FUSED, LARGEST_BATCH, TRUNK, Forward, forward_pass, has_layer
from linnaeus_jax.learning.augmentation import normalize
from linnaeus_jax.reading.metadata import Observation
from tests.inference.late import late_bundle


@pytest.fixture(scope="module")
def batch(model, bundle, pictures):
    """Pixels, metadata and validity of 12 pictures: nothing, one component, all."""
    known = [Observation(), Observation(date="2024-05-17"), Observation(52.5, 13.4, "2024-05-17", 34)]
    encoded = bundle.encoder.encode([known[row % 3] for row in range(12)])
    assert set(map(tuple, encoded.valid.tolist())) == {(False,) * 3, (True, False, False), (True,) * 3}
    return model.read(list(pictures.pixels)), encoded.meta, encoded.valid


@pytest.fixture(scope="module")
def expected(model, batch):
    return model.forward(*batch)


def test_it_is_the_model(bundle, batch, expected):
    image, meta, valid = (array[:4] for array in batch)
    picture = bundle.preprocessing
    quickly = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    direct = jax.jit(bundle.model.apply, compiler_options=quickly)(
        bundle.variables, normalize(image, picture.mean, picture.std), meta, meta_valid_BK=valid
    )
    for task, logits in expected.items():
        assert (logits.shape, logits.dtype) == ((12, bundle.taxonomy.tree.num_classes[task]), np.float32)
        np.testing.assert_allclose(logits[:4], direct[task], rtol=0, atol=1e-5)
        assert np.ptp(logits, axis=0).min() > 1e-3  # the rows differ


@pytest.mark.parametrize("sizes", [[1] * 12, [3, 9], [7, 5], [12]])
def test_batching_changes_nothing(model, batch, expected, sizes):
    order = np.random.default_rng(len(sizes)).permutation(12)
    pending = [
        model.forward.dispatch(*(array[rows] for array in batch)) for rows in np.split(order, np.cumsum(sizes[:-1]))
    ]
    parts = [each.result() for each in pending]
    for task, logits in expected.items():
        np.testing.assert_allclose(np.concatenate([p[task] for p in parts]), logits[order], rtol=0, atol=1e-5)
    assert model.forward.compilations <= len(model.forward.buckets)


def test_products_are_exact_whatever_the_default_is(bundle, batch):
    run = jax.jit(forward_pass(bundle.model, bundle.preprocessing))
    with jax.default_matmul_precision("bfloat16"):
        text = run.lower(bundle.variables, *(array[:1] for array in batch)).as_text()
    products = [
        line for line in text.splitlines() if "stablehlo.dot_general" in line or "stablehlo.convolution" in line
    ]
    assert len(products) > 10
    assert all("HIGHEST" in line for line in products)


def test_buckets(bundle):
    forward = Forward(bundle.model, bundle.variables, bundle.preprocessing, (1, 8, 7, 64))
    assert forward.buckets == (2, 8, 64)  # of two devices
    assert [forward.bucket(rows) for rows in (1, 2, 3, 4, 8, 9, 31, 32, 64, 1000)] == [2, 2, 2, 8, 8, 8, 8, 64, 64, 64]
    assert forward.compilations == 0


def test_nothing_is_compiled_after_warming_up(model, batch, monkeypatch):
    model.forward.warm_up()
    assert model.forward.compilations == len(model.forward.buckets) == 2
    monkeypatch.setattr(jax._src.compiler, "compile_or_get_cached", None)  # whoever calls it fails
    for rows in (1, 5, 12):
        model.forward(*(array[:rows] for array in batch))
    assert model.forward.compilations == 2


def test_batches_of_large_images_are_smaller(bundle):
    large = bundle.model.clone(img_size=(4096, 4096))
    assert Forward(large, {}, bundle.preprocessing, (1, 8, 64)).buckets[-1] * 4096**2 <= LARGEST_BATCH
    assert Forward(bundle.model, {}, bundle.preprocessing, (1, 8, 64)).buckets[-1] == 64


def test_vectors_are_those_of_the_trunk_and_those_that_the_heads_get(bundle, batch, model):
    """Of a model in which metadata are tokens the trunk has nothing known in their place."""
    with_late = late_bundle(bundle)
    late, variables = with_late.model, with_late.variables
    image, meta, valid = (array[1:3] for array in batch)
    pixels = normalize(image, bundle.preprocessing.mean, bundle.preprocessing.std)
    layers = TRUNK, FUSED, f"{BLOCK}1"
    assert all(has_layer(late, layer) for layer in layers)
    assert not any(has_layer(late, layer) for layer in (f"{BLOCK}2", f"{BLOCK}01", BLOCK, "other"))
    assert not has_layer(late, f"{BLOCK}0")
    assert [has_layer(model.bundle.model, f"{BLOCK}{block}") for block in (0, 1)] == [True, False]
    forward = Forward(late, variables, bundle.preprocessing, (2,)).giving(*layers, logits=True)
    found = forward(image, meta, valid)
    trunk = late.apply(variables, pixels, method="encode_image")
    fused = late.apply(variables, pixels, meta, meta_valid_BK=valid, method="embed")
    logits: Any = late.apply(variables, pixels, meta, meta_valid_BK=valid)
    expected: dict[str, Any] = {
        TRUNK: trunk,
        FUSED: fused,
        f"{BLOCK}1": pixels[:, ::8, ::8].mean(axis=(1, 2)),
        **logits,
    }
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5)
    assert np.abs(found[TRUNK] - found[FUSED]).max() > 1e-3
    assert (forward.width(TRUNK), forward.width("taxa_L20")) == (5, 3)
    of_map = model.giving(FUSED, f"{BLOCK}0")(image, meta, valid)
    encoded = model.bundle.model.apply(model.bundle.variables, pixels, method="encode_image")
    np.testing.assert_allclose(of_map[f"{BLOCK}0"], np.mean(encoded, axis=(1, 2)), atol=1e-5)
    tokens = model.giving(TRUNK)(image, meta, valid)[TRUNK]
    nothing = model.giving(FUSED)(image, np.zeros_like(meta), np.zeros_like(valid))[FUSED]
    np.testing.assert_allclose(tokens, nothing, atol=1e-6)
