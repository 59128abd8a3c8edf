"""Golden numbers from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def load_npz(path: str | Path) -> dict[str, np.ndarray]:
    """All arrays of a file. `np.load` leaves it open, which is a warning of whatever test the garbage is found in."""
    with np.load(path) as file:
        return dict(file)
