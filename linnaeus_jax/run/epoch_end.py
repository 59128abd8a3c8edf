"""The end of an epoch, in a fixed order.

Finish the train metrics; save one checkpoint if one or a validation is due; run all due phases in one pass; mark them
complete; rank the checkpoint and let retention act; decide early stop; if this was the last epoch actually run, the
exhaustive phases; log one row. A boundary that a kill cuts off is run again as a whole after the restart, from the
checkpoint that it saved first.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from linnaeus_jax.learning.meta_masking import component_mask
from linnaeus_jax.metrics.names import result_name
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.schedules import early_stop
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.schedules.triggers import Due, Phase, due_at_boundary

log = logging.getLogger("linnaeus_jax")

#: ranking metrics in order of preference
RANKING_METRICS = ("val/partial_chain_accuracy", "val/chain_accuracy", "val/loss")

Results = dict[str, dict[str, float]]


@dataclass(frozen=True)
class BoundaryActions:
    """What a boundary does to the world; the trainer provides them."""

    save: Callable[[], None]
    evaluate: Callable[[Mapping[str, Any]], Results]
    write_row: Callable[[dict[str, Any], Due], None]
    write_progress: Callable[[], None]
    retain: Callable[[], list[int]]
    finish: Callable[[], None]


class Boundary:
    """Serves the boundaries of one run."""

    def __init__(
        self,
        resolved: ResolvedSchedule,
        host: HostState,
        actions: BoundaryActions,
        *,
        components: tuple[str, ...],
        best_metric: str,
        validation_rows: int,
        warmup_steps: int,
    ) -> None:
        self.resolved, self.host, self.actions = resolved, host, actions
        self.components = components
        self.best_metric = best_metric
        self.validation_rows = validation_rows
        self.warmup_steps = warmup_steps

    def serve(self, *, again: bool = False, skip_validation: bool = False, train_seconds: float | None = None) -> bool:
        """Serves the boundary of the current epoch; returns whether training ends here.

        Args:
          again: the run was restarted from this boundary's checkpoint, which is therefore not saved again.
          skip_validation: leave out the validations (only on a restart).
          train_seconds: what the epoch's updates took in this process.
        """
        host, resolved = self.host, self.resolved
        progress = host.progress
        epoch, step = progress.current_epoch, progress.global_step
        if not again:
            samples = host.recorder.logger.windows["epoch"].get("sums", {}).get("count")
            train = host.recorder.logger.finish_epoch()
            host.tracker.update(
                "train", train, epoch, step, seconds=train_seconds, samples=None if samples is None else int(samples)
            )
            progress.finish_training_epoch()
        due = due_at_boundary(resolved, epoch, step, progress.last_boundary_step)
        phases = due.phases if self.validation_rows and not skip_validation else ()
        if not again:
            progress.schedule_due(due)
            if due.save:
                self.actions.save()
            self.actions.write_progress()
        if skip_validation:
            progress.drop_validations()

        results = self._evaluate(phases, epoch, step)
        progress.complete_all()
        self.actions.write_progress()
        if due.save:
            self._rank(epoch, step)
        reason = self._early_stop(results, step)
        last = reason is not None or step >= resolved.total_steps
        saved = due.save
        if reason is not None and epoch < resolved.epochs - 1:
            saved = self._close_early(results, epoch, step, saved=saved, again=again)
        progress.stop_reason = reason
        row = host.tracker.get_wandb_metrics(step)
        if reason is not None:
            row["early_stop/reason"] = reason
        self.actions.write_row(row, due)
        if saved:
            self.actions.finish()
        self.actions.write_progress()
        return last

    def _close_early(self, results: Results, epoch: int, step: int, *, saved: bool, again: bool) -> bool:
        """What a planned last epoch would have had: checkpoint, validation, exhaustive phases; adds to `results`."""
        closing = due_at_boundary(self.resolved, epoch, step, step, is_last=True)
        if closing.save and not (saved or again):
            self.actions.save()
        if self.validation_rows:
            missing = tuple(phase for phase in closing.phases if phase.name not in results)
            results |= self._evaluate(missing, epoch, step)
        if saved or closing.save:
            self._rank(epoch, step)
        return saved or closing.save

    def _evaluate(self, phases: tuple[Phase, ...], epoch: int, step: int) -> Results:
        if not phases:
            return {}
        self.host.progress.start_validation(phases[0].stage)
        self.actions.write_progress()
        started = time.perf_counter()
        masks = {phase.name: component_mask(self.components, phase.masked) for phase in phases}
        results = self.actions.evaluate(masks)
        seconds = time.perf_counter() - started
        for name, values in results.items():
            self.host.tracker.update(name, values, epoch, step, seconds=seconds, samples=self.validation_rows)
        log.info("validation after epoch %d: %s in %.1f s", epoch, ", ".join(results), seconds)
        return results

    def _rank(self, epoch: int, step: int) -> None:
        """Puts the checkpoint of this boundary into the index and lets retention act."""
        host = self.host
        if not host.ranking_metric:
            candidates = (self.best_metric,) if self.best_metric else RANKING_METRICS
            host.ranking_metric = next((name for name in candidates if host.tracker.value(name) is not None), "")
        metric = host.tracker.metrics.get(host.ranking_metric)
        if metric is not None and metric.last_step == step and metric.value is not None:
            value = metric.value if metric.higher_is_better else -metric.value
            host.ranking[step] = {"epoch": epoch, "metric": value if math.isfinite(value) else None}
        for old in self.actions.retain():
            host.ranking.pop(old, None)
            log.debug("checkpoint of step %d removed by retention", old)

    def _early_stop(self, results: Results, step: int) -> str | None:
        spec = self.resolved.early_stop
        fresh = spec.phase == "train" or spec.phase in results
        rates = self.host.recorder.last_rates
        self.host.early_stop, decision = early_stop.check(
            spec,
            self.host.early_stop,
            step=step,
            metric=self.host.tracker.value(result_name(spec.phase, spec.metric)) if fresh else None,
            learning_rate=max(rates.values(), default=math.inf),
            grad_norm=self.host.recorder.last_grad_norm,
            in_warmup=step - 1 < self.warmup_steps,
        )
        if decision.stop:
            log.warning("early stop after %d updates: %s", step, decision.reason)
        return decision.reason if decision.stop else None
