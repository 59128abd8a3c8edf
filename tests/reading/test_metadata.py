"""Metadata vectors: the numbers of the original where it is right, and what it gets wrong put right."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

import numpy as np
import pytest

from linnaeus_jax.reading.metadata import Component, MetadataEncoder, Observation

GEO = Component("SPATIAL", ("spatial_x", "spatial_y", "spatial_z"))
MONTH = Component("TEMPORAL", ("month_sin", "month_cos"))
DAY_AND_HOUR = Component("TEMPORAL", ("jd_sin", "jd_cos", "hour_sin", "hour_cos"))


def elevation(*scales: float) -> Component:
    return Component("ELEVATION", tuple(f"elev_{scale:g}_{wave}" for scale in scales for wave in ("sin", "cos")))


def wave(turns: float) -> list[float]:
    return [math.sin(2 * math.pi * turns), math.cos(2 * math.pi * turns)]


@pytest.fixture(scope="module")
def golden(fixtures) -> Any:
    return json.loads((fixtures / "observability_misc.json").read_text())["metadata"]


@pytest.mark.parametrize("number", [0, 1])
def test_vectors_of_the_original(golden, number):
    result = golden["results"][number]
    config = result["config"]
    temporal = DAY_AND_HOUR if config["temporal_use_hour"] else MONTH
    encoder = MetadataEncoder((GEO, temporal, elevation(*config["elevation_scales"])), date_is_midnight=True)
    observations = [
        Observation(record.get("lat"), record.get("lon"), record.get("datetime_utc"), record.get("elevation_m"))
        for record in golden["records"]
    ]
    expected = np.array(result["vectors"])
    if config["temporal_use_hour"]:  # 10:00+02:00 is 8 o'clock in UTC; the original takes it for 10
        assert golden["records"][4]["datetime_utc"] == "2023-08-01T10:00:00+02:00"
        expected[4, 5:7] = wave(8 / 24)
    encoded = encoder.encode(observations)
    np.testing.assert_allclose(encoded.meta, expected, rtol=0, atol=1e-6)
    assert encoded.valid.tolist() == [[True] * 3] * 3 + [
        [False] * 3,
        [False, True, False],  # a latitude alone is no place
        [False] * 3,
        [True, False, True],
    ]
    assert [len(notes) for notes in encoded.notes] == [0, 0, 0, 0, 1, 3, 0]


def test_the_order_is_that_of_the_components():
    given = Observation(52.5, 13.4, "2024-05-17", 34)
    one = MetadataEncoder((GEO, MONTH, elevation(100)))
    other = MetadataEncoder((elevation(100), GEO, MONTH))
    np.testing.assert_array_equal(one.encode([given]).meta[0, [5, 6, 0, 1, 2, 3, 4]], other.encode([given]).meta[0])
    assert one.bounds == ((0, 3), (3, 5), (5, 7))


ALL = MetadataEncoder((GEO, MONTH, elevation(100)))


@pytest.mark.parametrize(
    ("given", "valid", "note"),
    [
        ({}, [False, False, False], ""),
        ({"latitude": math.nan, "longitude": math.nan, "elevation": math.nan}, [False] * 3, ""),
        ({"latitude": "", "longitude": " ", "date": "  ", "elevation": ""}, [False] * 3, ""),
        ({"date": np.datetime64("NaT", "s")}, [False] * 3, ""),
        ({"date": math.nan}, [False] * 3, ""),
        ({"latitude": 0, "longitude": 0, "elevation": 0}, [True, False, True], ""),
        ({"latitude": "52.5", "longitude": "13.4"}, [True, False, False], ""),
        ({"latitude": 91, "longitude": 0}, [False] * 3, "latitude 91 is not between -90 and 90"),
        ({"latitude": 0, "longitude": 180.5}, [False] * 3, "longitude 180.5 is not between"),
        ({"latitude": math.inf, "longitude": 0}, [False] * 3, "latitude inf is infinite"),
        ({"longitude": 5.0}, [False] * 3, "only one of latitude and longitude is known"),
        ({"latitude": "north", "longitude": 0}, [False] * 3, "latitude 'north' is no number"),
        ({"elevation": 90_000}, [False] * 3, "elevation 90000 is not between"),
        ({"date": "2024-02-29"}, [False, True, False], ""),
        ({"date": "2023-02-29"}, [False] * 3, "date '2023-02-29'"),
        ({"date": "2024"}, [False] * 3, "no month"),
        ({"date": "2024-05"}, [False, True, False], ""),
    ],
)
def test_missing_and_impossible_values(given, valid, note):
    encoded = ALL.encode([Observation(**given)])
    assert encoded.valid.tolist() == [valid]
    assert np.isfinite(encoded.meta).all()
    for (start, stop), known in zip(ALL.bounds, valid, strict=True):
        assert known or not encoded.meta[0, start:stop].any()
    assert (note in " ".join(encoded.notes[0])) if note else not encoded.notes[0]


def test_every_way_to_write_a_moment_is_the_same():
    encoder = MetadataEncoder((Component("TEMPORAL", ("month_sin", "month_cos", *DAY_AND_HOUR.columns)),))
    berlin = datetime.timezone(datetime.timedelta(hours=2))
    moments = [
        "2024-06-01T01:30:00+02:00",  # still May in UTC
        "2024-05-31T23:30Z",
        "2024-05-31 23:30:59.123456",
        datetime.datetime(2024, 6, 1, 1, 30, tzinfo=berlin),
        datetime.datetime(2024, 5, 31, 23, 30),
        np.datetime64("2024-05-31T23:30:00.123456789"),
    ]
    encoded = encoder.encode([Observation(date=moment) for moment in moments])
    expected = wave(5 / 12) + wave(152 / 365.25) + wave(23 / 24)
    np.testing.assert_allclose(encoded.meta, [expected] * len(moments), rtol=0, atol=1e-6)
    assert not any(encoded.notes)


def test_an_hour_that_is_not_known():
    days = [Observation(date=date) for date in ("2024-02-29", datetime.date(2024, 2, 29), np.datetime64("2024-02-29"))]
    for midnight, hour in ((False, [0, 0]), (True, [0, 1])):
        encoded = MetadataEncoder((DAY_AND_HOUR,), date_is_midnight=midnight).encode(days)
        np.testing.assert_allclose(encoded.meta, [[*wave(60 / 365.25), *hour]] * 3, rtol=0, atol=1e-6)
        assert encoded.valid.all()
    month_alone = MetadataEncoder((DAY_AND_HOUR,)).encode([Observation(date="2024-02")])
    assert not month_alone.valid.any()
    assert not month_alone.meta.any()


def test_components_as_numbers():
    encoder = MetadataEncoder((GEO, Component("TRAP", ("", ""))))
    assert [component.inputs for component in encoder.components] == [("place",), ()]
    given: list[dict[str, Any]] = [
        {"TRAP": [1.5, -2.0]},
        {"TRAP": [math.nan, 0.0]},
        {},
        {"SPATIAL": (0.0, 0.0, 1.0)},
    ]
    encoded = encoder.encode([Observation(10, 20, components=components) for components in given])
    assert encoded.valid.tolist() == [[True, True], [True, False], [True, False], [True, False]]
    np.testing.assert_allclose(encoded.meta[0, 3:], [1.5, -2.0])
    np.testing.assert_allclose(encoded.meta[3, :3], [0, 0, 1])
    assert "TRAP holds values that are no finite float32 numbers" in encoded.notes[1][0]
    with pytest.raises(ValueError, match="no metadata component 'TRIP'; it has SPATIAL, TRAP"):
        encoder.encode([Observation(components={"TRIP": [1]})])
    with pytest.raises(ValueError, match="TRAP needs 2 numbers"):
        encoder.encode([Observation(components={"TRAP": [1, 2, 3]})])


def test_a_model_without_metadata():
    encoded = MetadataEncoder(()).encode([Observation(91, 0), Observation()])
    assert (encoded.meta.shape, encoded.valid.shape, encoded.notes) == ((2, 0), (2, 0), [(), ()])
