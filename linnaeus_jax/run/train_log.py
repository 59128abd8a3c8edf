"""The training log between two ends of epochs: what an update measured, from the device to rows, lines and the bar.

The outputs of a log point are deferred and read one update later, so that the device never waits for the host. What is
due, averaged and named how stands in `metrics/step_logger.py`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from linnaeus_jax.config.errors import TrainingError
from linnaeus_jax.data.loader import TrainLoader
from linnaeus_jax.metrics.console_lines import pipeline_lines, progress_line, schedule_line
from linnaeus_jax.metrics.step_logger import due_part
from linnaeus_jax.reporting.display import Throughput, TrainingProgressBar, eta
from linnaeus_jax.reporting.sinks import Sinks
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.experiment import Experiment
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.step import probes
from linnaeus_jax.step.placement import fetch
from linnaeus_jax.step.state import Statistics
from linnaeus_jax.step.train_step import StepOutputs
from linnaeus_jax.taxonomy.ranks import task_name

log = logging.getLogger("linnaeus_jax")


#: updates after which the time of a run can be told; the first one carries compilation
ESTIMATED_AFTER = 10


class NonFiniteError(TrainingError):
    """Too many updates in a row had non-finite values."""

    alert = "Non-finite values"


class LogPoint(NamedTuple):
    """An update whose statistics are read."""

    completed: int  # updates
    epoch: int
    streams: frozenset[str]
    probes: tuple[probes.Probe, ...]  # that were due at this update
    outputs: StepOutputs
    interval: Statistics  # since the log point before


class TrainLog:
    """Defers the outputs of log points, and writes them."""

    def __init__(self, experiment: Experiment, host: HostState, sinks: Sinks, checkpoints: Checkpoints) -> None:
        self.experiment, self.host, self.sinks, self.checkpoints = experiment, host, sinks, checkpoints
        self.throughput = Throughput()
        total, start = experiment.resolved.total_steps, host.progress.global_step
        self._estimate_at, self._total = start + ESTIMATED_AFTER, total
        self._deferred: LogPoint | None = None
        self.bar = TrainingProgressBar(total, start, shown=experiment.is_coordinator)

    def advance(self, completed: int, position: str, images: int, waited: float) -> None:
        """An update of `images` images was dispatched, and the next one's data waited for, in seconds."""
        self.throughput.update(images, waited)
        self.bar.update(completed, position, self.throughput)
        if completed == self._estimate_at and self.experiment.is_coordinator:
            left, seconds = self._total - completed, self.throughput.seconds_per_update
            log.info(
                "about %s for the %s updates that are left, at %.3g s each, without validation",
                eta(left * seconds),
                f"{left:,}",
                seconds,
            )

    def close(self) -> None:
        self.bar.close()

    def defer(self, completed: int, epoch: int, outputs: StepOutputs, interval: Statistics, *, at_end: bool) -> bool:
        """Keeps the outputs of an update until `write`, if it is a log point; returns whether it is one.

        Args:
          interval: statistics since the last log point.
          at_end: of an epoch.
        """
        streams = self.host.logger.due(completed) | ({"gradnorm"} if outputs.gradnorm else set())
        due = tuple(probes.due(self.experiment.program.settings.probes, completed - 1))
        if not (streams or due or at_end):
            return False
        self._deferred = LogPoint(completed, epoch, streams, due, outputs, interval)
        return True

    def write(self, loader: TrainLoader) -> None:
        """Reads and writes the log point that is deferred, if there is one; the devices have finished its update.

        Raises:
          NonFiniteError: the limit of non-finite updates in a row is reached.
        """
        point = self.fetch()
        if point is None or not self.experiment.is_coordinator or not point.streams:
            return
        inputs, logger = self.experiment.inputs, self.host.logger
        total = int(inputs.plans.steps_per_epoch[point.epoch])
        completed = point.completed - int(inputs.plans.boundaries[point.epoch]) + total  # of this epoch
        seconds_left = (total - completed) * self.throughput.seconds_per_update
        level = inputs.levels.of_epoch[point.epoch]
        row = self.row(point, level, seconds_left)
        if "pipeline" in point.streams:
            row |= loader.interval().row()
        self.host.tracker.update_latest({name: value for name, value in row.items() if name.startswith("gradnorm/")})
        sent = due_part(row, point.streams - {"step"})
        local = due_part({name: value for name, value in row.items() if name not in sent}, point.streams & {"step"})
        for event, values in (("train", sent), ("step", local)):
            if values:
                self.sinks.write(event, point.completed, point.epoch, values)
        self.experiment.debug.reports.say("log_point", row, point.completed)
        self.checkpoints.check()
        self._show_accuracies(logger.epoch_so_far())
        line = progress_line(
            point.streams,
            row,
            epoch=point.epoch,
            index=completed - 1,
            total=total,
            seconds_left=seconds_left,
            accumulation_steps=inputs.sampler.accumulation_steps,
        )
        if line is not None:
            log.info("%s", line)
        if "console" in point.streams:
            log.debug("%s", schedule_line(point.completed, _floats(point.outputs.probabilities), level))
        if "pipeline" in point.streams:
            capacity = dict.fromkeys(("batch_index_q", "preprocess_q", "processed_batch_q"), inputs.reading.buffer)
            for text in pipeline_lines(row, capacity):
                log.debug("%s", text)

    def fetch(self) -> LogPoint | None:
        """Reads what is deferred: adds it to every average, hands the results of probes to them, writes what they log.

        Raises:
          NonFiniteError: the limit of non-finite updates in a row is reached.
        """
        if self._deferred is None:
            return None
        point, self._deferred = self._deferred, None
        outputs, interval = fetch((point.outputs, point.interval))
        logger, limit = self.host.logger, self.experiment.config.train.nonfinite_limit
        logger.add(vars(interval))
        row = probes.consume(point.probes, point.completed - 1, point.epoch, outputs.probes)
        logger.last_grad_norm, logger.last_rates = float(outputs.grad_norm), _floats(outputs.learning_rates)
        if limit is not None and int(outputs.skipped_in_a_row) >= limit:
            raise NonFiniteError(
                f"{int(outputs.skipped_in_a_row)} updates in a row were not finite (train.nonfinite_limit={limit}), "
                f"the last at step {point.completed} with loss {float(outputs.loss):g} and gradient norm "
                f"{float(outputs.grad_norm):g}; lower lr_scheduler.base_lr or train.clip_grad, or look for the first "
                "bad value with --debug underflow_overflow"
            )
        if row:
            self.sinks.write("probe", point.completed, point.epoch, row)
        return point._replace(outputs=outputs, interval=interval)

    def row(self, point: LogPoint, mixup_group: str, seconds_left: float) -> dict[str, Any]:
        """The row of a fetched log point under the documented names."""
        outputs = point.outputs
        row = self.host.logger.row(
            point.completed,
            point.streams,
            vars(outputs.statistics),
            loss=float(outputs.loss),
            task_losses=np.asarray(outputs.task_losses).tolist(),
            learning_rates=_floats(outputs.learning_rates),
            schedule=_floats(outputs.probabilities),
            gradnorm=outputs.gradnorm,
            mixup_group=mixup_group,
            seconds_left=seconds_left,
            now=time.perf_counter(),
        )
        row["train/grad_norm"] = row["gradnorm/total_norm_pre_clip"] = float(outputs.grad_norm)
        row["gradnorm/total_norm_post_clip"] = float(outputs.clipped_norm)
        row["train/skipped_updates"] = int(outputs.skipped)
        row["train/images_per_sec"] = self.throughput.images_per_second
        row["pipeline/wait_share"] = self.throughput.wait_share
        return row

    def _show_accuracies(self, epoch: Mapping[str, float]) -> None:
        """In the bar, those of the epoch so far."""
        if "chain_accuracy" in epoch:
            finest = self.experiment.inputs.dataset.tasks[0]
            species = epoch.get(f"non_null/acc1_{finest}", epoch.get(f"acc1_{finest}", math.nan))
            self.bar.accuracies = (
                f"{task_name(finest)} {species:.0f} %  all ranks {100 * epoch['chain_accuracy']:.0f} %  "
            )


def _floats(values: Mapping[str, Any]) -> dict[str, float]:
    """Fetched scalars as Python numbers."""
    return {name: float(value) for name, value in values.items()}
