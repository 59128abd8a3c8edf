"""Sizes of every leaf, small ones taken together."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.debugging.leaf_sizes import leaf_sizes
from linnaeus_jax.learning.buckets import GATHERED_BELOW


@pytest.mark.parametrize(("sizes", "nan", "large"), [([1, 512, 513, 1300, 3], True, True), ([700, 2], False, False)])
def test_sizes_of_leaves(sizes, nan, large):
    rng = np.random.default_rng(0)
    leaves = [rng.normal(size=size).astype(np.float32) for size in sizes]
    if large:
        leaves.insert(1, rng.normal(size=(2, GATHERED_BELOW)).astype(np.float32))
    if nan:
        leaves[0][0] = np.nan
    found = leaf_sizes([jnp.asarray(leaf) for leaf in leaves])
    for i, leaf in enumerate(np.abs(leaf.astype(np.float64)) for leaf in leaves):
        assert np.isnan(found["max"][i]) == np.isnan(leaf.max())
        if not np.isnan(leaf.max()):
            np.testing.assert_allclose(found["sum"][i], leaf.sum(), rtol=1e-5)
            np.testing.assert_allclose(found["squares"][i], (leaf**2).sum(), rtol=1e-5)
            assert (found["max"][i], found["min"][i]) == (leaf.max(), leaf.min())


def test_sizes_of_no_leaf():
    assert all(value.shape == (0,) for value in leaf_sizes([]).values())
