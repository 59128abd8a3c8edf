"""Labels of a data set as numbers from 0, for what is trained without this program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.taxon_names import read_taxon_names


def read_labels(path: Path, tasks: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.str_]]:
    """Class of every row at each rank, [N, T], by ascending taxon ids and -1 without a label, and the names [C] of the
    classes of the last rank."""
    columns = []
    with h5py.File(path) as file:
        for task in tasks:
            taxon = file[task][:]
            classes = np.unique(taxon[taxon > 0]).astype(np.int64)
            columns.append(np.where(taxon > 0, np.searchsorted(classes, taxon), -1))
    names = read_taxon_names([str(path)], {tasks[-1]: classes}).name[tasks[-1]]
    return np.stack(columns, axis=1), np.array(list(map(str, names)))
