from __future__ import annotations

import pytest

from tests.plugins import forget_plugins


@pytest.fixture(autouse=True)
def without_plugins() -> None:
    """What other tests have registered is not there."""
    forget_plugins()
