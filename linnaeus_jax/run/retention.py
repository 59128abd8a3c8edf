"""Which checkpoints stay on disk: Orbax preservation policies over the run's own index of metrics.

A checkpoint is saved before the validation that measures it, so Orbax cannot store its metric with it; the index comes
from the boundary instead, and the policies are shown its entries.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from orbax.checkpoint.checkpoint_manager import CheckpointInfo
from orbax.checkpoint.checkpoint_managers import (
    AnyPreservationPolicy,
    BestN,
    LatestN,
    PolicyCheckpointInfo,
    PreservationContext,
    PreservationPolicy,
)

#: step of a ranked checkpoint -> {"epoch": 0-based, "metric": larger is better, None where it was not finite}
Index = Mapping[int, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Indexed(PreservationPolicy):
    """Asks `policy`, with the entries of `index()` as the metrics of the checkpoints."""

    index: Callable[[], Index]
    policy: PreservationPolicy

    def should_preserve(
        self, checkpoints: Sequence[PolicyCheckpointInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        index = self.index()
        shown = [CheckpointInfo(c.step, c.time, {"step": c.step, **index.get(c.step, {})}) for c in checkpoints]
        return self.policy.should_preserve(shown, context=context)


@dataclasses.dataclass(frozen=True)
class Current(PreservationPolicy):
    """Asks the policy that counts when it is asked: a run knows its own only after its newest checkpoint was read."""

    policy: Callable[[], PreservationPolicy]

    def should_preserve(
        self, checkpoints: Sequence[PolicyCheckpointInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        return self.policy().should_preserve(checkpoints, context=context)


def retention_policy(index: Callable[[], Index], keep_top_n: int, keep_last_n: int) -> PreservationPolicy:
    """The `keep_top_n` best and the `keep_last_n` newest checkpoints, and always the newest one; 0 and 0: all of them.

    Not finite metrics rank last, equal ones rank the earlier step first. Where fewer than `keep_top_n` checkpoints are
    in the index, the newest of the others fill up.
    """
    if keep_top_n == keep_last_n == 0:
        return LatestN()
    return Indexed(
        index,
        AnyPreservationPolicy([BestN(get_metric_fn=_quality, n=keep_top_n), LatestN(max(1, keep_last_n))]),
    )


def best_checkpoint(index: Index, steps: Iterable[int]) -> int | None:
    """The best of these checkpoints; None where none of them is in the index."""
    ranked = [{"step": step, **index[step]} for step in steps if step in index]
    return max(ranked, key=_quality)["step"] if ranked else None


def preserved(policy: PreservationPolicy, steps: Sequence[int]) -> list[int]:
    """Those of these checkpoints (ascending steps) that the policy keeps, by what the index says now."""
    now = datetime.datetime.now(tz=datetime.UTC)
    infos = [CheckpointInfo(step, now, None) for step in steps]
    flags = policy.should_preserve(infos, context=PreservationContext())
    return [step for step, keep in zip(steps, flags, strict=True) if keep]


def _quality(metrics: Mapping[str, Any]) -> Any:
    """Sorts worst first: not in the index by age, then the ranked ones, the later of two equals first."""
    if "metric" not in metrics:
        return 0, 0.0, metrics["step"]
    value = metrics["metric"]
    return 1, -math.inf if value is None else value, -metrics["step"]
