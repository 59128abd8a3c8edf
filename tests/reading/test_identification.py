"""What a record says of its taxon, as labels per rank."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading import identification
from linnaeus_jax.reading.columns import link_columns


def labels(mode: str = "auto", **table) -> tuple[pl.DataFrame, tuple[str, ...], list[str]]:
    """Source columns -> labels, as a reader calls it."""
    links = link_columns(list(table), "t.csv")
    frame = pl.DataFrame({standard: table[source] for standard, source in links.names.items()})
    text = frame.cast(pl.String).cast(pl.Categorical)
    none = [pl.lit(None, pl.String).alias(name) for name in ("reason", "detail")]
    return identification.identify(text.with_columns(none), links, "t.csv", mode)


def column(name: str, **table) -> list:
    return labels(**table)[0][name].cast(pl.String).to_list()


def test_only_columns_called_so_are_ids():
    frame, levels, warnings = labels(species=["7", None, "12.0"], genus_id=["7", "0", "12.0"])
    assert frame["name_L10"].cast(pl.String).to_list() == ["7", None, "12.0"]
    assert frame["id_L20"].cast(pl.String).to_list() == ["7", "0", "12"]
    assert levels == ("L10", "L20")
    (warning,) = warnings
    assert "1 rows have the id 0 of genus" in warning
    assert "--map name_L20=COLUMN" in warning


@pytest.mark.parametrize(
    ("numbers", "expected"), [(["7", "0"], True), (["07", "7"], None), (["7.0", "8"], None), (["x", "y"], None)]
)
def test_a_column_beside_one_of_names_may_be_ids(numbers, expected):
    if expected is None:
        with pytest.raises(UserError, match="two columns with names of L10"):
            labels(species=numbers, species_name=["a b", "c d"])
    else:
        assert labels(species=numbers, species_name=["a b", "c d"])[0]["id_L10"].cast(pl.String).to_list() == numbers


@pytest.mark.parametrize("name", ["taxonID", "tribus_id", "speciesKey", "taxa_L10", "Art ID", "id", "KEY"])
def test_a_column_called_one_of_ids_is_one(name):
    assert dict(link_columns([name], "t.csv", rank_map={"species": name}).names).keys() >= {"id_L10"}
    assert "_either_L10" in link_columns(["hybrid"], "t.csv", rank_map={"species": "hybrid"}).names


def test_a_name_that_may_stand_for_a_missing_one_is_said():
    _, _, warnings = labels(species=["nan", "None", "x", "nan"])
    assert [warning.split(",")[0] for warning in warnings] == [
        "t.csv: 2 rows have the species 'nan'",
        "t.csv: 1 rows have the species 'None'",
    ]


def test_two_columns_of_names_for_one_rank():
    with pytest.raises(UserError, match="two columns with names of L10; choose one with --rank-map L10=COLUMN"):
        labels(species=["a b"], species_name=["a b"])


def test_ids_that_are_no_integers_leave_the_names():
    frame, _, warnings = labels(speciesKey=["4QHKG", "12"], species=["Parus major", "Parus ater"])
    assert "id_L10" not in frame.columns
    assert warnings == ["t.csv: ids of L10 are not all integers; the names alone are used"]
    assert labels(species_id=["4QHKG"])[0]["name_L10"].cast(pl.String).to_list() == ["4QHKG"]


def test_species_from_what_is_there():
    assert column("name_L10", genus=["Parus", "Parus"], specificEpithet=["major", None]) == ["Parus major", None]
    assert column("name_L10", genus=["Parus", "Parus"], species=["major", "Parus ater"]) == [
        "Parus major",
        "Parus ater",
    ]
    names = ["Parus major Linnaeus, 1758", "Parus Linnaeus, 1758", "Parus major newtoni Pražák, 1894"]
    assert column("name_L10", scientificName=names) == ["Parus major", None, "Parus major"]
    assert column("name_L10", label=["cat", "dog"]) == ["cat", "dog"]
    assert column("name_L10", species=["Parus sp.", "Parus  major"]) == [None, "Parus major"]


def test_no_label_below_the_rank_of_identification():
    frame, levels, _ = labels(
        taxonRank=["GENUS", "SPECIES", "SUBSPECIES", "family", "unranked"],
        scientificName=["Parus major", "Parus major L.", "Parus major newtoni P.", "Paridae", "Parus major"],
        genus=["Parus"] * 5,
        family=["Paridae"] * 5,
        speciesKey=["1"] * 5,
    )
    assert frame["name_L10"].cast(pl.String).to_list() == [None, "Parus major", "Parus major", None, "Parus major"]
    assert frame["id_L10"].cast(pl.String).to_list() == [None, "1", "1", None, "1"]
    assert frame["name_L20"].cast(pl.String).to_list() == ["Parus"] * 3 + [None, "Parus"]
    assert frame["name_L30"].cast(pl.String).to_list() == ["Paridae"] * 5
    assert levels == ("L10", "L20", "L30")


def test_taxon_ids_and_common_names_belong_to_the_rank_of_the_row():
    table = dict(
        scientific_name=["Parus major", "Parus", "Parus major newtoni"],
        taxon_id=["11", "12", "13"],
        common_name=["Great Tit", "Tits", "British Great Tit"],
        taxon_species_name=["Parus major", None, "Parus major"],
        taxon_genus_name=["Parus"] * 3,
    )
    assert column("id_L10", **table) == ["11", None, None]
    assert column("common_L10", **table) == ["Great Tit", None, None]
    ranked = dict(taxonRank=["species", "genus"], taxonID=["11", "12"], vernacularName=["Great Tit", "Tits"])
    ranked["scientificName"] = ["Parus major", "Parus"]
    assert column("id_L10", **ranked) == ["11", None]
    assert column("common_L10", **ranked) == ["Great Tit", None]


def test_accepted_taxa():
    # GBIF: the key and the name of the species are the accepted ones; the accepted taxon may be below the species
    table = dict(
        taxonRank=["SPECIES", "SUBSPECIES", "GENUS"],
        speciesKey=["1", "1", None],
        species=["Parus major", "Parus major", None],
        acceptedTaxonKey=["1", "5", "9"],
        acceptedScientificName=["Parus major L.", "Parus major newtoni P.", "Parus L."],
        taxonomicStatus=["SYNONYM", "ACCEPTED", "SYNONYM"],
        scientificName=["Fringilla major", "Parus major newtoni P.", "Parulus L."],
    )
    assert column("accepted_id", **table) == ["1", "1", "9"]
    assert column("accepted_name", **table) == ["Parus major", "Parus major", "Parus"]
    other = dict(
        taxonID=["2"], acceptedNameUsageID=["1"], acceptedNameUsage=["Parus major L."], scientificName=["Parus maior"]
    )
    assert column("accepted_id", **other) == ["1"]
    assert column("id_L10", **other) == ["2"]


def test_absence_is_no_label():
    frame = labels(species=["a b", "c d"], occurrenceStatus=["PRESENT", "Absent"])[0]
    assert frame["reason"].to_list() == [None, "no usable label"]
    assert frame["detail"].to_list() == [None, "occurrenceStatus ABSENT"]
    assert not [name for name in frame.columns if name.startswith("_")]


def rows_of(table: dict[str, Any], *names: str, mode: str = "auto") -> list[tuple]:
    frame = labels(mode, **table)[0]
    return frame.select(
        pl.col(name).cast(pl.String) if name in frame.columns else pl.lit(None) for name in names
    ).rows()


@pytest.mark.parametrize(
    ("genus", "epithet", "species", "written"),
    [
        ("Tetraodon", "fluviatilis", "Tetraodon fluviatilis", None),
        ("Tetraodon", "Tetraodon fluviatilis", "Tetraodon fluviatilis", "Tetraodon fluviatilis"),
        ("Tetraodon", "tetraodon fluviatilis", "Tetraodon fluviatilis", "tetraodon fluviatilis"),
        ("Tetraodon", "Tetraodon fluviatilis Hamilton, 1822", "Tetraodon fluviatilis", True),
        (None, "Tetraodon fluviatilis", "Tetraodon fluviatilis", "Tetraodon fluviatilis"),
        (None, "fluviatilis", None, None),
        ("Parus", "cf. major", None, "cf. major"),
        ("Parus", "aff. major", None, "aff. major"),
        ("Parus", "major Linnaeus", "Parus major", "major Linnaeus"),
        ("Parus", "Major", "Parus major", "Major"),
        ("Parus", "major?", None, "major?"),
        ("Parus", "sp.", None, "sp."),
        ("Parus", "sp. 2", None, "sp. 2"),
        ("Parus", "indet.", None, "indet."),
        ("Parus", "-", None, "-"),
        ("Parus", "major newtoni", "Parus major", "major newtoni"),
        ("Quercus", "x hispanica", "Quercus × hispanica", "x hispanica"),
        ("Quercus", "×hispanica", "Quercus × hispanica", "×hispanica"),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "scientific"])
def test_epithets_that_hold_more_than_an_epithet(genus, epithet, species, written, mode):
    table = dict(genus=[genus, "Sitta"], specificEpithet=[epithet, "europaea"])
    found = rows_of(table, "name_L10", "name_L20", "written_L10", mode=mode)
    assert found[0] == (species, genus or (species and "Tetraodon"), epithet if written else None)
    assert found[1] == ("Sitta europaea", "Sitta", None)


SPELLINGS = ["Parus major", "parus major", "PARUS MAJOR", "Parus major L.", "Parus major newtoni", "Parus ater"]


@pytest.mark.parametrize("column", ["species", "scientificName", "label", "taxon"])
def test_one_cleaning_for_every_column(column):
    table = {column: [*SPELLINGS, "Parus sp.", "Parus", "unidentified", "?", None]}
    found = rows_of(table, "name_L10", "name_L20", "written_L10")
    assert [name for name, *_ in found] == ["Parus major"] * 5 + ["Parus ater"] + [None] * 5
    assert [genus for _, genus, _ in found] == ["Parus"] * 8 + [None] * 3, "a genus alone makes the rank of the genus"
    changed = [text for _, _, text in found]
    assert changed == [None, *SPELLINGS[1:5], None, "Parus sp.", "Parus", "unidentified", "?", None]


def test_an_unknown_name_has_no_id_either():
    table = dict(species_id=["1", "2"], species=["Parus major", "unidentified"])
    assert rows_of(table, "id_L10", "name_L10") == [("1", "Parus major"), (None, None)]


def test_an_id_of_another_spelling_gives_way_to_that_of_the_name():
    table = dict(
        species_id=["1", "2", "3", "4"], species=["Parus major", "PARUS MAJOR", "Parus major newtoni", "Parus ater L."]
    )
    assert rows_of(table, "id_L10", "name_L10") == [
        ("1", "Parus major"),
        (None, "Parus major"),
        (None, "Parus major"),
        ("4", "Parus ater"),
    ]


def test_a_column_that_says_nothing_leaves_it_to_the_next():
    table = dict(species=["-", "?"], scientificName=["Parus major L.", "Parus sp."], genus=["Parus", "#N/A"])
    assert rows_of(table, "name_L10", "name_L20") == [("Parus major", "Parus"), (None, "Parus")]


def test_a_family_or_order_is_no_genus():
    table = dict(scientificName=["Paridae sp.", "Diptera sp. A", "Parus sp."], family=[None, None, "Paridae"])
    table["order"] = [None, "Diptera", None]
    assert rows_of(table, "name_L20", "name_L30", "name_L40") == [
        (None, "Paridae", None),
        (None, None, "Diptera"),
        ("Parus", "Paridae", None),
    ]


def test_common_names_and_their_groups_are_left():
    table = dict(species=["banana", "Great spotted cuckoo", "Granny Smith"], genus=["Fruit", "Birds", "Apple"])
    assert rows_of(table, "name_L10", "name_L20", "written_L10") == [
        ("banana", "Fruit", None),
        ("Great spotted cuckoo", "Birds", None),
        ("Granny Smith", "Apple", None),
    ]


def test_a_rank_below_the_species_keeps_its_names():
    table = dict(
        subspecies=["Parus major newtoni Pražák, 1894", "Parus major subsp. newtoni", "Rosa canina var. alba", "-"],
        species=["Parus major", "Parus major", "Rosa canina", "Parus major"],
    )
    assert rows_of(table, "name_L5", "name_L10") == [
        ("Parus major newtoni", "Parus major"),
        ("Parus major newtoni", "Parus major"),
        ("Rosa canina var. alba", "Rosa canina"),
        (None, "Parus major"),
    ]


def test_names_as_they_are_written():
    table = dict(species=["PARUS MAJOR", "Parus  major L.", "?"])
    found = rows_of(table, "name_L10", "written_L10", mode="plain")
    assert found == [("PARUS MAJOR", None), ("Parus major L.", None), (None, "?")]
