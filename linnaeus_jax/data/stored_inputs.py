"""What is stored of pictures for training: what enters a block of a trunk whose first blocks do not train.

A file holds float16 [rows, views, ...] in the order of a split, NaN for a picture that could not be read. Beside it
stands a journal, whose first line says what the numbers follow from and each further line up to which row they are
written, with a CRC-32. What the journal names is whole, so that a process may be ended at any moment and go on.

Both are written under names with ".partial", and get their own when they are complete. From then on nothing changes
them, since other runs may read them: where they are damaged, new ones take their place.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import shutil
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.h5_direct import FileBytes
from linnaeus_jax.data.images import check_rows
from linnaeus_jax.files import crc32_of, journal_entries, json_text, sync

logger = logging.getLogger("linnaeus_jax.data")

DTYPE = np.dtype(np.float16)


@dataclass(frozen=True)
class StoredSpec:
    """What a file holds.

    Attributes:
      key: digest of everything that the numbers follow from: weights, preprocessing, augmentation, pictures.
      rows: of the split.
      views: of each row; the first is the picture itself, the others are augmented.
      shape: of one view.
    """

    key: str
    rows: int
    views: int
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of all views of a row."""
        return self.views * int(np.prod(self.shape)) * DTYPE.itemsize

    @property
    def bytes(self) -> int:
        """Bytes of the whole file."""
        return self.rows * self.row_bytes


class StoredFile:
    """A file of stored inputs that is written in the order of its rows; it goes on where it was left.

    Attributes:
      done: rows that are written.

    Raises:
      UserError: the disk does not hold what is missing.
    """

    def __init__(self, path: Path, spec: StoredSpec) -> None:
        self.path, self.spec = path, spec
        self._journal = path.with_suffix(".jsonl")
        self._partial = path.with_name(f"{path.name}.partial"), path.with_name(f"{self._journal.name}.partial")
        self.done, whole = self._found(path, self._journal)
        if self.done == spec.rows:
            return
        source, (done, whole_partial) = (path, self._journal), self._found(*self._partial)
        if done >= self.done:
            source, self.done, whole = self._partial, done, whole_partial
        missing = (spec.rows - self.done) * spec.row_bytes
        free = shutil.disk_usage(path.parent).free
        if missing > free:
            raise UserError(
                f"{path}: {missing / 1e6:,.1f} MB are to be stored and {free / 1e6:,.1f} MB are free; make room, lower "
                "train.tune_views, or train with train.tune='full'"
            )
        self._begin(*source, whole)

    def _found(self, path: Path, journal: Path) -> tuple[int, int]:
        """Rows that a journal names and whose bytes are as it says, and its bytes up to there."""
        if not journal.exists():
            return 0, 0
        with contextlib.ExitStack() as stack:
            entries = journal_entries(stack.enter_context(journal.open("rb")))
            whole, known = next(entries, (0, None))
            if known != self._header:
                logger.info("%s: of other weights, pictures or settings; it is made anew", path)
                return 0, 0
            data = stack.enter_context(path.open("rb")) if path.exists() else io.BytesIO()
            done = 0
            for end, entry in entries:
                rows, crc = _piece(entry)
                size = (rows - done) * self.spec.row_bytes
                if not done < rows <= self.spec.rows or crc32_of(data, size) != crc:
                    logger.warning("%s: rows from %d on are not what was written; they are made anew", path, done)
                    break
                done, whole = rows, end
        return done, whole

    @property
    def _header(self) -> dict[str, Any]:
        return {**asdict(self.spec), "shape": list(self.spec.shape)}

    def _begin(self, path: Path, journal: Path, whole: int) -> None:
        """Cuts the unfinished files to what is whole, or begins them with what is whole of finished ones."""
        partial, partial_journal = self._partial
        if path != partial and self.done:
            shutil.copyfile(path, partial)
            shutil.copyfile(journal, partial_journal)
        with partial_journal.open("ab") as file:
            file.truncate(whole)
            if not whole:
                file.write(json_text(self._header, sort_keys=True).encode() + b"\n")
        with partial.open("ab") as file:
            file.truncate(self.done * self.spec.row_bytes)

    def append(self, values: np.ndarray) -> None:
        """Writes the next rows, [n, views, ...] of the spec's shape; returns when they are on the disk."""
        data = np.ascontiguousarray(values, DTYPE)
        if data.shape[1:] != (self.spec.views, *self.spec.shape) or self.done + len(data) > self.spec.rows:
            raise ValueError(f"{data.shape} does not continue {self.done} rows of {self.spec}")
        partial, journal = self._partial
        self._append(partial, data.data)
        self.done += len(data)
        line = json_text({"rows": self.done, "crc32": zlib.crc32(data.data)})
        self._append(journal, f"{line}\n".encode())
        if self.done == self.spec.rows:
            os.replace(partial, self.path)
            os.replace(journal, self._journal)
            sync(self.path.parent)

    @staticmethod
    def _append(path: Path, data: bytes | memoryview) -> None:
        with path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def _piece(entry: Any) -> tuple[int, int]:
    """Row up to which an entry of the journal vouches, and CRC-32; 0 rows where it says neither."""
    try:
        return int(entry["rows"]), int(entry["crc32"])
    except (ValueError, KeyError, TypeError):
        return 0, 0


def finished_spec(path: Path) -> StoredSpec | None:
    """What a finished file holds, as its journal says; None where it is not there, or not as long."""
    journal = path.with_suffix(".jsonl")
    if not (path.is_file() and journal.is_file()):
        return None
    with journal.open("rb") as file:
        header: Any = next(journal_entries(file), (0, {}))[1]
    try:
        spec = StoredSpec(header["key"], header["rows"], header["views"], tuple(header["shape"]))
    except (KeyError, TypeError):
        return None
    return spec if path.stat().st_size == spec.bytes else None


class StoredInputs:
    """An `ImageSource` of a finished file; of a row `row`, view v is read as `row * views + v`.

    Args:
      path, spec: of the file.
      rows: int64 [n], row of the labels file of each of its rows.
      dataset_rows: rows of the labels file.
    """

    copies_only = True
    dtype = DTYPE

    def __init__(self, path: Path, spec: StoredSpec, rows: NDArray[np.int64], dataset_rows: int) -> None:
        self.path, self.spec = path, spec
        self.image_shape, self.views = spec.shape, spec.views
        self._place = np.full(dataset_rows, -1, np.int64)
        self._place[rows] = np.arange(len(rows))
        self._file: FileBytes | None = None

    def __len__(self) -> int:
        return len(self._place)

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        """As of `ImageSource`; out is float16 [n, *image_shape].

        Raises:
          IndexError: a row of another split.
        """
        if self._file is None:
            self._file = FileBytes(self.path)
        row, view = np.divmod(rows, self.views)
        check_rows(row, len(self), self.path)
        places = self._place[row]
        if (places < 0).any():
            raise IndexError(f"{self.path}: row {row[places < 0][0]} is not of this split")
        flat = out.reshape(len(out), math.prod(self.image_shape))
        size = flat.shape[1] * DTYPE.itemsize
        for place, into in zip((places * self.views + view).tolist(), flat.view(np.uint8), strict=True):
            self._file.read_into(into, place * size)
        ok = ~np.isnan(flat[:, 0])
        out[~ok] = 0
        return ok

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}  # each process opens the file itself
