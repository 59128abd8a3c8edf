"""Images in HDF5 files: the fastest reader that the layout of the file allows.

Two forms: `images` uint8 [N, H, W, 3] RGB, or encoded images as `image_bytes` uint8 [total] with `image_offsets` int64
[N + 1]. Either may be a virtual dataset over several files.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.h5_direct import (
    ContiguousImages,
    FileBytes,
    Places,
    StoredImages,
    WholeChunkImages,
    chunk_offsets,
)
from linnaeus_jax.data.hdf5 import open_hdf5
from linnaeus_jax.data.image_checks import CHECKSUMS, RowChecks, read_checksums
from linnaeus_jax.data.images import EncodedImages, ImageFiles, ImageSource, check_rows
from linnaeus_jax.data.labels_file import damage_told, validated_dataset, values_of
from linnaeus_jax.files import FILES_ONLY
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.registry import IMAGE_SOURCES

# ---- HDF5 virtual data sets as what they are: runs of consecutive rows, each from a data set of another file
#
# HDF5 itself gives zeros for the rows of a file that is not there, and reads under one lock.


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


# ----------------------------------------------------------------------------------------------------------------------


#: names of the datasets
IMAGES, IMAGE_BYTES, IMAGE_OFFSETS = "images", "image_bytes", "image_offsets"

logger = logging.getLogger("linnaeus_jax.data")


class MissingDatasetError(InputError, KeyError):
    """An HDF5 file lacks a dataset of images; the message says what it has."""


class H5Images(StoredImages):
    """Any other HDF5 layout, read through h5py: one handle per process, opened at the first read.

    HDF5 lets one thread in, also while it unpacks; so one reads all rows, and each chunk once.
    """

    copies_only = True  # more threads would wait for each other, too

    def __init__(self, path: Path, dataset: str, shape: tuple[int, int, int, int]) -> None:
        super().__init__(path, dataset, shape)
        self._lock = threading.Lock()
        self._opened: tuple[int, h5py.File, h5py.Dataset] | None = None

    def _dataset(self) -> h5py.Dataset:
        # A handle inherited over a fork shares its file position with the parent: never use or close it here.
        if self._opened is None or self._opened[0] != os.getpid():
            file = open_hdf5(self.path)
            self._opened = (os.getpid(), file, file[self._where])
        return self._opened[2]

    def _scatter(self, rows: NDArray[np.int64], out: np.ndarray, places: Places) -> None:
        with self._lock:  # one thread opens the file
            first = last = -1
            try:
                dataset = self._dataset()
                order = np.argsort(rows, kind="stable")
                layers = rows[order] // (dataset.chunks or (1,))[0]
                for group in np.split(order, np.flatnonzero(np.diff(layers)) + 1) if len(rows) else ():
                    first, last = int(rows[group[0]]), int(rows[group[-1]])
                    images = dataset[first : last + 1]
                    for i in group.tolist():
                        out[places[i]] = images[rows[i] - first]
            except OSError as error:
                raise OSError(
                    f"{self.path} cannot be read: images {first}..{last} ({error}); copy or build the file again"
                ) from error


class JoinedImages:
    """A virtual dataset, each of whose parts is read in the fastest way that the layout of the part allows.

    Args:
      path: the file of the virtual dataset.
      runs: where its rows are.
      parts: the images of each part.
    """

    def __init__(self, path: Path, runs: Runs, parts: tuple[StoredImages | JoinedImages, ...]) -> None:
        self._path, self.runs, self.parts = path, runs, parts
        self.image_shape: tuple[int, int, int] = parts[0].image_shape

    def __len__(self) -> int:
        return int(self.runs.starts[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._path, self.runs, self.parts)

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        check_rows(rows, len(self), self._path)
        part_of_row, within = self.runs.locate(rows)
        if len(rows) and (part_of_row == part_of_row[0]).all():
            return self.parts[part_of_row[0]].read(within, out)
        self.scatter(rows, out, range(len(rows)))
        return np.ones(len(rows), bool)

    def scatter(self, rows: NDArray[np.int64], out: np.ndarray, places: Places) -> None:
        """See `StoredImages.scatter`."""
        targets = np.asarray(places, np.int64)
        part_of_row, within = self.runs.locate(rows)
        for number in np.unique(part_of_row).tolist():
            here = part_of_row == number
            self.parts[number].scatter(within[here], out, targets[here])

    def compare_with(self, expected: NDArray[np.uint32]) -> None:
        """The parts are compared with these checksums [N] of the joined rows, in place of their own."""
        for number, part in enumerate(self.parts):
            if isinstance(part, JoinedImages):
                continue
            of_part = np.zeros(len(part), np.uint32)  # rows that take no part are not read
            for run in np.flatnonzero(self.runs.part == number).tolist():
                (start, stop), first = self.runs.starts[run : run + 2].tolist(), int(self.runs.first[run])
                of_part[first : first + stop - start] = expected[start:stop]
            part.checks = RowChecks(part.path, of_part)

    @property
    def checksums(self) -> NDArray[np.uint32] | None:
        """See `StoredImages.checksums`; of the parts, where all of them have some."""
        of_parts = [part.checksums for part in self.parts]
        known = [each for each in of_parts if each is not None]
        if len(known) < len(of_parts):
            return None
        part, within = self.runs.locate(np.arange(len(self)))
        first = np.cumsum([0, *map(len, known)])
        return np.concatenate(known)[first[part] + within]

    @property
    def copies_only(self) -> bool:
        """See `StoredImages.copies_only`."""
        return all(part.copies_only for part in self.parts)


@contextmanager
def _open_h5(path: Path) -> Iterator[h5py.File]:
    try:
        file = open_hdf5(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such images file; check data.h5.*images_path") from error
    with damage_told(file, path):
        yield file


def _part_dataset(path: Path, file: h5py.File, part: Part, rows: int) -> h5py.Dataset:
    """The dataset of a part, which has at least `rows` rows."""
    if part.dataset not in file:
        raise MissingDatasetError(
            f"{path}: its part {part.path} has no dataset {part.dataset!r} (found {sorted(file)})"
        )
    dataset = file[part.dataset]
    if len(dataset) < rows:
        raise InputError(f"{path}: its part {part.path} holds {len(dataset)} rows of the {rows} that it takes from it")
    return dataset


def _rows_needed(runs: Runs) -> NDArray[np.int64]:
    """int64 [parts]: how many rows each part must have."""
    needed = np.zeros(len(runs.parts), np.int64)
    np.maximum.at(needed, runs.part, runs.first + np.diff(runs.starts))
    return needed


def _joined_source(path: Path, dataset: h5py.Dataset) -> JoinedImages | None:
    runs = runs_of(path, dataset)
    if runs is None:
        return None
    parts: list[StoredImages | JoinedImages] = []
    for part, rows in zip(runs.parts, _rows_needed(runs).tolist(), strict=True):
        with _open_h5(part.path) as file:
            stored = _part_dataset(path, file, part, rows)
            if stored.dtype != np.uint8 or stored.shape[1:] != dataset.shape[1:]:
                return None
            parts.append(_stored_source(part.path, stored))
    return JoinedImages(path, runs, tuple(parts))


def _direct_source(path: Path, dataset: h5py.Dataset) -> StoredImages | None:
    """A reader of one file without the HDF5 library, where its layout has one."""
    shape, size = dataset.shape, path.stat().st_size
    offset = dataset.id.get_offset() if dataset.chunks is None else None
    offsets = chunk_offsets(dataset)
    end = 0 if offset is None else offset + dataset.nbytes
    if offsets is not None and len(offsets):
        end = int(offsets.max()) + math.prod(shape[1:])
    if end > size:
        raise OSError(f"{path}: dataset {dataset.name!r} ends beyond the end of the file; copy or build it again")
    if offset is not None:
        return ContiguousImages(path, offset, shape)
    return None if offsets is None else WholeChunkImages(path, offsets, shape)


def _fast_source(path: Path, dataset: h5py.Dataset) -> StoredImages | JoinedImages | None:
    """A memory-mapped reader of `dataset`, where its layout has one and gives the same first and last image.

    Of a virtual dataset: the same first and last image of every run.
    """
    source: StoredImages | JoinedImages | None
    ends = np.array([0, len(dataset) - 1])
    if len(dataset) == 0:
        return None
    if dataset.is_virtual:
        source = joined = _joined_source(path, dataset)
        ends = ends if joined is None else np.concatenate([joined.runs.starts[:-1], joined.runs.starts[1:] - 1])
    else:
        source = _direct_source(path, dataset)
    if source is None:
        return None
    probe = np.empty((1, *dataset.shape[1:]), np.uint8)
    for row in ends.tolist():  # a user block or an unusual address base would shift the map
        try:
            source.read(np.array([row]), probe)
            if not np.array_equal(probe[0], dataset[row]):
                return None
        except OSError:  # of a part that HDF5 cannot read either
            return None
    return source


def _stored_source(path: Path, dataset: h5py.Dataset) -> StoredImages | JoinedImages:
    source = _fast_source(path, dataset) or H5Images(path, dataset.name, dataset.shape)
    checks = RowChecks.of(path, dataset)
    if isinstance(source, StoredImages):
        source.checks = checks
    elif checks is not None:
        source.compare_with(checks.expected)
    return source


@IMAGE_SOURCES.register("h5")
def open_h5(files: ImageFiles) -> ImageSource:
    """Opens an HDF5 file of images with the fastest reader that its layout allows.

    Raises:
      FileNotFoundError: no such file, or a part of a virtual dataset is missing.
      OSError: a truncated or damaged file.
      MissingDatasetError: the file lacks the dataset.
      ValueError: wrong dtype or shape.
    """
    path = files.path
    with _open_h5(path) as file:
        if IMAGES not in file and IMAGE_BYTES in file:
            return PackedImages(files)
        if IMAGES not in file:
            raise MissingDatasetError(f"{path}: no dataset 'images' (found {sorted(file)})")
        stored = file[IMAGES]
        good = isinstance(stored, h5py.Dataset) and stored.dtype == np.uint8
        if not good or stored.ndim != 4 or stored.shape[-1] != 3 or min(stored.shape[1:3]) < 1:
            given = f"{stored.dtype} {stored.shape}" if isinstance(stored, h5py.Dataset) else "a group"
            raise InputError(f"{path}: dataset 'images' is {given}; images are uint8 (N, H, W, 3)")
        source = _stored_source(path, stored)
    parts = source.parts if isinstance(source, JoinedImages) else (source,)
    named = ", ".join(dict.fromkeys(type(one).__name__ for one in parts))
    of = f" of {len(parts)} parts" if isinstance(source, JoinedImages) else ""
    logger.info("%s: %d images %s%s read by %s", path, len(source), source.image_shape[:2], of, named, extra=FILES_ONLY)
    if any(isinstance(one, H5Images) for one in parts):
        advice = "data.worker_processes helps, more threads do not; linnaeus pack makes a faster file"
        logger.info("%s: HDF5 reads it under one lock; %s", path, advice)
    if any(isinstance(one, StoredImages) and one.checks is None for one in parts):
        logger.info("%s: no checksums, so that damaged pixels are not seen; linnaeus pack adds them", path)
    return source


class _PackedBytes:
    """The bytes of a contiguous uint8 dataset, or of a virtual one over such datasets."""

    def __init__(self, places: list[tuple[Path, int]], runs: Runs) -> None:
        self._places, self._runs = places, runs
        self._parts = [(FileBytes(path), offset) for path, offset in places]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._places, self._runs)

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Bytes start ... stop - 1."""
        out = np.empty(stop - start, np.uint8)
        done = 0
        for number, first, end in self._runs.pieces(start, stop):
            part, offset = self._parts[number]
            part.read_into(out[done : done + end - first], offset + first)
            done += end - first
        return out


def _packed_bytes(path: Path, dataset: h5py.Dataset) -> _PackedBytes:
    whole = Runs(np.array([0, dataset.size]), np.zeros(1, np.int64), np.zeros(1, np.int64), (Part(path, dataset.name),))
    runs = runs_of(path, dataset) if dataset.is_virtual else whole
    places = []
    for part, size in zip(runs.parts, _rows_needed(runs).tolist(), strict=True) if runs is not None else ():
        with _open_h5(part.path) as file:
            stored = _part_dataset(path, file, part, size)
            mapped = stored.dtype == np.uint8 and stored.ndim == 1 and stored.id.get_offset() is not None
            if mapped and stored.id.get_offset() + size > part.path.stat().st_size:
                raise OSError(f"{part.path}: {part.dataset!r} ends beyond the end of the file; copy or build it again")
            if mapped:
                places.append((part.path, stored.id.get_offset()))
    if runs is None or len(places) < len(runs.parts):
        raise InputError(
            f"{path}: image_bytes is {dataset.dtype} {dataset.shape}; it must be contiguous uint8 (total,)"
        )
    return _PackedBytes(places, runs)


class PackedImages(EncodedImages):
    """Encoded images in one HDF5 file: contiguous `image_bytes` uint8 [total], `image_offsets` int64 [N + 1].

    Image i is `image_bytes[image_offsets[i]:image_offsets[i + 1]]`, read where it lies in the file; `checksums`
    are those of its file, uint32 [N], if there are any.

    Raises:
      ValueError: another dtype or storage layout, or offsets that do not ascend from 0 to the number of bytes.
    """

    def __init__(self, files: ImageFiles) -> None:
        super().__init__(replace(files, cache=None))
        path = files.path
        with _open_h5(path) as file:
            if IMAGE_OFFSETS not in file:
                raise MissingDatasetError(f"{path}: dataset 'image_bytes' needs 'image_offsets' (found {sorted(file)})")
            data, stored = (
                validated_dataset(file, str(path), name, None, kinds="iu", dims=(1,))
                for name in (IMAGE_BYTES, IMAGE_OFFSETS)
            )
            check_parts(path, stored)
            offsets = values_of(stored, str(path)).astype(np.int64)
            if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != data.size or (np.diff(offsets) < 0).any():
                raise InputError(f"{path}: image_offsets must ascend from 0 to the {data.size} bytes of image_bytes")
            self._offsets = offsets
            self.checksums = read_checksums(file, path, len(offsets) - 1) if CHECKSUMS in file else None
            self._bytes = _packed_bytes(path, data) if data.size else None

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def describe(self, row: int) -> str:
        return f"{self.name}[image_bytes {self._offsets[row]}:{self._offsets[row + 1]}]"

    def encoded(self, row: int) -> bytes | np.ndarray:
        start, stop = self._offsets[row : row + 2].tolist()
        return b"" if self._bytes is None else self._bytes.read(start, stop)
