"""Darwin Core archives: every occurrence, every media row and every picture on disk is one row."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.building.sources import darwin_core
from linnaeus_jax.building.steps.options import BuildOptions
from linnaeus_jax.building.steps.plan import plan_build
from linnaeus_jax.config.errors import UserError
from tests.building import archives
from tests.building.archives import (
    DC,
    DWC,
    GBIF,
    element,
    gbif,
    medium,
    meta,
    occurrence,
    touch,
    write_folder,
    write_zip,
)

WEB = "https://host.org/media"


def read(tmp_path, members, *files: str, folder: bool = False, **options):
    path = write_folder(tmp_path / "archive", members) if folder else write_zip(tmp_path / "a.zip", members)
    return darwin_core.read(path, pictures=touch(tmp_path / "pictures", *files), **options)


def plain(source, *names: str) -> list[tuple]:
    return source.frame.select(pl.col(names).cast(pl.String)).rows()


@pytest.mark.parametrize("folder", [False, True])
def test_a_download_of_gbif(tmp_path, folder):
    members = gbif(
        [
            occurrence(
                "11", eventDate="2020-05-01/2020-05-03", occurrenceRemarks='"never closed', decimalLatitude="48.1"
            ),
            occurrence(
                "12", recordedBy="björn | 王", taxonRank="GENUS", species="", speciesKey="", scientificName="Parus L."
            ),
            occurrence("13", occurrenceStatus="ABSENT"),
            occurrence("14"),
        ],
        [
            medium("11", f"{WEB}/a.jpg", license="CC0", creator="carla"),
            medium("11", f"{WEB}/song.mp3", type="Sound", format="audio/mpeg"),
            medium("11", f"{WEB}/b.jpg", rightsHolder="dora", creator="carla"),
            medium("12", f"{WEB}/c.jpg"),
            medium("99", f"{WEB}/d.jpg"),
        ],
    )
    source = read(tmp_path, members, "11_1.jpg", "sub/b.jpg", "stray.png", "14-1.jpg", "14-2.jpg", folder=folder)
    names = ("line", "picture", "occurrence", "name_L10", "license", "rights_holder", "reason", "detail")
    great_tit = "Parus major"
    assert plain(source, *names) == [
        ("2", "11_1.jpg", "11", great_tit, "CC0", "carla", None, None),
        ("2", None, "11", great_tit, "CC_BY_4_0", "anna", "no picture named", "no picture but Sound audio/mpeg"),
        ("2", "sub/b.jpg", "11", great_tit, "CC_BY_4_0", "dora", None, None),
        ("3", None, "12", None, "CC_BY_4_0", "anna", "no such picture", f"{WEB}/c.jpg"),
        ("4", None, "13", great_tit, "CC_BY_4_0", "anna", "no usable label", "occurrenceStatus ABSENT"),
        ("5", "14-1.jpg", "14", great_tit, "CC_BY_4_0", "anna", None, None),
        ("5", "14-2.jpg", "14", great_tit, "CC_BY_4_0", "anna", None, None),
        ("6", None, None, None, None, None, "malformed record", "multimedia.txt: record id 99 is not in the archive"),
        ("0", "stray.png", None, None, None, None, "no record names it", None),
    ]
    assert source.levels == ("L10", "L20")
    assert plain(source, "id_L10", "name_L20", "observer", "date", "doi")[3] == (
        None,
        "Parus",
        "björn | 王",
        None,
        archives.DOI,
    )
    assert source.frame["date"][0] == "2020-05-01/2020-05-03"
    assert {name: source.links[name] for name in ("name_L10", "latitude", "occurrence")} == {
        "name_L10": "species",
        "latitude": "decimalLatitude",
        "occurrence": "gbifID",
    }


def test_pictures_beside_the_archive(tmp_path):
    touch(tmp_path, "photos/11.jpg", "photos/stray.jpg")
    path = write_zip(tmp_path / "a.zip", gbif([occurrence("11")], [medium("11", f"{WEB}/a.jpg")]))
    assert darwin_core.read(path).frame["picture"].to_list() == ["photos/11.jpg"]


def test_ragged_lines_and_repeated_ids(tmp_path):
    members = gbif(
        [occurrence("11"), occurrence("11"), ["12", "cut off"]], [medium("11", "x"), medium("12", "y"), ["z"]]
    )
    source = read(tmp_path, members)
    assert plain(source, "line", "reason", "detail") == [
        ("2", "no such picture", "x"),
        ("3", "malformed record", "its id stands on line 2 already"),
        ("4", "malformed record", "2 fields where the header has 16"),
        ("3", "malformed record", "multimedia.txt: record id 12 is not in the archive"),
        ("4", "malformed record", "multimedia.txt: 1 fields where the header has 7"),
    ]


def test_simple_table_of_gbif(tmp_path):
    text = archives.table(archives.OCCURRENCE, [occurrence("11", occurrenceRemarks='say "hi'), occurrence("12")])
    source = read(tmp_path, {"0001-2.csv": text}, "11.jpg", doi="10.15468/dl.mine")
    assert plain(source, "picture", "name_L10", "reason", "doi") == [
        ("11.jpg", "Parus major", None, "10.15468/dl.mine"),
        (None, "Parus major", "no picture named", "10.15468/dl.mine"),
    ]
    (tmp_path / "archive").mkdir()
    write_folder(
        tmp_path / "archive", {"occurrence.txt": text, "multimedia.txt": archives.table(archives.MEDIA, [medium("11")])}
    )
    source = darwin_core.read(tmp_path / "archive", pictures=tmp_path / "pictures")
    assert source.frame["picture"].to_list() == ["11.jpg", None]


INATURALIST = [
    *(
        DWC + name
        for name in ("id", "occurrenceID", "recordedBy", "eventDate", "taxonID", "scientificName", "taxonRank")
    ),
    *(DWC + name for name in ("family", "genus", "inaturalistLogin")),
]
INATURALIST_MEDIA = [DWC + "id", *(DC + name for name in ("type", "format", "identifier", "license", "rightsHolder"))]


def test_research_grade_observations_of_inaturalist(tmp_path):
    quote = "&quot;"
    members = {
        "meta.xml": meta(
            element("core", "observations.csv", DWC + "Occurrence", INATURALIST, separator=",", quote=quote),
            element("extension", "media.csv", GBIF + "Multimedia", INATURALIST_MEDIA, separator=",", quote=quote),
        ),
        "eml.xml": '<eml packageId="10.15468/ab3s5x/1.2"/>',
        "observations.csv": "id,occurrenceID,recordedBy,eventDate,taxonID,scientificName,taxonRank,family,genus,by\r\n"
        '101,https://www.inaturalist.org/observations/101,"Smith, ""Bo""",2020-05-01T10:00:00-07:00,'
        "13094,Parus major,species,Paridae,Parus,bo\r\n"
        '102,https://www.inaturalist.org/observations/102,"two\nlines",,3017,Parus,genus,Paridae,Parus,bo\r\n',
        "media.csv": "id,type,format,identifier,license,rightsHolder\r\n"
        "101,StillImage,image/jpeg,https://static.org/photos/7/original.jpg,CC-BY,Bo\r\n"
        "101,StillImage,image/jpeg,https://static.org/photos/8/original.jpg,CC-BY,Bo\r\n"
        "102,StillImage,image/jpeg,https://static.org/photos/9/original.jpg,,\r\n",
    }
    source = read(tmp_path, members, "7.jpg", "a/9.png", "101_2.jpeg")
    assert plain(source, "line", "picture", "id_L10", "name_L10", "name_L30", "observer", "license", "doi") == [
        ("2", "7.jpg", "13094", "Parus major", "Paridae", "bo", "CC-BY", "10.15468/ab3s5x/1.2"),
        ("2", "101_2.jpeg", "13094", "Parus major", "Paridae", "bo", "CC-BY", "10.15468/ab3s5x/1.2"),
        ("3", "a/9.png", None, None, "Paridae", "bo", None, "10.15468/ab3s5x/1.2"),
    ]
    assert source.frame["reason"].null_count() == 3


def test_defaults_no_header_and_other_encodings(tmp_path):
    extra = (
        f'<field term="{DC}license" default="CC0"/><field index="2" term="{DWC}genus" default="Parus"/>'
        f'<field term="{DWC}datasetID" default="https://doi.org/10.1234/xy"/>'
    )
    terms = [DWC + "occurrenceID", DWC + "scientificName"]
    core = element("core", "o.txt", DWC + "Occurrence", terms, separator="|", header=0, extra=extra, encoding="latin1")
    members = {"data/meta.xml": meta(core), "data/o.txt": "urn:x:7|Parus äter|\nurn:x:8|Sitta\n".encode("latin-1")}
    source = read(tmp_path, members, "7.jpg")
    assert plain(source, "line", "picture", "name_L10", "name_L20", "license", "doi", "reason") == [
        ("1", "7.jpg", "Parus äter", "Parus", "CC0", "10.1234/xy", None),
        ("2", None, None, None, None, None, "malformed record"),
    ]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {"meta.xml": meta(element("core", "t.txt", DWC + "Taxon", [DWC + "taxonID"]))},
            "an archive of Taxon records; only occurrences can be read: download the occurrences",
        ),
        ({"a.csv": "x\n", "b.csv": "x\n"}, "no meta.xml and not one table alone; there are a.csv, b.csv"),
        ({"meta.xml": gbif([])["meta.xml"]}, "meta.xml names 'occurrence.txt', which is missing; there are meta.xml"),
        (
            {**gbif([]), "occurrence.txt": "gbifID\tspecies\n1\tx y\n"},
            "has 2 columns, but meta.xml describes column 16",
        ),
        (gbif([]), "a.zip: occurrence.txt has no records"),
        ({"o.csv": "species,lat\nx y,1\n"}, "o.csv has no column of ids, such as gbifID"),
        ({"o.csv": "gbifID\tlat\n1\t2\n"}, "o.csv: no column names a taxon"),
    ],
)
def test_what_is_no_archive_of_occurrences(tmp_path, members, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, members)


@pytest.mark.parametrize(
    "row_type",
    ["http://rs.tdwg.org/dwc/xsd/simpledarwincore/SimpleDarwinRecord", "http://rs.tdwg.org/dwc/dwcore/DarwinCore"],
)
def test_row_types_of_old_archives(tmp_path, row_type):
    members = gbif([occurrence("11")], [medium("11", f"{WEB}/11.jpg")])
    old = members["meta.xml"].replace(DWC + "Occurrence", row_type, 1).replace("1.0/Multimedia", "1.0/multimedia")
    source = read(tmp_path, {**members, "meta.xml": old}, "11.jpg")
    assert plain(source, "picture", "name_L10") == [("11.jpg", "Parus major")]


def test_a_table_with_the_suffix_tab(tmp_path):
    text = archives.table(archives.OCCURRENCE, [occurrence("11")])
    assert plain(read(tmp_path, {"0001.tab": text}, "11.jpg"), "picture", "name_L10") == [("11.jpg", "Parus major")]


IDS = st.sampled_from(["1", "2", "3", "4", ""])
FILES = st.sampled_from(["1.jpg", "1_1.jpg", "2_2.jpg", "3/x.jpg", "m0.jpg", "m1.png", "stray.jpg"])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(IDS, st.booleans()), min_size=1, max_size=6),
    st.lists(st.tuples(IDS, st.sampled_from(["StillImage", "Sound"]), st.integers(0, 2), st.booleans()), max_size=8),
    st.sets(FILES),
)
def test_counts(tmp_path_factory, records, media, files):
    tmp_path = tmp_path_factory.mktemp("a")
    lines = [occurrence(key) if good else [key, "cut"] for key, good in records]
    shown = [medium(key, f"{WEB}/m{name}.jpg", type=kind) if good else [key or "x"] for key, kind, name, good in media]
    frame = read(tmp_path, gbif(lines, shown), *files).frame
    # every file is given once, or is no record's
    assert sorted(frame["picture"].drop_nulls()) == sorted(files)
    # every record is there
    detail = pl.col("detail").fill_null("")
    from_media = frame.filter(detail.str.starts_with("multimedia.txt: "))
    own = frame.filter((pl.col("line") > 0) & ~detail.str.starts_with("multimedia.txt: "))
    assert set(own["line"]) == set(range(2, 2 + len(records)))
    # every media row is one row: of its record, or lost
    known = {key for key, good in records if good and key}
    joined = [key for key, _, _, good in media if good and key in known]
    assert from_media.height == len(media) - len(joined)
    first = {key: line for line, (key, good) in reversed(list(enumerate(records, 2))) if good}
    for key in set(joined):
        assert own.filter(pl.col("line") == first[key]).height == joined.count(key)


KEYS = ("speciesKey", "genusKey", "taxonKey", "acceptedTaxonKey")
NAMES = ("scientificName", "acceptedScientificName", "species", "genus", "specificEpithet", "family", "label")
OTHER = ("taxonRank", "taxonomicStatus", "vernacularName", "occurrenceStatus", "acceptedNameUsageID", "eventDate")
#: of each kind of column, values that real archives have and odd ones
VALUES = {
    **dict.fromkeys(KEYS, ("", "12", "7.0", "4QHKG", "6W3C4", "-1", "0")),
    **dict.fromkeys(
        NAMES, ("", "Parus", "Parus major", "Parus major L.", "major", "Parus sp.", "x", "×", "?", "cf. a")
    ),
    **dict.fromkeys(OTHER, ("", "SPECIES", "GENUS", "unranked", "SYNONYM", "ABSENT", "12", "2020-05-01")),
}
COLUMNS = st.lists(st.sampled_from([*VALUES]), unique=True, max_size=6)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_columns_and_values_are_read_or_refused(tmp_path_factory, data):
    """Whatever columns are there and whichever of them are empty: rows or one sentence, never another error."""
    terms = ["gbifID", *data.draw(COLUMNS)]
    count = data.draw(st.integers(1, 3))
    lines = [[str(k), *(data.draw(st.sampled_from(VALUES[term])) for term in terms[1:])] for k in range(count)]
    media_terms = ["gbifID", *data.draw(st.lists(st.sampled_from(["type", "format", "identifier"]), unique=True))]
    values = {
        "type": ["", "StillImage", "Sound"],
        "format": ["", "image/png", "audio/mp3"],
        "identifier": ["", "0.jpg"],
    }
    media = [
        [data.draw(st.sampled_from("0123")), *(data.draw(st.sampled_from(values[term])) for term in media_terms[1:])]
        for _ in range(data.draw(st.integers(0, 3)))
    ]
    members = {
        "meta.xml": meta(
            element("core", "o.txt", DWC + "Occurrence", [DWC + term for term in terms]),
            element("extension", "m.txt", GBIF + "Multimedia", [DC + term for term in media_terms]),
        ),
        "o.txt": archives.table(terms, lines),
        "m.txt": archives.table(media_terms, media),
    }
    try:
        source = read(tmp_path_factory.mktemp("a"), members, "0.jpg")
        plan_build(source, BuildOptions(), {})
    except (UserError, ValueError):
        return
    assert source.frame.height >= count


@pytest.mark.parametrize("columns", [["identifier"], ["type"], ["format"], [], ["identifier", "license"]])
def test_media_without_type_and_format(tmp_path, columns):
    terms = [GBIF + "gbifID", *(DC + name for name in columns)]
    values = {"identifier": f"{WEB}/a.jpg", "type": "StillImage", "format": "image/jpeg", "license": "CC0"}
    members = gbif([occurrence("11")])
    members["meta.xml"] = meta(
        element("core", "occurrence.txt", DWC + "Occurrence", archives.OCCURRENCE),
        element("extension", "multimedia.txt", GBIF + "Multimedia", terms),
    )
    members["multimedia.txt"] = archives.table(terms, [["11", *(values[name] for name in columns)]])
    source = read(tmp_path, members, "11.jpg")
    assert plain(source, "picture", "name_L10", "reason") == [("11.jpg", "Parus major", None)]


@pytest.mark.parametrize("keys", [("", ""), ("4QHKG", "6W3C4"), ("4QHKG", "")])
def test_species_keys_that_are_empty_or_no_numbers(tmp_path, keys):
    terms = [*archives.OCCURRENCE, GBIF + "acceptedTaxonKey", GBIF + "acceptedScientificName"]
    lines = [
        [*occurrence(number, speciesKey=key), "2490719", "Parus major Linnaeus, 1758"]
        for number, key in zip(("11", "12"), keys)
    ]
    members = {
        "meta.xml": meta(element("core", "o.txt", DWC + "Occurrence", terms)),
        "o.txt": archives.table(terms, lines),
    }
    source = read(tmp_path, members, "11.jpg", "12.jpg")
    assert plain(source, "name_L10", "name_L20", "reason") == [("Parus major", "Parus", None)] * 2


def test_stray_quotes_of_an_archive_are_said_and_may_be_text(tmp_path):
    records = [occurrence(str(10 + number)) for number in range(9)]
    records[2][3], records[6][3] = '"anna', 'anna"'
    core = element("core", "occurrence.txt", DWC + "Occurrence", archives.OCCURRENCE, quote="&quot;")
    members = {"meta.xml": meta(core), "occurrence.txt": archives.table(archives.OCCURRENCE, records)}
    files = [f"{10 + number}.jpg" for number in range(9)]
    source = read(tmp_path, members, *files)
    assert source.frame.filter(pl.col("reason").is_null()).height == 5
    assert any("lines 4 to 8. If these quotes are text" in text for text in source.warnings)
    assert read(tmp_path, members, *files, quotes="none").frame["reason"].null_count() == 9
