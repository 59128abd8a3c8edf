"""What a record says of its taxon, as labels per rank."""

from __future__ import annotations

import polars as pl
import pytest

from linnaeus_jax.building import identification
from linnaeus_jax.building.columns import link_columns
from linnaeus_jax.config.errors import UserError


def labels(**table) -> tuple[pl.DataFrame, tuple[str, ...], list[str]]:
    """Source columns -> labels, as a reader calls it."""
    links = link_columns(list(table), "t.csv")
    frame = pl.DataFrame({standard: table[source] for standard, source in links.names.items()})
    text = frame.cast(pl.String).cast(pl.Categorical)
    none = [pl.lit(None, pl.String).alias(name) for name in ("reason", "detail")]
    return identification.identify(text.with_columns(none), links, "t.csv")


def column(name: str, **table) -> list:
    return labels(**table)[0][name].cast(pl.String).to_list()


def test_integers_are_ids_and_the_rest_names():
    frame, levels, _ = labels(species=["7", None, "12.0"], genus=["Parus", "7", None])
    assert frame["id_L10"].cast(pl.String).to_list() == ["7", None, "12"]
    assert frame["name_L20"].cast(pl.String).to_list() == ["Parus", "7", None]
    assert levels == ("L10", "L20")


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
