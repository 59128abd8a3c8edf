"""The table of faults: every text stands once in its file, every test exists, every room is there."""

from __future__ import annotations

from tests.mutations import FAULTS, ROOT


def test_every_fault_can_be_made():
    for fault in FAULTS:
        text = (ROOT / "linnaeus_jax" / fault.path).read_text()
        assert text.count(fault.old) == 1, f"{fault.path}: {fault.old!r} stands {text.count(fault.old)} times"
        assert fault.old != fault.new
        assert all((ROOT / name).exists() for name in fault.tests.split()), fault.tests
