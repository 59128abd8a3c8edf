"""Answers that hold the truth as often as asked for: split conformal prediction over the nodes of the taxonomy.

The answer to a picture is a taxon of its most probable path, or nothing, which stands for all taxa. A least
probability of the answer makes these sets nested: the higher it is, the coarser the answer. The score of a row with a
known label is the probability of the coarsest taxon of its path that is wrong, 0 where none is: from just above it on,
the answer holds the truth. Of n scores, the one in place ceil((n + 1) level) is the threshold; where new pictures are
exchangeable with the rows, the answer above it holds the truth with a probability of at least `level` (Vovk et al.
2005; with the nodes of a hierarchy as the sets: Mortier et al. 2025, arXiv 2501.19038).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.metrics.judged import Judged

#: levels that a bundle has thresholds of, in per cent
LEVELS = tuple(range(50, 100))

Threshold = TypeVar("Threshold")


def scores(judged: Judged, first: int) -> NDArray[np.float64]:
    """float64 [n] of the rows that are labelled at the finest rank, from answers by paths.

    Args:
      first: index of the first class that is a taxon, `Taxonomy.first`; null is no answer.
    """
    wrong = ~judged.right & (judged.predicted >= first)
    rows = judged.known[:, 0]
    return np.where(wrong, judged.probability, 0.0).max(axis=1)[rows].astype(np.float64)


def thresholds(score: NDArray[np.float64]) -> dict[str, float]:
    """Per cent of coverage, as text -> threshold, for every level that so many rows allow."""
    ordered, found = np.sort(score), {}
    for level in LEVELS:
        place = -(-(len(score) + 1) * level // 100)  # whole numbers: 0.9 * 10 would be above 9
        if place <= len(score):
            found[str(level)] = float(ordered[place - 1])
    return found


def held(score: NDArray[np.float64], level: int, seed: int = 0) -> float:
    """Share of the rows whose answer holds the truth by the threshold of the half of the rows without them.

    Args:
      level: in per cent.

    Returns:
      NaN where a half has too few rows for it.
    """
    rows = held_rows(score, level, seed)
    return float("nan") if rows is None else float(rows.mean())


def held_rows(score: NDArray[np.float64], level: int, seed: int = 0) -> NDArray[np.bool_] | None:
    """bool [n], what `held` is the share of; None where a half has too few rows."""
    halves = np.array_split(np.random.default_rng(seed).permutation(len(score)), 2)
    right = np.zeros(len(score), bool)
    for own, other in (halves, halves[::-1]):
        found = thresholds(score[other])
        if str(level) not in found:
            return None
        right[own] = score[own] <= found[str(level)]
    return right


def least_confidence(found: Mapping[str, float], rows: int, level: float) -> float:
    """`min_confidence` whose answers hold the truth in a share `level` of pictures like those that were measured; see
    `threshold`."""
    return float(np.nextafter(threshold(found, rows, level), 2.0))


def threshold(found: Mapping[str, Threshold], rows: int, level: float, what: str = "coverage") -> Threshold:
    """The one for a share `level`.

    Args:
      found: of `thresholds`.
      what: is asked for, in messages.
      rows: that they were measured on.

    Raises:
      UserError: another level than those of `LEVELS`, no measurement, or too few rows for it.
    """
    per_cent = round(100 * level) if math.isfinite(level) else 0
    if not math.isclose(100 * level, per_cent, abs_tol=1e-6) or per_cent not in LEVELS:
        raise UserError(
            f"{what} is {level:g}; give a share from {LEVELS[0] / 100:g} to {LEVELS[-1] / 100:g} in steps of 0.01"
        )
    if not rows:
        raise UserError(
            f"{what} {level:g} needs thresholds that were measured on validation rows, and this model has none: make "
            "its bundle anew from its run with linnaeus bundle, without --without-data"
        )
    if str(per_cent) not in found:
        needed = -(-per_cent // (100 - per_cent))
        raise UserError(
            f"{what} {level:g} needs at least {needed} validation rows labelled at the finest rank, and the "
            f"thresholds of this model were measured on {rows}; ask for less, or train with more validation rows"
        )
    return found[str(per_cent)]
