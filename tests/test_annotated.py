"""A function of the package that hands on an array of another type than it promises is told."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_loader

import numpy as np
import pytest
from beartype.roar import BeartypeCallHintViolation

from linnaeus_jax.data import splits
from linnaeus_jax.inference.prior import Prior
from tests import annotated

FUNCTIONS = """
from __future__ import annotations
from collections.abc import Callable, Iterator
from contextlib import contextmanager
import numpy as np
from numpy.typing import NDArray

def one(rows: NDArray[np.int64], how: Callable[[int], int] | None = None) -> NDArray[np.int32]:
    return rows.astype(np.int16 if len(rows) == 2 else np.int32)

def records() -> NDArray[np.void]:
    return np.zeros(2, [("a", np.int8)])

@contextmanager
def opened(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    yield rows
"""


@pytest.fixture
def module(tmp_path):
    """A module that is loaded as those of the package are."""
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    loader = annotated._Checking("functions", str(tmp_path / "functions.py"))
    spec = spec_from_loader("functions", loader)
    assert spec is not None
    found = module_from_spec(spec)
    loader.exec_module(found)
    return found


def test_arrays_of_other_types_are_told(module):
    rows = np.arange(3)
    assert module.one(rows).dtype == np.int32
    for wrong in (lambda: module.one(rows[:2]), lambda: module.one(rows.astype(np.int32))):
        with pytest.raises(BeartypeCallHintViolation, match="one"):
            wrong()
    assert len(module.records()) == 2
    with module.opened(rows) as found:
        assert found is rows


def test_so_are_those_of_the_package():
    label = np.zeros(3, np.int32)
    assert splits.group_ids(label, 1).dtype == np.int32
    with pytest.raises(BeartypeCallHintViolation, match="group_ids"):
        splits.group_ids(label.astype(np.int16), 1)
    with pytest.raises(BeartypeCallHintViolation, match="Prior"):
        Prior([], label, label, label, label, label, degrees=1.0)  # type: ignore[arg-type]
