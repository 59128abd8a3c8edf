"""Dates and times as people and cameras write them."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnaeus_jax.reading.dates import UNKNOWN_ZONE, BadDate, read_moment

NAN = np.nan


@pytest.mark.parametrize(
    ("time", "hour"),
    [
        ("14:20", 14), ("14:20:30.5", 14), ("1420", 14), ("14", 14), ("14h20", 14), ("9:05", 9),
        ("2:20 PM", 14), ("2:20pm", 14), ("02:20:15 p.m.", 14), ("2:20\N{NARROW NO-BREAK SPACE}PM", 14), ("2 pm", 14),
        ("12:10 AM", 0), ("12:10 PM", 12), ("14:20 PM", 14), ("14:20Z", 14), ("14:20 UTC", 14), ("14:20 GMT", 14),
        ("14:20 EST", 19), ("2:20 PM EST", 19), ("2:20 p.m. PDT", 21), ("14:20 CEST", 12), ("14:20 JST", 5),
        ("14:20 UTC+2", 12), ("14:20 UTC+02:00", 12), ("14:20 GMT-3", 17), ("14:20+02:00", 12), ("14:20 +0200", 12),
        ("14:20+2", 12), ("14:20+5:30", 8), ("14:20\N{MINUS SIGN}05:00", 19), ("14:20\N{EN DASH}0500", 19),
        ("14:20 Europe/Paris", 12), ("14:20+02:00[Europe/Paris]", 12), ("14:20/15:00", 14), ("23:59:60", 23),
        ("14:20/15:00-05:00", 19),
    ],
)  # fmt: skip
def test_times_of_day(time, hour):
    for reading in (
        read_moment("2021-06-15", time),
        read_moment(f"2021-06-15T{time}"),
        read_moment(f"2021-06-15 {time}"),
    ):
        assert reading == ((6, 166, hour), "", datetime.date(2021, 6, 15))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2020-12-31T24:00", (1, 1, 0)),
        ("2020-12-31 11:30 PM EST", (1, 1, 4)),
        ("2021-01-01T01:00+05:30", (12, 366, 19)),
        ("2023-05-01T23:30-05:00/2023-05-01T23:50-05:00", (5, 122, NAN)),
        ("2020:05:01 12:30:05", (5, 122, 12)),
        ("20200501T123005Z", (5, 122, 12)),
        ("1 May 2020", (5, 122, NAN)),
        ("May 1, 2020 5 PM", (5, 122, 17)),
        ("01-Sept-2020", (9, 245, NAN)),
        ("25/05/2020 10:00", (5, 146, 10)),
        ("05/25/2020", (5, 146, NAN)),
        ("5.5.2020", (5, 126, NAN)),
        ("2020-05-01/2020-06-01", (5, 137, NAN)),
    ],
)
def test_days_and_times(text, moment):
    np.testing.assert_equal(read_moment(text).moment, moment)


@pytest.mark.parametrize(
    ("time", "fault"),
    [
        ("morning", "no time of the form hh:mm"),
        ("9", "no time of the form hh:mm"),
        ("14:20 IST", "the time zone 'IST' is not known"),
        ("14:20 local", "the time zone 'local' is not known"),
        ("14:20 Mars/Olympus", "the time zone 'Mars/Olympus' is not known"),
        ("14:20+99", "no such offset: +99"),
    ],
)
def test_an_hour_that_is_not_known_leaves_the_day(time, fault):
    reading = read_moment("2021-06-15", time)
    np.testing.assert_equal(reading.moment, (6, 166, NAN))
    assert reading.fault == fault


@pytest.mark.parametrize(
    ("place", "standard", "summer"),
    [
        ("America/New_York", "EST", "EDT"), ("America/Chicago", "CST", "CDT"), ("America/Denver", "MST", "MDT"),
        ("America/Los_Angeles", "PST", "PDT"), ("America/Anchorage", "AKST", "AKDT"),
        ("America/St_Johns", "NST", "NDT"),
        ("Pacific/Honolulu", "HST", "HST"),
        ("Europe/Lisbon", "WET", "WEST"), ("Europe/Berlin", "CET", "CEST"),
        ("Europe/Berlin", "MEZ", "MESZ"), ("Europe/Athens", "EET", "EEST"), ("Europe/Moscow", "MSK", "MSK"),
        ("Africa/Johannesburg", "SAST", "SAST"), ("Asia/Tokyo", "JST", "JST"), ("Asia/Seoul", "KST", "KST"),
        ("Australia/Perth", "AWST", "AWST"), ("Australia/Adelaide", "ACST", "ACDT"),
        ("Australia/Sydney", "AEST", "AEDT"), ("Pacific/Auckland", "NZST", "NZDT"),
    ],
)  # fmt: skip
def test_names_of_zones_are_those_of_places(place, standard, summer):
    hours = [read_moment(f"2021-{month}-15 12:45 {place}").moment[2] for month in ("01", "07")]
    named = [read_moment(f"2021-05-15 12:45 {name}").moment[2] for name in (standard, summer)]
    assert sorted(hours) == sorted(named)


def test_tomorrow_may_be_today_elsewhere():
    tomorrow, later = (datetime.date.today() + datetime.timedelta(days=days) for days in (1, 3))
    assert read_moment(tomorrow.isoformat()).day == tomorrow
    with pytest.raises(BadDate, match="in the future"):
        read_moment(later.isoformat())


@pytest.mark.parametrize("time", ["25:00", "24:01", "12:61", "13:00 AM", "0:10 pm"])
def test_a_time_that_cannot_be_is_no_moment(time):
    with pytest.raises(BadDate, match="no such time"):
        read_moment("2021-06-15", time)


@pytest.mark.parametrize(
    ("text", "day_first", "no_day_first"), [("5/6/2020", (6, 157), (5, 127)), ("5/6/2020 1 PM", (6, 157), (5, 127))]
)
def test_day_and_month_of_two_numbers(text, day_first, no_day_first):
    with pytest.raises(BadDate, match="either number may be the day"):
        read_moment(text)
    assert read_moment(text, day_first=True).moment[:2] == day_first
    assert read_moment(text, day_first=False).moment[:2] == no_day_first


def test_an_order_that_is_given_is_kept():
    with pytest.raises(BadDate, match="--day-first is given"):
        read_moment("5/25/2020", day_first=True)
    with pytest.raises(BadDate, match="--no-day-first is given"):
        read_moment("25/5/2020", day_first=False)


def test_a_clock_of_an_unknown_zone():
    np.testing.assert_equal(
        read_moment("2021-06-15", "14:20", zone=UNKNOWN_ZONE), ((6, 166, NAN), "", datetime.date(2021, 6, 15))
    )
    assert read_moment("2021-06-15", "14:20+02:00", zone=UNKNOWN_ZONE).moment[2] == 12
    assert read_moment("2021-06-15", "14:20", zone="+02:00").moment[2] == 12


DAYS = st.datetimes(datetime.datetime(1800, 1, 2), datetime.datetime(2025, 12, 30))
OFFSETS = st.integers(-14 * 4, 14 * 4)
FORMS = [
    "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y%m%dT%H%M%S", "%Y:%m:%d %H:%M:%S", "%Y/%m/%d %I:%M %p", "%d %B %Y %H:%M",
    "%b %d, %Y %I:%M:%S %p", "%d/%m/%Y %H:%M",
]  # fmt: skip


@given(DAYS, OFFSETS, st.sampled_from(FORMS), st.booleans())
def test_what_is_written_is_read(moment, quarters, form, with_colon):
    sign, minutes = "+" if quarters >= 0 else "-", abs(quarters) * 15
    offset = f"{sign}{minutes // 60:02d}{':' * with_colon}{minutes % 60:02d}"
    utc = moment - datetime.timedelta(minutes=quarters * 15)
    reading = read_moment(moment.strftime(form) + offset, day_first=True)
    assert reading == ((utc.month, utc.timetuple().tm_yday, utc.hour), "", utc.date())


@given(
    st.text(alphabet="0123456789-/:.TZ +apmUTCEST", max_size=30),
    st.text(max_size=12),
    st.sampled_from([None, True, False]),
)
def test_any_text_is_a_moment_or_a_reason(text, time, day_first):
    try:
        (month, day, hour), fault, _ = read_moment(text, time, day_first=day_first)
    except BadDate:
        return
    assert 1 <= month <= 12
    assert np.isnan(day) or 1 <= day <= 366
    assert np.isnan(hour) or (0 <= hour <= 23 and not fault)
