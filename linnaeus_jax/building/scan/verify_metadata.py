"""Checks of the metadata columns: widths, values that cannot be, and whether the encodings are what they claim."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.scan.findings import Findings, Tally
from linnaeus_jax.building.scan.label_file import LabelFile, damage_noted
from linnaeus_jax.data.encodings import (
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


@dataclass(frozen=True)
class ComponentFacts:
    """One metadata data set: `known` rows have a usable value."""

    name: str
    width: int
    columns: tuple[str, ...]
    known: int
    share: float


def metadata_sets(file: LabelFile) -> list[str]:
    """Names of the data sets that hold a metadata vector per row."""
    return [
        name
        for name, dataset in file.datasets.items()
        if file.has(name)
        and dataset.dtype.kind == "f"
        and (dataset.ndim == 2 or name in ("spatial", "temporal") or name.startswith("elevation"))
    ]


def known_rows(name: str, values: NDArray[np.floating]) -> NDArray[np.bool_]:
    """bool [n]: rows of metadata [n, W] that hold something: finite, not all 0, and no elevation encoded as 0 m."""
    known = np.isfinite(values).all(axis=1) & (values != 0).any(axis=1)
    if name.startswith("elevation"):
        if values.shape[1] % 2:  # no (sin, cos) pairs: the reader takes every row as unknown
            return np.zeros(len(values), bool)
        known &= ~is_sea_level(values)
    return known


def coordinates(spatial: NDArray[np.floating]) -> NDArray[np.float64]:
    """Latitude and longitude in degrees, float64 [n, 2], of points on the unit sphere [n, 3]."""
    x, y, z = np.asarray(spatial, np.float64).T
    return np.rad2deg(np.stack([np.arctan2(z, np.hypot(x, y)), np.arctan2(y, x)], axis=1))


def check_metadata(file: LabelFile, findings: Findings) -> list[ComponentFacts]:
    """Checks every metadata data set and the raw columns beside them."""
    facts = []
    for name in metadata_sets(file):
        with damage_noted(findings):
            facts.append(_check_set(file, name, findings))
    for name, limit in (("raw_lat", MOST_LATITUDE), ("raw_lon", MOST_LONGITUDE)):
        with damage_noted(findings):
            _check_range(file, name, limit, findings)
    if file.has("in_region") and file.datasets["in_region"].dtype.kind in "biu":
        with damage_noted(findings):
            values = np.unique(file.numbers("in_region"))
            if not np.isin(values, (0, 1)).all():
                shown = values[:5].tolist()
                findings.warning("in_region", f"in_region holds {shown}; 0 is outside, all else counts as inside")
    return facts


def _check_set(file: LabelFile, name: str, findings: Findings) -> ComponentFacts:
    dataset = file.datasets[name]
    width = 1 if dataset.ndim == 1 else dataset.shape[1]
    columns = file.column_names(name)
    if columns and len(columns) != width:
        findings.error("column_names", f"{name}: {width} columns, but {len(columns)} column_names")
    elif not columns:
        findings.note("column_names", f"{name}: no attribute column_names, so its columns cannot be chosen by name")
    encoding = _encoding_of(name, width, columns)
    scales = _scales(file, name, width, findings) if name.startswith("elevation") else None
    nonfinite, off, raw_differs, known = Tally(), Tally(), Tally(), 0
    for start, part in file.slabs(name):
        values = part.reshape(len(part), width).astype(np.float64, copy=False)
        finite = np.isfinite(values).all(axis=1)
        nonfinite.add(np.logical_not(finite), start)
        usable: NDArray[np.bool_] = known_rows(name, values)
        known += int(usable.sum())
        off.add(usable & ~_well_encoded(encoding, values), start)
        with np.errstate(invalid="ignore"):  # of infinite raw values
            raw = _from_raw(file, name, encoding, scales, start, len(part))
        if raw is not None:
            both = usable & np.isfinite(raw).all(axis=1)
            raw_differs.add(
                both & (np.abs(values - np.where(both[:, None], raw, 0)) > RAW_TOLERANCE).any(axis=1), start
            )
    if nonfinite:
        findings.warning(
            "not_finite",
            f"{name}: {nonfinite.count} rows ({nonfinite.count / file.rows:.1%}) hold NaN or infinity; they count as "
            "unknown",
            nonfinite.rows,
        )
    if off:
        findings.error("encoding", f"{name}: {off.count} rows {_WRONG[encoding]}", off.rows)
    if raw_differs:
        findings.warning(
            "raw_values", f"{name}: {raw_differs.count} rows do not encode the raw values beside them", raw_differs.rows
        )
    if not known and file.rows:
        findings.warning("all_unknown", f"{name}: no row has a usable value")
    _check_width(name, width, findings)
    return ComponentFacts(name, width, columns, known, known / file.rows if file.rows else 0.0)


_WRONG = {
    "sphere": "are no points on the unit sphere (norm 1): encode latitude and longitude as x, y, z",
    "pairs": "hold pairs that are no (sin, cos) of an angle: sin² + cos² is not 1",
    "": "",
}


def _encoding_of(name: str, width: int, columns: tuple[str, ...]) -> str:
    """ "sphere", "pairs" or "" (unknown)."""
    if name == "spatial" and width == 3:
        return "sphere"
    paired = name == "temporal" or name.startswith("elevation") or (columns and columns[0].endswith("_sin"))
    return "pairs" if paired and width % 2 == 0 else ""


def _well_encoded(encoding: str, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """bool [n]; a pair of zeros is an unknown part, e.g. the hour."""
    if encoding == "sphere":
        return np.abs(np.linalg.norm(values, axis=1) - 1) <= TOLERANCE
    if encoding == "pairs":
        square = values[:, 0::2] ** 2 + values[:, 1::2] ** 2
        return ((np.abs(square - 1) <= 2 * TOLERANCE) | (square == 0)).all(axis=1)
    return np.ones(len(values), bool)


def _check_width(name: str, width: int, findings: Findings) -> None:
    wanted = {"spatial": (3,), "temporal": (2, 4)}.get(name)
    if wanted and width not in wanted:
        findings.error("width", f"{name}: {width} columns, expected {' or '.join(map(str, wanted))}")
    elif name.startswith("elevation") and width % 2:
        findings.error("width", f"{name}: {width} columns are no (sin, cos) pairs; every row counts as unknown")


def _scales(file: LabelFile, name: str, width: int, findings: Findings) -> NDArray[np.float64] | None:
    """The attribute `scales` in metres, where it fits the columns."""
    if "scales" not in file.datasets[name].attrs:
        findings.note("scales", f"{name}: no attribute scales, so its metres are not known")
        return None
    scales = file.scales(name)
    if 2 * len(scales) != width:
        findings.error("scales", f"{name}: {len(scales)} scales need {2 * len(scales)} columns, it has {width}")
        return None
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        findings.error("scales", f"{name}: scales {scales.tolist()} are not all positive")
        return None
    names = tuple(elevation_attributes(scales.tolist())["column_names"])
    given = file.column_names(name)
    if given and len(given) == width and given != names:
        findings.note("scales", f"{name}: column_names {given[:2]} ... are not those of the scales, {names[:2]} ...")
    return scales


def _from_raw(
    file: LabelFile, name: str, encoding: str, scales: NDArray[np.float64] | None, start: int, rows: int
) -> NDArray[np.float64] | None:
    """What the raw columns encode to, float64 [rows, W], NaN where they are unknown; None without such columns."""

    def raw(column: str) -> NDArray[np.float64] | None:
        if not file.has(column) or file.datasets[column].dtype.kind not in "fiu" or file.datasets[column].ndim != 1:
            return None
        return file.slab(column, start, start + rows).astype(np.float64)

    if name == "spatial" and encoding == "sphere":
        latitude, longitude = raw("raw_lat"), raw("raw_lon")
        if latitude is None or longitude is None:
            return None
        return unit_sphere(latitude, longitude)
    if scales is not None:
        metres = raw("raw_elevation")
        if metres is None:
            return None
        turns = 2 * np.pi * np.where(metres == 0, np.nan, metres)[:, None] / scales  # raw 0 is unknown
        return sinusoidal(turns)
    return None


def _check_range(file: LabelFile, name: str, limit: float, findings: Findings) -> None:
    if not file.has(name) or file.datasets[name].dtype.kind not in "fiu":
        return
    outside = Tally()
    for start, part in file.slabs(name):
        outside.add(np.abs(part.astype(np.float64)) > limit, start)
    if outside:
        findings.error("raw_range", f"{name}: {outside.count} rows are beyond {limit:g} degrees", outside.rows)
