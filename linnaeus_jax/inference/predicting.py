"""Many pictures through a model: read and decoded by threads ahead of the device, answered behind it, in order."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.parallel import cores, in_order
from linnaeus_jax.inference.answers import AnswerOptions
from linnaeus_jax.inference.exif import observation_of
from linnaeus_jax.inference.forward import BUCKETS, Pending
from linnaeus_jax.inference.metadata import Encoded, Observation
from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.picture_list import PictureFile
from linnaeus_jax.inference.pictures import PictureError
from linnaeus_jax.inference.results import Prediction
from linnaeus_jax.step.placement import RUN_AHEAD

#: where metadata come from
TABLE, EXIF = "table", "exif"
_NOTHING = Observation()


@dataclass(frozen=True)
class Job:
    """A picture and what is known of it; without an observation its EXIF data are looked at, where that is wanted."""

    picture: PictureFile
    observation: Observation | None = None


@dataclass(frozen=True)
class Result:
    """What came of one picture.

    Attributes:
      name: of the picture.
      prediction: None where it cannot be read.
      reason: why it cannot be read.
      metadata_from: "table", "exif", or "" where nothing was known.
    """

    name: str
    prediction: Prediction | None
    reason: str = ""
    metadata_from: str = ""


@dataclass(frozen=True, eq=False)
class _Read:
    """A picture as it was read: pixels uint8 [H, W, 3], or why there are none."""

    job: Job
    pixels: NDArray[np.uint8] | None
    observation: Observation = _NOTHING
    notes: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, eq=False)
class _Batch:
    """Pictures in order, read or not, and the logits of those that were."""

    reads: list[_Read]
    encoded: Encoded | None
    pending: Pending | None


def batch_for(pictures: int, batch: int = 0) -> int:
    """Rows that are computed at once for some pictures, so that one program is compiled whatever their number.

    Args:
      batch: what is asked for; 0: the smallest of the usual sizes that holds them all, at most the largest.
    """
    return batch or next((rows for rows in BUCKETS if rows >= pictures), BUCKETS[-1])


def predict_files(
    model: Model, jobs: Sequence[Job], options: AnswerOptions, *, exif: bool = False, threads: int = 0
) -> Generator[list[Result], None, None]:
    """Results of all pictures, in order, in lists of about a batch; no picture ends it.

    Memory is bounded by a few batches of pixels and of logits.

    Args:
      exif: use the EXIF data of pictures without an observation.
      threads: that read and decode; 0: one per core.
    """
    wanted = exif and any(component.inputs for component in model.bundle.encoder.components)

    def answer(batch: _Batch) -> list[Result]:
        return _results(model, batch, options)

    yield from in_order(answer, _dispatched(model, jobs, wanted, threads), threads=2, ahead=RUN_AHEAD + 1)


def _dispatched(model: Model, jobs: Sequence[Job], exif: bool, threads: int) -> Iterator[_Batch]:
    """Batches whose logits are being computed."""
    most, threads = model.forward.buckets[-1], threads or cores()
    reads: list[_Read] = []
    count = 0
    # at least a batch is read while the device computes
    for read in in_order(lambda job: _read(model, job, exif), jobs, threads=threads, ahead=most + 2 * threads):
        reads.append(read)
        count += read.pixels is not None
        if count == most or len(reads) >= 8 * most:  # a folder of unreadable files is reported as it goes
            yield _dispatch(model, reads)
            reads, count = [], 0
    if reads:
        yield _dispatch(model, reads)


def _read(model: Model, job: Job, exif: bool) -> _Read:
    """One picture, in a thread."""
    if job.picture.fault:
        return _Read(job, None, reason=job.picture.fault)
    try:
        data = job.picture.path.read_bytes()
        pixels = model.bundle.preprocessing.read(data)
    except OSError as error:
        return _Read(job, None, reason=error.strerror or str(error) or type(error).__name__)
    except PictureError as error:
        return _Read(job, None, reason=str(error))
    if job.observation is not None or not exif:
        return _Read(job, pixels, job.observation or _NOTHING)
    observation, notes = observation_of(data)
    return _Read(job, pixels, observation, notes)


def _dispatch(model: Model, reads: list[_Read]) -> _Batch:
    readable = [read for read in reads if read.pixels is not None]
    if not readable:
        return _Batch(reads, None, None)
    encoded = model.bundle.encoder.encode([read.observation for read in readable])
    notes = [(*read.notes, *said) for read, said in zip(readable, encoded.notes)]
    pixels = np.stack([read.pixels for read in readable if read.pixels is not None])
    return _Batch(
        [_Read(read.job, None, read.observation, reason=read.reason) for read in reads],  # pixels may go now
        Encoded(encoded.meta, encoded.valid, notes),
        model.forward.dispatch(pixels, encoded.meta, encoded.valid),
    )


def _results(model: Model, batch: _Batch, options: AnswerOptions) -> list[Result]:
    """Waits for the logits of a batch and answers, in a thread."""
    predictions: Iterator[Prediction] = iter(())
    if batch.pending is not None and batch.encoded is not None:
        inputs = model.inputs(batch.encoded)
        predictions = iter(model.answers(batch.pending.result(), options, inputs, batch.encoded.notes))
    results = []
    for read in batch.reads:
        name = read.job.picture.name
        if read.reason:
            results.append(Result(name, None, read.reason))
            continue
        prediction = next(predictions)
        source = TABLE if read.job.observation is not None else EXIF
        results.append(Result(name, prediction, "", source if prediction.inputs else ""))
    return results
