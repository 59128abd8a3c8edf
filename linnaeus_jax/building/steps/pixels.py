"""Reading, checking and storing the pictures of a data set: on all cores, in order, and so that it can go on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import h5py
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from linnaeus_jax.building.steps.options import BuildOptions
from linnaeus_jax.data.decoding import read_image
from linnaeus_jax.data.image_checks import checksum
from linnaeus_jax.data.parallel import in_order
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.files import crc32_of, journal_entries, json_text
from linnaeus_jax.reading.box_cuts import Box, BoxError, Cut
from linnaeus_jax.reading.paths import read_file
from linnaeus_jax.reading.schema import DUPLICATE_PICTURE, UNREADABLE_PICTURE

# ---- Contiguous HDF5 data sets whose length is known only when their last row is written


#: where the only data set of a new file begins; `finish_file` checks it
DATA_OFFSET = 2048


class StreamedBytes:
    """A file of bytes behind room for an HDF5 header; `finish_file` makes it an HDF5 file.

    HDF5 cannot shrink a contiguous data set, and only contiguous ones are read without the HDF5 library and an index.
    Whether a picture can be read is known after it was decoded, so the header is written last, for as many rows as
    there are.

    Args:
      path: continued where it exists.
      written: bytes of data that an earlier process has accounted for; what lies behind them is cut off.

    Raises:
      ValueError: the file is shorter than `written` says.
    """

    def __init__(self, path: Path, written: int = 0) -> None:
        self._file = open(path, "r+b" if path.exists() else "x+b", buffering=0)  # noqa: SIM115 (closed by `close`)
        if os.fstat(self._file.fileno()).st_size < DATA_OFFSET + written and written:
            self._file.close()
            raise ValueError(f"{path} holds fewer than {written} bytes of data")
        self._file.truncate(DATA_OFFSET + written)
        self._file.seek(0, os.SEEK_END)
        self.written = written

    def write(self, data: bytes | memoryview) -> None:
        """Appends; returns when the operating system has all of it."""
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else memoryview(b"")  # no picture of a batch may be readable
        self.written += len(view)
        while view:
            view = view[self._file.write(view) :]

    def close(self) -> None:
        """Makes sure that the data are on the disk."""
        os.fsync(self._file.fileno())
        self._file.close()


def finish_file(path: Path, name: str, shape: tuple[int, ...]) -> None:
    """Turns a file of `StreamedBytes` into an HDF5 file with one contiguous uint8 data set.

    Raises:
      ValueError: the file does not hold exactly `shape` bytes, or this HDF5 library lays files out differently.
    """
    if path.stat().st_size != DATA_OFFSET + int(np.prod(shape)):
        raise ValueError(f"{path} does not hold the bytes of {shape}")
    empty = path.with_name(f"{path.name}.header")
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_layout(h5py.h5d.CONTIGUOUS)
    settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)  # nothing is written: the file is sparse
    settings.set_obj_track_times(False)  # the same pictures give the same bytes
    try:
        with h5py.File(empty, "w") as file:
            space = h5py.h5s.create_simple(shape)
            dataset = h5py.h5d.create(file.id, name.encode(), h5py.h5t.NATIVE_UINT8, space, settings)
            offset = dataset.get_offset()
        if int(np.prod(shape)) and (offset != DATA_OFFSET or empty.stat().st_size != path.stat().st_size):
            raise ValueError(f"{path}: HDF5 {h5py.version.hdf5_version} begins data at byte {offset}")
        with open(empty, "rb") as file, open(path, "r+b") as data:
            data.write(file.read(DATA_OFFSET))
    finally:
        empty.unlink(missing_ok=True)


# ----------------------------------------------------------------------------------------------------------------------


#: pictures of one piece of work, and of one record of the journal
BATCH = 32
#: side at which a picture is decoded that is only checked: JPEG reads all of its data at any scale
CHECK_SIZE = (16, 16)

Progress = Callable[[int, int], None]


class Outcome(NamedTuple):
    """What became of one candidate: `reason` is empty where it is stored."""

    digest: str = ""  # of the bytes of the file
    stored: int = 0  # bytes
    reason: str = ""
    detail: str = ""
    crc: int = 0  # of what is stored: raw pixels or encoded bytes, see `data/image_checks.py`
    file_crc: int = 0  # of the bytes of the file, see `data/alignment.py`


@dataclass
class Journal:
    """Outcomes on disk, one line for each batch, written after its pixels, with a checksum of these.

    Nothing is synced while a build lasts. After a power failure each part of both files may be there or not, whatever
    was written first; the checksums tell which pixels are.

    Attributes:
      outcomes: of all candidates so far.
      written: bytes of pixels that they account for.
    """

    path: Path
    outcomes: list[Outcome] = field(default_factory=list)
    written: int = 0

    @classmethod
    def load(cls, path: Path, most_bytes: int | None = None, pixels: Path | None = None) -> Journal:
        """What an earlier process left; what follows the first batch that is not whole is cut off.

        Args:
          most_bytes: batches beyond this many bytes of pixels are forgotten, because those are not there.
          pixels: file of `StreamedBytes`; a batch whose pixels are not those that were written ends what is known.
        """
        journal, complete = cls(path), 0
        if not path.exists():
            return journal
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open(path, "rb"))
            data = stack.enter_context(open(pixels, "rb")) if pixels is not None and pixels.exists() else None
            if data is not None:
                data.seek(DATA_OFFSET)
            for end, entry in journal_entries(file):
                batch, checksum = _batch_of(entry)
                stored = sum(outcome.stored for outcome in batch)
                if not batch or (most_bytes is not None and journal.written + stored > most_bytes):
                    break
                found = None if data is None else crc32_of(data, stored)
                if data is not None and (found is None or found != checksum):
                    break
                journal.outcomes += batch
                journal.written += stored
                complete = end
        os.truncate(path, complete)
        return journal

    def add(self, batch: Sequence[Outcome], checksum: int) -> None:
        """Appends the outcomes of one batch, and the CRC-32 of the pixels that were stored of it."""
        entry = {"crc32": checksum, "outcomes": [list(outcome) for outcome in batch]}
        with open(self.path, "ab", buffering=0) as file:
            file.write(json_text(entry, ensure_ascii=False).encode() + b"\n")
        self.outcomes += batch
        self.written += sum(outcome.stored for outcome in batch)


def _batch_of(entry: Any) -> tuple[list[Outcome], int | None]:
    """Outcomes and checksum of an entry of the journal; no outcomes where it is none."""
    try:
        return [Outcome(*each) for each in entry["outcomes"]], entry["crc32"]
    except (KeyError, TypeError):
        return [], None


#: file of a candidate, and what of the picture is used; None: all of it
Candidate = tuple[str, Box | None]


def store_box(image: NDArray[np.uint8], box: Box, options: BuildOptions, out: NDArray[np.uint8] | None) -> bytes:
    """What `store` keeps, of a box of an upright picture. Raises BoxError where it cannot be cut out."""
    try:
        seen, _ = (options.boxes or Cut()).pixels(image, box)
    except BoxError as error:
        raise BoxError(f"box {box.number}: {error}") from None
    if out is None:
        return encode_jpeg(seen, options)
    options.preprocessing.resize(seen, out)
    return b""


def store(data: bytes, options: BuildOptions, out: NDArray[np.uint8] | None) -> bytes:
    """What is kept of a picture: its bytes, or nothing where it goes to `out` or stays where it is.

    Raises:
      ValueError: a picture that cannot be decoded.
    """
    if options.images == "raw":
        assert out is not None
        options.preprocessing.decode(data, out)
        return b""
    if options.images == "jpeg":
        return encode_jpeg(read_image(data, (options.shorter_side, options.shorter_side)), options)
    read_image(data, CHECK_SIZE)
    return data if options.images == "original" else b""


def encode_jpeg(image: NDArray[np.uint8], options: BuildOptions) -> bytes:
    """JPEG of a picture uint8 [h, w, 3] with the shorter side at `options.shorter_side`; smaller ones keep theirs."""
    height, width = image.shape[:2]
    side = options.shorter_side
    scale = side / min(height, width)
    if scale < 1:
        size = (max(side, round(height * scale)), max(side, round(width * scale)))
        image = Preprocessing(size, interpolation=options.interpolation).resize(image)
    return simplejpeg.encode_jpeg(np.ascontiguousarray(image), options.quality, "RGB", "420")


class _Batch:
    """A few candidates and what was read of them."""

    def __init__(self, candidates: Sequence[Candidate], options: BuildOptions) -> None:
        shape = (len(candidates), options.size, options.size, 3)
        self.pixels = np.empty(shape, np.uint8) if options.images == "raw" else None
        self.data: list[bytes] = []
        self.outcomes: list[Outcome] = []
        self.checksum = 0
        whole = lru_cache(maxsize=1)(_opened)  # boxes of a picture follow each other
        for i, (path, box) in enumerate(candidates):
            self.data.append(b"")
            try:
                out = None if self.pixels is None else self.pixels[i]
                if box is None:
                    data = read_file(path)
                    digest, file_crc = hashlib.blake2b(data, digest_size=16).hexdigest(), zlib.crc32(data)
                    self.data[i] = store(data, options, out)
                else:
                    image, digest, file_crc = whole(path)
                    place = repr((digest, box.place, box.scale)).encode()
                    digest = hashlib.blake2b(place, digest_size=16).hexdigest()
                    self.data[i] = store_box(image, box, options, out)
            except (OSError, ValueError, cv2.error) as error:
                text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                self.outcomes.append(Outcome(reason=UNREADABLE_PICTURE, detail=text))
                continue
            if self.pixels is None:
                crc = zlib.crc32(self.data[i])
                self.outcomes.append(Outcome(digest, len(self.data[i]), crc=crc, file_crc=file_crc))
            else:
                crc = checksum(self.pixels[i])
                self.outcomes.append(Outcome(digest, self.pixels[i].nbytes, crc=crc, file_crc=file_crc))

    def write(self, stream: StreamedBytes | None, seen: dict[str, int], first: int) -> list[Outcome]:
        """Marks duplicates, appends what is kept, in order; returns the outcomes. `checksum` is then that of the data.

        Args:
          seen: digest -> first candidate with it; completed.
          first: number of the first candidate.
        """
        kept = np.zeros(len(self.outcomes), bool)
        for i, outcome in enumerate(self.outcomes):
            if outcome.reason:
                continue
            earlier = seen.setdefault(outcome.digest, first + i)
            if earlier == first + i:
                kept[i] = True
            else:
                self.outcomes[i] = Outcome(outcome.digest, 0, DUPLICATE_PICTURE, str(earlier))
        if stream is not None:
            if self.pixels is not None:
                data: bytes | memoryview = (self.pixels if kept.all() else self.pixels[kept]).data
            else:
                data = b"".join(data for data, keep in zip(self.data, kept, strict=True) if keep)
            stream.write(data)
            self.checksum = zlib.crc32(data)
        return self.outcomes


def _opened(path: str) -> tuple[NDArray[np.uint8], str, int]:
    """The pixels of a file, and the digest and CRC-32 of its bytes."""
    data = read_file(path)
    return read_image(data), hashlib.blake2b(data, digest_size=16).hexdigest(), zlib.crc32(data)


def read_pictures(
    paths: Sequence[str],
    options: BuildOptions,
    journal_path: Path,
    pixels_path: Path | None,
    threads: int,
    progress: Progress,
    boxes: Sequence[Box | None] = (),
) -> list[Outcome]:
    """Reads the candidates, stores those that can be used once, and says what became of each.

    A process that is ended at any moment loses at most the batches in flight: pixels are written in order, and counted
    only when the journal names them. A power failure also loses what the disk did not have: what was stored is read
    once, to see which. Memory is bounded by the batches in flight.

    Args:
      paths: files of the candidates.
      journal_path: continued where it exists.
      pixels_path: file of `StreamedBytes`, likewise; None: nothing is stored.
      threads: that decode; 0: one for each core.
      progress: called with (pictures read, pictures).
      boxes: what is used of each; none: whole pictures.
    """
    candidates = list(zip(paths, boxes or [None] * len(paths), strict=True))
    most = None
    if pixels_path is not None:
        most = max(0, pixels_path.stat().st_size - DATA_OFFSET) if pixels_path.exists() else 0
    journal = Journal.load(journal_path, most, pixels_path)
    stream = None if pixels_path is None else StreamedBytes(pixels_path, journal.written)
    seen = {outcome.digest: i for i, outcome in reversed(list(enumerate(journal.outcomes))) if outcome.digest}
    cv2_threads = cv2.getNumThreads()
    cv2.setNumThreads(1)  # the pool is the parallelism
    try:
        progress(len(journal.outcomes), len(candidates))
        starts = range(len(journal.outcomes), len(candidates), BATCH)
        made = in_order(lambda first: _Batch(candidates[first : first + BATCH], options), starts, threads=threads)
        for batch in made:
            journal.add(batch.write(stream, seen, len(journal.outcomes)), batch.checksum)
            progress(len(journal.outcomes), len(candidates))
    finally:
        cv2.setNumThreads(cv2_threads)
        if stream is not None:
            stream.close()
    return journal.outcomes
