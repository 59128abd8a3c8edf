"""Which pictures to label next: those of which the model is least sure, not much alike, rare taxa first.

Of all pictures twice as many as are wanted are kept, those with the least margin between the two likeliest classes of
the finest rank (uncertainty sampling). Of these the half goes whose feature vectors are most like one of which the
model is less sure. Those whose likely classes have the fewest training rows stand first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.inference.answers import AnswerOptions
from linnaeus_jax.inference.files.predicting import Job, Part, over_files
from linnaeus_jax.inference.forward import TRUNK
from linnaeus_jax.inference.model import Model, unit
from linnaeus_jax.inference.paths import Logits

#: pictures that are kept for each that is wanted; of which so many are compared at once
KEPT, BLOCK = 2, 1024


class Unsure(NamedTuple):
    """Of pictures: how unsure the model is of them, 0 to 1; how rare their likely classes are; their vectors."""

    uncertainty: NDArray[np.float64]
    rarity: NDArray[np.float64]
    vector: NDArray[np.float32]


@dataclass(order=True)
class _Kept:
    uncertainty: float
    place: int  # less than 0, so that of equal ones the first stays
    rarity: float
    vector: NDArray[np.float32]


def unsure(probability: NDArray[np.floating], rows: NDArray[np.floating], vector: NDArray[np.floating]) -> Unsure:
    """What is kept of pictures.

    Args:
      probability: [N, C] of the finest rank, of known classes alone.
      rows: [C], for training.
      vector: [N, D].
    """
    first, second = -np.partition(-np.pad(probability, [(0, 0), (0, 1)]), 1, axis=1)[:, :2].T  # of one class 0
    return Unsure(1 - (first - second), probability @ (1 / np.sqrt(rows + 1.0)), unit(vector.astype(np.float32)))


def chosen(found: Unsure, count: int) -> NDArray[np.int64]:
    """Which of the pictures to label, int64 [count], rare taxa first.

    Args:
      found: of `KEPT * count` pictures or fewer.
    """
    order = np.argsort(-found.uncertainty, kind="stable")
    vector = found.vector[order]
    alike = np.full(len(order), -np.inf)  # cosine to the most similar picture of which the model is less sure
    for start in range(1, len(order), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(order)))
        cosine = vector[rows] @ vector[: rows[-1]].T
        alike[rows] = np.where(np.arange(rows[-1]) < rows[:, None], cosine, -np.inf).max(axis=1)
    picked = order[np.argsort(alike, kind="stable")[:count]]
    return picked[np.lexsort((-found.uncertainty[picked], -found.rarity[picked]))].astype(np.int64)


def to_label(
    model: Model,
    jobs: Sequence[Job],
    options: AnswerOptions,
    count: int,
    *,
    exif: bool = False,
    threads: int = 0,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[Job]:
    """The pictures to label next, at most `count`, the first one first. Those that cannot be read are none of them."""
    task, first = model.answers.taxonomy.tasks[0], model.answers.taxonomy.first
    counts = model.answers.path_counts
    rows = np.asarray(counts.get(task, np.zeros(len(model.answers.taxonomy.classes[task]))), np.float64)[first:]

    def seen(found: Logits) -> Unsure:
        logits = {name: of for name, of in found.items() if name != TRUNK}
        probability = model.answers.probabilities(logits, options)[1][task][:, first:]
        return unsure(probability, rows, found[TRUNK])

    kept: list[_Kept] = []
    done = 0
    forward = model.giving(TRUNK, logits=True)
    for part in over_files(model, forward, jobs, seen, exif=exif, threads=threads):
        for place, one in _of(part, done):
            entry = _Kept(float(one.uncertainty), -place, float(one.rarity), one.vector)
            if len(kept) < KEPT * count:
                heapq.heappush(kept, entry)
            else:
                heapq.heappushpop(kept, entry)
        done += len(part.pictures)
        progress(done, len(jobs))
    kept.sort(key=lambda one: -one.place)
    if not kept:
        return []
    columns = [np.array([getattr(one, name) for one in kept]) for name in ("uncertainty", "rarity", "vector")]
    return [jobs[-kept[place].place] for place in chosen(Unsure(*columns), count).tolist()]


def _of(part: Part[Unsure], first: int) -> Iterator[tuple[int, Unsure]]:
    """Number and what is kept of each picture that has an answer."""
    if part.answered is not None:
        places = [first + number for number, reason in enumerate(part.reasons) if not reason]
        yield from ((place, Unsure(*row)) for place, row in zip(places, zip(*part.answered, strict=True), strict=True))
