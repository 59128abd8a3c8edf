"""Which column of a source means what."""

from __future__ import annotations

import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading import columns
from linnaeus_jax.reading.columns import link_columns

GBIF = (
    "gbifID license rightsHolder occurrenceID catalogNumber recordedBy occurrenceStatus eventDate eventTime year "
    "month day decimalLatitude decimalLongitude coordinateUncertaintyInMeters elevation elevationAccuracy taxonID "
    "scientificName kingdom phylum class order family genus genericName specificEpithet taxonRank taxonomicStatus "
    "datasetKey taxonKey acceptedTaxonKey kingdomKey phylumKey classKey orderKey familyKey genusKey speciesKey species "
    "acceptedScientificName"
)
INATURALIST = (
    "id uuid observed_on_string observed_on time_observed_at user_id user_login user_name license url image_url "
    "latitude longitude positional_accuracy public_positional_accuracy species_guess scientific_name common_name "
    "iconic_taxon_name taxon_id taxon_kingdom_name taxon_superfamily_name taxon_genus_name taxon_species_name"
)
OWN = "img_identifiers taxa_L10 L33_5_taxonID L33_5_name L20_taxon_id raw_lat raw_lon raw_date_observed subset_Rare"


def links(header: str, **options) -> dict[str, str]:
    return dict(link_columns(header.split(), "t.csv", **options).names)


def test_gbif_terms():
    found = links(GBIF)
    wanted = {
        "occurrence": "gbifID",
        "latitude": "decimalLatitude",
        "uncertainty": "coordinateUncertaintyInMeters",
        "date": "eventDate",
        "time": "eventTime",
        "elevation": "elevation",
        "observer": "recordedBy",
        "rights_holder": "rightsHolder",
        "id_L10": "speciesKey",
        "id_L70": "kingdomKey",
        "_either_L10": "species",
        "_either_L40": "order",
        "_epithet": "specificEpithet",
        "_taxon_id": "taxonKey",
        "accepted_id": "acceptedTaxonKey",
        "accepted_name": "acceptedScientificName",
        "status": "taxonomicStatus",
        "taxon_rank": "taxonRank",
        "_occurrence_id": "occurrenceID",
        "_presence": "occurrenceStatus",
    }
    assert {key: found[key] for key in wanted} == wanted


def test_full_addresses_and_prefixes_are_the_same_names():
    found = links(
        "http://rs.tdwg.org/dwc/terms/decimalLatitude http://rs.gbif.org/terms/1.0/gbifID dcterms:rightsHolder"
    )
    assert set(found) == {"latitude", "occurrence", "rights_holder"}


def test_inaturalist_export():
    found = links(INATURALIST)
    assert found["picture"] == "image_url"
    assert found["occurrence"] == "uuid"
    assert found["date"] == "observed_on"
    assert found["observer"] == "user_login"
    assert found["uncertainty"] == "positional_accuracy"
    assert found["name_L10"] == "taxon_species_name"
    assert found["name_L33"] == "taxon_superfamily_name"
    assert found["_taxon_id"] == "taxon_id"
    assert found["_common_name"] == "common_name"


def test_own_columns_and_subsets():
    found = links(OWN)
    assert found == {
        "picture": "img_identifiers",
        "id_L10": "taxa_L10",
        "id_L33_5": "L33_5_taxonID",
        "name_L33_5": "L33_5_name",
        "id_L20": "L20_taxon_id",
        "latitude": "raw_lat",
        "longitude": "raw_lon",
        "date": "raw_date_observed",
        "subset_Rare": "subset_Rare",
    }
    assert link_columns(OWN.split(), "t.csv").levels == ("L10", "L20", "L33_5")


@pytest.mark.parametrize("name", ["Decimal_Latitude", "DECIMALLATITUDE", "decimal latitude", " Latitude ", "\ufefflat"])
def test_case_and_spaces_do_not_count(name):
    assert dict(link_columns([name], "t.csv").positions) == {"latitude": 0}


def test_options_win():
    found = links(
        "lat my.lat my_lat genus family_x", mapping={"latitude": "my_lat"}, rank_map={"family": "family_x", "genus": ""}
    )
    assert found == {"latitude": "my_lat", "_either_L30": "family_x"}
    assert links("species my_ids", mapping={"id_L10": "my_ids"}) == {"id_L10": "my_ids"}
    assert links("lat raw_lat", first=True) == {"latitude": "lat"}


def test_rank_map_takes_names_and_ids():
    found = links("a b:c genus", rank_map={"L33_5": "a:genus", "tribe": ":a", "family": "b:c", "genus": ""})
    assert found == {"name_L33_5": "a", "id_L33_5": "genus", "id_L25": "a", "_either_L30": "b:c"}


@pytest.mark.parametrize(
    ("header", "options", "message"),
    [
        (
            "lat raw_lat",
            {},
            r"t.csv: the columns 'lat' and 'raw_lat' both stand for latitude; .* --map latitude=COLUMN",
        ),
        ("species L10", {}, "both stand for L10; choose one with --rank-map L10=COLUMN"),
        ("lat lat", {}, "t.csv has 2 columns named 'lat'"),
        ("lat", {"mapping": {"latitude": "y"}}, "--map latitude=y: t.csv has no column 'y'; its columns are lat"),
        ("lat", {"mapping": {"latitud": "lat"}}, "--map latitud: no such column; there are picture, occurrence"),
        ("lat", {"rank_map": {"clan": "lat"}}, "rank 'clan' is unknown"),
        ("a", {"rank_map": {"genus": "a:b"}}, "--rank-map genus=a:b: t.csv has no column 'b'"),
    ],
)
def test_errors_name_what_is_there(header, options, message):
    with pytest.raises(UserError, match=message):
        links(header, **options)


def test_options_are_split_once():
    assert columns.split_options(["a=b=c", " d = e "], "--map") == {"a": "b=c", "d": "e"}
    with pytest.raises(UserError, match="--map 'x' is not of the form"):
        columns.split_options(["x"], "--map")
    with pytest.raises(UserError, match="gives 'x' twice"):
        columns.split_options(["x=1", "x=2"], "--map")


def test_media_files_have_names_of_their_own():
    found = dict(link_columns("type format identifier creator license rightsHolder".split(), "m", media=True).names)
    assert found["_identifier"] == "identifier"
    assert found["_creator"] == "creator"


def test_levels_and_ranks():
    assert columns.level_of("Genus") == "L20"
    assert columns.level_of("l33_5") == "L33_5"
    assert columns.finest_first(["L40", "L33_5", "L10", "L33"]) == ("L10", "L33", "L33_5", "L40")
