"""Many pictures through a model: read and decoded by threads ahead of the device, answered behind it, in order."""

from __future__ import annotations

import itertools
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.pixels import read_file
from linnaeus_jax.data.parallel import cores, in_order
from linnaeus_jax.inference.answers import Answered, AnswerOptions, Answers
from linnaeus_jax.inference.exif import observation_of
from linnaeus_jax.inference.forward import BUCKETS, Pending
from linnaeus_jax.inference.metadata import Encoded, Observation
from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.picture_list import PictureFile, stamp_of
from linnaeus_jax.inference.pictures import read_picture
from linnaeus_jax.inference.results import Prediction
from linnaeus_jax.step.placement import RUN_AHEAD

#: where metadata come from
TABLE, EXIF = "table", "exif"
_NOTHING = Observation()
#: pictures that a thread reads before it hands them over
_TOGETHER = 4


@dataclass(frozen=True)
class Job:
    """A picture and what is known of it; without an observation its EXIF data are looked at, where that is wanted."""

    picture: PictureFile
    observation: Observation | None = None


@dataclass(frozen=True, eq=False)
class Part:
    """What came of some pictures that follow each other.

    Attributes:
      pictures: names of all of them.
      reasons: of all of them, why they cannot be read; "" where they can.
      answered: of those that can be read; None where there are none.
      inputs, notes: of these, see `Prediction`.
      metadata_from: of these, "table", "exif", or "" where nothing was known.
      stamps: of all pictures, `stamp_of` from before they were read.
    """

    pictures: Sequence[str]
    reasons: Sequence[str]
    answered: Answered | None = None
    inputs: Sequence[tuple[str, ...]] = ()
    notes: Sequence[tuple[str, ...]] = ()
    metadata_from: Sequence[str] = ()
    stamps: Sequence[str] = ()

    @property
    def read(self) -> list[str]:
        """Names of the pictures that can be read."""
        return [name for name, reason in zip(self.pictures, self.reasons) if not reason]

    def predictions(self, answers: Answers, options: AnswerOptions) -> list[Prediction]:
        """Of the pictures that can be read."""
        if self.answered is None:
            return []
        return answers.predictions(self.answered, options, self.inputs, self.notes)

    def rows(self, answers: Answers, options: AnswerOptions) -> Iterator[dict[str, Any]]:
        """Of all pictures, as JSON types: `Prediction.to_json` with `file` and `metadata_from`, or `unreadable`."""
        predictions = zip(self.predictions(answers, options), self.metadata_from)
        for name, reason in zip(self.pictures, self.reasons):
            if reason:
                yield {"file": name, "unreadable": reason}
            else:
                prediction, source = next(predictions)
                yield {"file": name, "metadata_from": source, **prediction.to_json()}


@dataclass(frozen=True, eq=False)
class _Read:
    """A picture as it was read: pixels uint8 [H, W, 3], or why there are none."""

    job: Job
    pixels: NDArray[np.uint8] | None
    observation: Observation = _NOTHING
    notes: tuple[str, ...] = ()
    reason: str = ""
    stamp: str = ""


@dataclass(frozen=True, eq=False)
class _Batch:
    """Pictures in order, read or not, and the logits of those that were."""

    pictures: list[str]
    reasons: list[str]
    sources: list[str]
    stamps: list[str]
    encoded: Encoded | None = None
    pending: Pending | None = None


def batch_for(pictures: int, batch: int = 0) -> int:
    """Rows that are computed at once for some pictures, so that one program is compiled whatever their number.

    Args:
      batch: what is asked for; 0: the smallest of the usual sizes that holds them all, at most the largest.
    """
    return batch or next((rows for rows in BUCKETS if rows >= pictures), BUCKETS[-1])


def predict_files(
    model: Model, jobs: Sequence[Job], options: AnswerOptions, *, exif: bool = False, threads: int = 0
) -> Generator[Part, None, None]:
    """Answers for all pictures, in order, about a batch at a time; no picture ends it.

    Memory is bounded by a few batches of pixels and of logits.

    Args:
      exif: use the EXIF data of pictures without an observation.
      threads: that read and decode; 0: one per core.
    """
    wanted = exif and any(component.inputs for component in model.bundle.encoder.components)

    def answer(batch: _Batch) -> Part:
        return _answer(model, batch, options)

    yield from in_order(answer, _dispatched(model, jobs, wanted, threads), threads=1, ahead=RUN_AHEAD + 1)


def _dispatched(model: Model, jobs: Sequence[Job], exif: bool, threads: int) -> Iterator[_Batch]:
    """Batches whose logits are being computed."""
    most, threads = model.forward.buckets[-1], threads or cores()
    reads: list[_Read] = []
    count = 0
    # at least a batch is read while the device computes
    few = (jobs[start : start + _TOGETHER] for start in range(0, len(jobs), _TOGETHER))
    read = in_order(
        lambda some: [_read(model, job, exif) for job in some],
        few,
        threads=threads,
        ahead=-(-most // _TOGETHER) + 2 * threads,
    )
    for each in itertools.chain.from_iterable(read):
        reads.append(each)
        count += each.pixels is not None
        if count == most or len(reads) >= 8 * most:  # a folder of unreadable files is reported as it goes
            yield _dispatch(model, reads)
            reads, count = [], 0
    if reads:
        yield _dispatch(model, reads)


def _read(model: Model, job: Job, exif: bool) -> _Read:
    """One picture, in a thread."""
    stamp = stamp_of(job.picture)  # first: a change while it is read is then seen, too
    return replace(_read_unstamped(model, job, exif), stamp=stamp)


def _read_unstamped(model: Model, job: Job, exif: bool) -> _Read:
    if job.picture.fault:
        return _Read(job, None, reason=job.picture.fault)
    try:
        data = read_file(os.fspath(job.picture.path))
        pixels = read_picture(data, model.bundle.preprocessing)
    except OSError as error:
        return _Read(job, None, reason=error.strerror or str(error) or type(error).__name__)
    except ValueError as error:  # PictureError is one, too
        return _Read(job, None, reason=str(error))
    except Exception as error:  # whatever a decoder makes of a damaged file, it costs this picture alone
        return _Read(job, None, reason=f"{type(error).__name__}: {error}")
    if job.observation is not None or not exif:
        return _Read(job, pixels, job.observation or _NOTHING)
    observation, notes = observation_of(data)
    return _Read(job, pixels, observation, notes)


def _dispatch(model: Model, reads: list[_Read]) -> _Batch:
    pictures, reasons = [read.job.picture.name for read in reads], [read.reason for read in reads]
    stamps = [read.stamp for read in reads]
    readable = [read for read in reads if read.pixels is not None]
    sources = [EXIF if read.job.observation is None else TABLE for read in readable]
    if not readable:
        return _Batch(pictures, reasons, sources, stamps)
    encoded = model.bundle.encoder.encode([read.observation for read in readable])
    notes = [(*read.notes, *said) for read, said in zip(readable, encoded.notes)]
    pixels = np.stack([read.pixels for read in readable if read.pixels is not None])
    pending = model.forward.dispatch(pixels, encoded.meta, encoded.valid)
    return _Batch(pictures, reasons, sources, stamps, Encoded(encoded.meta, encoded.valid, notes), pending)


def _answer(model: Model, batch: _Batch, options: AnswerOptions) -> Part:
    """Waits for the logits of a batch and answers, in a thread."""
    if batch.pending is None or batch.encoded is None:
        return Part(batch.pictures, batch.reasons, stamps=batch.stamps)
    inputs = model.inputs(batch.encoded)
    sources = [source if used else "" for source, used in zip(batch.sources, inputs)]
    answered = model.answers.answered(batch.pending.result(), options)
    return Part(batch.pictures, batch.reasons, answered, inputs, batch.encoded.notes, sources, batch.stamps)
