"""Some bad inputs of every group, as the campaign runs them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.campaign.inputs import cases

#: of each group; the groups whose cases need no trained run
EACH, QUICK = 4, ("value of a key", "nonsense", "configuration file", "YAML", "command line", "labels")


def test_names_are_unique_and_the_same_for_a_seed(tmp_path):
    made = [[(case.group, case.name) for case in cases(seed, tmp_path)] for seed in (0, 0, 1)]
    assert made[0] == made[1] != made[2]
    assert len(set(made[0])) == len(made[0]) >= 500
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_bad_inputs_end_with_what_is_wrong(tmp_path: Path):
    taken: Counter[str] = Counter()
    for case in cases(20, tmp_path / "made"):
        if case.group in QUICK and taken[case.group] < EACH:
            taken[case.group] += 1
            outcome = case.run(tmp_path / f"case{taken.total()}")
            assert outcome.good, f"{case.name}: {outcome.what}\n{outcome.detail}"
    assert taken == dict.fromkeys(QUICK, EACH)
