"""Tables of the console in a terminal of 80 columns."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from linnaeus_jax.reporting.display import phase_tables
from tests.reporting.helpers import phase_values

SEVEN = tuple(f"taxa_L{level}" for level in (10, 20, 30, 40, 50, 60, 70))


def shown(results, tasks, width=80) -> list[str]:
    file = io.StringIO()
    console = Console(width=width, file=file)
    for part in phase_tables("last results", results, tasks, width):
        console.print(part)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_seven_ranks_and_many_phases_are_readable(width) -> None:
    phases = ["train", "val", "val_mask_meta", "val_mask_TEMPORAL", "val_mask_SPATIAL", "val_mask_TEMPORAL_SPATIAL"]
    values = phase_values(np.random.default_rng(0), 0.8, SEVEN)
    lines = shown(dict.fromkeys(phases, values), SEVEN, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for word in (
        "species %",
        "kingdom %",
        "loss, mean of ranks",
        "all known right %",
        "validation",
        "TEMPORAL_SPATIAL",
    ):
        assert word in text
    assert "taxa_L" not in text
    cells = [line.split("│")[1:-1] for line in lines if "species" in line]
    assert [len(found) - 1 for found in cells] == ([3, 3] if width == 80 else [5, 1])
    assert {cell.strip() for found in cells for cell in found[1:]} == {f"{values['non_null/acc1_taxa_L10']:.1f}"}


def test_what_was_not_measured_is_a_dash() -> None:
    lines = shown({"train": {"chain_accuracy": 0.5}, "odd": {"count": 3.0}}, ("taxa_L10", "colour"))
    assert "50.0" in "\n".join(lines)
    assert "odd" not in "\n".join(lines)
    (row,) = [line for line in lines if "colour %" in line]
    assert "–" in row
    assert shown({}, ("taxa_L10",)) == []
