"""The end of an epoch, in a fixed order.

Finish the train metrics; save one checkpoint if one or a validation is due; run all due phases in one pass; mark them
complete; rank the checkpoint and let retention act; decide early stop; if this was the last epoch actually run, the
exhaustive phases; log one row. Hooks that a kill cuts off are all rerun after the restart, from the checkpoint that
was saved first.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass

from linnaeus_jax.metrics.names import result_name
from linnaeus_jax.metrics.phases import Phase
from linnaeus_jax.run.experiment import Experiment
from linnaeus_jax.run.hooks import EpochEndHooks
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.schedules import early_stop
from linnaeus_jax.step.state import TrainState

log = logging.getLogger("linnaeus_jax")

#: ranking metrics in order of preference
RANKING_METRICS = ("val/partial_chain_accuracy", "val/chain_accuracy", "val/loss")

Results = dict[str, dict[str, float]]


@dataclass
class EpochEnd:
    """Runs the hooks at the end of every epoch of one run."""

    host: HostState
    hooks: EpochEndHooks
    best_metric: str
    validation_rows: int

    @classmethod
    def of(cls, experiment: Experiment, host: HostState, hooks: EpochEndHooks) -> EpochEnd:
        components = experiment.program.evaluation.component_names
        return cls(
            host,
            hooks,
            best_metric=early_stop.ranking_key(experiment.config, components),
            validation_rows=len(experiment.inputs.dataset.val),
        )

    def run(
        self,
        state: TrainState,
        *,
        rerun: bool = False,
        skip_validation: bool = False,
        train_seconds: float | None = None,
    ) -> bool:
        """Ends the current epoch; returns whether training ends here.

        Args:
          rerun: the run was restarted from the checkpoint of this end, which is therefore not saved again.
          skip_validation: leave out the validations (only on a restart).
          train_seconds: what the epoch's updates took in this process.
        """
        host, resolved, hooks = self.host, self.host.schedule.resolved, self.hooks
        progress = host.progress
        epoch, step = progress.current_epoch, progress.global_step
        if not rerun:
            samples = host.recorder.logger.windows["epoch"].get("sums", {}).get("count")
            train = host.recorder.logger.finish_epoch()
            host.tracker.update(
                "train", train, epoch, step, seconds=train_seconds, samples=None if samples is None else int(samples)
            )
            progress.epoch_complete = True
        due = host.schedule.due()
        phases = due.phases if self.validation_rows and not skip_validation else ()
        if not rerun:
            progress.schedule_due(due)
            if due.save:
                hooks.save(state)
            hooks.write_progress()
        if skip_validation:
            progress.drop_validations()

        results = self._evaluate(state, phases, epoch, step)
        progress.complete_all()
        hooks.write_progress()
        if due.save:
            self._rank(epoch, step)
        reason = self._early_stop(results)
        is_last = reason is not None or step >= resolved.total_steps
        saved = due.save
        if reason is not None and epoch < resolved.epochs - 1:
            saved = self._close_early(state, results, epoch, step, saved=saved, rerun=rerun)
        progress.stop_reason = reason
        row = host.tracker.get_wandb_metrics(step)
        if reason is not None:
            row["early_stop/reason"] = reason
        hooks.write_row(row, due, state)
        if saved:
            hooks.finish()
        hooks.write_progress()
        return is_last

    def _close_early(
        self, state: TrainState, results: Results, epoch: int, step: int, *, saved: bool, rerun: bool
    ) -> bool:
        """What a planned last epoch would have had: checkpoint, validation, exhaustive phases; adds to `results`."""
        closing = self.host.schedule.due_at_early_stop()
        if closing.save and not (saved or rerun):
            self.hooks.save(state)
        if self.validation_rows:
            missing = tuple(phase for phase in closing.phases if phase.name not in results)
            results |= self._evaluate(state, missing, epoch, step)
        if saved or closing.save:
            self._rank(epoch, step)
        return saved or closing.save

    def _evaluate(self, state: TrainState, phases: tuple[Phase, ...], epoch: int, step: int) -> Results:
        if not phases:
            return {}
        self.host.progress.start_validation(phases[0].stage)
        self.hooks.write_progress()
        started = time.perf_counter()
        results = self.hooks.evaluate(state, phases)
        seconds = time.perf_counter() - started
        for name, values in results.items():
            self.host.tracker.update(name, values, epoch, step, seconds=seconds, samples=self.validation_rows)
        log.info("validation after epoch %d: %s in %.1f s", epoch, ", ".join(results), seconds)
        return results

    def _rank(self, epoch: int, step: int) -> None:
        """Puts the checkpoint of this end into the index and lets retention act."""
        host = self.host
        if not host.ranking_metric:
            candidates = (self.best_metric,) if self.best_metric else RANKING_METRICS
            host.ranking_metric = next((name for name in candidates if host.tracker.value(name) is not None), "")
        metric = host.tracker.metrics.get(host.ranking_metric)
        if metric is not None and metric.last_step == step and metric.value is not None:
            value = metric.value if metric.higher_is_better else -metric.value
            host.ranking[step] = {"epoch": epoch, "metric": value if math.isfinite(value) else None}
        for old in self.hooks.retain():
            host.ranking.pop(old, None)
            log.debug("checkpoint of step %d removed by retention", old)

    def _early_stop(self, results: Results) -> str | None:
        host, spec = self.host, self.host.schedule.resolved.early_stop
        refreshed = spec.phase == "train" or spec.phase in results
        metric = host.tracker.value(result_name(spec.phase, spec.metric)) if refreshed else None
        if host.schedule.should_stop_early(metric, host.recorder.last_grad_norm):
            reason = host.schedule.stop_reason
            log.warning("early stop after %d updates: %s", host.progress.global_step, reason)
            return reason
        return None
