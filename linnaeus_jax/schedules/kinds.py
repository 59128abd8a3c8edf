"""Learning-rate schedules: one class for each value of `lr_scheduler.name`, which joins schedules of optax.

Cosine annealing: Loshchilov & Hutter, arXiv:1608.03983 (one cycle). Warmup-stable-decay: Hu et al., arXiv:2404.06395.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, dataclass_transform

import optax

from linnaeus_jax.config.typed import LrSchedulerConfig
from linnaeus_jax.registry import SCHEDULES
from linnaeus_jax.schedules.resolved import LearningRateSpec
from linnaeus_jax.schedules.values import linear


@dataclass_transform(frozen_default=True)
class ScheduleKind:
    """(spec) -> `optax.Schedule`. A subclass becomes a frozen dataclass, whose fields are options below `lr_scheduler`.

    It defines `after_warmup`, or, to warm up in its own way, the whole curve (`__call__`). `__post_init__` raises
    ValueError for options out of range.
    """

    #: the rate is constant between the drops of `spec.decay_steps`, and `min_lr` does not bound it
    stepwise: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True)(cls)

    def __call__(self, spec: LearningRateSpec) -> optax.Schedule:
        """The rate of each step, between 0 and `spec.peak` > 0: a linear warmup joined with `after_warmup`.

        Args:
          spec: rates and durations of the parameter group.
        """
        after = self.after_warmup(spec)
        if not spec.warmup_steps:
            return after
        warmup = optax.linear_schedule(spec.warmup_lr, spec.peak, spec.warmup_steps)
        return optax.join_schedules([warmup, after], [spec.warmup_steps])

    def after_warmup(self, spec: LearningRateSpec) -> optax.Schedule:
        """The rate by the updates since the end of warmup: 0 for the first of `spec.decay_span`."""
        raise NotImplementedError

    def durations(self, scheduler: LrSchedulerConfig, span: int, decay_steps: Callable[[], int]) -> dict[str, int]:
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


def cosine(peak: float, low: float, steps: int) -> optax.Schedule:
    """`optax.cosine_decay_schedule` from `peak` > 0 at 0 to `low` at `steps`."""
    return optax.cosine_decay_schedule(peak, steps, alpha=low / peak)


@SCHEDULES.register("cosine")
class Cosine(ScheduleKind):
    """`optax.linear_schedule` (warmup), then `optax.cosine_decay_schedule`."""

    def after_warmup(self, spec: LearningRateSpec) -> optax.Schedule:
        return cosine(spec.peak, spec.min_lr, spec.decay_span)


@SCHEDULES.register("linear")
class Linear(ScheduleKind):
    """`optax.linear_schedule` (warmup), then `optax.linear_schedule`."""

    def after_warmup(self, spec: LearningRateSpec) -> optax.Schedule:
        return linear(spec.peak, spec.min_lr, spec.decay_span)


@SCHEDULES.register("step")
class Step(ScheduleKind):
    """`optax.linear_schedule` (warmup), then `optax.exponential_decay` by the number of drops.

    The rate is multiplied by `decay_rate` every `decay_steps` updates after warmup; constant where that is 0.
    """

    stepwise = True

    def after_warmup(self, spec: LearningRateSpec) -> optax.Schedule:
        if not spec.decay_steps:
            return optax.constant_schedule(spec.peak)
        # Drops are counted by dividing integers: the quotient of `staircase=True` misplaces them beyond 2**24 updates,
        # and `piecewise_constant_schedule` has a term for each drop.
        after_drops = optax.exponential_decay(spec.peak, 1, spec.decay_rate)
        return lambda count: after_drops(count // spec.decay_steps)

    def durations(self, scheduler: LrSchedulerConfig, span: int, decay_steps: Callable[[], int]) -> dict[str, int]:
        return {"decay_steps": decay_steps()}

    def findings(self, spec: LearningRateSpec) -> Iterator[str]:
        if not spec.drops():
            yield f"the step schedule never drops within {spec.total_steps} updates"


@SCHEDULES.register("wsd")
class WarmupStableDecay(ScheduleKind):
    """`optax.linear_schedule` (warmup), `optax.constant_schedule`, then `optax.linear_schedule` or a cosine decay.

    The rate is `peak` for `stable_steps` updates and falls to `min_lr` over `decay_steps`.
    """

    def after_warmup(self, spec: LearningRateSpec) -> optax.Schedule:
        shape = linear if spec.decay_type == "linear" else cosine
        decay = shape(spec.peak, spec.min_lr, spec.decay_steps)
        # the first update after the stable phase is already one notch below the peak
        return optax.join_schedules([optax.constant_schedule(spec.peak), decay], [spec.stable_steps - 1])

    def durations(self, scheduler: LrSchedulerConfig, span: int, decay_steps: Callable[[], int]) -> dict[str, int]:
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


def configured_kind(scheduler: LrSchedulerConfig, name: str) -> tuple[str, dict[str, Any]]:
    """Registered name, regardless of case where it is registered in lower case, and options of the section.

    Raises:
      ValueError: there is no such kind, or an option is out of range.
    """
    name = name if name in SCHEDULES else name.lower()
    options = {key: scheduler[name][key] for key in SCHEDULES.options(name)}
    SCHEDULES[name](**options)
    return name, options
