"""The metadata vector: which columns of the labels file it holds, and which of its components are known per row."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.derived import active_components
from linnaeus_jax.mistakes import InputError

# ---- How place, time and elevation are encoded in a labels file (spec data §1.1)


#: periods in metres of `elevation_broadrange_2`
BROADRANGE_2 = (100.0, 500.0, 1000.0, 2000.0, 4000.0)
#: what is taken for a place, in degrees either way of 0
MOST_LATITUDE, MOST_LONGITUDE = 90.0, 180.0
#: what is taken for an elevation in metres: the Dead Sea's shore and Everest's top lie within
LOWEST, HIGHEST = -500.0, 9000.0
WAVES = ("sin", "cos")
#: what the angles of a moment are parts of, in months, days and hours; in the order of `reading.dates.Moment`
PERIODS = {"month": 12.0, "jd": 365.25, "hour": 24.0}
SPATIAL_ATTRIBUTES: dict[str, Any] = {
    "column_names": ["spatial_x", "spatial_y", "spatial_z"],
    "method": "unit_sphere",
}
Float = TypeVar("Float", bound=np.floating)


def unit_sphere(latitude: NDArray[Float], longitude: NDArray[Float]) -> NDArray[Float]:
    """Points [N, 3] of degrees [N]."""
    phi, lam = np.deg2rad(latitude), np.deg2rad(longitude)
    return np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], axis=1)


def sinusoidal(angle: NDArray[Float]) -> NDArray[Float]:
    """Sine and cosine, side by side, [N, 2 K] of radians [N, K], in their precision."""
    return np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(len(angle), -1)


def is_sea_level(values: NDArray[np.floating]) -> NDArray[np.bool_]:
    """bool [N]: rows of an elevation dataset [N, 2 K] that encode 0 m at every scale, which stands for "unknown"."""
    return (np.abs(values[:, 0::2]) <= 1e-8).all(axis=1) & (np.abs(values[:, 1::2] - 1) <= 1e-8 + 1e-5).all(axis=1)


def sinusoidal_attributes(names: Sequence[str]) -> dict[str, Any]:
    """Attributes of a dataset with the sines and cosines of `names`, e.g. "month"."""
    return {"column_names": [f"{name}_{wave}" for name in names for wave in WAVES], "method": "sinusoidal"}


def elevation_attributes(scales: Sequence[float]) -> dict[str, Any]:
    """Attributes of an elevation dataset of some periods in metres."""
    names = [f"elev_{scale:g}" for scale in scales]
    return {**sinusoidal_attributes(names), "scales": np.asarray(scales, np.float32)}


# ----------------------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Component:
    """One component of the metadata vector: columns `start:stop`, read from `columns` of dataset `source`."""

    name: str
    source: str
    start: int
    stop: int
    columns: tuple[str, ...] = ()  # empty: all columns of a dataset that does not name them


@dataclass(frozen=True)
class ComponentSettings:
    """The settings of one used component, see `data.meta.components`. `columns` empty means all, in file order."""

    name: str
    source: str
    columns: tuple[str, ...]
    dim: int
    allow_missing: bool = True
    oor_mask: bool = False

    @property
    def key(self) -> str:
        return f"data.meta.components.{self.name}"


@dataclass(frozen=True)
class SourceColumns:
    """One metadata dataset as read: `values` float32 [N, W], `names` of its W columns (empty if the file has none)."""

    values: NDArray[np.float32]
    names: tuple[str, ...] = ()


def component_settings(meta: Mapping[str, Any]) -> tuple[ComponentSettings, ...]:
    """The used components of the config node `data.meta`, in vector order (see `active_components`).

    An enabled component with a negative `idx` is not used, which a warning says.

    Raises:
      ValueError: two components share an `idx`, or `source` or `dim` is missing.
    """
    used: dict[int, ComponentSettings] = {}
    for name in active_components(meta):
        node = meta["components"][name]
        index = node["idx"]
        keys = ("source", "columns", "dim", "allow_missing", "oor_mask")
        settings = ComponentSettings(name, **{key: node[key] for key in keys})
        if not settings.source or settings.dim < 1:
            raise InputError(f"{settings.key} is enabled: set its source (a dataset of the labels file) and its dim")
        if index in used:
            raise InputError(f"{used[index].key}.idx and {settings.key}.idx are both {index}; give each its own")
        if settings.oor_mask and not settings.allow_missing:
            log.warning("%s: oor_mask with allow_missing=False drops every out-of-region row", settings.key)
        used[index] = settings
    for name, node in meta["components"].items() if meta["active"] else ():
        if node["enabled"] and node["idx"] < 0:
            log.warning("data.meta.components.%s.idx = %d is negative: the component is not used", name, node["idx"])
    return tuple(used.values())


def component_layout(settings: Sequence[ComponentSettings]) -> tuple[Component, ...]:
    """Where each component lies in the vector; the last `stop` is the width D."""
    stops = np.cumsum([item.dim for item in settings], dtype=int).tolist()
    return tuple(Component(item.name, item.source, stop - item.dim, stop) for item, stop in zip(settings, stops))


def build_metadata(
    settings: Sequence[ComponentSettings],
    sources: Mapping[str, SourceColumns],
    in_region: NDArray[np.bool_] | None,
    *,
    rows: int,
    file: str = "labels file",
    offered: Iterable[str] = (),
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Metadata vectors and validity of all rows of a file.

    A component of a row is invalid if any selected value is not finite, if all are 0, if it is an elevation whose
    sines are 0 and cosines 1 at every scale (0 m, the generator's null), or if it has `oor_mask` and the row lies out
    of the region. Invalid components are zero.

    Args:
      settings: used components in vector order.
      sources: the datasets they name.
      in_region: bool [N], or None if the file does not say (then every row counts as inside).
      rows: N.
      file, offered: the file's name, and what could be a source in it, for messages.

    Returns:
      float32 [N, D] and bool [N, K].

    Raises:
      ValueError: a source is absent, a requested column is unknown, or the width differs from `dim`.
    """
    layout = component_layout(settings)
    meta = np.zeros((rows, layout[-1].stop if layout else 0), np.float32)
    valid = np.zeros((rows, len(layout)), bool)
    for position, (item, component) in enumerate(zip(settings, layout)):
        if item.source not in sources:
            there = ", ".join(sorted({*sources, *offered})) or "none"
            raise InputError(
                f"{file}: dataset {item.source!r} named by {item.key}.source is missing (the file offers {there}); "
                f"correct the name or set {item.key}.enabled=False"
            )
        source = sources[item.source]
        values = source.values[:, _select(item, source.names, file)]
        if values.shape[1] != item.dim:
            raise InputError(
                f"{file}: {item.source!r} gives {values.shape[1]} columns but {item.key}.dim = {item.dim}; "
                f"set dim to {values.shape[1]} or choose {item.dim} of the columns with {item.key}.columns"
            )
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            log.warning("%s: %r is not finite in %d rows: missing there", file, item.source, np.sum(~finite))
        filled = finite & (values != 0).any(axis=1)
        if item.name.upper() == "ELEVATION" or item.source.startswith("elevation"):
            filled &= ~_null_elevation(source.values, item, file)
        if item.oor_mask:
            if in_region is None:
                log.warning("%s has no dataset in_region: %s.oor_mask has no effect", file, item.key)
            else:
                filled &= in_region
        valid[:, position] = filled
        np.copyto(meta[:, component.start : component.stop], values, where=filled[:, None])
    return meta, valid


def _select(item: ComponentSettings, names: tuple[str, ...], file: str) -> slice | list[int]:
    if not item.columns:
        return slice(None)
    unknown = [column for column in item.columns if column not in names]
    if unknown:
        offered = ", ".join(names) or "none: the attribute column_names is absent"
        raise InputError(f"{file}: {item.source!r} has no column {unknown[0]!r} ({item.key}.columns); it has {offered}")
    return [names.index(column) for column in item.columns]


def _null_elevation(values: NDArray[np.float32], item: ComponentSettings, file: str) -> NDArray[np.bool_]:
    """bool [N]: rows whose (sin, cos) pairs all encode 0 m, judged on the full vector."""
    if values.shape[1] % 2:
        log.warning("%s: %r has an odd number of columns, no (sin, cos) pairs: all null", file, item.source)
        return np.ones(len(values), bool)
    return is_sea_level(values)
