"""The metadata columns with their checks: widths, values that cannot be, whether encodings are what they claim."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.scan.checks import SHOWN, Found, error, note, warning
from linnaeus_jax.building.scan.label_file import LabelFile
from linnaeus_jax.data.metadata import (
    MOST_LATITUDE,
    MOST_LONGITUDE,
    elevation_attributes,
    is_sea_level,
    sinusoidal,
    unit_sphere,
)

#: how far a norm or sin² + cos² may be from 1
TOLERANCE = 1e-3
#: how far an encoding may be from that of the raw value, e.g. 0.3 degrees of latitude
RAW_TOLERANCE = 5e-3
#: raw column -> how far from 0 its degrees may be
LIMITS = {"raw_lat": MOST_LATITUDE, "raw_lon": MOST_LONGITUDE}
#: data set -> widths that it can have
WIDTHS = {"spatial": (3,), "temporal": (2, 4)}
#: encoding -> what is wrong with rows that are none
_WRONG = {
    "sphere": "are no points on the unit sphere (norm 1): encode latitude and longitude as x, y, z",
    "pairs": "hold pairs that are no (sin, cos) of an angle: sin² + cos² is not 1",
}


@dataclass(frozen=True)
class ComponentFacts:
    """One metadata data set: `known` rows have a usable value."""

    name: str
    width: int
    columns: tuple[str, ...]
    known: int
    share: float


class Tally:
    """Counts rows that fall under something, slab by slab, and keeps the first ones."""

    def __init__(self) -> None:
        self.count, self.rows = 0, list[int]()

    def add(self, mask: NDArray[np.bool_], start: int) -> None:
        """Args: mask: bool [n], rows start ... start + n."""
        found = np.flatnonzero(mask)
        self.count += len(found)
        self.rows += (found[: max(SHOWN - len(self.rows), 0)] + start).tolist()

    def found(self, rows: int = 1) -> list[Found]:
        """What is found in them, with their share of all `rows`."""
        fields = {"n": self.count, "share": self.count / max(rows, 1)}
        return [Found(self.rows, fields=fields)] if self.count else []


class MetadataSet:
    """A data set with a metadata vector per row.

    Its attributes and values are read when they are first asked for, values slab by slab; DamagedError.

    Attributes:
      width: columns; `widths`: those that it may have.
    """

    def __init__(self, file: LabelFile, name: str) -> None:
        data = file.datasets[name]
        self.file, self.name, self.attributes = file, name, data.attrs
        self.width = 1 if data.ndim == 1 else data.shape[1]
        self.widths = WIDTHS.get(name, (self.width,))
        self.wanted = " or ".join(map(str, self.widths))
        self.is_elevation = name.startswith("elevation")

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, () where it does not say."""
        return self.file.column_names(self.name)

    @cached_property
    def scales(self) -> NDArray[np.float64]:
        """Of elevations, in metres, as they are given."""
        return self.file.scales(self.name) if self.is_elevation else np.zeros(0)

    @cached_property
    def has_scales(self) -> bool:
        """Whether there is a positive one for each pair of columns."""
        positive = bool(np.isfinite(self.scales).all() and (self.scales > 0).all())
        return "scales" in self.attributes and 2 * self.scales.size == self.width and positive

    @property
    def encoding(self) -> str:
        """ "sphere", "pairs" or "" (unknown)."""
        if self.name == "spatial" and self.width == 3:
            return "sphere"
        paired = self.name == "temporal" or self.is_elevation or (self.columns and self.columns[0].endswith("_sin"))
        return "pairs" if paired and self.width % 2 == 0 else ""

    def slabs(self) -> Iterator[tuple[int, NDArray[np.floating], NDArray[np.bool_]]]:
        """(first row, values [n, W], rows of them that hold something: finite, not all 0, no 0 m)."""
        for start, part in self.file.slabs(self.name):
            values = part.reshape(len(part), self.width)
            known = np.isfinite(values).all(axis=1) & (values != 0).any(axis=1)
            if self.is_elevation:  # without (sin, cos) pairs the reader takes every row as unknown
                known = known & ~is_sea_level(values) if self.width % 2 == 0 else np.zeros(len(values), bool)
            yield start, values, known

    @cached_property
    def rows(self) -> dict[str, Tally]:
        """Rows that are known, not finite, not encoded as they should, and others than the raw values beside them."""
        tallies = {name: Tally() for name in ("known", "not_finite", "not_encoded", "not_raw")}
        for start, part, known in self.slabs():
            values = part.astype(np.float64, copy=False)
            tallies["known"].add(known, start)
            tallies["not_finite"].add(np.logical_not(np.isfinite(values).all(axis=1)), start)
            encoded: NDArray[np.bool_] = _well_encoded(self.encoding, values)
            tallies["not_encoded"].add(known & np.logical_not(encoded), start)
            with np.errstate(invalid="ignore"):  # of infinite raw values
                raw = self._from_raw(start, len(part))
            if raw is not None:
                both = known & np.isfinite(raw).all(axis=1)
                differs = (np.abs(values - np.where(both[:, None], raw, 0)) > RAW_TOLERANCE).any(axis=1)
                tallies["not_raw"].add(both & differs, start)
        return tallies

    def _from_raw(self, start: int, rows: int) -> NDArray[np.float64] | None:
        """What the raw columns encode to, float64 [rows, W], NaN where they are unknown; None without such columns."""
        names = {"sphere": ("raw_lat", "raw_lon"), "pairs": ("raw_elevation",) * self.has_scales}.get(self.encoding, ())
        data = [self.file.datasets[name] for name in names if self.file.has(name)]
        if not names or len([one for one in data if one.dtype.kind in "fiu" and one.ndim == 1]) < len(names):
            return None
        raw = [self.file.slab(name, start, start + rows).astype(np.float64) for name in names]
        if self.encoding == "sphere":
            return unit_sphere(*raw)
        metres = np.where(raw[0] == 0, np.nan, raw[0])  # 0 is unknown
        return sinusoidal(2 * np.pi * metres[:, None] / self.scales)

    def facts(self) -> ComponentFacts:
        """What is shown of it."""
        known, rows = self.rows["known"].count, self.file.rows
        return ComponentFacts(self.name, self.width, self.columns, known, known / rows if rows else 0.0)

    def odd_names(self) -> Iterator[Found]:
        """Names of columns that are not as many as there are columns."""
        if len(self.columns) not in (0, self.width):
            yield Found(fields={"names": len(self.columns)})

    def odd_scales(self) -> Iterator[Found]:
        """Scales that cannot be those of the columns."""
        scales = self.scales.size
        if self.is_elevation and "scales" in self.attributes and not self.has_scales:
            count = f"{scales} scales need {2 * scales} columns, it has {self.width}"
            sign = f"scales {self.scales.tolist()} are not all positive"
            yield Found(fields={"problem": sign if 2 * scales == self.width else count})

    def other_names(self) -> Iterator[Found]:
        """Names of columns that are not those of the scales."""
        if self.has_scales:
            names = tuple(elevation_attributes(self.scales.tolist())["column_names"])
            if len(self.columns) == self.width and self.columns != names:
                yield Found(fields={"given": self.columns[:2], "names": names[:2]})

    def not_encoded(self) -> Iterator[Found]:
        """Rows that are not encoded as they should be."""
        for found in self.rows["not_encoded"].found():
            yield found._replace(fields={**found.fields, "wrong": _WRONG[self.encoding]})

    CHECKS: ClassVar = (
        error("column_names", "{it.name}: {it.width} columns, but {names} column_names", odd_names),
        note("column_names", "{it.name}: no attribute column_names, so its columns cannot be chosen by name",
             lambda it: not it.columns),
        note("scales", "{it.name}: no attribute scales, so its metres are not known",
             lambda it: it.is_elevation and "scales" not in it.attributes),
        error("scales", "{it.name}: {problem}", odd_scales),
        note("scales", "{it.name}: column_names {given} ... are not those of the scales, {names} ...", other_names),
        warning("not_finite", "{it.name}: {n} rows ({share:.1%}) hold NaN or infinity; they count as unknown",
                lambda it: it.rows["not_finite"].found(it.file.rows)),
        error("encoding", "{it.name}: {n} rows {wrong}", not_encoded),
        warning("raw_values", "{it.name}: {n} rows do not encode the raw values beside them",
                lambda it: it.rows["not_raw"].found()),
        warning("all_unknown", "{it.name}: no row has a usable value",
                lambda it: it.file.rows and not it.rows["known"].count),
        error("width", "{it.name}: {it.width} columns, expected {it.wanted}", lambda it: it.width not in it.widths),
        error("width", "{it.name}: {it.width} columns are no (sin, cos) pairs; every row counts as unknown",
              lambda it: it.is_elevation and it.width % 2),
    )  # fmt: skip


def metadata_sets(file: LabelFile) -> list[MetadataSet]:
    """The data sets that hold a metadata vector per row."""
    return [
        MetadataSet(file, name)
        for name, dataset in file.datasets.items()
        if file.has(name)
        and dataset.dtype.kind == "f"
        and (dataset.ndim == 2 or name in WIDTHS or name.startswith("elevation"))
    ]


def _well_encoded(encoding: str, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """bool [n]; a pair of zeros is an unknown part, e.g. the hour."""
    if encoding == "sphere":
        return np.abs(np.linalg.norm(values, axis=1) - 1) <= TOLERANCE
    if encoding == "pairs":
        square = values[:, 0::2] ** 2 + values[:, 1::2] ** 2
        return ((np.abs(square - 1) <= 2 * TOLERANCE) | (square == 0)).all(axis=1)
    return np.ones(len(values), bool)


def coordinates(spatial: NDArray[np.floating]) -> NDArray[np.float64]:
    """Latitude and longitude in degrees, float64 [n, 2], of points on the unit sphere [n, 3]."""
    x, y, z = np.asarray(spatial, np.float64).T
    return np.rad2deg(np.stack([np.arctan2(z, np.hypot(x, y)), np.arctan2(y, x)], axis=1))


class RawColumn:
    """A column beside the encoded ones: degrees beyond their `limit`, first values of in_region; DamagedError."""

    def __init__(self, file: LabelFile, name: str) -> None:
        self.name, self.limit, self.beyond = name, LIMITS.get(name, 0.0), Tally()
        self.values: list[float] = []
        if name in LIMITS:
            for start, part in file.slabs(name):
                self.beyond.add(np.abs(part.astype(np.float64)) > self.limit, start)
        else:
            self.values = np.unique(file.numbers(name))[:5].tolist()

    CHECKS: ClassVar = (
        error("raw_range", "{it.name}: {n} rows are beyond {it.limit:g} degrees", lambda it: it.beyond.found()),
        warning("in_region", "in_region holds {it.values}; 0 is outside, all else counts as inside",
                lambda it: not set(it.values) <= {0, 1}),
    )  # fmt: skip


def raw_columns(file: LabelFile) -> list[str]:
    """Names of those that can be read."""
    kinds = {**dict.fromkeys(LIMITS, "fiu"), "in_region": "biu"}
    return [name for name, kind in kinds.items() if file.has(name) and file.datasets[name].dtype.kind in kind]
