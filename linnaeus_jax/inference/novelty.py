"""Whether a picture shows what the model knows: two questions, each with a score and a threshold.

**Outside**: it is like no training picture. The score is the squared Mahalanobis distance of its features to the
nearest of the means of the taxa (Lee et al. 2018), or where blocks of the trunk were trained, to the mean of all
training rows of what enters these: trained features are the same for much that is far away.

**New below a known taxon**: its taxon has no training picture. The score is the probability that the taxon is known,
a logistic function of the log probability of the best path, each rank by itself, of the logarithm of that distance, and
of the log of the sum of the exponentials of the logits of the finest rank (the negative energy of Liu et al. 2020,
Energy-based Out-of-distribution Detection). What is new belongs below the deepest taxon above the finest rank that is
at least `BELOW` probable by what the coarser ranks say: of a new species the finest rank knows nothing.

Weights and thresholds are fitted on validation rows as they are and with their taxon left out, while a sister stays:
the columns of the taxon, and of the ancestors that it alone has, count for nothing in the logits, and its mean is none
of the means. Thresholds are those of `conformal`, for a stated share of false alarms: of pictures of known taxa that
are called new, and of pictures of left out taxa that are called outside, which are farther away than known ones; before
trained blocks, of all of them. Several pictures of one thing are judged as one whose logits and distance are the means
of theirs. Means vary less, so that false alarms are rarer than stated, and so are finds among new taxa that are hard to
tell from known ones.
Letters of shapes: N rows, C classes of a rank, D features, G groups of the statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.bundle.bundle import COARSER, Calibration
from linnaeus_jax.inference.bundle.fields import NOVELTY_WEIGHTS
from linnaeus_jax.inference.bundle.statistics import FeatureStatistics
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.changed_paths import ChangedPaths
from linnaeus_jax.inference.paths import NONE, Logits, log_softmax

KNOWN, NEW, OUTSIDE = KINDS = ("known", "new_below", "outside")
#: of false alarms, unless asked otherwise; least probability of the taxon that something is new below
SHARE, BELOW = 0.05, 0.5
AUTO, OFF = "auto", "off"
#: in place of features: their squared distances, float64 [N, 2], see `Novelty.distances` and `pooling`
DISTANCE = "distance"
#: of a picture: place in `KINDS`; task, class and probability of the taxon that it is new below, -1 without one; scores
FIELDS = [("kind", "i1"), ("task", "i1"), ("index", "i4"), ("probability", "f8"), ("outside", "f8"), ("known", "f8")]
#: the least probability of a rank, and the least of the energies
TINY, LEAST = 1e-12, -1e4
#: name of what `known` adds, and those of the columns of `Novelty.inputs`
CONSTANT, *INPUTS = NOVELTY_WEIGHTS


@dataclass(frozen=True, eq=False)
class Novelty:
    """The judge of a model, from its calibration and the statistics of its features."""

    paths: ChangedPaths
    calibration: Calibration
    statistics: FeatureStatistics

    @property
    def taxonomy(self) -> Taxonomy:
        return self.paths.now

    @cached_property
    def _coarse(self) -> dict[str, float]:
        """Temperatures of paths by which the finest rank says nothing."""
        known, (finest, *coarser) = self.calibration.ranks, self.taxonomy.tasks
        return {finest: np.inf} | {task: known[task] * (COARSER if k else 1.0) for k, task in enumerate(coarser)}

    def inputs(self, logits: Logits, nearest_N: NDArray[np.floating]) -> NDArray[np.float64]:
        """float64 [N, 3], `INPUTS`: log probability of the best path, log of the distance to the nearest mean, and the
        log of the sum of the exponentials of the calibrated logits of the finest rank."""
        best = self.paths.of_heads(logits, self.calibration.paths).best
        log_p = np.zeros(len(best))
        for place, task in enumerate(self.taxonomy.tasks):
            of_rank = log_softmax(logits[task], self.calibration.ranks[task])
            chosen = of_rank[np.arange(len(best)), best[:, place]]
            log_p += np.where(best[:, place] == NONE, 0.0, np.maximum(chosen, np.log(TINY)))
        finest = self.taxonomy.tasks[0]
        energy = logsumexp(
            logits[finest][:, self.taxonomy.first :] / np.float64(self.calibration.ranks[finest]), axis=1
        )
        return np.stack([log_p, np.log(np.maximum(nearest_N, TINY)), np.maximum(energy, LEAST)], axis=1)

    def known(self, inputs: NDArray[np.float64], weights: Mapping[str, float] | None = None) -> NDArray[np.float64]:
        """float64 [N]: probability that the taxon is known, of `inputs`; weights that are not given are 0."""
        weights = self.calibration.novelty["weights"] if weights is None else weights
        of_inputs = np.array([weights.get(name, 0.0) for name in INPUTS])
        return np.asarray(1 / (1 + np.exp(-(weights[CONSTANT] + inputs @ of_inputs))))

    def __call__(self, logits: Logits, share: float, *, every: bool = False) -> NDArray[np.void]:
        """A record of `FIELDS` for every row.

        Args:
          logits: task -> float32 [N, C], and each layer of the statistics -> float32 [N, D], or `DISTANCE`.
          share: see `thresholds`.
          every: say of every row below which taxon it would be new.
        """
        outside, least = self.thresholds(share)
        nearest, found_outside = self.distances(logits).T
        found = np.zeros(len(nearest), FIELDS)
        found["outside"], found["known"] = found_outside, self.known(self.inputs(logits, nearest))
        found["kind"] = np.where(found["outside"] > outside, 2, np.where(found["known"] < least, 1, 0))
        found["task"] = found["index"] = -1
        rows = np.arange(len(found)) if every else np.flatnonzero(found["kind"] == 1)
        if len(rows):
            of_ranks = {task: logits[task][rows] for task in self.taxonomy.tasks}
            by_task = self.paths(of_ranks, self._coarse).by_task
            for place, task in list(enumerate(self.taxonomy.tasks))[:0:-1]:
                p = by_task[task].copy()
                p[:, : self.taxonomy.first] = 0.0
                best = p.argmax(axis=1) if p.shape[1] else np.zeros(len(p), int)
                sure = np.flatnonzero(p.max(axis=1, initial=0.0) >= BELOW)
                found["task"][rows[sure]], found["index"][rows[sure]] = place, best[sure]
                found["probability"][rows[sure]] = p[sure, best[sure]]
        return found

    def can_judge(self, logits: Logits) -> bool:
        """Whether there are features, or what stands for them."""
        return DISTANCE in logits or all(layer in logits for layer in self.statistics.layers)

    def distances(self, logits: Logits) -> NDArray[np.float64]:
        """Squared distances [N, 2]: to the nearest of the means of the taxa, and that which tells what is outside."""
        if DISTANCE in logits:
            return np.asarray(logits[DISTANCE], np.float64)
        statistics, outside = self.statistics, self.statistics.outside
        nearest = statistics.distances(logits[statistics.layer]).min(axis=1)
        far = nearest if outside is None else outside.distances(logits[outside.layer]).min(axis=1)
        return np.stack([nearest, far], axis=1)

    def thresholds(self, share: float) -> tuple[float, float]:
        """The largest distance that is not outside, and the least probability of what is not new.

        Args:
          share: of pictures of known taxa that are called new, and of new ones near them that are called outside.

        Raises:
          UserError: too few rows were measured for it.
        """
        found, level = self.calibration.novelty, str(round(100 * (1 - share)))
        if not self.possible(share):
            raise UserError(
                f"novelty {share:g} needs more than the {self.calibration.novelty_rows} validation rows that the "
                "thresholds of this model were measured on; ask for a larger share, or train with more validation rows"
            )
        return found["outside"][level], -found["new"][level]

    def possible(self, share: float) -> bool:
        """Whether enough rows were measured for a share."""
        level = str(round(100 * (1 - share)))
        return all(level in self.calibration.novelty[name] for name in ("outside", "new"))


def share_of(novelty: Novelty | None, asked: float | str) -> float | None:
    """The share of false alarms that is asked for, by a number, `AUTO` or `OFF`; None: nothing is said.

    Raises:
      UserError: it cannot be, or the model has no statistics for it.
    """
    if asked == OFF or (asked == AUTO and (novelty is None or not novelty.possible(SHARE))):
        return None
    try:
        share = SHARE if asked == AUTO else float(asked)
    except ValueError:
        share = float("nan")
    if not (0.005 < share <= 0.5 and abs(100 * share - round(100 * share)) < 1e-6):
        raise UserError(f"novelty is {asked}; give auto, off, or a share from 0.01 to 0.5 in steps of 0.01")
    if novelty is None:
        raise UserError(
            f"novelty {share:g} needs statistics of training rows and validation rows, and this model has none: make "
            "its bundle anew from its run with linnaeus bundle, without --without-data and --no-novelty"
        )
    novelty.thresholds(share)
    return share


def novelty_text(row: Mapping[str, Any]) -> str:
    """What people read beside an answer, `Prediction.to_json`; "" of known taxa, and where it is not asked for."""
    kind, taxon = row.get("novelty", ""), row.get("novelty_taxon")
    if kind == OUTSIDE:
        return "outside: like no training picture"
    below = f" below {taxon['rank']} {taxon['name'] or taxon['taxon_id']}" if taxon else ", below no probable taxon"
    return f"new{below}" if kind == NEW else ""
