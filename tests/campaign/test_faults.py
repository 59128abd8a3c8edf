"""A few of the faults, see `faults.py`."""

from __future__ import annotations

import errno

import pytest

from tests.campaign import faults


@pytest.fixture(autouse=True)
def of_one_device(monkeypatch):
    """The runs are programs of their own."""
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return faults.Bench(tmp_path_factory.mktemp("bench"))


@pytest.mark.slow
@pytest.mark.needs("cc")
def test_a_disk_that_is_full_from_a_write_on(bench, tmp_path):
    outcome = faults.failing_call(bench, "w", 150, True, errno.ENOSPC)(tmp_path)
    assert outcome.good, outcome
    assert outcome.what == "one line, status 2; then the same result", outcome


@pytest.mark.slow
def test_pictures_that_are_cut_while_they_are_read(bench, tmp_path):
    outcome = faults.while_running(bench, faults.cut)(tmp_path)
    assert outcome.good, outcome
