from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from linnaeus_jax.metrics.phases import REGISTERED
from linnaeus_jax.registry import ALL
from tests.metrics import plugins as metric_plugins

PLUGIN = "linnaeus_jax_plugin:"


@pytest.fixture(autouse=True)
def without_plugins_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What an example or a test registers is gone after it; metrics of other tests are gone before it."""
    metric_plugins.forget_plugins(monkeypatch)
    before = [dict(registry.entries) for registry in ALL]
    yield
    forget_plugins()
    for registry, entries in zip(ALL, before, strict=True):
        registry.entries.clear()
        registry.entries.update(entries)


def forget_plugins() -> None:
    """Takes out of the registries and phases what plugins have registered, and forgets that they were imported."""
    for registry in ALL:
        for name in [
            name
            for name, item in registry.entries.items()
            if (getattr(item, "__module__", "") or "").startswith(PLUGIN)
        ]:
            del registry.entries[name]
    REGISTERED.clear()
    for name in [name for name in sys.modules if name.startswith(PLUGIN)]:
        del sys.modules[name]
