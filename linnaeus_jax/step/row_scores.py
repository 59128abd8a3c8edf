"""What a validation says of single rows: scores for AURC, the worst mistakes, predictions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from linnaeus_jax.files import json_text, read_json, write_atomically
from linnaeus_jax.metrics.judged import Judged, Mistakes
from linnaeus_jax.metrics.phases import MAIN
from linnaeus_jax.step.placement import fetch

#: fields of each row that are read from the device in every phase, and in `val` besides
SCORE_FIELDS, MISTAKE_FIELDS = ("score",), ("row", "label", "predicted")
#: fields of rows that may be held on the device before they are read, in numbers of 4 bytes
HELD_NUMBERS = 1 << 24


class RowScores:
    """Scores of every row for AURC and the worst mistakes; held on the device up to `HELD_NUMBERS`."""

    def __init__(self, phases: tuple[str, ...], tasks: tuple[str, ...]) -> None:
        self.held: dict[str, list[dict[str, jax.Array]]] = {name: [] for name in phases}
        self._scores = {name: [np.empty((0, len(tasks)), np.float32)] for name in phases}
        self._mistakes = {task: Mistakes() for task in tasks} if MAIN.name in phases else {}
        self._count = 0

    def add(self, batch: Mapping[str, Mapping[str, jax.Array]]) -> None:
        """Takes the fields `SCORE_FIELDS` and `MISTAKE_FIELDS` of a batch, by phase."""
        for name, fields in batch.items():
            kept = {field: fields[field] for field in SCORE_FIELDS + (MISTAKE_FIELDS if name == MAIN.name else ())}
            self.held[name].append(kept)
            self._count += sum(value.size for value in kept.values())
        if self._count >= HELD_NUMBERS:
            self._keep(fetch(self.held))
            self.held, self._count = {name: [] for name in self.held}, 0

    def result(self, rest: Mapping[str, list[dict[str, np.ndarray]]]) -> dict[str, np.ndarray]:
        """Phase -> float32 [n, T], signed confidences with those of `rest`, what was held last."""
        self._keep(rest)
        return {name: np.concatenate(parts) for name, parts in self._scores.items()}

    def mistakes(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """Task -> wrong predictions of `val`."""
        return {task: mistakes.result() for task, mistakes in self._mistakes.items()}

    def _keep(self, parts: Mapping[str, list[dict[str, np.ndarray]]]) -> None:
        for name, batches in parts.items():
            self._scores[name] += [fields["score"] for fields in batches]
        if of_main := parts.get(MAIN.name):
            main = {field: np.concatenate([fields[field] for fields in of_main]) for field in of_main[0]}
            for t, one in enumerate(self._mistakes.values()):
                one.add(main["row"], main["label"][:, t], main["predicted"][:, t], main["score"][:, t])


def update_curves(path: Path, curves: Mapping[str, Any]) -> None:
    """Replaces the curves of the given phases in a JSON file {phase: ...}; those of other phases stay."""
    stored = read_json(path) if path.exists() else {}
    write_atomically(path, json_text(stored | dict(curves), separators=(",", ":")) + "\n")


def judged_rows(parts: list[dict[str, Any]], null_possible: bool) -> Judged:
    """All batches' rows of weight 1, one after the other."""
    real = [part.pop("weight") > 0 for part in parts]
    joined = jax.tree.map(lambda *pieces: np.concatenate([x[k] for x, k in zip(pieces, real, strict=True)]), *parts)
    if (vectors := joined.pop("vectors", None)) is not None:
        joined["logits"] = {**joined["logits"], **vectors}
    known = (joined["label"] != 0) | (not null_possible)
    return Judged(known=known, of_label=np.full(known.shape, np.nan), **joined)
