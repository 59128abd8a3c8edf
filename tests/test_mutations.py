"""The faults that `make mutations` draws."""

from __future__ import annotations

import ast
import dataclasses

import pytest

from tests import mutations
from tests.equivalent import EQUIVALENT

SOURCE = '''"""A module."""
import os

Parts = Mapping[str, NDArray[np.int64]]

@cache(size=3)
def area(width: int, height: float, *, exact: bool = False) -> float:
    """Width times height, 2 * 3."""
    if width < 0:
        raise ValueError(f"width {width + 1} < 0")
    log.info("area of %d", width)
    total = np.sum(width * height, axis=0)
    for low, high in zip(total, width, strict=True):
        keep(low, high)
    total = np.maximum(total, max(width, 1)) + np.asarray(total)
    total = np.concatenate([np.empty((0, 2), np.int64), total])
    return -total.astype(np.float32) if exact and width > 1.5 else scaled(width, height)
'''


@pytest.fixture
def faults(tmp_path, monkeypatch):
    monkeypatch.setattr(mutations, "PACKAGE", tmp_path)
    (tmp_path / "a.py").write_text(SOURCE)
    return list(mutations.faults_of(tmp_path / "a.py"))


def test_each_is_another_program_that_differs_in_one_place(faults):
    """And none is of what people read, of types or of decorators."""
    assert {fault.kind for fault in faults} == {
        *("axis", "boundary", "condition", "constant", "dropped call", "dropped keyword", "dtype", "operator", "sign"),
        "swapped arguments",
    }
    before = SOURCE.encode()
    made = {before[: fault.start] + fault.new.encode() + before[fault.end :] for fault in faults}
    assert len(made) == len(faults)
    for text in made:
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(before))
        for kept in (b"@cache(size=3)", b"width: int", b'f"width {width + 1} < 0"', b'log.info("area of %d", width)'):
            assert kept in text
        for kept in (b"strict=True", b"NDArray[np.int64]", b"np.asarray(", b"np.empty((0, 2), np.int64)"):
            assert kept in text
        for swapped in (b"np.maximum(max", b"max(1, width)"):
            assert swapped not in text
    assert "'width < 0' -> 'width <= 0'" in {fault.shown for fault in faults}


@pytest.mark.parametrize("path", sorted({path for path, _, _ in EQUIVALENT}))
def test_what_is_equivalent_is_a_fault_of_the_code_as_it_stands(path):
    found = {fault.key for fault in mutations.faults_of(mutations.PACKAGE / path)}
    assert {key for key in EQUIVALENT if key[0] == path} <= found


def test_files_that_reach_the_line_are_chosen_those_of_the_module_first():
    fault = mutations.Fault("learning/regression.py", "sign", 7, 0, 0, "", "", "")
    reached = {
        "tests/run/test_trainer.py": (9.0, {"learning/regression.py": {6, 7}}),
        "tests/run/test_frozen_trunk.py": (2.0, {"learning/regression.py": {7}}),
        "tests/learning/test_buckets.py": (5.0, {"learning/regression.py": {7}}),
        "tests/learning/test_regression.py": (3.0, {"learning/regression.py": {7}}),
        "tests/learning/test_filters.py": (1.0, {"learning/regression.py": {6}}),
    }
    own = ["tests/learning/test_regression.py", "tests/learning/test_buckets.py"]
    rest = ["tests/run/test_frozen_trunk.py", "tests/run/test_trainer.py"]
    assert mutations.tests_of(fault, reached) == own + rest
    reached["tests/run/test_trainer.py"] = (mutations.BUDGET, {"learning/regression.py": {7}})
    assert mutations.tests_of(fault, reached) == own + rest[:1]
    at_import = dataclasses.replace(fault, line=1)
    assert mutations.tests_of(at_import, reached)[0] == own[0]
    assert "tests/learning/test_filters.py" in mutations.tests_of(at_import, reached)
