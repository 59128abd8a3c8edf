"""Ranks: numbers, names and order."""

from __future__ import annotations

import pytest

from linnaeus_jax.taxonomy import ranks


@pytest.mark.parametrize(
    ("task", "level", "name"),
    [("taxa_L10", 10.0, "species"), ("taxa_L33_5", 33.5, "zoosubsection"), ("taxa_L99", 99.0, "taxa_L99")],
)
def test_levels_and_names_of_tasks(task, level, name):
    assert ranks.task_level(task) == level
    assert ranks.task_name(task) == name


def test_a_column_of_another_form_keeps_its_name():
    assert ranks.task_name("genera") == "genera"


def test_levels_ascend():
    levels = list(ranks.RANK_LEVELS.values())
    assert levels == sorted(set(levels))
    assert len(levels) == 31


def test_task_order():
    ranks.check_task_order(["taxa_L10", "taxa_L33_5", "taxa_L34", "taxa_L40"])
    with pytest.raises(ValueError, match=r"finest first: use \('taxa_L33_5', 'taxa_L40'\)"):
        ranks.check_task_order(["taxa_L40", "taxa_L33_5"])
    with pytest.raises(ValueError, match="each rank once"):
        ranks.check_task_order(["taxa_L10", "taxa_L10"])
    with pytest.raises(ValueError, match="is empty"):
        ranks.check_task_order([])
    with pytest.raises(ValueError, match="'species' is not of the form"):
        ranks.check_task_order(["species"])


def test_ranks_without_a_level_stand_as_they_are_known():
    assert ranks.in_order(["taxa_L20", "taxa_L10"]) == ["taxa_L10", "taxa_L20"]
    some = ["taxa_new", "taxa_coarse", "taxa_fine"]
    assert ranks.in_order(some, ["taxa_fine", "taxa_coarse"]) == ["taxa_fine", "taxa_coarse", "taxa_new"]
