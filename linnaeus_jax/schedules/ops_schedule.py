"""`OpsSchedule`: every question that the loop asks the schedule, on the host."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from linnaeus_jax.schedules import early_stop
from linnaeus_jax.schedules.learning_rate import build_scheduler
from linnaeus_jax.schedules.probabilities import build_probabilities
from linnaeus_jax.schedules.progress import TrainingProgress
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.schedules.triggers import Due, due_at_epoch_end, gradnorm_due
from linnaeus_jax.schedules.values import on_host


class OpsSchedule:
    """Answers from the resolved schedule, by default for where `progress` stands; holds the state of early stopping."""

    def __init__(self, resolved: ResolvedSchedule, progress: TrainingProgress | None = None) -> None:
        self.resolved = resolved
        self.progress = TrainingProgress() if progress is None else progress
        self.learning_rates = build_scheduler(resolved)
        self.probabilities = build_probabilities(resolved)
        self._rates = on_host(self.learning_rates)
        self._probabilities = on_host(vars(self.probabilities))
        self.early_stop_state = early_stop.initial_state(resolved.early_stop)
        self.stop_reason: str | None = None

    def _step(self, step: int | None) -> int:
        return self.progress.global_step if step is None else step

    def get_lr(self, step: int | None = None) -> dict[str, float]:
        """Learning rate of each parameter group."""
        return {group: rate.item() for group, rate in self._rates(self._step(step)).items()}

    def _probability(self, name: str, step: int | None) -> Any:
        return self._probabilities(self._step(step))[name].item()

    def get_meta_mask_prob(self, step: int | None = None) -> float:
        return self._probability("meta_mask", step)

    def get_partial_mask_enabled(self, step: int | None = None) -> bool:
        return self._probability("partial_active", step)

    def get_partial_mask_prob(self, step: int | None = None) -> float:
        """The ramp alone; it acts only where `get_partial_mask_enabled`."""
        return self._probability("partial_mask", step)

    def get_null_mask_prob(self, step: int | None = None) -> float:
        """Probability that a sample with a null label stays in the loss."""
        return self._probability("null_mask", step)

    def get_mixup_prob(self, step: int | None = None) -> float:
        return self._probability("mix", step)

    def should_update_gradnorm(self, step: int | None = None) -> bool:
        """Whether update `step` changes the task weights."""
        trigger = self.resolved.gradnorm
        return trigger.enabled and bool(gradnorm_due(self._step(step), trigger.warmup_steps, trigger.interval))

    def due(self) -> Due:
        """Everything due at the end of the current epoch."""
        progress = self.progress
        return due_at_epoch_end(
            self.resolved, progress.current_epoch, progress.global_step, progress.last_boundary_step
        )

    def due_at_early_stop(self) -> Due:
        """What the last epoch of a complete run would have in addition to `due`, for a run that ends early."""
        step = self.progress.global_step
        return due_at_epoch_end(self.resolved, self.progress.current_epoch, step, step, is_last=True)

    def should_stop_early(self, metric: float | None, grad_norm: float | None = None) -> bool:
        """Decides at the end of an epoch, after its validations; `stop_reason` then says why.

        Frozen groups count neither for the learning rate nor for its warmup.

        Args:
          metric: the monitored value if it was measured at the end of this epoch, else None.
          grad_norm: global norm of the last update before clipping.
        """
        last = max(0, self.progress.global_step - 1)
        rates = self.get_lr(last)
        trained = [spec for spec in self.resolved.learning_rates if not spec.frozen]
        self.early_stop_state, decision = early_stop.check(
            self.resolved.early_stop,
            self.early_stop_state,
            step=self.progress.global_step,
            metric=metric,
            learning_rate=max((rates[spec.group] for spec in trained), default=math.inf),
            grad_norm=grad_norm,
            in_warmup=any(last < spec.warm_step for spec in trained),
        )
        self.stop_reason = decision.reason
        return decision.stop

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state beyond `progress`: that of early stopping."""
        return {"early_stop": dict(self.early_stop_state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Restores `state_dict()`, once `progress` is restored; returns warnings."""
        self.early_stop_state, warnings = early_stop.restore_state(
            self.resolved.early_stop, state["early_stop"], self.progress.global_step
        )
        return warnings
