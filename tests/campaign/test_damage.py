"""Some damaged files of the campaign."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.campaign import damage


def test_names_are_unique_and_the_same_for_a_seed(tmp_path: Path) -> None:
    made = [[(case.group, case.name) for case in damage.cases(seed, tmp_path)] for seed in (0, 0, 1)]
    assert made[0] == made[1] != made[2]
    assert len(set(made[0])) == len(made[0]) >= 200
    assert {group for group, _ in made[0][: len(damage.GROUPS)]} == {group.name for group in damage.GROUPS}
    assert not list(tmp_path.iterdir())


def test_damage_is_one_of_its_kinds(tmp_path: Path) -> None:
    path, kinds = tmp_path / "file", set()
    for seed in range(40):
        path.write_bytes(b"some bytes")
        kinds.add(damage.damage(path, random.Random(seed)).split()[0])
        assert not path.exists() or path.read_bytes() != b"some bytes"
    assert kinds == {"bit", "cut", "emptied", "deleted"}


@pytest.mark.slow
def test_damage_is_named_or_without_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")  # half of the time of compiling
    chosen = ("checkpoint, going on", "checkpoint, used", "metrics log, reported", "bundle")
    cases = [case for case in damage.cases(1, tmp_path / "made") if case.group in chosen][: len(chosen)]
    for number, case in enumerate(cases):
        directory = tmp_path / f"case{number}"
        directory.mkdir()
        outcome = case.run(directory)
        assert outcome.good, f"{case.name}: {outcome.what}\n{outcome.detail}"
