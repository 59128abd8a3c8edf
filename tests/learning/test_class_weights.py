from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.learning.class_weights import METHODS, class_weights, mixture_weight, task_class_weights
from tests.npz import load_npz

PARAMETERS = {"smoothing": "smoothing_factor", "capping": "cap", "exponential": "base", "logarithmic": "log_base"}


@pytest.mark.parametrize("vector", "abcd")
@pytest.mark.parametrize("method", METHODS)
def test_fixture(fixtures, vector, method):
    archive = load_npz(fixtures / "learning_classweights.npz")
    for j in range(1 if method == "none" else 2):
        case = f"{vector}/{method}/{j}"
        parameter: dict[str, Any] = {PARAMETERS[method]: float(archive[f"{case}/param"])} if method != "none" else {}
        counts, want = archive[f"{vector}/counts"], archive[f"{case}/ref"]
        if want.max() > np.finfo(np.float32).max:
            with pytest.raises(ValueError, match="beyond float32"):
                class_weights(counts, method, **parameter)
            continue
        weights = class_weights(counts, method, **parameter)
        assert weights.dtype == np.float32
        np.testing.assert_allclose(weights, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_normalized_sample_mean_is_one(method):
    counts = np.array([0, 3, 5, 40])
    weights = class_weights(counts, method, normalize=True)
    np.testing.assert_allclose((counts * weights).sum() / counts.sum(), 1.0, rtol=1e-6)


def test_weights_beyond_float32_are_refused():
    with pytest.raises(ValueError, match=r"class 0 with 1 of 5001 samples.*lower .*base"):
        class_weights([1, 5000], "exponential")


def test_per_task_settings():
    counts = {"fine": np.array([1, 9]), "coarse": np.array([4, 6])}
    both = task_class_weights(counts, method=("capping", "none"), cap=(3.0, 20.0))
    np.testing.assert_allclose(both["fine"], [3.0, 10 / 9], rtol=1e-6)
    np.testing.assert_allclose(both["coarse"], 1.0)
    same = task_class_weights(counts, method="capping", cap=2.0)
    np.testing.assert_allclose(same["fine"], [2.0, 10 / 9], rtol=1e-6)
    np.testing.assert_allclose(same["coarse"], [2.0, 10 / 6], rtol=1e-6)
    with pytest.raises(ValueError, match=r"class_weights\.cap.*3 entries for 2 tasks"):
        task_class_weights(counts, method="capping", cap=(1.0, 2.0, 3.0))


def test_mixture_weight():
    weights = np.array([1.0, 2.0, 5.0], np.float32)
    label, other = jnp.array([0, 2]), jnp.array([1, 2])
    np.testing.assert_allclose(mixture_weight(weights, label), [1.0, 5.0])
    np.testing.assert_allclose(mixture_weight(weights, label, other, jnp.array([0.25, 0.5])), [1.75, 5.0])
