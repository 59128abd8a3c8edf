"""Metrics and subsets that tests register are gone afterwards."""

from __future__ import annotations

import sys

import pytest

from linnaeus_jax.metrics import custom, phases, table
from linnaeus_jax.registry import METRICS


def forget_plugins(patch: pytest.MonkeyPatch) -> None:
    """Forgets what plugins registered here, as in a new process; metrics and subsets until the patch is undone."""
    patch.setattr(METRICS, "entries", {})
    patch.setattr(table, "TABLE", dict(table.BUILT_IN))
    patch.setattr(custom, "SUBSETS", {})
    phases.REGISTERED.clear()
    for name in [name for name in sys.modules if name.startswith("linnaeus_jax_plugin:")]:
        patch.delitem(sys.modules, name)
