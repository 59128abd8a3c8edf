"""HDF5 virtual data sets as what they are: runs of consecutive rows, each from a data set of another file.

HDF5 itself gives zeros for the rows of a file that is not there, and reads under one lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.mistakes import InputError


@dataclass(frozen=True)
class Part:
    """A data set of a file, of which a virtual data set takes rows."""

    path: Path
    dataset: str


@dataclass(frozen=True)
class Runs:
    """Run r is rows `starts[r]` ... `starts[r + 1] - 1`, which are rows `first[r]` ... of `parts[part[r]]`."""

    starts: NDArray[np.int64]  # [R + 1], ascending from 0 to the number of rows
    first: NDArray[np.int64]  # [R]
    part: NDArray[np.int64]  # [R]
    parts: tuple[Part, ...]

    def locate(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(part, row within the part), int64 [n] each, of rows int64 [n] that all exist."""
        run = np.searchsorted(self.starts, rows, side="right") - 1
        return self.part[run], rows - self.starts[run] + self.first[run]

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(part, first row, end) of the pieces that make up the rows start ... stop - 1, in their order."""
        run = int(np.searchsorted(self.starts, start, side="right")) - 1
        while start < stop:
            end = min(stop, int(self.starts[run + 1]))
            first = int(self.first[run] + start - self.starts[run])
            yield int(self.part[run]), first, first + end - start
            start, run = end, run + 1


def check_parts(path: Path, dataset: h5py.Dataset) -> None:
    """Checks that every file is there that a virtual data set takes rows from.

    Raises:
      FileNotFoundError: a file is missing.
    """
    for source in dataset.virtual_sources() if dataset.is_virtual else ():
        part = _part_path(path, source.file_name)
        if not part.is_file():
            raise FileNotFoundError(
                f"{path}: its part {source.file_name} is missing; put it back at {part} or merge the parts again"
            )


def runs_of(path: Path, dataset: h5py.Dataset) -> Runs | None:
    """The runs of the virtual data set of a file; None where its rows are not consecutive rows of its parts.

    Names of part files are relative to the folder of the file.

    Raises:
      FileNotFoundError: a part is missing.
      ValueError: rows that come from no part.
    """
    check_parts(path, dataset)
    found: list[tuple[int, int, int, Part]] = []
    for source in dataset.virtual_sources():
        if not source.vspace.get_select_npoints():
            continue
        here = _rows(source.vspace, dataset.shape[1:])
        if source.src_space.get_select_type() != h5py.h5s.SEL_ALL:
            there = _rows(source.src_space, dataset.shape[1:])
        else:  # its extent is not known before HDF5 has opened the part
            there = here and (0, here[1] - here[0])
        if here is None or there is None or here[1] - here[0] != there[1] - there[0]:
            return None
        found.append((*here, there[0], Part(_part_path(path, source.file_name), source.dset_name)))
    found.sort(key=lambda run: run[0])
    starts, ends = [run[0] for run in found], [run[1] for run in found]
    for end, start in zip([0, *ends], [*starts, len(dataset)], strict=True):
        if end < start:
            raise InputError(f"{path}: rows {end}..{start - 1} of {dataset.name!r} are in none of its parts")
        if end > start:  # HDF5 has its own rule for rows that are given twice
            return None
    parts = tuple(dict.fromkeys(run[3] for run in found))
    number = {part: i for i, part in enumerate(parts)}
    return Runs(
        np.array([*starts, len(dataset)], np.int64),
        np.array([run[2] for run in found], np.int64),
        np.array([number[run[3]] for run in found], np.int64),
        parts,
    )


def _part_path(path: Path, name: str) -> Path:
    return path if name == "." else path.parent / name


def _rows(space: h5py.h5s.SpaceID, rest: tuple[int, ...]) -> tuple[int, int] | None:
    """(first row, end) of a selection of whole consecutive rows; None for any other."""
    low, high = space.get_select_bounds()
    whole = tuple(low[1:]) == (0,) * len(rest) and tuple(side + 1 for side in high[1:]) == rest
    count = int(high[0]) + 1 - int(low[0])
    if not whole or space.get_select_npoints() != count * int(np.prod(rest)):
        return None
    return int(low[0]), int(high[0]) + 1
