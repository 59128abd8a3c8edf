"""How often the sets of a model hold the truth, and how large they are, on rows with known labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.inference import sets
from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.paths import Logits, some
from linnaeus_jax.inference.quality.calibration import chunks
from linnaeus_jax.metrics.judged import count_groups, number

#: levels of coverage that cards and evaluations show, in per cent
COVERAGE = (80, 90, 95)


@dataclass(frozen=True, eq=False)
class MeasuredSets:
    """Sets of N rows at K levels of coverage.

    Attributes:
      levels: in per cent; those of `COVERAGE` that the calibration has.
      trained: int64 [N], training rows of the label; -1: they, or the label, are not known, or the label is no leaf.
      known: bool [N], the label is a leaf, see `inference.sets`.
      held: bool [N, K], the set holds it.
      size: int64 [N, K], leaves; taxa: int64 [N, K], as they are written.
    """

    levels: tuple[int, ...]
    trained: NDArray[np.int64]
    known: NDArray[np.bool_]
    held: NDArray[np.bool_]
    size: NDArray[np.int64]
    taxa: NDArray[np.int64]

    @classmethod
    def of(cls, logits: Logits, labels: NDArray[np.integer], answers: Answers) -> MeasuredSets:
        """Of logits, task -> float32 [N, C], beside labels int [N, T]."""
        known, leaves = answers.calibration, answers.leaves
        levels = tuple(level for level in COVERAGE if str(level) in known.sets)
        label = leaves.of(labels)
        held = np.zeros((len(label), len(levels)), bool)
        size, taxa = (np.zeros(held.shape, np.int64) for _ in range(2))
        for rows in chunks(len(label), len(leaves.below)) if levels else ():
            _, by_task = answers.probabilities(some(logits, np.arange(len(label))[rows]), answers.options())
            shares = leaves.shares(by_task)
            for place, level in enumerate(levels):
                inside = sets.inside(shares, answers.least_shares(known.sets[str(level)]))
                held[rows, place] = inside[np.arange(len(inside)), label[rows]] & (label[rows] >= 0)
                size[rows, place] = inside.sum(axis=1)
                taxa[rows, place] = [len(each) for each in leaves.written(inside, by_task)]
        trained = (
            np.full(len(label), -1) if answers.trained is None else np.where(label >= 0, answers.trained[label], -1)
        )
        return cls(levels, trained, label >= 0, held, size, taxa)

    @classmethod
    def joined(cls, parts: Sequence[MeasuredSets]) -> MeasuredSets:
        """All rows, one part after the other."""
        columns = ([vars(part)[name] for part in parts] for name in ("trained", "known", "held", "size", "taxa"))
        return cls(parts[0].levels, *map(np.concatenate, columns))

    def numbers(self) -> list[dict[str, Any]]:
        """As JSON types, for every level; shares are of the rows whose label is a leaf, None where there are none."""
        found = []
        for place, level in enumerate(self.levels):
            held, size = self.held[self.known, place], self.size[:, place]
            groups = [
                {"from": least, "to": most, "rows": int(rows.sum()), **_said(self.held[rows, place], size[rows])}
                for least, most, rows in count_groups(self.trained)
            ]
            found.append(
                {
                    "coverage": level / 100,
                    **_said(held, size),
                    "mean_taxa": number(_mean(self.taxa[:, place])),
                    "single": number(_mean(size == 1)),
                    "by_training_rows": groups,
                }
            )
        return found


def span(group: Mapping[str, Any]) -> str:
    """The training rows of a group of `MeasuredSets.numbers`, for people."""
    return f"{group['from']:,} or more" if group["to"] is None else f"{group['from']} to {group['to']}"


def set_scores(logits: Logits, labels: NDArray[np.integer], answers: Answers) -> NDArray[np.float64]:
    """float64 [N], see `sets.scores`; NaN where the label is no leaf."""
    label = answers.leaves.of(labels)
    found = np.full(len(label), np.nan)
    for rows in chunks(len(label), len(answers.leaves.below)):
        _, by_task = answers.probabilities(some(logits, np.arange(len(label))[rows]), answers.options())
        found[rows] = np.where(label[rows] >= 0, sets.scores(answers.leaves.shares(by_task), label[rows]), np.nan)
    return found


def _said(held: NDArray[np.bool_], size: NDArray[np.int64]) -> Mapping[str, float | None]:
    return {"held": number(_mean(held)), "mean_size": number(_mean(size))}


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else float("nan")
