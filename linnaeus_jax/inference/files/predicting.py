"""Many pictures through a model: read and decoded by threads ahead of the device, answered behind it, in order."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.decoding import read_image
from linnaeus_jax.inference import reasons
from linnaeus_jax.inference.answers import Answered, AnswerOptions, Answers
from linnaeus_jax.inference.files.picture_list import PictureFile, stamp_of
from linnaeus_jax.inference.forward import Forward, usual_buckets
from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.paths import NOT_FINITE, Logits, finite_rows, some
from linnaeus_jax.inference.pictures import read_views
from linnaeus_jax.inference.pooling import Pooling
from linnaeus_jax.inference.results import Prediction
from linnaeus_jax.inference.running import Pixels, run_rows
from linnaeus_jax.reading.box_cuts import Box, Cut
from linnaeus_jax.reading.exif import observation_of
from linnaeus_jax.reading.metadata import Encoded, Observation
from linnaeus_jax.reading.paths import read_file

#: where metadata come from
TABLE, EXIF = "table", "exif"
_NOTHING = Observation()
T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """A picture and what is known of it; without an observation its EXIF data are looked at, where that is wanted.

    Attributes:
      stored: reads the pixels uint8 [H, W, 3], where the picture is a row of a data set.
      taxa: names of its taxa, where they are known.
      box: what of the picture is seen; None: all of it.
      cut: how the box is cut out.
      group: what the table says that pictures of one occurrence, or of one camera, share; None: nothing.
    """

    picture: PictureFile
    observation: Observation | None = None
    stored: Callable[[], Pixels] | None = None
    taxa: tuple[str, ...] = ()
    box: Box | None = None
    cut: Cut = field(default_factory=Cut)
    group: str | None = None


@dataclass(frozen=True, eq=False)
class Part(Generic[T]):
    """What came of some pictures that follow each other.

    Attributes:
      pictures: names of all of them.
      reasons: of all of them, why they have no answer: they cannot be read, or `NOT_FINITE`; "" where they have one.
      answered: of those that have one; None where there are none. Of predictions it is `Answered`.
      inputs, notes: of these, see `Prediction`.
      metadata_from: of these, "table", "exif", or "" where nothing was known.
      stamps: of all pictures, `stamp_of` from before they were read.
      boxes: of those that have an answer, what of the picture was seen; None: all of it.
      observations: what is known of these.
      occurrences: of those that have an answer, the occurrence and how many of its pictures were answered together.
    """

    pictures: Sequence[str]
    reasons: Sequence[str]
    answered: T | None = None
    inputs: Sequence[tuple[str, ...]] = ()
    notes: Sequence[tuple[str, ...]] = ()
    metadata_from: Sequence[str] = ()
    stamps: Sequence[str] = ()
    boxes: Sequence[Box | None] = ()
    observations: Sequence[Observation] = ()
    occurrences: Sequence[tuple[str, int]] = ()

    @property
    def not_finite(self) -> int:
        """Pictures that were read, but for which the outputs of the model are not finite."""
        return sum(reason == NOT_FINITE for reason in self.reasons)

    @property
    def names(self) -> list[str]:
        """Of the pictures that have an answer."""
        return [name for name, reason in zip(self.pictures, self.reasons) if not reason]

    def predictions(self: Part[Answered], answers: Answers, options: AnswerOptions) -> list[Prediction]:
        """Of the pictures that have an answer."""
        if self.answered is None:
            return []
        return answers.predictions(self.answered, options, self.inputs, self.notes)

    def rows(self: Part[Answered], answers: Answers, options: AnswerOptions) -> Iterator[dict[str, Any]]:
        """Of all pictures, as JSON types: `Prediction.to_json` with `file`, `metadata_from` and perhaps the number of a
        `box` or `occurrence` and `pictures`, or `no_answer` and the code of its `reason`, "" of what cannot be read."""
        more: list[dict[str, Any]] = [
            {"box": box.number} if box else {} for box in self.boxes or [None] * len(self.names)
        ]
        for one, (occurrence, count) in zip(more, self.occurrences):
            one |= {"occurrence": occurrence, "pictures": count}
        predictions = zip(self.predictions(answers, options), self.metadata_from, more)
        for name, reason in zip(self.pictures, self.reasons):
            if reason:
                code = reasons.NOT_FINITE if reason == NOT_FINITE else ""
                yield {"file": name, "no_answer": reason, "reason": code}
            else:
                prediction, source, known = next(predictions)
                yield {"file": name, **known, "metadata_from": source, **prediction.to_json()}


@dataclass(frozen=True, eq=False)
class _Read:
    """A picture as it was read, or why there are no pixels."""

    job: Job
    observation: Observation = _NOTHING
    notes: tuple[str, ...] = ()
    reason: str = ""
    stamp: str = ""


def batch_for(pictures: int, size: tuple[int, int], batch: int = 0) -> int:
    """Rows that are computed at once for some pictures, so that one program is compiled whatever their number.

    Args:
      size: height and width of the model's images.
      batch: what is asked for; 0: the smallest of the usual sizes that holds them all, at most the largest.
    """
    buckets = usual_buckets(size)
    return batch or next((rows for rows in buckets if rows >= pictures), buckets[-1])


def predict_files(
    model: Model, jobs: Sequence[Job], options: AnswerOptions, *, pooling: Pooling | None = None, **how: Any
) -> Generator[Part[Answered], None, None]:
    """Answers for all pictures, see `over_files`; `pooling` of their views."""

    def answer(*logits: Logits) -> Answered:
        own = logits[0] if pooling is None else pooling.alone(pooling.terms(*logits), logits[0])
        return model.answers.answered(own, options)

    return over_files(model, model.forward_for(options), jobs, answer, pooling=pooling, **how)


def over_files(
    model: Model,
    forward: Forward,
    jobs: Sequence[Job],
    answer: Callable[..., T],
    *,
    exif: bool = False,
    known: bool = False,
    threads: int = 0,
    pooling: Pooling | None = None,
) -> Generator[Part[T], None, None]:
    """What is made of all pictures, in order, about a batch at a time; no picture ends it.

    Args:
      forward: of the model.
      answer: what is made of finite outputs of `forward`, with `pooling` of all that `Pooling.terms` takes.
      exif: use the EXIF data of pictures without an observation.
      known: do so though the model knows no metadata, for others who ask.
      threads: that read and decode; 0: one per core.
    """
    exif = exif and (
        known or model.answers.prior is not None or any(each.inputs for each in model.bundle.encoder.components)
    )

    @functools.lru_cache(maxsize=2)  # boxes of a picture follow each other
    def whole(path: str) -> tuple[Pixels, tuple[Observation, tuple[str, ...]]]:
        data = read_file(path)
        return read_image(data), observation_of(data) if exif else (_NOTHING, ())

    def read(job: Job) -> tuple[_Read, Pixels | None]:
        stamp = stamp_of(job.picture)  # first: a change while it is read is then seen, too
        said, pixels = _read(model, job, exif, whole, pooling.views if pooling else 1)
        return replace(said, stamp=stamp), pixels

    def encode(said: list[_Read]) -> list[Encoded]:
        encoded = model.bundle.encoder.encode([each.observation for each in said])
        noted = replace(encoded, notes=[(*each.notes, *more) for each, more in zip(said, encoded.notes)])
        return [noted, noted.without()] if pooling and pooling.needs_alone(noted) else [noted]

    def finish(said: list[_Read], given: Sequence[Encoded], logits: list[Logits]) -> Part[T]:
        names, reasons = [each.job.picture.name for each in said], [each.reason for each in said]
        stamps = [each.stamp for each in said]
        finite = np.logical_and.reduce([finite_rows(each) for each in logits]) if logits else np.zeros(0, bool)
        for place, good in zip([place for place, reason in enumerate(reasons) if not reason], finite.tolist()):
            reasons[place] = "" if good else NOT_FINITE
        if not finite.any():
            return Part(names, reasons, stamps=stamps)
        known = given[0].take(np.flatnonzero(finite).tolist())
        inputs = model.inputs(known)
        seen = [each.job for each, reason in zip(said, reasons) if not reason]
        sources = [(EXIF if job.observation is None else TABLE) if used else "" for job, used in zip(seen, inputs)]
        own: list[Logits] = [some(each, finite) for each in logits]
        own[0] = model.answers.located(own[0], known.observations)
        answered = answer(*own)
        boxes = [job.box for job in seen]
        return Part(names, reasons, answered, inputs, known.notes, sources, stamps, boxes, known.observations)

    return run_rows(forward, jobs, read, encode, finish, threads=threads)


#: path -> the whole picture upright, and what its EXIF data say
_Whole = Callable[[str], tuple[Pixels, tuple[Observation, tuple[str, ...]]]]


def _read(model: Model, job: Job, exif: bool, whole: _Whole, views: int) -> tuple[_Read, Pixels | None]:
    about = f"box {job.box.number}: " if job.box is not None else ""
    if job.picture.fault:
        return _Read(job, reason=about + job.picture.fault), None
    notes: tuple[str, ...] = ()
    try:
        if job.stored is not None:
            return _Read(job, job.observation or _NOTHING), job.stored()
        if job.box is not None:
            picture, said = whole(os.fspath(job.picture.path))
            seen, notes = job.cut.pixels(picture, job.box)
            pixels = read_views(seen, model.bundle.preprocessing, views)
        else:
            data = read_file(os.fspath(job.picture.path))
            pixels = read_views(data, model.bundle.preprocessing, views)
            said = observation_of(data) if exif and job.observation is None else (_NOTHING, ())
    except (OSError, ValueError, UserError) as error:  # PictureError is a ValueError
        reason = getattr(error, "strerror", "") or str(error) or type(error).__name__
        return _Read(job, reason=about + reason), None
    except Exception as error:  # whatever a decoder makes of a damaged file, it costs this picture alone
        return _Read(job, reason=f"{about}{type(error).__name__}: {error}"), None
    if job.observation is not None or not exif:
        return _Read(job, job.observation or _NOTHING, notes), pixels
    return _Read(job, said[0], (*notes, *said[1])), pixels
