"""How place, time and elevation are encoded in a labels file (spec data §1.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

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
