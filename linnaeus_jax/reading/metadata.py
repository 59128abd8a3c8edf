"""From what is known of a picture (place, date, elevation) to the metadata vector that the model was trained on.

Every column of the vector has a name, which says how it is encoded (spec data §1.1); these are the `column_names` of
the labels file. Unlike in a labels file, what is missing is said by a mask: latitude 0, longitude 0 and an elevation of
0 m are values.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.metadata import HIGHEST, LOWEST, MOST_LATITUDE, MOST_LONGITUDE, PERIODS, WAVES
from linnaeus_jax.reading.dates import UNKNOWN_MOMENT, BadDate, Moment, read_moment

if TYPE_CHECKING:
    import polars as pl

# ---- What is known of one picture besides its pixels, and what of it cannot be right


Text = TypeVar("Text", "pl.Series", "pl.Expr")


def is_unset_place(latitude: Any, longitude: Any) -> Any:
    """Whether degrees are exactly 0, 0: what cameras and tables write that do not know the place.

    Args:
      latitude, longitude: numbers, or columns of them.
    """
    return (latitude == 0) & (longitude == 0)


def with_decimal_point(text: Text) -> Text:
    """Text with the decimal comma of a number, such as "-3,25", as a point; other text stays."""
    return text.str.replace(r"^([+-]?\d+),(\d+)$", "$1.$2")


@dataclass(frozen=True)
class Observation:
    """What is known of one picture besides its pixels; None where it is not.

    Attributes:
      latitude, longitude: degrees, -90 to 90 and -180 to 180.
      date: a date or a moment of the standard library, NumPy or pandas, or text in the forms of ISO 8601 such as
        "2024-05-17T10:20+02:00" or "2024-05"; a moment without an offset is in UTC.
      elevation: metres above the sea.
      components: name of a component -> its numbers, as in the labels file; they count before the others.
    """

    latitude: Any = None
    longitude: Any = None
    date: Any = None
    elevation: Any = None
    components: Mapping[str, Sequence[float]] = field(default_factory=dict)


# ----------------------------------------------------------------------------------------------------------------------


_ELEVATION = re.compile(r"elev_(\d+(?:\.\d+)?)_(sin|cos)")
_MOMENT = re.compile(rf"({'|'.join(PERIODS)})_({'|'.join(WAVES)})")
Wave = Callable[[float], float]
_WAVES: dict[str, Wave] = {"sin": math.sin, "cos": math.cos}
_AXES = {"spatial_x": 0, "spatial_y": 1, "spatial_z": 2}


@dataclass(frozen=True)
class Component:
    """One component of the metadata vector: its name and the names of its columns, "" where none is known."""

    name: str
    columns: tuple[str, ...]

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """What its columns are computed from: "place", "date" and "elevation"; empty: it must be given as numbers."""
        kinds = {_kind(column) for column in self.columns}
        return () if "" in kinds else tuple(kind for kind in ("place", "date", "elevation") if kind in kinds)

    @cached_property
    def hours(self) -> tuple[bool, ...]:
        """Which columns are of the hour."""
        return tuple(column.startswith("hour_") for column in self.columns)

    @cached_property
    def has_hour(self) -> bool:
        """Whether it holds the hour beside something else that is computed."""
        return bool(self.inputs) and 0 < sum(self.hours) < len(self.hours)


def _kind(column: str) -> str:
    if column in _AXES:
        return "place"
    if _MOMENT.fullmatch(column):
        return "date"
    return "elevation" if _ELEVATION.fullmatch(column) else ""


@dataclass(frozen=True, eq=False)
class Encoded:
    """Metadata of N pictures.

    Attributes:
      meta: float32 [N, D]; missing components are zero.
      valid: bool [N, K], the components that are known.
      notes: of every picture, what was given but cannot be right and is therefore not used.
      observations: what they are made of; [0] where that is not kept.
    """

    meta: NDArray[np.float32]
    valid: NDArray[np.bool_]
    notes: list[tuple[str, ...]]
    observations: Sequence[Observation] = ()

    def take(self, rows: Sequence[int]) -> Encoded:
        """Some of the rows, each as often as it is named; at least one."""
        observations = [self.observations[row] for row in rows] if self.observations else ()
        return Encoded(self.meta[rows], self.valid[rows], [self.notes[row] for row in rows], observations)

    def without(self) -> Encoded:
        """The same pictures as if nothing were known of them."""
        observations = [Observation()] * len(self.observations)
        return Encoded(np.zeros_like(self.meta), np.zeros_like(self.valid), [()] * len(self.notes), observations)

    @staticmethod
    def joined(parts: Sequence[Encoded]) -> Encoded:
        """All rows, one part after the other."""
        meta, valid = (np.concatenate([getattr(part, name) for part in parts]) for name in ("meta", "valid"))
        observations = [each for part in parts for each in part.observations]
        return Encoded(meta, valid, [said for part in parts for said in part.notes], observations)


@dataclass(frozen=True)
class MetadataEncoder:
    """Encodes observations for a model.

    Attributes:
      components: in the order of the vector.
      date_is_midnight: the hour of a date without a time is 0, as in bundles of the original; otherwise it is unknown
        and its columns are 0, as in labels files.
    """

    components: tuple[Component, ...]
    date_is_midnight: bool = False

    @cached_property
    def width(self) -> int:
        """D."""
        return sum(len(component.columns) for component in self.components)

    @cached_property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """First and last column (excluded) of every component."""
        stops = np.cumsum([len(component.columns) for component in self.components], dtype=int).tolist()
        return tuple((stop - len(c.columns), stop) for c, stop in zip(self.components, stops, strict=True))

    @cached_property
    def _places(self) -> tuple[tuple[int, int], ...]:
        """Column and axis of the columns of the place."""
        return tuple((column, _AXES[name]) for column, name in enumerate(self._names) if name in _AXES)

    @cached_property
    def _elevations(self) -> tuple[tuple[int, Wave, float], ...]:
        """Column, wave and radians per metre of the columns of elevation."""
        found = enumerate(map(_ELEVATION.fullmatch, self._names))
        return tuple((column, _WAVES[match[2]], 2 * math.pi / float(match[1])) for column, match in found if match)

    @cached_property
    def _moments(self) -> tuple[tuple[int, Wave, int, float], ...]:
        """Column, wave, place in a `Moment` and radians per unit of the columns of the date."""
        kinds, found = list(PERIODS), enumerate(map(_MOMENT.fullmatch, self._names))
        return tuple(
            (column, _WAVES[match[2]], kinds.index(match[1]), 2 * math.pi / PERIODS[match[1]])
            for column, match in found
            if match
        )

    @property
    def _names(self) -> list[str]:
        return [column for component in self.components for column in component.columns]

    def encode(self, observations: Sequence[Observation]) -> Encoded:
        """Raises ValueError for `components` that the model does not have, or of another width."""
        meta = np.zeros((len(observations), self.width), np.float32)
        valid = np.zeros((len(observations), len(self.components)), bool)
        notes = []
        parts = tuple(zip(range(len(self.components)), self.components, self.bounds))
        for row, observation in enumerate(observations):
            said: list[str] = []
            numbers = self._numbers(observation, said)
            self._check(observation)
            for position, component, (start, stop) in parts:
                given = observation.components.get(component.name)
                if given is None:
                    values = numbers[start:stop]
                    if component.has_hour:
                        values = _hour_may_be_unknown(component, values)
                else:
                    with np.errstate(over="ignore"):  # as the model takes them: 1e308 is infinite
                        values = np.asarray(given, np.float64).astype(np.float32).tolist()
                if all(map(math.isfinite, values)):
                    meta[row, start:stop], valid[row, position] = values, True
                elif given is not None:
                    said.append(f"{component.name} holds values that are no finite float32 numbers: it is not used")
            notes.append(tuple(said))
        return Encoded(meta, valid, notes, list(observations))

    def _check(self, observation: Observation) -> None:
        if not observation.components:
            return
        widths = {component.name: len(component.columns) for component in self.components}
        for name, values in observation.components.items():
            if name not in widths:
                raise ValueError(
                    f"the model has no metadata component {name!r}; it has {', '.join(widths) or 'none at all'}"
                )
            if np.shape(values) != (widths[name],):
                raise ValueError(f"{name} needs {widths[name]} numbers, but {np.shape(values)} were given")

    def _numbers(self, observation: Observation, said: list[str]) -> list[float]:
        """Value of every column, NaN where it cannot be known; `said` gets what cannot be right."""
        numbers = [math.nan] * self.width
        if self._places and (place := _place(observation, said)) is not None:
            point = _point(*place)
            for column, axis in self._places:
                numbers[column] = point[axis]
        if self._elevations and (metres := _metres(observation, said)) is not None:
            for column, wave, radians in self._elevations:
                numbers[column] = wave(metres * radians)
        if self._moments:
            known = moment(observation.date, said)
            if math.isnan(known[2]) and self.date_is_midnight and not math.isnan(known[1]):
                known = known[0], known[1], 0.0
            for column, wave, kind, radians in self._moments:
                numbers[column] = wave(known[kind] * radians)
        return numbers


def _point(latitude: float, longitude: float) -> tuple[float, float, float]:
    """`encodings.unit_sphere` of one place, for which arrays take ten times as long."""
    phi, lam = math.radians(latitude), math.radians(longitude)
    return math.cos(phi) * math.cos(lam), math.cos(phi) * math.sin(lam), math.sin(phi)


def _hour_may_be_unknown(component: Component, values: list[float]) -> list[float]:
    """Zeros for an hour that is not known, where month or day are; so labels files have it."""
    hours = component.hours
    if not all(math.isfinite(value) for value, hour in zip(values, hours) if not hour):
        return values
    return [0.0 if hour and math.isnan(value) else value for value, hour in zip(values, hours)]


def _number(value: Any, what: str, said: list[str]) -> float | None:
    """None where the value is missing or no number."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        said.append(f"{what} {value!r} is no number: it is not used")
        return None
    if math.isinf(number):
        said.append(f"{what} {value!r} is infinite: it is not used")
    return number if math.isfinite(number) else None


def _place(observation: Observation, said: list[str]) -> tuple[float, float] | None:
    place = [
        _number(value, what, said)
        for value, what in ((observation.latitude, "latitude"), (observation.longitude, "longitude"))
    ]
    latitude, longitude = place
    for what, value, most in (("latitude", latitude, MOST_LATITUDE), ("longitude", longitude, MOST_LONGITUDE)):
        if value is not None and abs(value) > most:
            said.append(f"{what} {value:g} is not between {-most:g} and {most:g}: the place is not used")
            return None
    if latitude is None or longitude is None:
        if (latitude is None) != (longitude is None) and not said:  # else the other one is there, but no number
            said.append("only one of latitude and longitude is known: the place is not used")
        return None
    return latitude, longitude


def known_of(observation: Observation) -> tuple[str, str, str]:
    """Latitude, longitude and date as text, "" where they are unknown or cannot be right."""
    place, date = _place(observation, []), observation.date
    moment_ = moment(date, [])
    text = date.isoformat() if isinstance(date, datetime.date) else str(date)
    return (*(("", "") if place is None else map(repr, place)), "" if all(map(math.isnan, moment_)) else text.strip())


def _metres(observation: Observation, said: list[str]) -> float | None:
    metres = _number(observation.elevation, "elevation", said)
    if metres is not None and not LOWEST <= metres <= HIGHEST:
        said.append(f"elevation {metres:g} is not between {LOWEST:g} and {HIGHEST:g} m: it is not used")
        return None
    return metres


def moment(date: Any, said: list[str]) -> Moment:
    """Month, day of the year and hour in UTC, NaN where unknown; `said` gets why a date is not used."""
    if isinstance(date, datetime.datetime):
        if date != date:  # as NaT is
            return UNKNOWN_MOMENT
        date = date.astimezone(datetime.UTC) if date.tzinfo is not None else date
        text = date.strftime("%Y-%m-%d %H:%M")
    elif isinstance(date, datetime.date):
        text = date.isoformat()
    elif isinstance(date, np.datetime64):
        text = "" if np.isnat(date) else str(date)
    elif date is None or (isinstance(date, float) and math.isnan(date)):
        text = ""
    else:
        text = str(date).strip()
    if not text:
        return UNKNOWN_MOMENT
    try:
        found, fault, _ = read_moment(text)
    except BadDate as error:
        said.append(f"date {text!r}: {error}; it is not used")
        return UNKNOWN_MOMENT
    if fault:
        said.append(f"date {text!r}: {fault}; its hour is not used")
    return found
