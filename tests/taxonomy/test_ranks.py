"""Ranks: numbers, names, spellings and schema columns."""

from __future__ import annotations

import pytest

from linnaeus_jax.taxonomy import ranks


@pytest.mark.parametrize("value", [33.5, "33.5", "33_5", "L33_5", "l33_5", "L33.5", "zoosubsection", "ZooSubsection"])
def test_half_rank_in_all_spellings(value):
    assert ranks.parse_level(value) == 33.5
    assert ranks.level_text(value) == "33_5"
    assert ranks.l_form(value) == "L33_5"
    assert ranks.l_form(value, upper=False) == "l33_5"
    assert not ranks.is_primary(value)


@pytest.mark.parametrize("value", ["", "L", "genera", 335, "L335", "taxa_L10", -10])
def test_unknown_rank(value):
    assert ranks.parse_level(value) is None
    with pytest.raises(ValueError, match="is not a taxonomic rank"):
        ranks.rank_name(value)


def test_names_and_levels_are_inverse_and_ascending():
    levels = list(ranks.RANK_LEVELS.values())
    assert levels == sorted(set(levels))
    assert len(levels) == 31
    for name, level in ranks.RANK_LEVELS.items():
        assert ranks.rank_name(level) == name
        assert ranks.parse_level(ranks.l_form(name)) == level
    primary = [name for name in ranks.RANK_LEVELS if ranks.is_primary(name)]
    assert primary == ["species", "genus", "family", "order", "class", "phylum", "kingdom", "stateofmatter"]


def test_column_names():
    assert ranks.column_names(33.5, "taxaDB_sql") == ("L33_5_taxon_id", "L33_5_name")
    assert ranks.column_names("genus", "taxaDB_redis") == ("L20",)
    assert ranks.column_names("L33_5", "metadata_expanded") == ("L33_5_taxonID", "L33_5_name")
    with pytest.raises(ValueError, match=r"schema 'csv' is unknown.*taxaDB_sql"):
        ranks.column_names(10, "csv")


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
