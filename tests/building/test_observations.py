"""Where, when and how high: what is blanked, and what the encodings are."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnaeus_jax.building.steps import finish
from linnaeus_jax.building.steps.observations import read_observations
from linnaeus_jax.building.steps.options import BuildOptions
from linnaeus_jax.data.metadata import ComponentSettings, SourceColumns, build_metadata
from linnaeus_jax.reading.dates import BadDate, read_moment
from tests.building.helpers import rows_of


def observe(options: BuildOptions | None = None, **columns):
    return read_observations(rows_of(levels=(), **columns).frame, options or BuildOptions())


@pytest.mark.parametrize(
    ("latitude", "longitude", "uncertainty", "reason"),
    [
        ("47.5", "8.5", None, None),
        ("-90", "180", None, None),
        ("0", "8.5", None, None),
        ("47,5", "8,5", None, None),
        (None, None, None, None),
        ("91", "8", None, "latitude beyond 90 degrees"),
        ("8", "-180.5", None, "longitude beyond 180 degrees"),
        ("0", "0", None, "latitude and longitude are both 0"),
        ("0.0", "-0", None, "latitude and longitude are both 0"),
        ("nan", "8", None, "no number"),
        ("47N", "8E", None, "no number"),
        ("47", None, None, "only one of latitude and longitude is given"),
        ("47", "8", "50001", "known to 50001.0 m only, more than 50000 m"),
        ("47", "8", "50000", None),
        ("47", "8", "unknown", None),
    ],
)
def test_a_bad_place_is_blanked(latitude, longitude, uncertainty, reason):
    seen = observe(latitude=[latitude], longitude=[longitude], uncertainty=[uncertainty], month=["5"])
    assert seen.blanked["reason"].to_list() == ([reason] if reason else [])
    known = latitude is not None and reason is None
    assert seen.known["SPATIAL"].tolist() == [known]
    assert np.isclose(np.linalg.norm(seen.encoded["spatial"].values[0]), float(known))
    assert seen.known["TEMPORAL"].tolist() == [True], "the other components stay"


def test_the_encodings_are_the_documented_ones():
    options = BuildOptions(temporal="month-hour", elevation_scales=(100.0, 1000.0))
    seen = observe(options, latitude=["40.7128"], longitude=["-74.006"], date=["2023-07-15T14:30:00"], elevation=["10"])
    spatial, temporal = seen.encoded["spatial"], seen.encoded["temporal"]
    np.testing.assert_allclose(spatial.values[0], [0.20885368, -0.72864729, 0.65226775], atol=1e-7)
    np.testing.assert_allclose(temporal.values[0], [-0.5, -0.8660254, -0.5, -0.8660254], atol=1e-6)
    elevation = seen.encoded["elevation_scales_100_1000"]
    np.testing.assert_allclose(elevation.values[0], [0.58778524, 0.809017, 0.06279052, 0.99802673], atol=1e-6)
    assert spatial.attributes["column_names"] == ["spatial_x", "spatial_y", "spatial_z"]
    assert temporal.attributes["column_names"] == ["month_sin", "month_cos", "hour_sin", "hour_cos"]
    assert elevation.attributes["scales"].tolist() == [100, 1000]
    assert {name: str(values.dtype) for name, values in seen.raw.items() if name.startswith("raw_l")} == {
        "raw_lat": "float32",
        "raw_lon": "float32",
    }
    seen = observe(BuildOptions(temporal="day"), date=["2023-07-15", "2023-07"])
    days = seen.encoded["temporal"]
    assert days.attributes["column_names"] == ["jd_sin", "jd_cos"]
    np.testing.assert_allclose(days.values, [[-0.22805777, -0.97364759], [0.0, 0.0]], atol=1e-6)
    assert seen.known["TEMPORAL"].tolist() == [True, False]  # of a month alone no day is known


@pytest.mark.parametrize(
    ("date", "moment"),
    [
        ("2023-07-15", (7, 196, np.nan)),
        ("2023/7/5", (7, 186, np.nan)),
        ("2023-07", (7, np.nan, np.nan)),
        ("2023-07-15T14:30:59.25Z", (7, 196, 14)),
        ("2023-07-15 14:30", (7, 196, 14)),
        ("2023-12-31T23:30-02:00", (1, 1, 1)),
        ("2023-08-01T01:00:00+0200", (7, 212, 23)),
        ("2023-05-01/2023-05-09", (5, 125, np.nan)),
        ("2023-05-01/09", (5, 125, np.nan)),
        ("2023-05-28/06-04", (5, 151, np.nan)),
        ("2023-05/2023-05", (5, np.nan, np.nan)),
        ("2023-05-01T10:00/2023-05-01T11:00", (5, 121, np.nan)),
    ],
)
def test_dates_are_understood(date, moment):
    np.testing.assert_equal(read_moment(date).moment, moment)


@pytest.mark.parametrize(
    ("date", "reason"),
    [
        ("2023", "no month"),
        ("2023-02-30", "no such day"),
        ("2023-13-01", "no such day"),
        ("12/05/2020", "no date of the form"),
        ("May 2020", "no date of the form"),
        ("1699-01-01", "before 1700"),
        ("9999-01-01", "in the future"),
        ("2023-01-01/2023-06-01", "a range of 151 days"),
        ("2023-05-09/2023-05-01", "ends before it begins"),
        ("2023-05-01/x", "no range of the form"),
        ("2023-07-15T25:00", "no such time"),
        ("\u0662\u0660\u0662\u0663-01-01", "no date of the form"),
    ],
)
def test_dates_that_cannot_be_used_say_why(date, reason):
    with pytest.raises(BadDate, match=reason):
        read_moment(date)
    seen = observe(date=[date, "2023-01-01"])
    assert seen.known["TEMPORAL"].tolist() == [False, True]
    assert len(seen.blanked) == 1
    assert seen.blanked["value"].to_list() == [date]
    assert seen.encoded["temporal"].values[0].tolist() == [0, 0]


@given(st.text(max_size=30))
def test_any_text_is_a_date_or_a_reason(text):
    try:
        month = read_moment(text).moment[0]
    except BadDate:
        return
    assert 1 <= month <= 12


def test_year_month_and_day_stand_in_for_a_date():
    seen = observe(
        BuildOptions(temporal="month-hour"),
        year=["2023", "2023", None, "2023", None],
        month=["5", "13", "12.0", None, None],
        day=["17", None, None, None, None],
        hour=[None, None, "6", None, "12"],
    )
    assert seen.known["TEMPORAL"].tolist() == [True, False, True, False, False]
    assert seen.blanked["reason"].to_list() == ["no such month: 13", "no month"]
    hours = seen.encoded["temporal"].values[:, 2:]
    np.testing.assert_allclose(hours, [[0, 0], [0, 0], [1, 0], [0, 0], [0, -1]], atol=1e-6)
    no_year = observe(BuildOptions(temporal="day"), month=["5"], day=["17"])
    assert no_year.days.tolist() == [-1]
    assert no_year.encoded["temporal"].values.tolist() == [[0, 0]], "the day of the year depends on the year"


def test_without_dates_there_are_no_days():
    assert observe(latitude=["1"], longitude=["2"]).days.tolist() == []


def test_days_before_1970_are_known():
    assert observe(date=["1969-12-30", "1970-01-02", None]).days.tolist() == [0, 3, -1]


def test_year_month_and_day_count_where_the_date_cannot_be_read():
    seen = observe(
        BuildOptions(split="date"),
        date=["summer", "12/05/2020", "2023", "nonsense", "2023-06-01"],
        year=["2023", "2020", "2023", None, "1999"],
        month=["7", "5", "8", None, "1"],
        day=["15", "12", None, "3", "1"],
    )
    assert seen.known["TEMPORAL"].tolist() == [True, True, True, False, True]
    assert seen.blanked["reason"].to_list() == ["no date of the form YYYY-MM-DD"]
    angles = 2 * np.pi * np.array([7, 5, 8, 6]) / 12
    np.testing.assert_allclose(seen.encoded["temporal"].values[[0, 1, 2, 4], 0], np.sin(angles), atol=1e-6)
    days = ["2023-07-15", "2020-05-12", None, None, "2023-06-01"]
    assert seen.days.tolist() == [
        -1 if day is None else (np.datetime64(day) - np.datetime64(0, "D")).astype(int) for day in days
    ]


def test_an_hour_that_cannot_be_read_is_blanked_alone():
    seen = observe(
        BuildOptions(temporal="month-hour"),
        date=["2023-06-01"] * 4,
        time=["2:20 PM EST", "noon", "14:20 IST", None],
    )
    assert seen.known["TEMPORAL"].tolist() == [True] * 4
    turn = 2 * np.pi * 19 / 24
    expected = [[np.sin(turn), np.cos(turn)], [0, 0], [0, 0], [0, 0]]
    np.testing.assert_allclose(seen.encoded["temporal"].values[:, 2:], expected, atol=1e-6)
    assert seen.blanked.select("component", "value", "reason").rows() == [
        ("hour", "2023-06-01 noon", "no time of the form hh:mm"),
        ("hour", "2023-06-01 14:20 IST", "the time zone 'IST' is not known"),
    ]
    seen = observe(BuildOptions(temporal="month-hour"), date=["2023-06-01"], time=["noon"], hour=["18"])
    np.testing.assert_allclose(seen.encoded["temporal"].values[:, 2:], [[-1, 0]], atol=1e-6)
    assert seen.blanked.is_empty(), "the hour is known from a column of its own"


def test_days_and_months_that_may_be_either():
    dates = ["5/6/2023", "25/6/2023"]
    months = {first: observe(BuildOptions(day_first=first), date=dates) for first in (None, True, False)}
    assert [seen.known["TEMPORAL"].tolist() for seen in months.values()] == [[False, True], [True, True], [True, False]]
    assert "give --day-first or --no-day-first" in months[None].blanked["reason"][0]


@pytest.mark.parametrize(
    ("low", "high", "metres"),
    [("100", None, 100), ("100", "300", 200), (None, "300", 300), ("9001", None, None), ("x", "300", None),
     ("-501", None, None), ("1,234", None, None), ("-430.5", None, -430.5), (None, None, None)],
)  # fmt: skip
def test_elevations(low, high, metres):
    seen = observe(elevation=[low], elevation_max=[high])
    assert seen.known["ELEVATION"].tolist() == [metres is not None]
    assert len(seen.blanked) == (metres is None and (low, high) != (None, None))
    assert seen.raw["raw_elevation"].tolist() == [metres or 0]
    if metres is None:
        assert seen.encoded["elevation_broadrange_2"].values[0].tolist() == [0, 1] * 5


def test_sea_level_is_known():
    seen = observe(elevation=["0", None])
    settings = (ComponentSettings("ELEVATION", "e", (), 10),)
    _, valid = build_metadata(
        settings, {"e": SourceColumns(seen.encoded["elevation_broadrange_2"].values)}, None, rows=2
    )
    assert valid[:, 0].tolist() == [True, False] == seen.known["ELEVATION"].tolist()
    np.testing.assert_allclose(seen.raw["raw_elevation"], [0.01, 0])


def test_regions_are_flags():
    seen = observe(in_region=["1", "no", "TRUE", None, "maybe"])
    assert seen.raw["in_region"].tolist() == [1, 0, 1, 1, 1]
    words = ["1", "true", "yes", "t", "y", "0", "false", "no", "f", "n"]
    assert observe(in_region=words).raw["in_region"].tolist() == [1] * 5 + [0] * 5
    assert seen.blanked["component"].to_list() == ["in_region"]


def test_what_the_source_knows_nothing_of_is_absent():
    seen = observe(license=["CC0"])
    assert not seen.encoded
    assert not seen.known
    assert not len(seen.blanked)


@pytest.mark.parametrize(
    ("observers", "numbers"),
    [(["7", None, "3"], [7, 0, 3]), (["b", None, "a", "b"], [2, 0, 1, 2]), (["7", "a"], [1, 2]), ([None], [0])],
)
def test_observers_are_numbers_or_get_them_and_0_is_unknown(observers, numbers):
    found = finish._observer_ids(pl.Series(observers, dtype=pl.String))
    assert (found.dtype, found.tolist()) == (np.int32, numbers)
