"""What is taken from EXIF data."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
from PIL import ExifTags, Image

from linnaeus_jax.reading.exif import observation_of
from linnaeus_jax.reading.metadata import Observation

GPS = ExifTags.GPS
SYDNEY = {
    GPS.GPSLatitudeRef: "S",
    GPS.GPSLatitude: (33.0, 51.0, 30.0),
    GPS.GPSLongitudeRef: "E",
    GPS.GPSLongitude: (151.0, 12.0, 0.0),
    GPS.GPSAltitude: 58.0,
}


def picture(
    camera: Mapping[Any, Any] | None = None, place: Mapping[Any, Any] | None = None, kind: str = "JPEG"
) -> bytes:
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.Exif).update(camera or {})
    exif.get_ifd(ExifTags.IFD.GPSInfo).update(place or {})
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, kind, exif=exif)
    return buffer.getvalue()


BASE = ExifTags.Base
TAKEN = {BASE.DateTimeOriginal: "2024:05:17 10:20:30"}


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_place_and_date(kind):
    observation, notes = observation_of(picture(TAKEN | {BASE.OffsetTimeOriginal: "+02:00"}, SYDNEY, kind))
    assert observation == Observation("-33.858333", "151.200000", "2024-05-17T10:20:30+02:00", "58.0")
    assert notes == ()


def test_a_clock_of_an_unknown_zone_gives_the_day_alone():
    assert observation_of(picture(TAKEN))[0] == Observation(date="2024-05-17")
    assert observation_of(picture(TAKEN | {BASE.OffsetTimeOriginal: "   :  "}))[0].date == "2024-05-17"


def test_zeros_are_no_place():
    zeros = SYDNEY | {GPS.GPSLatitude: (0.0, 0.0, 0.0), GPS.GPSLongitude: (0.0, 0.0, 0.0)}
    observation, notes = observation_of(picture(None, zeros))
    assert observation == Observation()
    assert "EXIF says latitude 0, longitude 0" in notes[0]


@pytest.mark.parametrize("data", [b"", b"text", picture(), picture(TAKEN, SYDNEY)[:60], picture(TAKEN, None, "PNG")])
def test_nothing_there(data):
    assert observation_of(data) == (Observation(), ())


def test_a_clock_that_was_never_set_is_none():
    assert observation_of(picture({BASE.DateTimeOriginal: "0000:00:00 00:00:00"}))[0] == Observation()
