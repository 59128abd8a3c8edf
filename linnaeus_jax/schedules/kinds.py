"""What the learning rate does after warmup: one class for each value of `lr_scheduler.name`.

Cosine annealing: Loshchilov & Hutter, arXiv:1608.03983 (one cycle). Warmup-stable-decay: Hu et al., arXiv:2404.06395.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, ClassVar, dataclass_transform

from ml_collections import ConfigDict

from linnaeus_jax.registry import SCHEDULES
from linnaeus_jax.schedules.resolved import LearningRateSpec
from linnaeus_jax.schedules.step_function import linear


@dataclass_transform(frozen_default=True)
class ScheduleKind:
    """Base of every kind. A subclass becomes a frozen dataclass, whose fields are the options below `lr_scheduler`.

    `__post_init__` raises ValueError for options out of range.
    """

    #: the rate is constant between the drops of `spec.decay_steps`, and `min_lr` does not bound it
    stepwise: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True)(cls)

    def rate(self, xp: ModuleType, k: Any, spec: LearningRateSpec) -> Any:
        """Rates between 0 and `spec.peak`.

        Args:
          xp: numpy on the host, jax.numpy inside the compiled update.
          k: integers, any shape: the updates since the end of warmup, 0 for the first of them.
          spec: rates and durations of the parameter group; `spec.decay_span` updates follow warmup.
        """
        raise NotImplementedError

    def durations(self, scheduler: ConfigDict, span: int, decay_steps: Callable[[], int]) -> dict[str, int]:
        """Fields of the spec that this kind needs.

        Args:
          scheduler: the section `lr_scheduler`.
          span: updates after warmup.
          decay_steps: resolves `decay_steps` or `decay_fraction` of the group.
        """
        return {}

    def phases(self, spec: LearningRateSpec) -> list[tuple[str, int]]:
        """Name and number of updates of each phase that follows warmup; the end of the run cuts them off."""
        return [(spec.name, spec.decay_span)]

    def findings(self, spec: LearningRateSpec) -> Iterator[str]:
        """What is valid but unlikely to be meant."""
        yield from ()


def cosine(xp: ModuleType, k: Any, peak: float, low: float, steps: int) -> Any:
    """Half a period of a cosine from `peak` > 0 at 0 to `low` at `steps`."""
    share = low / peak
    return peak * ((1 - share) * (0.5 * (1 + xp.cos(xp.pi * xp.minimum(k, steps) / steps))) + share)


@SCHEDULES.register("cosine")
class Cosine(ScheduleKind):
    def rate(self, xp: ModuleType, k: Any, spec: LearningRateSpec) -> Any:
        return cosine(xp, k, spec.peak, spec.min_lr, spec.decay_span)


@SCHEDULES.register("linear")
class Linear(ScheduleKind):
    def rate(self, xp: ModuleType, k: Any, spec: LearningRateSpec) -> Any:
        return linear(xp, k, spec.peak, spec.min_lr, spec.decay_span)


@SCHEDULES.register("step")
class Step(ScheduleKind):
    """The rate is multiplied by `decay_rate` every `decay_steps` updates after warmup; constant where that is 0."""

    stepwise = True

    def rate(self, xp: ModuleType, k: Any, spec: LearningRateSpec) -> Any:
        if not spec.decay_steps:
            return spec.peak
        # integers are divided: a quotient in float32 would misplace drops beyond 2**24 updates
        return spec.peak * xp.power(spec.decay_rate, k // spec.decay_steps)

    def durations(self, scheduler: ConfigDict, span: int, decay_steps: Callable[[], int]) -> dict[str, int]:
        return {"decay_steps": decay_steps()}

    def findings(self, spec: LearningRateSpec) -> Iterator[str]:
        if not spec.drops():
            yield f"the step schedule never drops within {spec.total_steps} updates"


@SCHEDULES.register("wsd")
class WarmupStableDecay(ScheduleKind):
    """`peak` for `stable_steps` updates, then down to `min_lr` over `decay_steps`, linearly or along a cosine."""

    def rate(self, xp: ModuleType, k: Any, spec: LearningRateSpec) -> Any:
        shape = linear if spec.decay_type == "linear" else cosine
        # the first update after the stable phase is already one notch below the peak
        decay = shape(xp, k - spec.stable_steps + 1, spec.peak, spec.min_lr, spec.decay_steps)
        return xp.where(k < spec.stable_steps, spec.peak, decay)

    def durations(self, scheduler: ConfigDict, span: int, decay_steps: Callable[[], int]) -> dict[str, int]:
        return {
            "stable_steps": max(1, int(span * scheduler.stable_duration_fraction)),
            "decay_steps": max(1, int(span * scheduler.decay_duration_fraction)),
        }

    def phases(self, spec: LearningRateSpec) -> list[tuple[str, int]]:
        return [("stable", spec.stable_steps), ("decay", spec.decay_steps), ("tail", spec.decay_span)]

    def findings(self, spec: LearningRateSpec) -> Iterator[str]:
        if spec.stable_steps + spec.decay_steps > spec.decay_span:
            yield (
                f"stable and decay phase (lr_scheduler.stable_duration_fraction, decay_duration_fraction) take "
                f"{spec.stable_steps} + {spec.decay_steps} of {spec.decay_span} updates after warmup, so training ends "
                f"before lr_scheduler.min_lr is reached"
            )


def configured_kind(scheduler: ConfigDict, name: str) -> tuple[str, dict[str, Any]]:
    """Registered name, regardless of case where it is registered in lower case, and options of the section.

    Raises:
      ValueError: there is no such kind, or an option is out of range.
    """
    name = name if name in SCHEDULES else name.lower()
    options = {key: scheduler[name][key] for key in SCHEDULES.options(name)}
    SCHEDULES[name](**options)
    return name, options
