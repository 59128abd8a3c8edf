"""A labels file of unknown origin, read piece by piece; what is wrong with one data set does not hide the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.scan.checks import DamagedError
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.hdf5 import check_texts, members, open_hdf5
from linnaeus_jax.data.labels_file import (
    DAMAGE,
    IDENTIFIERS,
    RANK_PLACE,
    TextDigest,
    attribute,
    column_names,
    damage,
    rows_of_slab,
)
from linnaeus_jax.taxonomy.ranks import is_task, task_level


class LabelFile:
    """An open labels file.

    Attributes:
      path: the file.
      datasets: name -> data set, of those at the top of the file.
      groups: names of the groups there.
      rows: N, the length of the identifiers, or of the first label column where there are none.

    Raises:
      UserError: no HDF5 file, or neither identifiers nor labels in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = open_hdf5(path)
        except FileNotFoundError as error:
            raise UserError(f"{path}: no such labels file") from error
        except OSError as error:
            raise UserError(f"{path}: no HDF5 file, or truncated or damaged: {error}") from error
        self.datasets = {name: item for name, item in members(self.file).items() if isinstance(item, h5py.Dataset)}
        self.groups = sorted(name for name, item in members(self.file).items() if isinstance(item, h5py.Group))
        first = self.datasets.get(IDENTIFIERS, next((self.datasets[task] for task in self.tasks), None))
        if first is None or first.ndim != 1:
            self.file.close()
            what = ", ".join(sorted(self.file_names())) or "nothing"
            raise UserError(f"{path}: no labels file: it has neither {IDENTIFIERS!r} nor label columns, but {what}")
        self.rows = len(first)

    def file_names(self) -> list[str]:
        return [*self.datasets, *self.groups]

    def __enter__(self) -> LabelFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    @property
    def tasks(self) -> tuple[str, ...]:
        """Label columns, finest rank first; 33.5 lies between 33 and 34, ranks without a number where the file says."""
        place: dict[str, float] = {}
        for name, dataset in self.datasets.items():
            level = task_level(name) if is_task(name) else None
            if level is not None or RANK_PLACE in dataset.attrs:
                place[name] = float(dataset.attrs.get(RANK_PLACE, level))
        return tuple(sorted(place, key=lambda name: place[name]))

    def has(self, name: str) -> bool:
        """Whether there is a data set of that name with one entry per row."""
        return name in self.datasets and self.datasets[name].ndim > 0 and len(self.datasets[name]) == self.rows

    def is_text(self, name: str) -> bool:
        return h5py.check_string_dtype(self.datasets[name].dtype) is not None

    def slab(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Rows start ... stop of a data set; DamagedError."""
        try:
            return self.datasets[name][start:stop]
        except DAMAGE as error:
            raise DamagedError(f"dataset {name!r} cannot be read: {damage(self.datasets[name], error)}") from error

    def slabs(self, name: str) -> Iterator[tuple[int, NDArray[Any]]]:
        """(first row, values) over all rows; text as an array of bytes; DamagedError."""
        text, digest, step = self.is_text(name), TextDigest(), rows_of_slab(self.datasets[name])
        try:
            check_texts(self.path, self.datasets[name])
        except DAMAGE as error:
            raise DamagedError(str(error)) from error
        for start in range(0, len(self.datasets[name]), step):
            part = self.slab(name, start, start + step)
            if text:
                digest.add(part)
            yield start, part
        try:
            problem = digest.problem(self.datasets[name]) if text else ""
        except ValueError as error:
            problem = str(error)
        if problem:
            raise DamagedError(problem)

    def numbers(self, name: str) -> NDArray[Any]:
        """A whole column; DamagedError."""
        dataset = self.datasets[name]
        values = np.empty(dataset.shape, dataset.dtype)
        for start, part in self.slabs(name):
            values[start : start + len(part)] = part
        return values

    def hashes(self, name: str) -> NDArray[np.int64]:
        """int64 [N] of a text column, equal for equal texts within one process, 0 for ""; DamagedError."""
        result = np.empty(self.rows, np.int64)
        for start, part in self.slabs(name):
            result[start : start + len(part)] = [hash(text) for text in part]
        return result

    def text(self, name: str, row: int) -> bytes:
        """One entry of a text column; DamagedError."""
        return bytes(self.slab(name, row, row + 1)[0])

    def texts(self, name: str, rows: Iterable[int]) -> list[bytes]:
        return [self.text(name, int(row)) for row in rows]

    def column_names(self, name: str) -> tuple[str, ...]:
        """The attribute `column_names` of a data set, () without one; DamagedError."""
        try:
            return column_names(self.datasets[name])
        except ValueError as error:
            raise DamagedError(str(error)) from error

    def scales(self, name: str) -> NDArray[np.float64]:
        """The attribute `scales` of a data set of elevations, empty without one; DamagedError."""
        try:
            return np.atleast_1d(attribute(self.datasets[name], "scales", [])).astype(np.float64)
        except (ValueError, TypeError) as error:
            raise DamagedError(f"the attribute 'scales' of {name!r} holds no numbers: {error}") from error
