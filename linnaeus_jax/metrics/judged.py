"""Judged rows: what was said of rows whose labels are known, in one table, and how good that is.

The validation of a run gives it, and so do answers beside labels (`inference.quality.calibration.judge`). The card of a
bundle, its evaluation on other data, and tables and pages of mistakes are made from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.metrics.extras import CALIBRATION_BINS, ranked, risk_coverage

# ---- Which classes a model takes for which, and its most confident mistakes; exact over any split into batches


#: pairs of classes and single rows that are kept of each task
PAIRS, ROWS = 20, 6


class Mistakes:
    """The wrong predictions of one task over a phase. Memory grows with the number of different wrong pairs alone."""

    def __init__(self) -> None:
        self._pairs = np.empty((0, 2), np.int32)
        self._counts = np.empty(0, np.int64)
        #: (score, row, label, predicted) of the most confident wrong rows, most confident first
        self._rows = np.empty(0, [("score", "f4"), ("row", "i4"), ("label", "i4"), ("predicted", "i4")])

    def add(self, row: np.ndarray, label: np.ndarray, predicted: np.ndarray, score: np.ndarray) -> None:
        """Takes some rows, each once in a phase.

        Args:
          row, label, predicted: int [n]; `row` of the labels file, the others classes.
          score: float32 [n], see `extras.signed_confidence`.
        """
        wrong = np.signbit(score) & ~np.isnan(score)
        mistakes = np.empty(int(wrong.sum()), self._rows.dtype)
        for name, values in (("score", score), ("row", row), ("label", label), ("predicted", predicted)):
            mistakes[name] = values[wrong]
        merged = np.concatenate([self._rows, mistakes])
        # ties of confidence, such as 1.0, are broken by the row, so that batches and processes do not matter
        self._rows = merged[np.lexsort((merged["row"], merged["score"]))[:ROWS]]
        pairs = np.concatenate([self._pairs, np.stack([mistakes["label"], mistakes["predicted"]], axis=1)])
        counts = np.concatenate([self._counts, np.ones(len(mistakes), np.int64)])
        self._pairs, place = np.unique(pairs, axis=0, return_inverse=True)
        self._counts = np.bincount(place.reshape(-1), counts, len(self._pairs)).astype(np.int64)

    def result(self) -> dict[str, list[dict[str, Any]]]:
        """`pairs`: label, predicted and rows, most frequent first; `confident`: row, label, predicted, probability."""
        order = np.argsort(-self._counts, kind="stable")[:PAIRS]
        return {
            "pairs": [
                {"label": label, "predicted": predicted, "rows": rows}
                for rows, (label, predicted) in zip(
                    self._counts[order].tolist(), self._pairs[order].tolist(), strict=True
                )
            ],
            "confident": [
                {"row": row, "label": label, "predicted": predicted, "probability": -score}
                for score, row, label, predicted in self._rows.tolist()
            ],
        }


# ----------------------------------------------------------------------------------------------------------------------


#: the least probability of a label that counts, so that none costs infinitely much
TINY = 1e-12
#: confidences of the tables of what is answered at which
THRESHOLDS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
#: classes are told apart by their training rows, from each of these on
COUNTS = (0, 5, 10, 20, 50, 100)
#: a line of reliability joins bins of so many rows; smaller ones are dots alone
LEAST_ROWS = 10


@dataclass(frozen=True, eq=False)
class Judged:
    """N rows; arrays are [N, T], finest rank first, where nothing else is said.

    Attributes:
      row: int [N], rows of the labels file.
      label: int32, class indices.
      known: bool, the label is a taxon.
      predicted: int32, the class that was answered, null or -1 where none was.
      probability: float32 or float64, of that class; 0 where none was answered.
      of_label: float64, probability of the label, 1 where it is not known; NaN where it was not measured.
      logits: task -> float32 [N, C]; empty unless asked for.
    """

    row: NDArray[np.integer]
    label: NDArray[np.int32]
    known: NDArray[np.bool_]
    predicted: NDArray[np.int32]
    probability: NDArray[np.floating]
    of_label: NDArray[np.float64]
    logits: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def right(self) -> NDArray[np.bool_]:
        """bool [N, T]: the label is known and was answered."""
        return self.known & (self.predicted == self.label)

    @property
    def score(self) -> NDArray[np.floating]:
        """[N, T], as of `extras.signed_confidence`."""
        return np.where(self.known, np.where(self.right, self.probability, -self.probability), 2.0)

    def take(self, rows: NDArray[Any]) -> Judged:
        """Some of the rows."""
        return Judged(*jax.tree.map(lambda values: values[rows], [*vars(self).values()]))

    def deepest(self, threshold: float, first: int) -> NDArray[np.int64]:
        """int [N]: the finest rank where a taxon is answered with at least this probability; T: at none.

        Args:
          first: index of the first class that is a taxon, `Taxonomy.first`.
        """
        sure = (self.predicted >= first) & (self.probability >= threshold)
        return np.where(sure.any(axis=1), sure.argmax(axis=1), sure.shape[1])

    def mistakes(self, place: int, first: int) -> dict[str, list[dict[str, Any]]]:
        """Wrong pairs and the most confident mistakes of a rank, as of `metrics.mistakes`; null is no mistake here."""
        found, taxon = Mistakes(), self.predicted[:, place] >= first
        score = np.where(taxon, self.score[:, place], 2.0).astype(np.float32)
        found.add(self.row, self.label[:, place], self.predicted[:, place], score)
        return found.result()


def joined(parts: Sequence[Judged]) -> Judged:
    """All rows, one part after the other."""
    tables = [[*vars(part).values()] for part in parts]
    return Judged(*jax.tree.map(lambda *pieces: np.concatenate(pieces), *tables))


def accuracy(judged: Judged) -> NDArray[np.float64]:
    """Share of the labelled rows that are answered rightly, [T]; NaN at a rank without labels."""
    return _share(judged.right.sum(axis=0), judged.known.sum(axis=0))


def macro_accuracy(judged: Judged) -> NDArray[np.float64]:
    """Accuracy of each class, averaged over the classes that have labelled rows, [T]; NaN at a rank without labels."""
    means = []
    for known, label, right in zip(judged.known.T, judged.label.T, judged.right.T, strict=True):
        rows = np.bincount(label[known])
        of_class = np.bincount(label[known], right[known], len(rows))
        means.append((of_class[rows > 0] / rows[rows > 0]).mean() if len(rows) else np.nan)
    return np.array(means)


def accuracy_by_rows(judged: Judged, rows: Sequence[int]) -> list[tuple[int, int | None, int, float]]:
    """Accuracy at the finest rank by how many training rows the class of the label has.

    Args:
      rows: training rows of each class.

    Returns:
      Of every group that has labelled rows: least training rows, most (None: no limit), labelled rows, accuracy.
    """
    known = judged.known[:, 0]
    count, right = np.asarray(rows)[judged.label[known, 0]], judged.right[known, 0]
    return [(low, most, int(rows.sum()), float(right[rows].mean())) for low, most, rows in count_groups(count)]


def count_groups(count: NDArray[np.integer]) -> Iterator[tuple[int, int | None, NDArray[np.bool_]]]:
    """Groups of rows by the training rows [N] of their class: least, most (None: no limit), and which rows, bool [N];
    groups without rows are left out, and rows with a negative number are in none."""
    for least, above in zip(COUNTS, (*COUNTS[1:], None)):
        inside = (count >= least) & (count < (np.inf if above is None else above))
        if inside.any():
            yield least, None if above is None else above - 1, inside


def nll(judged: Judged) -> NDArray[np.float64]:
    """Mean of -log of the label's probability, in nats, over the labelled rows, [T]; NaN at a rank without labels."""
    cost = -np.log(np.maximum(judged.of_label, TINY))
    return _share(np.where(judged.known, cost, 0.0).sum(axis=0), judged.known.sum(axis=0))


def reliability(judged: Judged, place: int) -> NDArray[np.float64]:
    """Mean confidence, accuracy and rows [bins, 3] of the bins (low, high] of confidence at a rank that hold rows."""
    known = judged.known[:, place]
    confidence, right = judged.probability[known, place], judged.right[known, place]
    level = np.clip(np.ceil(confidence * CALIBRATION_BINS).astype(int) - 1, 0, CALIBRATION_BINS - 1)
    count, of_right, of_confidence = (
        np.bincount(level, weights, CALIBRATION_BINS) for weights in (None, right, confidence)
    )
    held = count > 0
    return np.stack([of_confidence[held] / count[held], of_right[held] / count[held], count[held]], axis=1)


def ece(judged: Judged) -> NDArray[np.float64]:
    """Expected calibration error over the labelled rows, in the bins of `metrics.extras`, [T]; NaN without labels."""
    errors = []
    for place in range(judged.label.shape[1]):
        confidence, right, rows = reliability(judged, place).T
        errors.append(float(rows @ np.abs(confidence - right)) / rows.sum() if len(rows) else np.nan)
    return np.array(errors)


#: name in tables and files -> [T] of a table
MEASURES: dict[str, Callable[[Judged], NDArray[np.float64]]] = {
    "accuracy": accuracy,
    "macro_accuracy": macro_accuracy,
    "nll": nll,
    "ece": ece,
}


def coverage_and_risk(judged: Judged, place: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Share of the labelled rows of a rank that is answered, and errors among them, the most confident rows first."""
    return risk_coverage(*ranked(judged.score[:, place]))


def hierarchical_risk_coverage(
    judged: Judged, below: Sequence[NDArray[np.integer]], first: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coverage and risk of answers at the deepest rank above a threshold, for every threshold, the highest first.

    An answer covers 1 - log n / log N, where n of the N classes of the finest rank lie below it: a species 1, the root,
    which holds every label, 0. Both are means over the rows that are labelled at every rank, but for ranks at which no
    row is, which give no answers; the first point is (0, 0), where the root answers all rows. The area below is the
    hAURC of Goren et al. 2024, Hierarchical Selective Classification (arXiv 2405.11533, rule "climbing").

    Args:
      below: of each rank int [C], how many classes of the finest rank lie below each class; at least two of the finest.
      first: as of `Judged.deepest`.
    """
    ranks = np.flatnonzero(judged.known.any(axis=0))
    one = judged.take(np.asarray(judged.known[:, ranks].all(axis=1)))
    rows, every = max(len(one.label), 1), np.log(len(below[0]) - first)
    covers, wrong = (np.zeros((len(one.label), len(ranks) + 1)) for _ in range(2))  # the last is the root
    for column, place in enumerate(ranks.tolist()):
        covers[:, column] = 1 - np.log(np.maximum(below[place][one.predicted[:, place]], 1)) / every
        wrong[:, column] = ~one.right[:, place]
    # a rank answers from its own threshold down to that of a finer one
    sure = np.where(one.predicted >= first, one.probability, -1.0)[:, ranks]
    threshold = np.maximum.accumulate(sure, axis=1).ravel()
    order = np.argsort(-threshold)
    falling = threshold[order]
    last = np.flatnonzero((np.diff(falling, append=-np.inf) < 0) & (falling >= 0))
    steps = (-np.diff(values, axis=1).ravel()[order].cumsum()[last] / rows for values in (covers, wrong))
    coverage, risk = (np.concatenate([[0.0], values]) for values in steps)
    return coverage, risk


def haurc(judged: Judged, below: Sequence[NDArray[np.integer]], first: int) -> float:
    """Area under `hierarchical_risk_coverage`; NaN where no row has a label at all of its ranks, the finest among them,
    or with one class."""
    ranks: NDArray[np.bool_] = np.atleast_1d(judged.known.any(axis=0))
    if len(below[0]) - first < 2 or not ranks[0] or not judged.known[:, ranks].all(axis=1).any():
        return float("nan")
    coverage, risk = hierarchical_risk_coverage(judged, below, first)
    return float(np.trapezoid(risk, coverage))


@dataclass(frozen=True)
class RollUp:
    """Answers at one `min_confidence`.

    Attributes:
      threshold: the least probability of an answer.
      shares: of all rows, those answered at each rank, finest first.
      unanswered: share of the rows without an answer.
      error: share of errors among the answers that can be judged; NaN without any.
    """

    threshold: float
    shares: tuple[float, ...]
    unanswered: float
    error: float

    def to_json(self, ranks: Sequence[str]) -> dict[str, Any]:
        """As JSON types under the names of the ranks, which are given finest first and then stand coarsest first."""
        answered = dict(zip(ranks[::-1], self.shares[::-1], strict=True))
        error = number(self.error)
        return {"min_confidence": self.threshold, "answered": answered, "unanswered": self.unanswered, "error": error}


def roll_up_rows(found: Iterable[Mapping[str, Any]], share: Callable[[float | None], Any]) -> list[list[Any]]:
    """A table of what `RollUp.to_json` gave; `share` says a share."""
    return [
        [f"{each['min_confidence']:g}", *map(share, (*each["answered"].values(), each["unanswered"], each["error"]))]
        for each in found
    ]


def roll_up(judged: Judged, thresholds: Iterable[float], first: int) -> list[RollUp]:
    """What answering at the deepest rank above a threshold gives, for every threshold.

    An answer below the finest label is judged where the label is: as right if its ancestor there is. One without a
    label at its rank or above is not judged.

    Args:
      first: as of `Judged.deepest`.
    """
    found, ranks = [], judged.label.shape[1]
    for threshold in thresholds:
        deepest = judged.deepest(threshold, first)
        judgeable = judged.known & (np.arange(ranks) >= deepest[:, None])
        at = judgeable.argmax(axis=1)
        can = judgeable.any(axis=1)
        wrong = can & ~judged.right[np.arange(len(at)), at]
        shares = np.bincount(deepest, minlength=ranks + 1) / max(len(deepest), 1)
        error = float(wrong.sum() / can.sum()) if can.any() else float("nan")
        found.append(RollUp(float(threshold), tuple(shares[:-1].tolist()), float(shares[-1]), error))
    return found


def number(value: float) -> float | None:
    """As JSON has it: None where there is none."""
    return None if math.isnan(value) else float(value)


def _share(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
