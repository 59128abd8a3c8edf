"""Which file on disk a downloaded picture is."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from linnaeus_jax.building.sources.matching import Matcher
from linnaeus_jax.reading.picture_folder import Listing


def match(files: list[str], media: list[tuple]) -> list:
    """Pictures of media rows (identifier, id, number, specimen, catalog)."""
    schema = {"identifier": pl.String, "id": pl.String, "number": pl.Int64, "specimen": pl.String, "catalog": pl.String}
    frame = pl.DataFrame([(*row, *[None] * (5 - len(row))) for row in media], schema, orient="row")
    result = Matcher(Listing(Path("/root"), sorted(files))).match_media(frame)
    return [picture if reason is None else reason for picture, reason, _ in result.rows()]


WEB = "https://host.org"


@pytest.mark.parametrize(
    ("files", "media", "wanted"),
    [
        (["a/b.jpg", "b.jpg"], [("a/b.jpg", "1", 1), ("a\\b.jpg", "2", 1)], ["a/b.jpg", "a/b.jpg"]),
        (["p/77.jpeg"], [(f"{WEB}/photos/77/original.jpg", "1", 1)], ["p/77.jpeg"]),
        (["x/IMG_1.JPG"], [(f"{WEB}/media/IMG_1.jpg?size=large", "1", 1)], ["x/IMG_1.JPG"]),
        (["1_1.jpg", "1_2.png"], [(f"{WEB}/u", "1", 1), (f"{WEB}/v", "1", 2)], ["1_1.jpg", "1_2.png"]),
        (["1-0.jpg", "1-1.jpg"], [(f"{WEB}/u", "1", 1), (f"{WEB}/v", "1", 2)], ["1-0.jpg", "1-1.jpg"]),
        (["1-0.jpg", "2-1.jpg"], [(f"{WEB}/u", "1", 1), (f"{WEB}/v", "2", 1)], ["1-0.jpg", "2-1.jpg"]),
        (["1.jpg"], [(f"{WEB}/u", "1", 1), (f"{WEB}/v", "1", 2)], ["1.jpg", "no such picture"]),
        (["1/b.jpg", "1/a.jpg"], [(f"{WEB}/u", "1", 1), (f"{WEB}/v", "1", 2)], ["1/a.jpg", "1/b.jpg"]),
        (
            ["1/2.jpg", "1/10.jpg"],
            [(f"{WEB}/{i}", "1", i) for i in (1, 2, 10)],
            ["no such picture", "1/2.jpg", "1/10.jpg"],
        ),
        (["obs9_1.jpg"], [(f"{WEB}/u", "1", 1, "obs9")], ["obs9_1.jpg"]),
        (["c7.jpg"], [(f"{WEB}/u", "1", 1, None, "c7")], ["c7.jpg"]),
        (["c7.jpg"], [(f"{WEB}/u", "1", 1, None, "c7"), (f"{WEB}/v", "2", 1, None, "c7")], ["no such picture"] * 2),
        (
            [],
            [(None, "1", 1), ("../x.jpg", "2", 1), (f"{WEB}/u", "3", 1)],
            ["no picture named", "unsafe path", "no such picture"],
        ),
    ],
    ids=range(13),
)
def test_ways_to_name_downloads(files, media, wanted):
    assert match(files, media) == wanted


def test_addresses_that_all_end_alike_are_no_names():
    media = [(f"{WEB}/photos/{number}/medium.jpg", str(number), 1) for number in (1, 2)]
    assert match(["medium.jpg"], media) == ["no such picture"] * 2


def test_a_file_is_given_once():
    # 12 is the first record's id and the second's catalogue number
    media = [(f"{WEB}/u", "12", 1), (f"{WEB}/v", "13", 1, None, "12")]
    assert match(["12.jpg"], media) == ["12.jpg", "no such picture"]


def test_records_without_media_get_all_their_files():
    files = ["1.jpg", "1_2.jpg", "1_10.jpg", "2/b.jpg", "2/a.jpg", "s_1.jpg", "3.jpg", "12.jpg"]
    records = pl.DataFrame(
        {"row": [5, 6, 7, 8], "id": ["1", "2", "x", None], "specimen": [None, None, "s", None]},
        schema={"row": pl.UInt32, "id": pl.String, "specimen": pl.String},
    )
    found = Matcher(Listing(Path("/root"), sorted(files))).match_records(records)
    assert found.rows() == [
        (5, "1.jpg"),
        (5, "1_2.jpg"),
        (5, "1_10.jpg"),
        (6, "2/a.jpg"),
        (6, "2/b.jpg"),
        (7, "s_1.jpg"),
    ]
