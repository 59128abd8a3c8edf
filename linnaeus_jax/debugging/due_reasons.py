"""What is due at the end of an epoch and what is not, each with its reason (for DEBUG.SCHEDULING)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from linnaeus_jax.debugging import flags
from linnaeus_jax.schedules.resolved import Interval, ResolvedSchedule
from linnaeus_jax.schedules.triggers import Due


def scheduling_lines(
    step: int, epoch: int, events: Sequence[tuple[str, str, bool, str]], values: Mapping[str, Any]
) -> list[str]:
    """What is due after update `step`, why, and the schedule's values there (for DEBUG.SCHEDULING).

    Args:
      events: of `epoch_end_events`: what could be due, its setting, whether it is due, and why.
      values: learning rates and probabilities by name.
    """
    rows = [(name, setting, "DUE" if due else "no", why) for name, setting, due, why in events]
    return [
        *flags.table(f"after {step} updates, epoch {epoch}:", ("event", "setting", "due", "why"), rows),
        *flags.fact_lines(f"values of update {step - 1}, the last one made:", values),
    ]


def epoch_end_events(
    schedule: ResolvedSchedule, due: Due, epoch: int, step: int, *, validation_rows: int, stopped: str | None
) -> list[tuple[str, str, bool, str]]:
    """(event, setting, whether it is due, why) of everything that could be due at the end of `epoch`.

    Args:
      due: what the schedule decided.
      step: completed updates.
      validation_rows: without any, no validation happens.
      stopped: why the run stops early here, or None.
    """
    previous = schedule.totals.boundaries[epoch - 1] if epoch else 0
    validation, checkpoint, stop = schedule.validation, schedule.checkpoint, schedule.early_stop
    last = epoch >= schedule.epochs - 1
    stages = {str(stage) for stage in due.stages}

    def fires(interval: Interval) -> str:
        return _interval_reason(interval, epoch, step, previous, schedule.step_trigger_mode)

    def validated(stage: str, setting: str, why: str) -> tuple[str, str, bool, str]:
        if validation_rows == 0:
            return (stage, setting, False, "there are no validation rows")
        return (stage, setting, stage in stages, why)

    def at_end(configured: bool) -> str:
        return "; the last epoch has one anyway" if last and configured else ""

    partial = fires(validation.partial)
    if not validation.partial_enabled:
        partial = "schedule.validation.partial_mask_meta is disabled"
    elif not validation.whitelist:
        partial = "no combination of components is listed"
    elif last and validation.exhaustive:
        partial = "the exhaustive validation of the last epoch replaces it"
    exhaustive = f"only after the last epoch, {schedule.epochs - 1}" if not last else "this is the last epoch"
    if not validation.exhaustive:
        exhaustive = "no components are listed"
    saved = fires(checkpoint.interval) + at_end(checkpoint.at_end)
    if due.stages and not due.checkpoint:
        saved += "; a validation is due, and a checkpoint precedes each"
    limits = {
        name: getattr(stop, name) for name in ("patience_steps", "max_steps", "max_loss", "min_lr", "max_grad_norm")
    }
    conditions = ", ".join(f"{name} {value:g}" for name, value in limits.items() if value is not None)
    return [
        validated(
            "VALIDATION_NORMAL", _setting(validation.normal), fires(validation.normal) + at_end(validation.at_end)
        ),
        validated("VALIDATION_MASK_META", _setting(validation.mask_meta), fires(validation.mask_meta)),
        validated("VALIDATION_PARTIAL_MASK_META", _setting(validation.partial), partial),
        validated("VALIDATION_EXHAUSTIVE", "+".join(validation.exhaustive) or "off", exhaustive),
        ("checkpoint", _setting(checkpoint.interval), due.save, saved),
        (
            "early stop",
            f"{stop.phase}/{stop.metric}" if stop.active else "off",
            stopped is not None,
            stopped or (f"none of these holds: {conditions or 'no limit is set'}" if stop.active else "it is off"),
        ),
        (
            "end of the run",
            f"{schedule.epochs} epochs",
            last or stopped is not None,
            f"{step} of {schedule.total_steps}",
        ),
    ]


def _setting(interval: Interval) -> str:
    """How often an interval fires, in words."""
    if interval.unit == "off":
        return "off"
    if interval.unit == "epochs":
        return f"every {interval.value:g} epochs"
    fraction = f" (fraction {interval.value:g})" if interval.unit == "fraction" else ""
    return f"every {interval.steps} updates{fraction}"


def _interval_reason(interval: Interval, epoch: int, step: int, previous: int, mode: str) -> str:
    """Why an interval fires at the end of this epoch or not: `triggers.interval_fires` in words."""
    if interval.unit == "off":
        return "it is off"
    if interval.unit == "epochs":
        every = int(interval.value)
        if epoch == 0 and every > 1:
            return f"the first epoch that counts is {every}"
        return f"epoch {epoch} is {'a' if epoch % every == 0 else 'no'} multiple of {every}"
    if mode == "exact":
        return f"exact mode: {step} is {'a' if step % interval.steps == 0 else 'no'} multiple of {interval.steps}"
    multiple = step // interval.steps * interval.steps
    if multiple > previous:
        return f"update {multiple} was passed since the boundary before ({previous})"
    return f"the next multiple after {step} is {multiple + interval.steps}"
