"""Tables as people have them."""

from __future__ import annotations

import datetime
import gzip
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.building.sources import table
from linnaeus_jax.config.errors import UserError

INATURALIST = (
    "id,uuid,observed_on,user_login,license,image_url,latitude,longitude,positional_accuracy,scientific_name,common_name,"
    "taxon_id,taxon_family_name,taxon_genus_name,taxon_species_name\r\n"
    '101,u-1,2020-05-01,anna,CC-BY,https://static.org/photos/7/medium.jpg,48.1,11.5,12,Parus major,"Tit, Great",11,'
    "Paridae,Parus,Parus major\r\n"
    "102,u-2,2020-05-02/2020-05-03,bj\u00f6rn,,https://static.org/photos/8/medium.jpg,,,,Parus,Tits,12,Paridae,Parus,\r\n"
)


def write(folder: Path, text: str | bytes, name: str = "t.csv", pictures: str = "") -> Path:
    for path in pictures.split():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"x")
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder / name


def plain(source, *names: str) -> list[tuple]:
    return source.frame.select(pl.col(names).cast(pl.String)).rows()


def test_a_small_table(tmp_path):
    path = write(
        tmp_path, "path,species,lat\na.jpg,Parus major,48.5\n b/c.png , Parus ater,NA\n", pictures="a.jpg b/c.png"
    )
    source = table.read(path)
    assert source.levels == ("L10",)
    assert source.root == tmp_path
    assert source.files == (path,)
    assert source.links == {"picture": "path", "name_L10": "species", "latitude": "lat"}
    assert source.frame.columns == ["line", "picture", "name_L10", "latitude", "reason", "detail"]
    assert source.frame["line"].to_list() == [2, 3]
    assert plain(source, "picture", "name_L10", "latitude", "reason") == [
        ("a.jpg", "Parus major", "48.5", None),
        ("b/c.png", "Parus ater", None, None),
    ]


def test_every_row_has_a_reason_or_a_picture(tmp_path):
    text = "file\tgenus\n1.jpg\tParus\n\tParus\nnone.jpg\tParus\n../x.jpg\tParus\n1.jpg\n1.jpg\tParus\tmore\n"
    source = table.read(write(tmp_path, text, "t.tsv", "1.jpg"))
    assert source.frame["reason"].to_list() == [
        None,
        "no picture named",
        "no such picture",
        "unsafe path",
        "malformed record",
        "malformed record",
    ]
    assert source.frame["line"].to_list() == [2, 3, 4, 5, 6, 7]
    assert source.frame["picture"].to_list() == ["1.jpg", None, "none.jpg", "../x.jpg", None, None]


def test_inaturalist_export_with_downloaded_photos(tmp_path):
    path = write(tmp_path, INATURALIST, "observations.csv", "photos/7.jpg photos/8.jpg photos/9.jpg")
    source = table.read(path, pictures=tmp_path / "photos", doi="10.15468/dl.abc")
    assert source.levels == ("L10", "L20", "L30")
    names = ("picture", "occurrence", "id_L10", "name_L10", "common_L10", "date", "observer", "doi", "reason")
    assert plain(source, *names) == [
        ("7.jpg", "u-1", "11", "Parus major", "Tit, Great", "2020-05-01", "anna", "10.15468/dl.abc", None),
        ("8.jpg", "u-2", None, None, None, "2020-05-02/2020-05-03", "björn", "10.15468/dl.abc", None),
        ("9.jpg", None, None, None, None, None, None, None, "no record names it"),
    ]
    assert source.links["latitude"] == "latitude"


def test_a_table_without_pictures_but_with_ids(tmp_path):
    text = 'gbifID\tspecies\ttaxonRank\n11\tParus major\tSPECIES\n12\t"Parus ater\tSPECIES\n13\tParus\tGENUS\n'
    path = write(tmp_path, text, "0001.csv", "p/11_1.jpg p/11_2.jpg p/13.jpg")
    source = table.read(path, pictures=tmp_path / "p")
    assert plain(source, "line", "occurrence", "picture", "name_L10", "reason") == [
        ("2", "11", "11_1.jpg", "Parus major", None),
        ("2", "11", "11_2.jpg", "Parus major", None),
        ("3", "12", None, '"Parus ater', "no picture named"),
        ("4", "13", "13.jpg", None, None),
    ]


def test_options(tmp_path):
    text = "x|y|z|Taxon;1|w\nä.jpg|'a|7|5|5\n".replace("|", ";").replace("Taxon;1", "Taxon")
    path = write(tmp_path, text.encode("cp1252"), pictures="ä.jpg")
    source = table.read(
        path,
        mapping={"picture": "x", "subset_rare": "w"},
        rank_map={"family": "y:z", "L20": "Taxon"},
        encoding="cp1252",
        quotes="none",
    )
    assert plain(source, "picture", "name_L30", "id_L30", "name_L20", "subset_rare") == [("ä.jpg", "'a", "7", "5", "5")]
    assert source.levels == ("L20", "L30")


def test_decimal_commas_of_spreadsheets(tmp_path):
    path = write(tmp_path, "picture;species;lat;note\na.jpg;x y;48,25;1,5\n", pictures="a.jpg")
    assert plain(table.read(path), "latitude") == [("48.25",)]


def test_latin_1_is_said(tmp_path):
    path = write(tmp_path, "picture,species\na.jpg,Äsche\n".encode("latin-1"), pictures="a.jpg")
    source = table.read(path)
    assert plain(source, "name_L10") == [("Äsche",)]
    assert source.warnings == ("t.csv: 1 lines are not UTF-8 and were read as Latin-1",)


def test_splits_and_subsets(tmp_path):
    path = write(
        tmp_path, "picture,species,split,subset_A\na.jpg,x y,Validation,1\na.jpg,x y,train,\n", pictures="a.jpg"
    )
    assert plain(table.read(path), "split", "subset_A") == [("val", "1"), ("train", None)]


def test_gzip(tmp_path):
    data = gzip.compress(b"picture,species\n" + b"a.jpg,x y\n" * 1000)
    assert table.read(write(tmp_path, data, "t.csv.gz", "a.jpg")).frame.height == 1000
    with pytest.raises(UserError, match=r"t\.csv\.gz is damaged or cut off"):
        table.read(write(tmp_path, data[:-20], "t.csv.gz"))


def test_parquet(tmp_path):
    frame = pl.DataFrame(
        {
            "picture": ["a.jpg", None],
            "speciesKey": [5.0, None],
            "genus": ["Parus", "Parus"],
            "eventDate": [datetime.datetime(2020, 5, 1, 12), None],
            "latitude": [48.5, None],
            "in_region": [True, None],
        },
        schema_overrides={"genus": pl.Categorical},
    )
    frame.write_parquet(tmp_path / "t.parquet")
    write(tmp_path, "", "x", "a.jpg")
    source = table.read(tmp_path / "t.parquet")
    names = ("line", "picture", "id_L10", "name_L20", "date", "latitude", "in_region", "reason")
    assert plain(source, *names) == [
        ("1", "a.jpg", "5", "Parus", "2020-05-01T12:00:00", "48.5", "true", None),
        ("2", None, None, "Parus", None, None, None, "no picture named"),
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"t\.csv is empty"),
        (b"picture,species\n", r"t\.csv has a header and no records"),
        (b"picture,colour\na,b\n", r"t\.csv: no column names a taxon; .*Its columns are picture, colour"),
        (b"species,colour\na,b\n", r"t\.csv: no column names pictures; name one with --map picture=COLUMN"),
        (b"PK\x03\x04xxxx", r"t\.csv is a zip file"),
        (b"PAR1xxxx", r"t\.csv cannot be read as Parquet"),
    ],
)
def test_what_is_no_table(tmp_path, data, message):
    with pytest.raises(UserError, match=message):
        table.read(write(tmp_path, data))


def test_pictures_in_another_folder_are_asked_for(tmp_path):
    source = table.read(write(tmp_path, "picture,species\na.jpg,x y\nb.jpg,x y\n"))
    assert source.warnings == (
        f"none of the 2 pictures that are named is below {tmp_path}, e.g. a.jpg; is it their folder?",
    )


def test_no_such_files(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        table.read(tmp_path / "none.csv")
    path = write(tmp_path, "picture,species\na.jpg,x\n")
    with pytest.raises(UserError, match=r"picture folder .* does not exist"):
        table.read(path, pictures=tmp_path / "none")
    with pytest.raises(UserError, match="--quotes 'x'"):
        table.read(path, quotes="x")


NAMES = st.sampled_from(["a.jpg", "b.jpg", "c.jpg", "", "../a.jpg", "none.jpg"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(NAMES, st.integers(1, 4)), min_size=1, max_size=15))
def test_every_record_and_every_file_is_one_row(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("t")
    text = "picture,species,x\n" + "".join(",".join([name, *["s"] * (width - 1)]) + "\n" for name, width in lines)
    path = write(folder, text, pictures="p/a.jpg p/b.jpg")
    frame = table.read(path, pictures=folder / "p").frame
    given_lines = [line for line, (name, width) in enumerate(lines, 2) if name or width > 1]
    assert frame.filter(pl.col("line") > 0)["line"].to_list() == given_lines
    used = {name for name, width in lines if width == 3} & {"a.jpg", "b.jpg"}
    rest = frame.filter(pl.col("line") == 0)["picture"].to_list()
    assert sorted(rest) == sorted({"a.jpg", "b.jpg"} - used)


def test_parquet_times_keep_their_zone(tmp_path):
    times = pl.Series([datetime.datetime(2020, 5, 1, 12)]).dt.replace_time_zone("America/New_York")
    pl.DataFrame({"picture": ["a.jpg"], "species": ["x y"], "eventDate": times}).write_parquet(tmp_path / "t.parquet")
    write(tmp_path, "", "x", "a.jpg")
    assert table.read(tmp_path / "t.parquet").frame["date"].to_list() == ["2020-05-01T16:00:00Z"]
