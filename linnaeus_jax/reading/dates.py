"""Dates and times as people and cameras write them -> month, day of the year and hour, in UTC.

The one reader of building and predicting. Nothing is guessed: what may mean two things is not read, and why is said.
"""

from __future__ import annotations

import datetime
import functools
import re
import zoneinfo
from typing import NamedTuple

import numpy as np

OLDEST = 1700
#: a range of dates counts as its middle if it is not longer, in days
LONGEST_RANGE = 31
_SEPARATED = r"(?:[T ]+(?P<time>\S.*))?"
_YEAR_FIRST = re.compile(
    rf"(?P<year>\d{{4}})(?P<sign>[-/.:])(?P<month>\d{{1,2}})(?P=sign)(?P<day>\d{{1,2}}){_SEPARATED}", re.ASCII
)
_BASIC = re.compile(rf"(?P<year>\d{{4}})(?P<month>\d\d)(?P<day>\d\d){_SEPARATED}", re.ASCII)
_YEAR_LAST = re.compile(
    rf"(?P<one>\d{{1,2}})(?P<sign>[-/.])(?P<two>\d{{1,2}})(?P=sign)(?P<year>\d{{4}}){_SEPARATED}", re.ASCII
)
_WORD = r"(?P<word>[A-Za-z]{3,9})\.?"
_DAY_OF_WORD = re.compile(rf"(?P<day>\d{{1,2}})[-. ]+{_WORD}[-., ]+(?P<year>\d{{4}}){_SEPARATED}", re.ASCII)
_WORD_AND_DAY = re.compile(rf"{_WORD} +(?P<day>\d{{1,2}}),? +(?P<year>\d{{4}}){_SEPARATED}", re.ASCII)
_MONTH = re.compile(r"(\d{4})[-/.](\d{1,2})", re.ASCII)
_MONTHS = "january february march april may june july august september october november december".split()
_TIME = re.compile(
    r"(?:(?P<hour>\d{1,2})[:h](?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,]\d+)?)?"
    r"|(?P<hh>\d{2})(?P<mm>\d{2})(?P<ss>\d{2})?(?:[.,]\d+)?|(?P<only>\d{1,2}))"
    r" ?(?P<half>[ap]\.?m\b\.?)? ?(?P<zone>\S.*)?",
    re.ASCII | re.IGNORECASE,
)
_OFFSET = re.compile(r"(?:UTC|GMT)?\s*([+-])(\d{1,2})(?::?(\d{2}))?", re.ASCII | re.IGNORECASE)
#: hours from UTC of names of zones: those of RFC 5322, and others that mean one zone only
_ZONES: dict[str, float] = {
    **dict.fromkeys(("Z", "UTC", "GMT", "UT", "UCT", "WET", "ZULU"), 0),
    **dict(EST=-5, EDT=-4, CST=-6, CDT=-5, MST=-7, MDT=-6, PST=-8, PDT=-7),
    **dict(AKST=-9, AKDT=-8, HST=-10, NST=-3.5, NDT=-2.5, WEST=1, CET=1, MEZ=1, CEST=2, MESZ=2, EET=2, EEST=3),
    **dict(MSK=3, SAST=2, JST=9, KST=9, AWST=8, ACST=9.5, ACDT=10.5, AEST=10, AEDT=11, NZST=12, NZDT=13),
}
#: signs that stand for a minus
_MINUS = str.maketrans(dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\u2014\ufe63\uff0d", "-"))
#: month, day of the year and hour, NaN where unknown
Moment = tuple[float, float, float]
UNKNOWN_MOMENT: Moment = (np.nan, np.nan, np.nan)
UNKNOWN_ZONE = "unknown"
#: why "5/6/2023" is not read
DAY_OR_MONTH = "either number may be the day"


class BadDate(ValueError):
    """Why a date cannot be used."""


class Reading(NamedTuple):
    """What a text says.

    Attributes:
      moment: month, day of the year and hour in UTC.
      fault: why the hour is not known though a time is given; "" else.
      day: the day in UTC; None where only the month is known.
    """

    moment: Moment
    fault: str = ""
    day: datetime.date | None = None


class _Read(NamedTuple):
    """A day, its time in UTC where that is known, and why a time of day that is given is not used."""

    day: datetime.date
    time: datetime.datetime | None = None
    fault: str = ""


@functools.lru_cache(maxsize=1 << 16)
def read_moment(text: str, time: str = "", *, day_first: bool | None = None, zone: str = "") -> Reading:
    """Reads a date in the forms of ISO 8601 that Darwin Core allows, and in those of tables and cameras.

    A time is converted to UTC by its zone: an offset ("+02:00", "UTC-3", "+5:30"), a name such as "EST", or that of a
    place ("Europe/Paris"). A time without a zone is UTC.

    Args:
      text: "2023-05-17", "2023-05-17T10:20Z", "2023:05:17 10:20:30", "20230517", "17 May 2023", "2023-05", or a range
        "2023-05-01/2023-05-09" (or "/09"), of which the middle counts. "17/05/2023" as well, where the day cannot be
        a month.
      time: time of day where `text` has none: "10:20:30", "2:20 PM", "24:00", "10:20+02:00".
      day_first: whether "5/6/2023" is a day in June (True) or in May (False); None: it is not read.
      zone: zone of a time without one; `UNKNOWN_ZONE`: its hour is not known.

    Raises:
      BadDate: no date, none with a month, or one that cannot be.
    """
    text, time, zone = (" ".join(part.translate(_MINUS).split()) for part in (text, time, zone))
    first, slash, last = text.partition("/") if text.count("/") == 1 else (text, "", "")
    if re.search(r"[A-Za-z]/[A-Za-z]|/ ?\d{1,2}:\d\d", text):  # of "Europe/Paris", or between two times of one day
        first, last = text, ""
    if slash and last and not _MONTH.fullmatch(text):
        return _middle(first.strip(), last.strip())
    month = _MONTH.fullmatch(first.strip())
    if month is not None:
        return Reading((_day(int(month[1]), int(month[2]), 15).month, np.nan, np.nan))
    read = _read(first.strip(), time, day_first, zone)
    day = read.time.date() if read.time else read.day
    return Reading(_on(day, read.time.hour if read.time else np.nan), read.fault, day)


def instant(text: str) -> datetime.datetime | None:
    """The moment that a text of `read_moment` says, in UTC, of a range its beginning; None without a time of day, and
    where it cannot be read."""
    text = " ".join(text.translate(_MINUS).split())
    first = text if re.search(r"[A-Za-z]/[A-Za-z]|/\d\d?/", text) else text.partition("/")[0]
    try:
        return _read(first.strip(), "", None, "").time
    except BadDate:
        return None


def _on(day: datetime.date, hour: float = np.nan) -> Moment:
    return day.month, day.timetuple().tm_yday, hour


def _read(text: str, time: str, day_first: bool | None, zone: str) -> _Read:
    forms = (_YEAR_FIRST, _BASIC, _DAY_OF_WORD, _WORD_AND_DAY, _YEAR_LAST)
    match = next(filter(None, (form.fullmatch(text) for form in forms)), None)
    if match is None:
        raise BadDate("no month" if re.fullmatch(r"\d{4}", text, re.ASCII) else "no date of the form YYYY-MM-DD")
    given = match.groupdict()
    if "one" in given:
        month, day = _ordered(int(given["one"]), int(given["two"]), day_first)
    elif "word" in given:
        month, day = _month_of(given["word"]), int(given["day"])
    else:
        month, day = int(given["month"]), int(given["day"])
    date = _day(int(given["year"]), month, day)
    return _with_time(date, (given["time"] or time).strip(), zone)


def _ordered(one: int, two: int, day_first: bool | None) -> tuple[int, int]:
    """Month and day of two numbers in front of a year."""
    if one == two or min(one, two) > 12 or (one <= 12 < two and day_first is not True):
        return one, two
    if two <= 12 < one and day_first is not False:
        return two, one
    if day_first is None or max(one, two) > 12:
        order = {None: DAY_OR_MONTH, True: "--day-first is given", False: "--no-day-first is given"}
        raise BadDate(f"no date of the form YYYY-MM-DD: {order[day_first]}")
    return (two, one) if day_first else (one, two)


def _month_of(word: str) -> int:
    found = [number for number, name in enumerate(_MONTHS, 1) if word.lower() in (name, name[:3], name[:4])]
    if not found:
        raise BadDate("no date of the form YYYY-MM-DD")
    return found[0]


def _with_time(date: datetime.date, text: str, zone: str) -> _Read:
    """A day with a time of day that follows it; of a range of times the first."""
    if not text:
        return _Read(date)
    first, _, last = re.sub(r"/(?= ?\d)", "\n", text, count=1).partition("\n")
    match, end = _TIME.fullmatch(first.strip()), _TIME.fullmatch(last.strip())
    if match is None or (match["only"] and len(match["only"]) < 2 and not match["half"]):
        return _Read(date, fault="no time of the form hh:mm")
    hour = int(match["hour"] or match["hh"] or match["only"])
    minute, second = int(match["minute"] or match["mm"] or 0), int(match["second"] or match["ss"] or 0)
    half = (match["half"] or "").lower()[:1]
    if half and not 1 <= hour <= (12 if half == "a" else 23):
        raise BadDate(f"no such time: hour {hour} with {half}m")
    hour = hour + 12 if half == "p" and hour < 12 else 0 if half == "a" and hour == 12 else hour
    next_day = hour == 24 and not minute and not second
    try:
        moment = datetime.datetime(date.year, date.month, date.day, 0 if next_day else hour, minute, min(second, 59))
        moment += datetime.timedelta(days=next_day)
        return _Read(date, _in_utc(moment, match["zone"] or (end and end["zone"]) or zone))
    except _UnknownZone as error:
        return _Read(date, fault="" if zone == UNKNOWN_ZONE and not match["zone"] else str(error))
    except ValueError as error:
        raise BadDate(f"no such time: {error}") from None


class _UnknownZone(Exception):
    """The zone of a time is not known."""


def _in_utc(moment: datetime.datetime, zone: str) -> datetime.datetime:
    """A time of a zone in UTC."""
    zone = re.sub(r"\s*[\[(].*[\])]$", "", zone.strip()) or zone.strip(
        " []()"
    )  # "+02:00[Europe/Paris]", "[Asia/Tokyo]"
    if not zone:
        return moment
    offset = _OFFSET.fullmatch(zone)
    if offset is not None:
        sign, hours, minutes = (offset[1], int(offset[2]), int(offset[3] or 0))
        if hours > 15 or minutes > 59:
            raise _UnknownZone(f"no such offset: {zone}")
        return moment - (1 if sign == "+" else -1) * datetime.timedelta(hours=hours, minutes=minutes)
    if zone.upper() in _ZONES:
        return moment - datetime.timedelta(hours=_ZONES[zone.upper()])
    try:
        place = zoneinfo.ZoneInfo(zone) if "/" in zone else None
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        place = None
    if place is None:
        raise _UnknownZone(f"the time zone {zone!r} is not known")
    return moment.replace(tzinfo=place).astimezone(datetime.UTC).replace(tzinfo=None)


def _day(year: int, month: int, day: int) -> datetime.date:
    try:
        date = datetime.date(year, month, day)
    except ValueError as error:
        raise BadDate(f"no such day: {error}") from None
    if date.year < OLDEST:
        raise BadDate(f"before {OLDEST}")
    if date > datetime.date.today() + datetime.timedelta(days=1):
        raise BadDate("in the future")
    return date


def _middle(first: str, last: str) -> Reading:
    """The middle of a range of days, or the month that both ends lie in."""
    if len(last) < len(first):  # ISO 8601 leaves out what both ends share
        last = first.split("T")[0][: len(first.split("T")[0]) - len(last.split("T")[0])] + last
    months = [_MONTH.fullmatch(part) for part in (first, last)]
    if months[0] and months[1]:
        days = (_day(int(month[1]), int(month[2]), 15) for month in months if month)
        start, end = (_beginning(_Read(day)) for day in days)
        if (start.year, start.month) == (end.year, end.month):
            return Reading((start.month, np.nan, np.nan))
    elif not (_YEAR_FIRST.fullmatch(first) and _YEAR_FIRST.fullmatch(last)):
        raise BadDate("no range of the form YYYY-MM-DD/YYYY-MM-DD")
    elif first == last:
        return read_moment(first)
    else:
        start, end = (_beginning(_read(part, "", None, "")) for part in (first, last))
    if end < start:
        raise BadDate("a range that ends before it begins")
    if (end - start).days > LONGEST_RANGE:
        raise BadDate(f"a range of {(end - start).days} days")
    middle = (start + (end - start) / 2).date()
    return Reading(_on(middle), day=middle)


def _beginning(read: _Read) -> datetime.datetime:
    return read.time or datetime.datetime(read.day.year, read.day.month, read.day.day)
