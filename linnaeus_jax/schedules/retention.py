"""Which checkpoints stay on disk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping


def checkpoints_to_keep(
    ranking: Mapping[int, float], steps: Iterable[int], keep_top_n: int, keep_last_n: int
) -> frozenset[int]:
    """Union of the `keep_top_n` best and the `keep_last_n` newest checkpoints, and always the newest one.

    Args:
      ranking: step -> metric, higher is better; NaN ranks last; equal values rank the earlier step first. A step that
        is missing here was never ranked.
      steps: every checkpoint present.
      keep_top_n: where fewer are ranked, the newest of the others fill up.
      keep_last_n: 0 for both numbers keeps everything.

    Raises:
      ValueError: a number is negative.
    """
    if keep_top_n < 0 or keep_last_n < 0:
        raise ValueError(
            f"schedule.checkpoint.keep_top_n = {keep_top_n} and keep_last_n = {keep_last_n} must not be negative"
        )
    newest = sorted(steps, reverse=True)
    if keep_top_n == keep_last_n == 0:
        return frozenset(newest)

    def worth(step: int) -> float:
        return -math.inf if math.isnan(ranking[step]) else ranking[step]

    best = sorted((step for step in newest if step in ranking), key=lambda step: (-worth(step), step))
    best += [step for step in newest if step not in ranking]
    return frozenset(best[:keep_top_n] + newest[: max(1, keep_last_n)])
