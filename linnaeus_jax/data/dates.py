"""Dates as people and cameras write them -> month, day of the year and hour, in UTC."""

from __future__ import annotations

import datetime
import functools
import re

import numpy as np

OLDEST = 1700
#: a range of dates counts as its middle if it is not longer, in days
LONGEST_RANGE = 31
_DAY = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:[T ]+(\S.*))?", re.ASCII)
_MONTH = re.compile(r"(\d{4})[-/.](\d{1,2})", re.ASCII)
_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,]\d+)?)?\s*(Z|UTC|[+-]\d{2}:?\d{0,2})?", re.ASCII)
#: month, day of the year and hour, NaN where unknown
Moment = tuple[float, float, float]
UNKNOWN_MOMENT: Moment = (np.nan, np.nan, np.nan)


class BadDate(ValueError):
    """Why a date cannot be used."""


@functools.lru_cache(maxsize=1 << 16)
def parse_date(text: str, time: str = "") -> Moment:
    """Reads a date in the forms of ISO 8601 that Darwin Core allows; the offset of a time is taken away: UTC.

    Args:
      text: "2023-05-17", "2023-05-17T10:20Z", "2023-05", or a range "2023-05-01/2023-05-09" (or "/09"), of which the
        middle counts.
      time: time of day where `text` has none.

    Raises:
      BadDate: no date, none with a month, or one that cannot be.
    """
    first, slash, last = text.partition("/") if text.count("/") == 1 else (text, "", "")
    if slash and last and not _MONTH.fullmatch(text):
        return _middle(first.strip(), last.strip())
    match = _DAY.fullmatch(first.strip())
    if match is None:
        month = _MONTH.fullmatch(first.strip())
        if month is None:
            raise BadDate("no month" if re.fullmatch(r"\d{4}", first.strip()) else "no date of the form YYYY-MM-DD")
        day = _day(int(month[1]), int(month[2]), 15)
        return day.month, np.nan, np.nan
    day = _day(*map(int, match.groups()[:3]))
    hour = _TIME.match((match[4] or time).strip())
    if hour is None:
        return day.month, day.timetuple().tm_yday, np.nan
    try:
        moment = datetime.datetime(day.year, day.month, day.day, int(hour[1]), int(hour[2]))
    except ValueError as error:
        raise BadDate(f"no such time: {error}") from None
    offset = hour[4] or "Z"
    if offset[0] in "+-":
        digits = offset[1:].replace(":", "").ljust(4, "0")
        moment -= (1 if offset[0] == "+" else -1) * datetime.timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return moment.month, moment.timetuple().tm_yday, moment.hour


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


def _middle(first: str, last: str) -> Moment:
    """The middle of a range of days, or the month that both ends lie in."""
    if len(last) < len(first):  # ISO 8601 leaves out what both ends share
        last = first.split("T")[0][: len(first.split("T")[0]) - len(last.split("T")[0])] + last
    months = [_MONTH.fullmatch(part) for part in (first, last)]
    if months[0] and months[1]:
        start, end = (_day(int(month[1]), int(month[2]), 15) for month in months if month)
        if (start.year, start.month) == (end.year, end.month):
            return start.month, np.nan, np.nan
    else:
        days = [_DAY.fullmatch(part) for part in (first, last)]
        if not (days[0] and days[1]):
            raise BadDate("no range of the form YYYY-MM-DD/YYYY-MM-DD")
        if first == last:
            return parse_date(first)
        start, end = (_day(*map(int, day.groups()[:3])) for day in days if day)
    if end < start:
        raise BadDate("a range that ends before it begins")
    if (end - start).days > LONGEST_RANGE:
        raise BadDate(f"a range of {(end - start).days} days")
    middle = start + (end - start) // 2
    return middle.month, middle.timetuple().tm_yday, np.nan
