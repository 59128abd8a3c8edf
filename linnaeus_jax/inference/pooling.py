"""Several pictures of one thing, one answer: what each says is its evidence, which is added up.

A picture with the posterior p is evidence for a path of log(STRAY + (1 - STRAY) p(path) / prior(path)): a few pictures
show another thing or mislead, and none may rule out what the others say. The evidence of n pictures is

    log P(path) = log prior(path) + w * (sum of their evidence) + constant,    w = 1 / (1 + (n - 1) * dependence)

If they were independent (0), it would add up, as Bayes' rule has it; where all say the same (1), it is averaged. n * w
is how many independent pictures n of a common correlation are worth (the design effect of Kish 1965, Survey Sampling);
however many come, it stays below 1 / dependence. One picture has its own posterior. The prior counts once. So do place,
date and elevation, which all pictures of one occurrence share: what they add to the evidence of the pixels is averaged.
The other way is the arithmetic mean of the probabilities. Views of one picture are pooled by the mean of log p.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.answers import AnswerOptions, Answers
from linnaeus_jax.inference.novelty import DISTANCE
from linnaeus_jax.inference.paths import EVIDENCE, Logits, log_softmax
from linnaeus_jax.inference.pictures import VIEWS
from linnaeus_jax.inference.prior import PRIOR
from linnaeus_jax.reading.metadata import Encoded

MEAN = "mean"
HOW = (EVIDENCE, MEAN)
#: share of the pictures that show something else; about the best of those tried in benchmarks/occurrences.py
STRAY = 0.05
#: occurrences of several pictures from which on a dependence is fitted
LEAST_GROUPS = 30
#: probability whose logarithm is taken, at least
LEAST = np.finfo(np.float64).tiny


@dataclass(frozen=True, eq=False)
class Pooling:
    """How the pictures of a group are answered together.

    Attributes:
      answers: of the model.
      how: "evidence", or "mean" of the probabilities.
      views: of each picture, see `pictures.VIEWS`.
    """

    answers: Answers
    how: str = EVIDENCE
    views: int = 1

    def __post_init__(self) -> None:
        """Raises UserError for what cannot be."""
        if self.how not in HOW:
            raise UserError(f"pool is {self.how!r}; choose one of {', '.join(HOW)}")
        if not 1 <= self.views <= len(VIEWS):
            raise UserError(f"views is {self.views}; give a number from 1 to {len(VIEWS)}")

    def check(self, options: AnswerOptions) -> None:
        """Raises UserError for options whose promise is of single pictures."""
        if options.consistency != "path":
            raise UserError("several pictures or views are answered together by the best path; leave out 'documented'")
        if options.coverage is not None:
            raise UserError(
                "coverage was measured for single pictures; leave it out, or answer each picture by itself, in one view"
            )

    def needs_alone(self, known: Encoded) -> bool:
        """Whether `terms` takes the logits without metadata, too, since some are known."""
        return self.how == EVIDENCE and bool(known.valid.any())

    def terms(self, *logits: Logits) -> NDArray[np.float64]:
        """What is summed of each picture, float64 [N, 2, P]: evidence of the pixels, and what metadata add to it; for
        the mean the probabilities, and nothing. NaN where logits are not finite. Where novelty can be judged, more
        columns hold by what: the logits of all ranks, and the distances of the features.

        Args:
          logits: of each view, then where metadata are known of each view without them.
        """
        paths, temperature = self.answers.paths, self.answers.calibration.paths
        views = [logits[view :: self.views] for view in range(self.views)]
        with np.errstate(invalid="ignore", over="ignore"):
            more = np.mean([self._judged_by(of[0]) for of in views], axis=0)
            said = [[log_softmax(paths.scores(each, temperature)) for each in of] for of in views]
            if self.how == MEAN:
                mean = np.mean([np.exp(of[0]) for of in said], axis=0)
                return _beside(mean, np.zeros_like(mean), more)
            means = (log_softmax(np.mean([of[at] for of in said], axis=0)) for at in (0, -1))  # the last: of the pixels
            every, own = (np.logaddexp(np.log(STRAY), np.log1p(-STRAY) + p - self._log_prior) for p in means)
            return _beside(own, every - own, more)

    def _judged_by(self, logits: Logits) -> NDArray[np.float64]:
        """float64 [N, K], what `Novelty` takes; [N, 0] where it cannot judge."""
        novelty = self.answers.novelty
        if novelty is None or not novelty.can_judge(logits):
            return np.zeros((len(next(iter(logits.values()))), 0))
        outputs = [*(logits[task] for task in self._classes), novelty.distances(logits)]
        return np.concatenate(outputs, axis=1, dtype=np.float64)

    @property
    def _classes(self) -> dict[str, int]:
        """Task -> classes of its head."""
        return self.answers.paths.tree.num_classes

    @property
    def _log_prior(self) -> NDArray[np.float64]:
        return log_softmax(self.answers.paths.log_prior[None])[0]

    def alone(self, terms: NDArray[np.float64], logits: Logits) -> Logits:
        """What pictures of these terms say by themselves, as `Answers` takes it; `logits` of their first views."""
        if self.views == 1:
            return logits
        pooled = self.pooled(terms, np.ones(len(terms), int))
        return {**pooled, **{key: z for key, z in logits.items() if key == PRIOR}}

    def pooled(
        self, sums: NDArray[np.float64], counts: NDArray[np.integer], dependence: float | None = None
    ) -> dict[str, NDArray[np.float64]]:
        """Sums [G, 2, P] of the terms of `counts` [G] pictures, as `Answers` takes them in place of logits; perhaps
        with the means of what novelty is judged by.

        Args:
          dependence: of the pictures of a group; None: as calibrated.
        """
        count = np.asarray(counts, np.float64)[:, None]
        sums, more = np.split(sums, [len(self._log_prior)], axis=2)
        means = dict[str, NDArray[np.float64]]()
        if more.shape[2]:
            each = np.split(more.sum(axis=1) / count, np.cumsum([*self._classes.values()]), axis=1)
            means = dict(zip((*self._classes, DISTANCE), each, strict=True))
        if self.how == MEAN:
            return {EVIDENCE: np.log(np.maximum(sums[:, 0] / count, LEAST)) - self._log_prior, **means}
        dependence = self.answers.calibration.dependence if dependence is None else dependence
        evidence = sums[:, 0] / (1 + (count - 1) * dependence) + sums[:, 1] / count
        one = np.flatnonzero(count == 1)
        evidence[one] = np.log(np.maximum((np.exp(evidence[one]) - STRAY) / (1 - STRAY), LEAST))
        return {EVIDENCE: evidence, **means}


def _beside(first: NDArray[np.float64], second: NDArray[np.float64], more: NDArray[np.float64]) -> NDArray[np.float64]:
    """[N, 2, P + K] of two [N, P], with [N, K] beside the first and zeros beside the second."""
    return np.stack([np.hstack([first, more]), np.hstack([second, np.zeros_like(more)])], axis=1)


class Sums:
    """Running sums of groups, whose pictures may come in any order.

    Args:
      groups: the group of every picture that will come.
    """

    def __init__(self, groups: Iterable[Hashable]) -> None:
        self._left = Counter(groups)
        self._sums: dict[Hashable, tuple[int, NDArray[np.float64]]] = {}

    def add(self, groups: Iterable[Hashable], terms: NDArray[np.float64]) -> list[Hashable]:
        """Takes terms [N, 2, P] of pictures, and the group of each. Terms that are not finite do not count.

        Returns:
          The groups of which all have come, and at least one counts.
        """
        whole = []
        for group, term in zip(groups, terms, strict=True):
            self._left[group] -= 1
            if np.isfinite(term).all():
                count, total = self._sums.get(group, (0, 0.0))
                self._sums[group] = count + 1, total + term
            if not self._left[group] and group in self._sums:
                whole.append(group)
        return whole

    def take(self, groups: Sequence[Hashable]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Sums [G, 2, P] and counts [G] of at least one group, which are then forgotten."""
        found = [self._sums.pop(group) for group in groups]
        return np.stack([total for _, total in found]), np.array([count for count, _ in found])


def united(groups: Iterable[Hashable], texts: Iterable[Iterable[str]]) -> dict[Hashable, tuple[str, ...]]:
    """Group -> what is said of any of its pictures, once."""
    found: dict[Hashable, dict[str, None]] = {}
    for group, said in zip(groups, texts, strict=True):
        found.setdefault(group, {}).update(dict.fromkeys(said))
    return {group: tuple(said) for group, said in found.items()}


def fitted_dependence(counts: NDArray[np.integer], loss: Callable[[float], float]) -> tuple[float, int]:
    """The dependence from 0 to 1 with the least loss, and of how many groups of several pictures; (NaN, 0) of few.

    Args:
      counts: pictures of each group, [G].
      loss: of a dependence, over these groups.
    """
    several = int((counts > 1).sum())
    if several < LEAST_GROUPS:
        return float("nan"), 0
    found = minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-3})
    return round(float(found.x), 4), several
