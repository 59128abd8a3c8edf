"""How good the answers for whole occurrences are, beside those for their single pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import DEPENDENCE
from linnaeus_jax.inference.paths import Logits
from linnaeus_jax.inference.pooling import MEAN, Pooling, fitted_dependence
from linnaeus_jax.inference.quality.calibration import judge
from linnaeus_jax.metrics.judged import TINY, Judged, joined

#: numbers of the sums that are held
MOST_NUMBERS = 1 << 24


@dataclass(frozen=True, eq=False)
class Together:
    """Occurrences of several pictures.

    Attributes:
      single: their pictures, each by itself.
      judged: what was said of each together -> the occurrences; "evidence" by a dependence that was fitted on others.
      dependence: fitted on all of them; NaN where they are too few.
      groups: how many that are; 0 likewise.
    """

    single: Judged
    judged: dict[str, Judged]
    dependence: float
    groups: int


def agreed(label: NDArray[np.integer], group: NDArray[np.integer], none: int) -> NDArray[np.int32]:
    """int32 [G, T]: what all rows of a group say, `none` where they differ.

    Args:
      label: [N, T].
      group: [N], numbers from 0 to G - 1.
    """
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    low, high = (of.reduceat(label[order], starts, axis=0) for of in (np.minimum, np.maximum))
    return np.where(low == high, low, none).astype(np.int32)


class OccurrenceSums:
    """Sums of the evidence of occurrences of several pictures, at most so many that they fit into memory.

    Args:
      group: int [N], the same number for rows of one occurrence.
      paths: of the taxonomy.
    """

    def __init__(self, group: NDArray[np.integer], paths: int, seed: int = 0) -> None:
        _, code, counts = np.unique(group, return_inverse=True, return_counts=True)
        several = np.flatnonzero(counts > 1)
        if len(several) > (most := max(1, MOST_NUMBERS // (4 * paths))):
            several = np.sort(np.random.default_rng(seed).choice(several, most, replace=False))
        place = np.full(len(counts), -1)
        place[several] = np.arange(len(several))
        self.group, self.counts, self.seed = place[code], counts[several], seed
        self.rows = np.flatnonzero(self.group >= 0)
        self._sums = {how: np.zeros((len(several), 2, paths)) for how in ("evidence", MEAN)}

    def add(self, rows: NDArray[np.integer], answers: Answers, logits: Logits, alone: Logits | None) -> None:
        """Takes the outputs for some rows, of each once; `alone` without metadata."""
        here = np.flatnonzero(self.group[rows] >= 0)
        for block in np.array_split(here, 1 + len(here) * len(answers.paths.classes) // (1 << 20)):
            parts = [{key: z[block] for key, z in each.items()} for each in (logits, alone) if each is not None]
            for how, sums in self._sums.items():
                terms = Pooling(answers, how).terms(*(parts if how != MEAN else parts[:1]))
                np.add.at(sums, self.group[rows[block]], terms)

    def judged(self, label: NDArray[np.integer], single: Judged, answers: Answers) -> Together:
        """Args:
        label: int32 [N, T], classes, null where a label is not known.
        single: all rows.
        """
        labels = agreed(label[self.rows], self.group[self.rows], 0)
        every = np.arange(len(labels))
        halves = np.array_split(np.random.default_rng(self.seed).permutation(every), 2)

        def judged(groups: NDArray[np.integer], how: str, dependence: float) -> Judged:
            pooled = Pooling(answers, how).pooled(self._sums[how][groups], self.counts[groups], dependence)
            return judge(pooled, labels[groups], answers, row=groups)

        def fitted(groups: NDArray[np.integer]) -> tuple[float, int]:
            def loss(dependence: float) -> float:
                one = judged(groups, "evidence", dependence)
                return float(-np.log(np.maximum(one.of_label, TINY)).sum())

            return fitted_dependence(self.counts[groups], loss)

        parts = []
        for own, other in ((halves[0], halves[1]), (halves[1], halves[0])):
            dependence, groups = fitted(other)
            parts.append(judged(own, "evidence", dependence if groups else DEPENDENCE))
        by_others = joined(parts).take(np.argsort(np.concatenate(halves)))
        found = {"evidence": by_others, MEAN: judged(every, MEAN, 1.0)}
        return Together(single.take(self.rows), found, *fitted(every))
