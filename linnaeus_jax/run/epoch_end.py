"""The end of an epoch, in a fixed order.

Finish the train metrics; save one checkpoint if one or a validation is due; run all due phases in one pass; mark them
complete; rank the checkpoint and let retention act; decide early stop; if this was the last epoch actually run, the
exhaustive phases; log one row. What a kill cuts off is all done again after the restart, from the checkpoint that was
saved first.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from linnaeus_jax.data.splits import Split
from linnaeus_jax.files import sync_tree, write_json
from linnaeus_jax.metrics.console_lines import epoch_line
from linnaeus_jax.metrics.phases import MAIN, Phase
from linnaeus_jax.reporting.class_tables import CURVES_FILE
from linnaeus_jax.reporting.logs import console_level
from linnaeus_jax.reporting.mistakes import MISTAKES_FILE, write_mistakes
from linnaeus_jax.reporting.sinks import Sinks
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.damaged_files import set_damaged_aside
from linnaeus_jax.run.experiment import Experiment
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.run.remote_sync import RemoteSync
from linnaeus_jax.run.resume import save
from linnaeus_jax.run.training_rows import measure_training_rows
from linnaeus_jax.run.watchdog import Watchdog
from linnaeus_jax.schedules import early_stop
from linnaeus_jax.schedules.triggers import Due
from linnaeus_jax.step.evaluation import Evaluation, Evaluator
from linnaeus_jax.step.row_scores import update_curves
from linnaeus_jax.step.state import TrainState

log = logging.getLogger("linnaeus_jax")

Results = dict[str, dict[str, float]]


class EpochEnd:
    """The ends of the epochs of one run."""

    def __init__(
        self,
        experiment: Experiment,
        host: HostState,
        checkpoints: Checkpoints,
        sinks: Sinks,
        sync: RemoteSync | None,
        watchdog: Watchdog,
    ) -> None:
        self.experiment, self.host, self._checkpoints = experiment, host, checkpoints
        self._sinks, self._sync, self._watchdog = sinks, sync, watchdog
        self.evaluator = Evaluator(experiment.program.evaluation, experiment.placement)
        components = experiment.program.evaluation.component_names
        self.best_metric = early_stop.ranking_key(experiment.config, components)
        self.validation_rows = len(experiment.inputs.dataset.val)

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
        host, resolved = self.host, self.host.schedule.resolved
        progress = host.progress
        epoch, step = progress.current_epoch, progress.global_step
        if not rerun:
            samples, train = host.logger.epoch_samples(), host.logger.finish_epoch()
            host.tracker.update("train", train, epoch, step, seconds=train_seconds, samples=samples)
            progress.epoch_complete = True
        due = host.schedule.due()
        phases = due.phases if self.validation_rows and not skip_validation else ()
        if not rerun:
            progress.schedule_due(due)
            if due.save:
                self.save(state)
            self.write_progress()
        if skip_validation:
            progress.drop_validations()

        results = self._validate(state, phases, epoch, step)
        progress.complete_all()
        self.write_progress()
        if due.save:
            self.rank(epoch, step)
        reason = self._early_stop()
        is_last = reason is not None or step >= resolved.total_steps
        saved = due.save
        if reason is not None and epoch < resolved.epochs - 1:
            saved = self._close_early(state, results, epoch, step, saved=saved, rerun=rerun)
        progress.stop_reason = reason
        if is_last and MAIN.name in results:
            self.measure_training(state, results[MAIN.name])
        row = host.tracker.get_wandb_metrics(step)
        if reason is not None:
            row["early_stop/reason"] = reason
        self.write_row(row, due, state)
        if saved:
            self.mark_finished()
        self.write_progress()
        return is_last

    def _close_early(
        self, state: TrainState, results: Results, epoch: int, step: int, *, saved: bool, rerun: bool
    ) -> bool:
        """What a planned last epoch would have had: checkpoint, validation, exhaustive phases; adds to `results`."""
        closing = self.host.schedule.due_at_early_stop()
        if closing.save and not (saved or rerun):
            self.save(state)
        if self.validation_rows:
            missing = tuple(phase for phase in closing.phases if phase.name not in results)
            results |= self._validate(state, missing, epoch, step)
        if saved or closing.save:
            self.rank(epoch, step)
        return saved or closing.save

    def _validate(self, state: TrainState, phases: tuple[Phase, ...], epoch: int, step: int) -> Results:
        if not phases:
            return {}
        self.host.progress.start_validation(phases[0].stage)
        self.write_progress()
        started = time.perf_counter()
        results = self.evaluate(state, phases)
        seconds = time.perf_counter() - started
        for name, values in results.items():
            self.host.tracker.update(name, values, epoch, step, seconds=seconds, samples=self.validation_rows)
        log.info("validation after epoch %d: %s in %.1f s", epoch, ", ".join(results), seconds)
        return results

    def rank(self, epoch: int, step: int) -> None:
        """Puts the checkpoint of this end into the index and lets retention act."""
        host = self.host
        if not host.ranking_metric:
            metrics = early_stop.ranking_candidates(self.best_metric)
            host.ranking_metric = next((name for name in metrics if host.tracker.value(name) is not None), "")
        metric = host.tracker.metrics.get(host.ranking_metric)
        if metric is not None and metric.last_step == step and metric.value is not None:
            value = metric.value if metric.higher_is_better else -metric.value
            host.ranking[step] = {"epoch": epoch, "metric": value if math.isfinite(value) else None}
        for old in self.retain():
            host.ranking.pop(old, None)
            log.debug("checkpoint of step %d removed by retention", old)

    def _early_stop(self) -> str | None:
        host, spec = self.host, self.host.schedule.resolved.early_stop
        measured = host.tracker.latest_by_phase(host.progress.global_step)
        metric = measured.get(spec.phase, {}).get(spec.metric)
        if host.schedule.should_stop_early(metric, host.logger.last_grad_norm):
            reason = host.schedule.stop_reason
            log.warning("early stop after %d updates: %s", host.progress.global_step, reason)
            return reason
        return None

    # ---- what it does outside of the training state

    def save(self, state: TrainState) -> None:
        save(self.experiment, self._checkpoints, self.host, state, at_end=True)

    def write_progress(self) -> None:
        if self.experiment.is_coordinator:
            write_json(self.experiment.directory.progress_json, self.host.progress.state_dict())

    def evaluate(self, state: TrainState, phases: Sequence[Phase]) -> dict[str, dict[str, float]]:
        """Metrics by name of the phase."""
        inputs, root = self.experiment.inputs, self.experiment.directory.root
        with console_level(self.experiment.config.experiment.log_level_validation):
            evaluation = self._evaluation(state, phases, inputs.dataset.val)
        for name, values in evaluation.metrics.items():
            self.experiment.debug.reports.say("phase", name, evaluation.sums[name], values)
        if self.experiment.is_coordinator:
            set_damaged_aside(self.experiment.directory, root / CURVES_FILE, root / MISTAKES_FILE)
            with self.experiment.directory.writing(root / CURVES_FILE, root / MISTAKES_FILE):
                update_curves(root / CURVES_FILE, evaluation.curves)
                if evaluation.mistakes:
                    labels = inputs.dataset.val.table.path
                    write_mistakes(root / MISTAKES_FILE, evaluation.mistakes, inputs.images["val"], labels)
        return evaluation.metrics

    def _evaluation(self, state: TrainState, phases: Sequence[Phase], split: Split) -> Evaluation:
        inputs, reports = self.experiment.inputs, self.experiment.debug.reports
        say_first = functools.partial(reports.say, "first_validation_batch")
        with contextlib.closing(inputs.eval_loader(split, inputs.source(split))) as loader:
            return self.evaluator.run(
                state.eval_params,
                state.model_state,
                state.gradnorm.weights,
                self._watchdog.each(loader, "a batch of the validation"),
                phases,
                after_first=say_first if reports.debug.on("dump_metrics") else None,
            )

    def measure_training(self, state: TrainState, validated: Mapping[str, float]) -> None:
        evaluate = functools.partial(self._evaluation, state, (MAIN,))
        measure_training_rows(self.experiment, evaluate, validated, self.host.progress)

    def retain(self) -> list[int]:
        """Steps of the checkpoints that retention removed."""
        dropped = self._checkpoints.retain()
        self.experiment.debug.reports.say("retained", self._checkpoints.steps(), dropped)
        return dropped

    def write_start(self) -> None:
        """The row of what was measured before the first update."""
        if self.experiment.is_coordinator:
            self._sinks.write("epoch", 0, 0, self.host.tracker.get_wandb_metrics(0))

    def write_row(self, row: dict[str, Any], due: Due, state: TrainState) -> None:
        progress = self.host.progress
        tracked = self.host.tracker.state_dict()
        step, epoch = progress.global_step, progress.current_epoch
        self.experiment.debug.reports.say("epoch_end", step, epoch, due, row, tracked, state.params)
        if self.experiment.is_coordinator:
            if progress.global_step >= self.experiment.resolved.total_steps or progress.stop_reason is not None:
                row |= self.host.logger.flush()
            self._sinks.write("epoch", progress.global_step, progress.current_epoch, row)
            log.info("%s", epoch_line(progress.current_epoch, row, self.experiment.inputs.dataset.tasks[0]))

    def mark_finished(self) -> None:
        """Everything after the checkpoint is done: a restart from it need not rerun the end of this epoch."""
        self.experiment.debug.epoch_end()
        if self.experiment.is_coordinator:
            directory = self.experiment.directory
            with directory.writing(directory.metrics_log):  # what it holds now
                sync_tree(directory.logs)
            self._checkpoints.finish_boundary(self.host.progress.global_step, self.host.to_json())
        if self._sync is not None:
            self._sync.request()
