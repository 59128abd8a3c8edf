"""Which rows of a data set are for training, validation and test, decided when it is built.

The unit that is drawn is never a row but what belongs together: all pictures of one occurrence, those that are known to
show the same, and for some splits all of one observer, place or day.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from linnaeus_jax.building.steps.options import FOLDER_PLACE, BuildOptions

TRAIN, VAL, TEST = 0, 1, 2


@dataclass(frozen=True)
class SplitRows:
    """What a split is decided by, of N rows in file order; codes are int64 [N] from 0, -1 where unknown."""

    taxon: NDArray[np.uint32]  # [N, T], finest first
    occurrence: NDArray[np.int64]
    observer: NDArray[np.int64]
    place: NDArray[np.float64]  # [N, 2] degrees, NaN where unknown
    folder: NDArray[np.int64]  # of a place, as the source names it
    day: NDArray[np.int64]  # days since an origin, -1 where unknown
    given: NDArray[np.int64]  # split that the source gives
    duplicates: NDArray[np.int64]  # pictures that show the same

    def __len__(self) -> int:
        return len(self.taxon)


def units_of(*groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [N]: rows that share a code of any of `groups` (directly or over other rows) have the same number."""
    rows = len(groups[0])
    edges, offset = [], rows
    for codes in groups:
        known = np.flatnonzero(codes >= 0)
        edges.append(np.stack([known, codes[known] + offset]))
        offset += int(codes.max(initial=-1)) + 1
    ends = np.concatenate(edges, axis=1)
    graph = coo_array((np.ones(ends.shape[1], bool), (ends[0], ends[1])), shape=(offset, offset))
    return connected_components(graph, directed=False)[1][:rows].astype(np.int64)


def assign_splits(rows: SplitRows, options: BuildOptions) -> NDArray[np.uint8]:
    """uint8 [N]: 0 train, 1 val, 2 test.

    "random" and "stratified" draw occurrences, "observer", "place" and "folder:place" everything of one observer, grid
    cell or folder of a place; by "date" the newest days are the test, those before them the validation rows.
    "stratified" draws from each finest class its share, at least one unit for validation where the class has two, and
    leaves one for training.
    """
    groups = [rows.occurrence, rows.duplicates]
    if options.split == "observer":
        groups.append(rows.observer)
    elif options.split == "place":
        groups.append(grid_cells(rows.place, options.place_size))
    elif options.split == FOLDER_PLACE:
        groups.append(rows.folder)
    elif options.split == "date":
        groups.append(np.where(rows.day >= 0, rows.day - max(0, rows.day.min(initial=0)), -1))
    unit = np.unique(units_of(*groups), return_inverse=True)[1]
    first = np.unique(unit, return_index=True)[1]
    size = np.bincount(unit)
    if options.split == "given":
        split = _given_splits(rows.given, unit, len(first))
    elif options.split == "stratified":
        split = _per_class(_finest(rows.taxon)[first], options)
    elif options.split == "date":
        newest = np.full(len(first), -1, np.int64)
        np.maximum.at(newest, unit, rows.day)
        split = _newest_last(newest, size, options)
    else:
        split = _by_share(_order(len(first), options.seed), size, options)
    return split[unit].astype(np.uint8)


def grid_cells(place: NDArray[np.float64], degrees: float) -> NDArray[np.int64]:
    """int64 [N]: number of the cell of a grid of latitude and longitude, -1 where the place is unknown."""
    cells = np.full(len(place), -1, np.int64)
    known = np.isfinite(place).all(axis=1)
    if known.any():
        corner = np.floor(place[known] / degrees).astype(np.int64)
        cells[known] = np.unique(corner, axis=0, return_inverse=True)[1].reshape(-1)
    return cells


def _finest(taxon: NDArray[np.uint32]) -> NDArray[np.int64]:
    """int64 [N]: one number for each finest known taxon."""
    rank = (taxon != 0).argmax(axis=1)
    finest = taxon[np.arange(len(taxon)), rank].astype(np.int64)
    return np.unique(rank * (1 << 32) + finest, return_inverse=True)[1]


def _order(count: int, seed: int) -> NDArray[np.int64]:
    """A random order that is the same in every NumPy release."""
    return np.argsort(np.random.Philox(seed).random_raw(count), kind="stable")


def _by_share(order: NDArray[np.int64], size: NDArray[np.int64], options: BuildOptions) -> NDArray[np.int64]:
    """Split of each unit: in the given order, those that still fit fill the test share of the rows, then validation.

    A unit larger than the whole share falls to training; where every unit is, the smallest one is taken.
    """
    split = np.full(len(size), TRAIN, np.int64)
    for part, share in ((TEST, options.test), (VAL, options.val)):
        free = wanted = round(float(size.sum()) * share)
        for unit in order[split[order] == TRAIN].tolist():
            if size[unit] <= free:
                split[unit] = part
                free -= int(size[unit])
        rest = order[split[order] == TRAIN]
        if wanted and free == wanted and len(rest) > 1:
            split[rest[np.argmin(size[rest])]] = part
    return split


def _newest_last(day: NDArray[np.int64], size: NDArray[np.int64], options: BuildOptions) -> NDArray[np.int64]:
    """Split of each unit: the newest days fill the test share of the rows, those before them validation."""
    order = np.argsort(-day, kind="stable")
    start = np.cumsum(size[order]) - size[order]  # rows of newer days
    test, val = (round(float(size.sum()) * share) for share in (options.test, options.val))
    split = np.full(len(size), TRAIN, np.int64)
    split[order[start < test + val]] = VAL
    split[order[start < test]] = TEST
    split[day < 0] = TRAIN
    return split


def _per_class(label: NDArray[np.int64], options: BuildOptions) -> NDArray[np.int64]:
    """Split of each unit of the given class."""
    order = _order(len(label), options.seed)
    order = order[np.argsort(label[order], kind="stable")]
    count = np.bincount(label)
    rank = np.arange(len(label)) - np.repeat(np.cumsum(count) - count, count)
    units = np.repeat(count, count)

    def share(fraction: float, least: int) -> NDArray[np.int64]:
        wanted = np.floor(units * fraction + 0.5).astype(np.int64)
        return np.maximum(wanted, np.where(units >= least, 1, 0)) if fraction else np.zeros_like(wanted)

    val = np.minimum(share(options.val, 2), units - 1)
    test = np.minimum(share(options.test, 3), units - 1 - val)
    split = np.full(len(label), TRAIN, np.int64)
    split[order[rank < val + test]] = VAL
    split[order[rank < test]] = TEST
    return split


def _given_splits(given: NDArray[np.int64], unit: NDArray[np.int64], units: int) -> NDArray[np.int64]:
    """Split of each unit: that of its rows; where they disagree test, then validation, then training, so that what was
    meant for measuring is never trained on."""
    split = np.full(units, TRAIN, np.int64)
    np.maximum.at(split, unit, given)
    return split
