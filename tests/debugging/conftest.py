"""Fixtures of the tests of what goes wrong inside a model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from linnaeus_jax.models import names


@pytest.fixture
def other_layers() -> Iterator[None]:
    """For tests that put another class in the place of a layer: forgets what is known of models, before and after."""
    names._traced.cache_clear()
    yield
    names._traced.cache_clear()
