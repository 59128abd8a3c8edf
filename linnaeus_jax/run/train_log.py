"""Rows, log lines and the progress bar of the updates between two ends of epochs."""

from __future__ import annotations

import logging
import math
import time

from linnaeus_jax.data.loader import TrainLoader
from linnaeus_jax.metrics.step_logger import due_part, pipeline_lines, schedule_line
from linnaeus_jax.reporting.display import Throughput, TrainingProgressBar, eta
from linnaeus_jax.reporting.sinks import Sinks
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.experiment import Experiment
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.run.recorder import host_floats
from linnaeus_jax.taxonomy.ranks import task_name

log = logging.getLogger("linnaeus_jax")


#: updates after which the time of a run can be told; the first one carries compilation
ESTIMATED_AFTER = 10


class TrainLog:
    """Writes the log points that the recorder holds."""

    def __init__(self, experiment: Experiment, host: HostState, sinks: Sinks, checkpoints: Checkpoints) -> None:
        self.experiment, self.host, self.sinks, self.checkpoints = experiment, host, sinks, checkpoints
        self.throughput = Throughput()
        total, start = experiment.resolved.total_steps, host.progress.global_step
        self._estimate_at, self._total = start + ESTIMATED_AFTER, total
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

    def write(self, loader: TrainLoader) -> None:
        """Reads and writes the log point that is held, if there is one; the devices have finished its update."""
        recorder, inputs = self.host.recorder, self.experiment.inputs
        point = recorder.release()
        if point is not None and point.probe_row:
            self.sinks.write("probe", point.step, point.epoch, point.probe_row)
        if point is None or not self.experiment.is_coordinator or not point.streams:
            return
        total = int(inputs.plans.steps_per_epoch[point.epoch])
        completed = point.step - int(inputs.plans.boundaries[point.epoch]) + total  # of this epoch
        seconds_left = (total - completed) * self.throughput.seconds_per_update
        level = inputs.levels.of_epoch[point.epoch]
        row = recorder.row(point, mixup_group=level, seconds_left=seconds_left, now=time.perf_counter())
        row["train/images_per_sec"] = self.throughput.images_per_second
        row["pipeline/wait_share"] = self.throughput.wait_share
        if "pipeline" in point.streams:
            row |= loader.interval().row()
        self.host.tracker.update_latest({name: value for name, value in row.items() if name.startswith("gradnorm/")})
        sent = due_part(row, point.streams - {"step"})
        local = due_part({name: value for name, value in row.items() if name not in sent}, point.streams & {"step"})
        for event, values in (("train", sent), ("step", local)):
            if values:
                self.sinks.write(event, point.step, point.epoch, values)
        self.experiment.debug.reports.log_point(row, point.step)
        self.checkpoints.check()
        finest = inputs.dataset.tasks[0]
        so_far = recorder.logger.means(recorder.logger.windows["epoch"])  # of the epoch, as its line will say
        if "chain_accuracy" in so_far:
            species = so_far.get(f"non_null/acc1_{finest}", so_far.get(f"acc1_{finest}", math.nan))
            self.bar.accuracies = (
                f"{task_name(finest)} {species:.0f} %  all ranks {100 * so_far['chain_accuracy']:.0f} %  "
            )
        line = recorder.logger.line(
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
            log.debug("%s", schedule_line(point.step, host_floats(point.outputs.probabilities), level))
        if "pipeline" in point.streams:
            capacity = dict.fromkeys(("batch_index_q", "preprocess_q", "processed_batch_q"), inputs.reading.buffer)
            for text in pipeline_lines(row, capacity):
                log.debug("%s", text)
