"""What is due when: validations and checkpoints at the end of an epoch, GradNorm at a step.

At the end of an epoch, after its last update, `step` counts the completed updates of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from linnaeus_jax.metrics.phases import MAIN, REGISTERED, Phase, Stage, exhaustive_combos, masking
from linnaeus_jax.schedules.resolved import Interval, ResolvedSchedule

VALIDATION_STAGES = tuple(stage for stage in Stage if stage is not Stage.TRAINING)


@dataclass(frozen=True)
class Due:
    """What an end of an epoch has due: stages and phases in canonical order, and whether a checkpoint is scheduled."""

    stages: tuple[Stage, ...]
    phases: tuple[Phase, ...]
    checkpoint: bool

    @property
    def save(self) -> bool:
        """A checkpoint precedes every validation, so that a validation that a kill cuts off can be repeated."""
        return self.checkpoint or bool(self.stages)


def interval_fires(interval: Interval, epoch: int, step: int, previous_step: int, mode: str = "crossing") -> bool:
    """Whether an event of this interval fires at the end of `epoch`.

    Args:
      epoch: 0-based. An interval of N epochs fires at N, 2N, ...; N = 1 fires at epoch 0 as well.
      step: completed updates.
      previous_step: completed updates at the end of the epoch before, 0 at the start.
      mode: "crossing" fires once at the first end of an epoch at or after each multiple of the interval;
        "exact" only where `step` is a multiple itself.
    """
    if interval.unit == "off":
        return False
    if interval.unit == "epochs":
        every = int(interval.value)
        return epoch % every == 0 and (epoch > 0 or every == 1)
    if mode == "exact":
        return step % interval.steps == 0
    return step // interval.steps > previous_step // interval.steps


def interval_epochs(resolved: ResolvedSchedule, interval: Interval) -> tuple[int, ...]:
    """0-based epochs at whose end the interval fires by itself."""
    ends = resolved.totals.boundaries
    spans = enumerate(zip(ends, (0, *ends)))
    mode = resolved.step_trigger_mode
    return tuple(epoch for epoch, (end, start) in spans if interval_fires(interval, epoch, end, start, mode))


def phases_of(resolved: ResolvedSchedule, stage: Stage) -> tuple[Phase, ...]:
    """The evaluations of one validation stage."""
    validation = resolved.validation
    if stage is Stage.VALIDATION_NORMAL:
        return (MAIN, *REGISTERED.values())
    combos: Sequence[tuple[str, ...] | None] = (None,)
    if stage is Stage.VALIDATION_PARTIAL_MASK_META:
        combos = validation.whitelist
    elif stage is Stage.VALIDATION_EXHAUSTIVE:
        combos = exhaustive_combos(validation.exhaustive)
    return tuple(masking(masked, stage, index) for index, masked in enumerate(combos))


def due_at_epoch_end(
    resolved: ResolvedSchedule, epoch: int, step: int, previous_step: int, is_last: bool | None = None
) -> Due:
    """Everything due at the end of `epoch`.

    Args:
      epoch: 0-based.
      step: completed updates; `previous_step`: those at the end of the epoch before.
      is_last: no further epoch follows; None: `epoch` is the last one planned. The last end adds a normal
        validation and a checkpoint (where `at_end` is set) and the exhaustive phases, which replace the partial ones.
    """
    is_last = epoch >= resolved.epochs - 1 if is_last is None else is_last
    validation, checkpoint = resolved.validation, resolved.checkpoint

    def fires(interval: Interval) -> bool:
        return interval_fires(interval, epoch, step, previous_step, resolved.step_trigger_mode)

    exhaustive = is_last and bool(validation.exhaustive)
    due = {
        Stage.VALIDATION_NORMAL: fires(validation.normal) or (is_last and validation.at_end),
        Stage.VALIDATION_MASK_META: fires(validation.mask_meta),
        Stage.VALIDATION_PARTIAL_MASK_META: bool(validation.whitelist) and fires(validation.partial) and not exhaustive,
        Stage.VALIDATION_EXHAUSTIVE: exhaustive,
    }
    stages = tuple(stage for stage in VALIDATION_STAGES if due[stage])
    phases = tuple(phase for stage in stages for phase in phases_of(resolved, stage))
    return Due(stages, phases, fires(checkpoint.interval) or (is_last and checkpoint.at_end))


def firing_epochs(resolved: ResolvedSchedule) -> dict[str, tuple[int, ...]]:
    """0-based epochs at whose end each validation stage and the checkpoint ("CHECKPOINT") is due."""
    fired: dict[str, list[int]] = {name: [] for name in (*VALIDATION_STAGES, "CHECKPOINT")}
    previous = 0
    for epoch, step in enumerate(resolved.totals.boundaries):
        due = due_at_epoch_end(resolved, epoch, step, previous)
        for stage in due.stages:
            fired[stage].append(epoch)
        if due.checkpoint:
            fired["CHECKPOINT"].append(epoch)
        previous = step
    return {str(name): tuple(epochs) for name, epochs in fired.items()}


@dataclass(frozen=True)
class Event:
    """A stage of validation, or the checkpoint, over the whole run.

    Attributes:
      stage: a value of `Stage`, or "CHECKPOINT".
      name: what people call it.
      key: of its interval in the config, without the unit; empty where it has none.
      interval: None: it is due at the end of the run.
      epochs: 0-based epochs at whose end it is due.
      phases: names of what is evaluated.
    """

    stage: str
    name: str
    key: str
    interval: Interval | None
    epochs: tuple[int, ...]
    phases: tuple[str, ...] = ()


def events(resolved: ResolvedSchedule) -> tuple[Event, ...]:
    """Every event at the ends of epochs, in canonical order."""
    validation, epochs = resolved.validation, firing_epochs(resolved)
    stages: tuple[tuple[Stage, str, str, Interval | None], ...] = (
        (Stage.VALIDATION_NORMAL, "validation", "validation.interval", validation.normal),
        (Stage.VALIDATION_MASK_META, "mask-meta validation", "validation.mask_meta_interval", validation.mask_meta),
        (
            Stage.VALIDATION_PARTIAL_MASK_META,
            "partial-mask validation",
            "validation.partial_mask_meta.interval",
            validation.partial,
        ),
        (Stage.VALIDATION_EXHAUSTIVE, "exhaustive validation", "", None),
    )
    return (
        *(
            Event(stage, name, key, interval, epochs[stage], tuple(phase.name for phase in phases_of(resolved, stage)))
            for stage, name, key, interval in stages
        ),
        Event("CHECKPOINT", "checkpoint", "checkpoint.interval", resolved.checkpoint.interval, epochs["CHECKPOINT"]),
    )


def measured_epochs(resolved: ResolvedSchedule, phase: str) -> tuple[int, ...]:
    """0-based epochs at whose end a phase, such as `val_mask_meta` or `train`, is measured."""
    if phase == "train":
        return tuple(range(resolved.epochs))
    fired = firing_epochs(resolved)
    stages = [stage for stage in VALIDATION_STAGES if phase in {each.name for each in phases_of(resolved, stage)}]
    return tuple(sorted({epoch for stage in stages for epoch in fired[stage]}))


def gradnorm_due(step: Any, warmup_steps: int, interval: int) -> Any:
    """Whether update `step` (0-based; int, int32 array or tracer) changes the task weights."""
    return (step >= warmup_steps) & (step % max(1, interval) == 0)
