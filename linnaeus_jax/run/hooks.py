"""What the end of an epoch does outside of the training state: checkpoint, validation, log row, files."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linnaeus_jax.files import DamagedFileError, RunDirectory, read_json, sync_tree, write_json
from linnaeus_jax.metrics.names import split_result
from linnaeus_jax.metrics.phases import ALIAS, Phase, phase_label
from linnaeus_jax.reporting.class_tables import CURVES_FILE
from linnaeus_jax.reporting.logs import console_level
from linnaeus_jax.reporting.mistakes import MISTAKES_FILE, write_mistakes
from linnaeus_jax.reporting.sinks import Sinks
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.experiment import Experiment
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.run.read_errors import of_storage, retried
from linnaeus_jax.run.remote_sync import RemoteSync
from linnaeus_jax.run.resume import save
from linnaeus_jax.run.watchdog import Watchdog
from linnaeus_jax.schedules.triggers import Due
from linnaeus_jax.step.evaluation import Evaluation, Evaluator, update_curves
from linnaeus_jax.step.state import TrainState
from linnaeus_jax.taxonomy.ranks import task_name

log = logging.getLogger("linnaeus_jax")


class EpochEndHooks:
    """The hooks that `epoch_end.EpochEnd` calls, in the order in which it calls them."""

    def __init__(
        self,
        experiment: Experiment,
        host: HostState,
        checkpoints: Checkpoints,
        sinks: Sinks,
        sync: RemoteSync | None,
        watchdog: Watchdog,
    ) -> None:
        self.experiment, self.host, self.checkpoints = experiment, host, checkpoints
        self.sinks, self.sync, self.watchdog = sinks, sync, watchdog
        self.reports = experiment.debug.reports
        self.evaluator = Evaluator(experiment.program.evaluation, experiment.placement)

    def save(self, state: TrainState) -> None:
        save(self.experiment, self.checkpoints, self.host, state, at_end=True)

    def write_progress(self) -> None:
        if self.experiment.is_coordinator:
            write_json(self.experiment.directory.progress_json, self.host.progress.state_dict())

    def evaluate(self, state: TrainState, phases: Sequence[Phase]) -> dict[str, dict[str, float]]:
        """Metrics by name of the phase."""
        inputs, root = self.experiment.inputs, self.experiment.directory.root
        with console_level(self.experiment.config.experiment.log_level_validation):
            evaluation = self._evaluation(state, phases)
        for name, values in evaluation.metrics.items():
            self.reports.phase(name, evaluation.sums[name], values)
        if self.experiment.is_coordinator:
            _set_damaged_aside(self.experiment.directory, root / CURVES_FILE, root / MISTAKES_FILE)
            with self.experiment.directory.writing(root / CURVES_FILE, root / MISTAKES_FILE):
                update_curves(root / CURVES_FILE, evaluation.curves)
                if evaluation.mistakes:
                    labels = inputs.dataset.val.table.path
                    write_mistakes(root / MISTAKES_FILE, evaluation.mistakes, inputs.images["val"], labels)
        return evaluation.metrics

    def _evaluation(self, state: TrainState, phases: Sequence[Phase]) -> Evaluation:
        inputs, reports = self.experiment.inputs, self.reports
        with contextlib.closing(inputs.eval_loader(inputs.dataset.val, inputs.source(inputs.dataset.val))) as loader:
            return self.evaluator.run(
                state.eval_params,
                state.model_state,
                state.gradnorm.weights,
                self.watchdog.each(loader, "a batch of the validation"),
                phases,
                after_first=reports.first_validation_batch if reports.debug.on("dump_metrics") else None,
            )

    def retain(self) -> list[int]:
        """Steps of the checkpoints that retention removed."""
        dropped = self.checkpoints.retain()
        self.reports.retained(self.checkpoints.steps(), dropped)
        return dropped

    def write_row(self, row: dict[str, Any], due: Due, state: TrainState) -> None:
        progress = self.host.progress
        tracked = self.host.tracker.state_dict()
        self.reports.epoch_end(progress.global_step, progress.current_epoch, due, row, tracked, state.params)
        if self.experiment.is_coordinator:
            if progress.global_step >= self.experiment.resolved.total_steps or progress.stop_reason is not None:
                row |= self.host.recorder.logger.flush()
            self.sinks.write("epoch", progress.global_step, progress.current_epoch, row)
            log.info("%s", _epoch_line(progress.current_epoch, row, self.experiment.inputs.dataset.tasks[0]))

    def finish(self) -> None:
        """Everything after the checkpoint is done: a restart from it need not rerun the end of this epoch."""
        self.experiment.debug.epoch_end()
        if self.experiment.is_coordinator:
            directory = self.experiment.directory
            with directory.writing(directory.metrics_log):  # what it holds now
                sync_tree(directory.logs)
            self.checkpoints.finish_boundary(self.host.progress.global_step, self.host.to_json())
        if self.sync is not None:
            self.sync.request()


def _epoch_line(epoch: int, row: Mapping[str, Any], finest: str) -> str:
    """Losses are those that can be compared, means over rows and ranks; accuracies of a rank are over the rows that are
    labelled there."""
    phases: dict[str, dict[str, Any]] = {}
    for name, value in row.items():
        phase, metric = split_result(name)
        phases.setdefault(phase, {})[metric] = value
    parts = [
        f"{phase_label(phase)} mean loss {metrics['loss_unweighted']:.4f}, {_accuracy(metrics, finest)}all ranks "
        f"{100 * metrics['chain_accuracy']:.1f} %"
        for phase, metrics in phases.items()
        if {"loss_unweighted", "chain_accuracy"} <= metrics.keys() and phase != ALIAS
    ]
    return f"epoch {epoch}: {'; '.join(parts)}"


def _accuracy(metrics: Mapping[str, Any], task: str) -> str:
    value = metrics.get(f"non_null/acc1_{task}", metrics.get(f"acc1_{task}"))
    return "" if value is None else f"{task_name(task)} {value:.1f} %, "


def _set_damaged_aside(directory: RunDirectory, *paths: Path) -> None:
    """Renames results of earlier validations that are not what was written, so that no new ones join them.

    Raises:
      OSError: they cannot be read; they may be as they should be.
    """

    def read(path: Path) -> None:
        directory.check(path)
        if path.exists():
            read_json(path)

    for path in paths:
        try:
            retried(functools.partial(read, path))
        except (DamagedFileError, OSError) as error:
            if of_storage(error):
                raise
            log.warning("%s; it is set aside", error)
            if path.exists():
                path.replace(path.with_name(f"{path.name}.damaged"))
