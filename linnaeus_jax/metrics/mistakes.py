"""Which classes a model takes for which, and its most confident mistakes; exact over any split into batches."""

from __future__ import annotations

from typing import Any

import numpy as np

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
                {"label": label, "predicted": predicted, "rows": int(self._counts[k])}
                for k, (label, predicted) in zip(order, self._pairs[order].tolist(), strict=True)
            ],
            "confident": [
                {"row": row, "label": label, "predicted": predicted, "probability": -score}
                for score, row, label, predicted in self._rows.tolist()
            ],
        }
