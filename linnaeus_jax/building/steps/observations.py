"""Where, when and how high: from text to the encoded columns of a labels file.

A value that cannot be right blanks its own component and nothing else. The encodings are those of spec data §1.1:
unit sphere, sine and cosine of the month (or day of the year) and of the hour, sine and cosine of the elevation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from linnaeus_jax.building.steps.options import BuildOptions
from linnaeus_jax.data.metadata import (
    HIGHEST,
    LOWEST,
    MOST_LATITUDE,
    MOST_LONGITUDE,
    PERIODS,
    SPATIAL_ATTRIBUTES,
    elevation_attributes,
    sinusoidal,
    sinusoidal_attributes,
    unit_sphere,
)
from linnaeus_jax.reading.dates import DAY_OR_MONTH, UNKNOWN_MOMENT, BadDate, Reading, read_moment
from linnaeus_jax.reading.metadata import is_unset_place, with_decimal_point

#: metres that stand for 0 m
SEA_LEVEL = 0.01


@dataclass(frozen=True)
class EncodedColumn:
    """A metadata data set of the labels file: float32 [N, W] and its attributes."""

    values: NDArray[np.float32]
    attributes: dict[str, Any]


@dataclass(frozen=True)
class Observations:
    """What is known of N rows.

    Attributes:
      encoded: `spatial`, `temporal`, `elevation_<set>`; a component that the source knows nothing of is absent.
      raw: other data sets by name: raw_lat, raw_lon float32 (NaN = unknown), raw_elevation float32 (0 = unknown),
        raw_date_observed text, in_region uint8.
      blanked: line, picture, component, value and reason of every blanked component.
      days: int64 [N], days since 1970-01-01, raised to be at least 0 where there are earlier ones; -1 where no day is
        known. [0] where the source knows nothing of dates.
      known: {component: bool [N], the rows that have it}; components are called as in `data.meta.components`.
    """

    encoded: dict[str, EncodedColumn]
    raw: dict[str, NDArray[Any]]
    blanked: pl.DataFrame
    known: dict[str, NDArray[np.bool_]]
    days: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


BLANKED_COLUMNS = ("line", "picture", "component", "value", "reason")


def read_observations(frame: pl.DataFrame, options: BuildOptions) -> Observations:
    """Checks and encodes the metadata of rows.

    Args:
      frame: of `SourceRows`.
    """
    encoded: dict[str, EncodedColumn] = {}
    raw: dict[str, NDArray[Any]] = {}
    known: dict[str, NDArray[np.bool_]] = {}
    days = np.empty(0, np.int64)
    blanked: list[pl.DataFrame] = []
    given = set(frame.columns)

    def note(component: str, value: pl.Expr, reason: pl.Series) -> None:
        table = frame.select("line", "picture", pl.lit(component).alias("component"), value.alias("value"), reason)
        blanked.append(table.filter(pl.col(reason.name).is_not_null()).rename({reason.name: "reason"}))

    if {"latitude", "longitude"} <= given:
        place, reason = _places(frame, options.max_uncertainty)
        note("SPATIAL", pl.format("{}, {}", *(pl.col(c).fill_null("") for c in ("latitude", "longitude"))), reason)
        encoded["spatial"] = encode_places(*place)
        raw["raw_lat"], raw["raw_lon"] = (values.astype(np.float32) for values in place)
        known["SPATIAL"] = np.isfinite(place[0])
    if given & {"date", "month", "hour"}:
        read = _moments(frame, options.day_first)
        moments, value = read.moments, _written(frame)
        note("TEMPORAL", value, read.reason)
        time = [pl.col(name) for name in ("date", "time") if name in given]
        note("hour", pl.concat_str(time or [pl.lit("")], separator=" ", ignore_nulls=True), read.hour_reason)
        days = read.days
        encoded["temporal"] = encode_moments(moments, options.temporal)
        raw["raw_date_observed"] = frame.select(value.fill_null(""))["value"].to_numpy().astype(object)
        raw["raw_date_observed"][read.reason.is_not_null().to_numpy()] = ""
        known["TEMPORAL"] = (encoded["temporal"].values[:, :2] != 0).any(axis=1)  # month or day, whichever is stored
    if given & {"elevation", "elevation_max"}:
        metres, reason, value = _elevations(frame)
        note("ELEVATION", value, reason)
        encoded[options.elevation_set] = encode_elevations(metres, options.elevation_scales)
        raw["raw_elevation"] = _stored_metres(metres)
        known["ELEVATION"] = np.isfinite(metres)
    if "in_region" in given:
        inside, reason = _flags(frame["in_region"])
        note("in_region", pl.col("in_region"), reason)
        raw["in_region"] = inside
    empty = pl.DataFrame(schema={name: pl.Int64 if name == "line" else pl.String for name in BLANKED_COLUMNS})
    return Observations(encoded, raw, pl.concat([empty, *blanked], how="vertical_relaxed"), known, days)


def _number(frame: pl.DataFrame, column: str) -> pl.Series:
    """Float64, null where there is no number.

    A decimal comma is understood in degrees; in metres 1,234 may as well be a thousand and more.
    """
    if column not in frame.columns:
        return pl.repeat(None, frame.height, dtype=pl.Float64, eager=True).alias(column)
    text = frame[column].str.strip_chars().str.strip_prefix("+")
    if column in ("latitude", "longitude"):
        text = with_decimal_point(text)
    values = text.cast(pl.Float64, strict=False)
    return values.fill_nan(None)


def _places(
    frame: pl.DataFrame, max_uncertainty: float
) -> tuple[tuple[NDArray[np.float64], NDArray[np.float64]], pl.Series]:
    """Latitude and longitude in degrees, NaN where unknown, and why they were blanked."""
    given = [frame[column].is_not_null() for column in ("latitude", "longitude")]
    numbers = pl.DataFrame(
        {
            "latitude": _number(frame, "latitude"),
            "longitude": _number(frame, "longitude"),
            "uncertainty": _number(frame, "uncertainty"),
            "given": given[0] | given[1],
            "both": given[0] & given[1],
        }
    )
    latitude, longitude, uncertainty = pl.col("latitude"), pl.col("longitude"), pl.col("uncertainty")
    reason = numbers.select(
        pl.when(~pl.col("given"))
        .then(None)
        .when(~pl.col("both"))
        .then(pl.lit("only one of latitude and longitude is given"))
        .when(latitude.is_null() | longitude.is_null())
        .then(pl.lit("no number"))
        .when(latitude.abs() > MOST_LATITUDE)
        .then(pl.lit(f"latitude beyond {MOST_LATITUDE:g} degrees"))
        .when(longitude.abs() > MOST_LONGITUDE)
        .then(pl.lit(f"longitude beyond {MOST_LONGITUDE:g} degrees"))
        .when(is_unset_place(latitude, longitude))
        .then(pl.lit("latitude and longitude are both 0"))
        .when(uncertainty > max_uncertainty)
        .then(pl.format("known to {} m only, more than {} m", uncertainty, pl.lit(f"{max_uncertainty:g}")))
        .alias("why")
    )["why"].cast(pl.String)
    good = (reason.is_null() & numbers["both"]).to_numpy()
    values = [numbers[column].cast(pl.Float64).fill_null(np.nan).to_numpy() for column in ("latitude", "longitude")]
    latitudes, longitudes = (np.where(good, value, np.nan) for value in values)
    return (latitudes, longitudes), reason


def encode_places(latitude: NDArray[np.float64], longitude: NDArray[np.float64]) -> EncodedColumn:
    """Points on the unit sphere [N, 3] of degrees [N]; zeros where NaN."""
    points = np.nan_to_num(unit_sphere(latitude, longitude), nan=0.0)
    return EncodedColumn(points.astype(np.float32), SPATIAL_ATTRIBUTES)


# ---- dates ----------------------------------------------------------------------------------------------------------


_DATE_COLUMNS = ("date", "time", "year", "month", "day", "hour", "zone")


@dataclass(frozen=True)
class _Moments:
    """float64 [N, 3] month, day of the year and hour; why they, and why hours alone, were blanked; days, see
    `Observations`."""

    moments: NDArray[np.float64]
    reason: pl.Series
    hour_reason: pl.Series
    days: NDArray[np.int64]


def _written(frame: pl.DataFrame) -> pl.Expr:
    """The text that a moment is read from: that of `date`, else year, month, day and hour."""
    column = {name: pl.col(name) if name in frame.columns else pl.lit(None, pl.String) for name in _DATE_COLUMNS}
    parts = (pl.format(f"{name} {{}}", column[name]) for name in ("year", "month", "day", "hour"))
    return pl.coalesce(column["date"], pl.concat_str(parts, separator=" ", ignore_nulls=True)).alias("value")


def _moments(frame: pl.DataFrame, day_first: bool | None) -> _Moments:
    """The moments of all rows. Each distinct text is parsed once."""
    absent = pl.lit(None, pl.String)
    texts = frame.select((pl.col(name) if name in frame.columns else absent).alias(name) for name in _DATE_COLUMNS)
    distinct = texts.unique(maintain_order=True)
    read: list[Reading] = []
    reasons: list[str | None] = []
    for row in distinct.iter_rows(named=True):
        try:
            read.append(_moment(_Written(**row), day_first))
            reasons.append(None)
        except BadDate as error:
            read.append(Reading(UNKNOWN_MOMENT))
            advice = "; give --day-first or --no-day-first" if DAY_OR_MONTH in str(error) else ""
            reasons.append(f"{error}{advice}")
    values = np.array([one.moment for one in read], np.float64).reshape(-1, 3)
    found = distinct.with_columns(
        *(pl.Series(f"_{i}", values[:, i]) for i in range(3)),
        pl.Series("_day", [one.day for one in read], pl.Date),
        pl.Series("why", reasons, pl.String),
        pl.Series("why_hour", [one.fault or None for one in read], pl.String),
    )
    joined = texts.join(found, on=_DATE_COLUMNS, how="left", nulls_equal=True, maintain_order="left")
    days = joined["_day"].cast(pl.Int32).cast(pl.Int64)
    # dates before 1970 are before all others, but known
    days = (days - min(0, days.min() or 0)).fill_null(-1)  # type: ignore[operator,type-var]
    return _Moments(joined.select("_0", "_1", "_2").to_numpy(), joined["why"], joined["why_hour"], days.to_numpy())


@dataclass(frozen=True)
class _Written:
    """What one row says of its moment."""

    date: str | None
    time: str | None
    year: str | None
    month: str | None
    day: str | None
    hour: str | None
    zone: str | None


def _moment(said: _Written, day_first: bool | None) -> Reading:
    """What one row says of its moment.

    Raises:
      BadDate: something is given that cannot be; year, month and day count where the date cannot be read.
    """
    known_hour = np.nan
    if said.hour:
        number = _whole(said.hour)
        if number is None or not 0 <= number <= 24:
            raise BadDate(f"no such hour: {said.hour}")
        known_hour = float(number % 24)
    if said.date:
        try:
            found = read_moment(said.date, said.time or "", day_first=day_first, zone=said.zone or "")
        except BadDate:
            if not said.month:
                raise
            found = _of_parts(said)
    elif said.month:
        found = _of_parts(said)
    elif said.year and not said.hour:
        raise BadDate("no month")
    else:
        found = Reading(UNKNOWN_MOMENT)
    if np.isnan(known_hour):
        return found
    return found._replace(moment=(found.moment[0], found.moment[1], known_hour), fault="")


def _of_parts(said: _Written) -> Reading:
    """The moment of year, month and day."""
    number = _whole(said.month or "")
    if number is None or not 1 <= number <= 12:
        raise BadDate(f"no such month: {said.month}")
    year, day = _whole(said.year or ""), _whole(said.day or "")
    if said.day and said.year and (day is None or year is None):
        raise BadDate("no such day")
    if day is None:
        return Reading((float(number), np.nan, np.nan))
    found = read_moment(f"{year or 2000:04d}-{number:02d}-{day:02d}", said.time or "", zone=said.zone or "")
    return found if year else found._replace(moment=(found.moment[0], np.nan, found.moment[2]), day=None)


def _whole(text: str) -> int | None:
    text = text.strip().removesuffix(".0")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else None


def encode_moments(moments: NDArray[np.float64], form: str) -> EncodedColumn:
    """Sines and cosines [N, 2 or 4] of month or day of the year, and of the hour; zeros where NaN.

    Args:
      moments: float64 [N, 3] month, day of the year, hour.
      form: one of `TEMPORAL_FORMS`.
    """
    names = ["jd" if form.startswith("day") else "month", *(["hour"] if form.endswith("hour") else [])]
    turns = [moments[:, list(PERIODS).index(name)] / PERIODS[name] for name in names]
    values = sinusoidal(np.stack([2 * np.pi * turn for turn in turns], axis=1))
    attributes = sinusoidal_attributes(names)
    return EncodedColumn(np.nan_to_num(values, nan=0.0).astype(np.float32), attributes)


# ---- elevation and region -------------------------------------------------------------------------------------------


def _elevations(frame: pl.DataFrame) -> tuple[NDArray[np.float64], pl.Series, pl.Expr]:
    """Metres [N], the middle where a range is given; why they were blanked; the text they were read from."""
    columns = [name for name in ("elevation", "elevation_max") if name in frame.columns]
    numbers = pl.DataFrame({name: _number(frame, name) for name in columns})
    given = pl.DataFrame({f"given_{name}": frame[name].is_not_null() for name in columns})
    table = numbers.hstack(given)
    wrong = pl.any_horizontal(pl.col(name).is_null() & pl.col(f"given_{name}") for name in columns)
    outside = pl.any_horizontal(~pl.col(name).is_between(LOWEST, HIGHEST) for name in columns)
    reason = table.select(
        pl.when(wrong)
        .then(pl.lit("no number"))
        .when(outside)
        .then(pl.lit(f"not between {LOWEST:g} and {HIGHEST:g} m"))
        .alias("why")
    )["why"].cast(pl.String)
    mean = table.select(pl.mean_horizontal(columns).alias("m"))["m"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    value = pl.concat_str([pl.col(name) for name in columns], separator=" to ", ignore_nulls=True)
    return np.where(reason.is_null().to_numpy(), mean, np.nan), reason, value.alias("value")


def _stored_metres(metres: NDArray[np.float64]) -> NDArray[np.float32]:
    """0 where NaN, the documented null, and `SEA_LEVEL` for a known 0."""
    return np.nan_to_num(np.where(metres == 0, SEA_LEVEL, metres), nan=0.0).astype(np.float32)


def encode_elevations(metres: NDArray[np.float64], scales: Sequence[float]) -> EncodedColumn:
    """Sine and cosine [N, 2 * scales] of 2 pi metres / scale; 0 m where NaN, the documented null.

    A known 0 m is written as `SEA_LEVEL`, since its own encoding would say "unknown". In float32, as the files that
    exist were encoded: at 4000 m and a period of 100 m that differs by 2e-5 from float64.
    """
    turns = np.float32(2 * np.pi) * _stored_metres(metres)[:, None] / np.asarray(scales, np.float32)[None, :]
    return EncodedColumn(sinusoidal(turns), elevation_attributes(scales))


def _flags(text: pl.Series) -> tuple[NDArray[np.uint8], pl.Series]:
    """uint8 [N], 1 inside the region of interest; unknown counts as inside. And why a value was blanked."""
    words = {
        "1": 1,
        "true": 1,
        "yes": 1,
        "t": 1,
        "y": 1,
        "0": 0,
        "false": 0,
        "no": 0,
        "f": 0,
        "n": 0,
        "1.0": 1,
        "0.0": 0,
    }
    values = text.str.to_lowercase().replace_strict(words, default=None, return_dtype=pl.UInt8)
    reason = pl.select(pl.when(values.is_null() & text.is_not_null()).then(pl.lit("neither 0 nor 1")).alias("why"))
    return values.fill_null(1).to_numpy(), reason["why"].cast(pl.String)
