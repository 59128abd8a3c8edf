"""Files that are answered together: which pictures are of one occurrence or one sequence, and their answers."""

from __future__ import annotations

import bisect
import hashlib
import itertools
import math
import os
from collections import Counter
from collections.abc import Generator, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.answers import Answered, AnswerOptions
from linnaeus_jax.inference.files import predicting
from linnaeus_jax.inference.files.predicting import Job, Part, over_files
from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.paths import Logits
from linnaeus_jax.inference.pooling import Pooling, Sums, united
from linnaeus_jax.reading.dates import instant
from linnaeus_jax.reading.exif import exif_of

#: batches after which, at the next end of an occurrence, what was done is kept
BATCHES = 16


@dataclass(frozen=True)
class Occurrences:
    """Pictures in an order in which those of one occurrence follow each other.

    Attributes:
      jobs: of all pictures, or of their boxes.
      names: of the occurrence of each; one that is alone has the name of its picture.
      ends: places behind the last of each occurrence, ascending.
      line: what is said of them.
    """

    jobs: list[Job]
    names: list[str]
    ends: list[int]
    line: str = ""

    @property
    def digest(self) -> str:
        """Which pictures belong together."""
        text = repr((self.names, self.ends)).encode("utf-8", "surrogateescape")
        return hashlib.sha256(text).hexdigest()[:16]


def occurrences_of(jobs: Sequence[Job], column: str | None, gap: float | None, *, exif: bool) -> Occurrences | None:
    """`by_column` or `by_time`, as is asked for; None where neither is."""
    if column is not None:
        return by_column(jobs, column)
    return None if gap is None else by_time(jobs, gap, exif=exif)


def by_column(jobs: Sequence[Job], column: str) -> Occurrences:
    """Pictures with the same `Job.group`, which the table has in a column. Raises UserError where none has one."""
    alone = len({job.picture.name for job in jobs if job.group is None})
    if all(job.group is None for job in jobs):
        raise UserError(f"--together {column}: the column is empty for all pictures; name another one")
    keys = [(job.picture.name if job.group is None else job.group, job.group is None) for job in jobs]
    found = _ordered(jobs, keys, [name for name, _ in keys])
    return replace(found, line=_said(found, "occurrences", alone, f"without {column}"))


def by_time(jobs: Sequence[Job], gap: float, *, exif: bool) -> Occurrences:
    """Sequences: pictures of one camera, in the order in which they are given, of which none is more than `gap` seconds
    after the one before it. Where a clock goes back, a new one begins.

    The camera is `Job.group`, or where no picture has one the folder. The time is that of the observation, or else of
    the EXIF data.

    Raises:
      UserError: a gap that cannot be, or no picture has a time.
    """
    if not (math.isfinite(gap) and gap >= 0):
        raise UserError(f"--sequence-gap is {gap:g}; give seconds, such as 60")
    pictures = [list(boxes) for _, boxes in itertools.groupby(jobs, key=lambda job: job.picture.name)]
    with ThreadPoolExecutor() as pool:
        times = list(pool.map(lambda boxes: _time(boxes[0], exif), pictures))
    if asked := any(job.group is not None for job in jobs):  # the table names cameras
        times = [None if boxes[0].group is None else time for boxes, time in zip(pictures, times)]
    last: dict[str, tuple[datetime, str]] = {}
    keys: list[tuple[str, str]] = []
    back = 0
    for boxes, time in zip(pictures, times):
        name = boxes[0].picture.name
        camera = boxes[0].group or os.path.dirname(os.path.abspath(boxes[0].picture.path))
        if time is None:
            camera = ""
        else:
            before, began = last.get(camera, (time, name))
            back += time < before
            name = began if 0 <= (time - before).total_seconds() <= gap else name
            last[camera] = time, name
        keys += [(camera, name)] * len(boxes)
    if not last:
        raise UserError("--sequence-gap: no picture has a time, in the table or its EXIF data; use --together COLUMN")
    found = _ordered(jobs, keys, [name for _, name in keys])
    line = _said(found, "sequences", times.count(None), "without a time" + " or camera" * asked)
    return replace(found, line=line + f"; clocks go back {back:,} times, where a new one begins" * bool(back))


def _time(job: Job, exif: bool) -> datetime | None:
    known = None if job.observation is None else job.observation.date
    if known is None and exif:
        _, _, date, clock, _ = exif_of(job.picture.path)
        known = f"{date}T{clock}" if date and clock else None
    return None if known is None else instant(known)


def _ordered(jobs: Sequence[Job], keys: Sequence[Hashable], names: Sequence[str]) -> Occurrences:
    """By the first picture of each."""
    place: dict[Hashable, int] = {}
    numbers = [place.setdefault(key, len(place)) for key in keys]
    order = np.argsort(numbers, kind="stable").tolist()
    ends = np.cumsum(np.bincount(numbers, minlength=len(place))).tolist()
    return Occurrences([jobs[at] for at in order], [names[at] for at in order], ends)


def _said(found: Occurrences, what: str, alone: int, why: str) -> str:
    largest = max(np.diff(found.ends, prepend=0).tolist())
    text = f"{len(found.jobs):,} pictures or boxes of {len(found.ends):,} {what}, at most {largest:,} of one"
    return text + f"; {alone:,} pictures {why} are answered by themselves" * bool(alone)


def each_part(
    model: Model,
    jobs: Sequence[Job],
    options: AnswerOptions,
    pooling: Pooling | None,
    found: Occurrences | None,
    first: int,
    **how: Any,
) -> Iterator[tuple[Part[Answered], Part[Answered] | None, list[int] | None]]:
    """As `answered_together`; without occurrences parts of pictures alone. Without pooling, one view of each."""
    if found is not None and pooling is not None:
        yield from answered_together(model, found, options, pooling, first, **how)
        return
    for part in predicting.predict_files(model, jobs[first:], options, pooling=pooling, **how):
        yield part, None, None


def answered_together(
    model: Model,
    found: Occurrences,
    options: AnswerOptions,
    pooling: Pooling,
    first: int,
    **how: Any,
) -> Generator[tuple[Part[Answered], Part[Answered], list[int]], None, None]:
    """Answers for each picture, and for the occurrences that end with them, with the places of their first pictures
    that have an answer.

    Args:
      first: where to begin, the first picture of an occurrence.
    """
    least = max(1, BATCHES * model.forward.buckets[-1])

    def answer(*logits: Logits) -> tuple[Answered, NDArray[np.float64]]:
        terms = pooling.terms(*logits)
        return model.answers.answered(pooling.alone(terms, logits[0]), options), terms

    while first < len(found.jobs):
        begin = bisect.bisect_right(found.ends, first)
        ends = found.ends[begin : bisect.bisect_left(found.ends, first + least) + 1]
        number = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=first)).tolist()
        sums, parts, done, jobs = Sums(number), list[Part[Any]](), 0, found.jobs[first : ends[-1]]
        for part in over_files(model, model.forward_for(options), jobs, answer, pooling=pooling, **how):
            parts.append(part)
            if part.answered is not None:
                good = [done + place for place, reason in enumerate(part.reasons) if not reason]
                own, terms = part.answered
                sums.add([number[place] for place in good], terms)
                parts[-1] = replace(parts[-1], answered=own)
            done += len(part.pictures)
        pictures = _joined(parts)
        good = [place for place, reason in enumerate(pictures.reasons) if not reason]
        of = [number[place] for place in good]
        counts = Counter(of)
        named = [(found.names[first + place], counts[each]) for place, each in zip(good, of)]
        pictures = replace(pictures, occurrences=named)
        starts = [place for place, each in enumerate(of) if not place or of[place - 1] != each]
        answered = None
        if good:  # where and when the first picture of each was taken
            observed = [pictures.observations[place] for place in starts]
            pooled = model.answers.located(pooling.pooled(*sums.take(list(counts))), observed)
            answered = model.answers.answered(pooled, options)
        yield pictures, _whole(pictures, of, starts, answered), [first + good[place] for place in starts]
        first = ends[-1]


def _whole(
    pictures: Part[Answered], of: Sequence[int], starts: Sequence[int], answered: Answered | None
) -> Part[Answered]:
    """The occurrences of pictures that have an answer: `of` which each is, and where each occurrence starts."""
    inputs, notes, names = united(of, pictures.inputs), united(of, pictures.notes), pictures.names
    return Part(
        [names[place] for place in starts],
        [""] * len(starts),
        answered,
        [inputs[of[place]] for place in starts],
        [notes[of[place]] for place in starts],
        [pictures.metadata_from[place] for place in starts],
        observations=[pictures.observations[place] for place in starts],
        boxes=[None] * len(starts),
        occurrences=[pictures.occurrences[place] for place in starts],
    )


def _joined(parts: Sequence[Part[Answered]]) -> Part[Answered]:
    """All of them, one after the other."""
    lists = {
        each.name: list(itertools.chain.from_iterable(getattr(part, each.name) for part in parts))
        for each in fields(Part)
        if each.name != "answered"
    }
    answered = [vars(part.answered) for part in parts if part.answered is not None]
    whole = Answered(**jax.tree.map(lambda *pieces: np.concatenate(pieces), *answered)) if answered else None
    return Part(**lists, answered=whole)
