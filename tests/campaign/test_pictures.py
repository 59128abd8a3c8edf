"""Some hostile pictures of every format, as the campaign reads them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.campaign.case import Case
from tests.campaign.pictures import cases

EACH = 3


@pytest.mark.slow
def test_hostile_pictures_are_read_or_refused_in_bounds(tmp_path: Path):
    groups: dict[str, list[Case]] = defaultdict(list)
    names = []
    for case in cases(7, tmp_path, rounds=1, damaged=60):
        groups[case.group].append(case)
        names.append(case.name)
    assert len(set(names)) == len(names)
    assert len(groups) == 7
    for found in groups.values():
        for case in found[:: max(1, len(found) // EACH)]:
            outcome = case.run(tmp_path)
            assert outcome.good, f"{case.name}: {outcome.what}\n{outcome.detail}"
            for path in tmp_path.iterdir():
                path.unlink()
