"""Tables of place and date, and which picture each row is about."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.files.observation_table import ObservationTable, read_observation_table
from linnaeus_jax.inference.files.picture_list import PictureFile
from linnaeus_jax.reading.metadata import Observation


def pictures(folder: Path, *names: str) -> list[PictureFile]:
    return [PictureFile(folder / name, name, name) for name in names]


def table(folder: Path, text: str, **mapping: str) -> ObservationTable:
    path = folder / "places.csv"
    path.write_text(text)
    return read_observation_table(path, mapping)


def match(found, given):
    """What is known of each picture."""
    return [None if row is None else found.observations[row] for row in found.match(given)]


@pytest.mark.parametrize("column", ["file", "filename", "path", "picture", "File Name", "image_path"])
def test_names_of_darwin_core_and_of_people(tmp_path, column):
    text = f"{column},decimalLatitude,decimalLongitude,eventDate,elevation,species,license,licence\n"
    found = table(tmp_path, text + "a.jpg,52.5,13.4,2024-05-17T10:20+02:00,34,Parus major,x,y\n")
    assert match(found, pictures(tmp_path, "sub/a.jpg", "b.jpg")) == [
        Observation("52.5", "13.4", "2024-05-17T10:20+02:00", "34"),
        None,
    ]


def test_parquet_and_mapping(tmp_path):
    frame = pl.DataFrame({"photo nr": ["1"], "n": [52.0], "e": [13.0], "elevation": [0]})
    frame.write_parquet(tmp_path / "t.parquet")
    found = read_observation_table(tmp_path / "t.parquet", {"picture": "photo nr", "latitude": "n", "longitude": "e"})
    assert match(found, pictures(tmp_path, "1.JPG")) == [Observation("52", "13", None, "0")]  # without a suffix


@pytest.mark.parametrize(
    ("header", "row", "date"),
    [
        ("date,time", "2024-05-17,10:20", "2024-05-17T10:20"),
        ("date,time", "2024-05-17T08:00Z,10:20", "2024-05-17T08:00Z"),
        ("date,time", ",10:20", None),
        ("date,time", "17/05/2024,2:20 PM EST", "17/05/2024T2:20 PM EST"),
        ("date,time", "2024:05:17,10:20", "2024:05:17T10:20"),
        ("date,time", "2024-05-17 2 pm,10:20", "2024-05-17 2 pm"),
        ("date,time", "2024-05-17 15h30,10:20", "2024-05-17 15h30"),
        ("date,year,month,day", "summer,2024,7,15", "2024-07-15"),
        ("date,year,month,day", "2024-05-17,1999,1,1", "2024-05-17"),
        ("year,month,day", "2024,5,7", "2024-05-07"),
        ("year,month,day,hour", "2024,5,7,9", "2024-05-07T9:00"),
        ("year,month", "2024,5", "2024-05"),
        ("year,month", "2024,", None),
        ("date,hour", "2024-05-01/2024-05-09,9", "2024-05-01/2024-05-09"),
    ],
)
def test_dates_from_several_columns(tmp_path, header, row, date):
    found = table(tmp_path, f"file,{header}\na.jpg,{row}\n")
    assert match(found, pictures(tmp_path, "a.jpg")) == [Observation(date=date)]


def test_decimal_commas(tmp_path):
    found = table(tmp_path, "file;latitude;longitude\na.jpg;52,5;-13,4\n")
    assert found.observations == [Observation("52.5", "-13.4")]


def test_the_longest_path_that_a_picture_ends_in(tmp_path):
    text = "path,elevation\na.jpg,1\nsub/a.jpg,2\n./other/a.jpg,3\n../x/b.jpg,4\n"
    found = table(tmp_path, text + f"{tmp_path}/c.jpg,5\nC:\\photos\\d.jpg,6\n")
    known = match(found, pictures(tmp_path, "sub/a.jpg", "other/a.jpg", "third/a.jpg", "../x/b.jpg", "c.jpg", "d.jpg"))
    assert [each and each.elevation for each in known] == ["2", "3", "1", "4", "5", None]
    assert match(found, pictures(tmp_path, "xa.jpg", "sub/c.jpg")) == [None, None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "file,elevation\na.jpg,1\na.jpg,2\n",
            r"the records 2 and 3 are both about a.jpg and differ; keep one of them",
        ),
        ("file,elevation\nb.jpg,1\n", r"record 2 names b.jpg, which may be x/b.jpg or y/b.jpg; write the folder"),
    ],
)
def test_what_is_not_clear_is_refused(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        table(tmp_path, text).match(pictures(tmp_path, "a.jpg", "x/b.jpg", "y/b.jpg"))


def test_repeated_rows_do_no_harm(tmp_path):
    found = table(tmp_path, "file,elevation\na.jpg,1\na.jpg,1\n")
    assert match(found, pictures(tmp_path, "a.jpg")) == [Observation(elevation="1")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("what,latitude\na,1\n", r"no column names the pictures; call it file, or say which it is with --map picture="),
        ("file,species\na,1\n", r"has none of the columns latitude, longitude, date and elevation"),
        (
            "file,filename,latitude\na,b,1\n",
            r"the columns 'file' and 'filename' both stand for picture; choose one with --map",
        ),
        ("file,latitude\n", r"has a header and no records"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        table(tmp_path, text)


def test_what_is_left_out_is_said(tmp_path):
    found = table(tmp_path, "file,latitude,longitude\na.jpg,1,2,3\nb.jpg,1,2\n,5,6\n")
    assert found.pictures == ["b.jpg"]
    assert "1 malformed records are left out, first line 2" in found.warnings[0]
    assert "1 records name no picture" in found.warnings[1]


def test_a_column_of_folders_joins_that_of_names(tmp_path):
    (tmp_path / "t.csv").write_text("File,RelativePath,latitude\n1.jpg,A\\b,1\n1.jpg,B,2\n2.jpg,,3\n")
    assert read_observation_table(tmp_path / "t.csv").pictures == ["A/b/1.jpg", "B/1.jpg", "2.jpg"]
