"""Everything of a run that looks inside: flags, event log, overflow frames, crash bundle, profiler.

The trainer calls one method at each point of a run where there may be something to see; with everything off, none of
them does anything and nothing is traced into the step.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from ml_collections import ConfigDict

from linnaeus_jax.debugging import crash_bundle, flags
from linnaeus_jax.debugging.event_log import (
    DebugEventLog,
    data_sanity_data,
    epoch_start_data,
    event_log_probes,
    fit_start_data,
    supersede,
)
from linnaeus_jax.debugging.frame_recorder import FrameRecorder
from linnaeus_jax.debugging.frames import concatenate, merge
from linnaeus_jax.debugging.overflow import OverflowMonitor
from linnaeus_jax.debugging.profiler import StepProfiler
from linnaeus_jax.training.objective import Recorder
from linnaeus_jax.training.parallel import fetch
from linnaeus_jax.training.probes import Probe, ProbeInputs
from linnaeus_jax.training.program import Program
from linnaeus_jax.training.run_directory import RunDirectory

log = logging.getLogger("linnaeus_jax")

#: updates between the lines of flags that look into the step
FLAG_PROBE_EVERY = 10


class StepRecorder(FrameRecorder):
    """The frame recorder in the form that the objective uses."""

    def __init__(self, model: nn.Module, *, gradients: bool) -> None:
        super().__init__(model)
        self.gradients = gradients

    def with_gradients(self, frames: Any, found: Any, grads: Any) -> Any:
        return concatenate(frames, found.frames(grads))

    def merge(self, left: Any, right: Any) -> Any:
        return merge(left, right)

    def all_finite(self, frames: Any) -> jax.Array:
        """bool []: no NaN and no infinity in any row."""
        return ~(frames.rows[:, 2:] > 0).any()


class DebugSession:
    """The debugging of one run; built before the program, because it decides what the step records."""

    def __init__(self, config: ConfigDict, directory: RunDirectory, tasks: Sequence[str], *, lead: bool) -> None:
        debug = config.debug
        self.config, self.directory, self.tasks, self.lead = config, directory, tuple(tasks), lead
        self.flags = flags.DebugFlags.from_config(debug, jax.process_index())
        self.event_log: DebugEventLog | None = None
        self.profiler = StepProfiler(debug.profiler, directory.resolve(debug.profiler.output_dir), lead=False)
        detector = debug.underflow_overflow
        self.detecting = detector.enabled
        self.monitor = OverflowMonitor(
            detector.max_frames_to_save,
            detector.trace_batch_nums,
            detector.abort_after_batch_num,
            write=lambda text: log.warning("%s", text),
        )
        self.bundle_wanted = debug.crash_bundle or self.detecting
        self._names: list[str] = []
        self._rate: Any = None
        self._update_in_epoch: Any = None
        self._first_update = 0

    # ---- what is traced into the step -------------------------------------------------------------------------

    @property
    def make_recorder(self) -> Callable[[nn.Module], Recorder] | None:
        """What records module calls; None unless the overflow detector is on."""
        gradients = self.config.debug.underflow_overflow.gradients
        return functools.partial(StepRecorder, gradients=gradients) if self.detecting else None

    @property
    def reads_every_update(self) -> bool:
        """Whether the host reads every update before it dispatches the next."""
        return self.detecting or self.bundle_wanted

    def probes(self) -> list[Probe]:
        """The measurements of the event log and of the flags that look into the step."""
        found: list[Probe] = []
        if self.config.debug.jsonl.enabled:
            found += event_log_probes(
                self,  # type: ignore[arg-type]  # events go through `event`, which knows whether the log is open
                names=self._names,
                tasks=self.tasks,
                learning_rate=lambda update: self._rate(update),
                batch_index=lambda update: self._update_in_epoch(update),
            )
        looking = ("loss.null_masking", "loss.class_weighting", "loss.taxonomy_smoothing", "augmentation")
        if any(self.flags.on(flag) for flag in looking):
            found.append(Probe("flags", FLAG_PROBE_EVERY, _measure_targets, self._write_targets))
        return found

    def event(self, event_type: str, step: int, epoch: int, data: Mapping[str, Any]) -> None:
        """Adds to the event log, if it is open."""
        if self.event_log is not None:
            self.event_log.event(event_type, step, epoch, data)

    # ---- points of a run ---------------------------------------------------------------------------------------

    def open(self, program: Program, facts: Mapping[str, Any], *, start: int, plans: Any) -> None:
        """The run directory exists, the state is restored, update `start` comes next."""
        debug = self.config.debug
        rates = program.update.learning_rates
        self.follow(program, lambda update: plans.locate(update)[1])
        self._first_update = start
        self._class_weights = program.objective.class_weights or {}
        profiler = debug.profiler
        self.profiler = StepProfiler(
            profiler, self.directory.resolve(profiler.output_dir), start_step=start, lead=self.lead
        )
        rows = program.update.optimizer.rows
        line = self.flags.debug_line
        line("distributed", lambda: flags.fact_lines("processes and devices", flags.distributed_facts()))
        line("model_build", lambda: flags.model_lines(facts["architecture"], program.parameters))
        overlaps = program.update.optimizer.overlaps
        line("optimizer", lambda: flags.optimizer_lines(rows, self._rates(rates, start), overlaps))
        line("dataloader", lambda: flags.fact_lines("input pipeline", facts["pipeline"]))
        line("scheduling", lambda: facts["schedule_text"])
        line("training_loop", lambda: flags.fact_lines("training loop", {"next update": start, **facts["training"]}))
        line("verbose_debug", lambda: flags.dump_lines("losses", facts["losses"]))
        line("augmentation", lambda: flags.fact_lines("augmentation", facts["augmentation"]))
        for task, lines in facts["taxonomy"]().items() if self.flags.on("loss.taxonomy_smoothing") else ():
            line("loss.taxonomy_smoothing", [f"{task}:", *lines])
        if self.lead and debug.jsonl.enabled:
            folder = self.directory.resolve(debug.jsonl.dir)
            supersede(folder, start)
            self.event_log = DebugEventLog(folder, int(time.time()))
            optimizer = self.config.optimizer
            self.event(
                "fit_start",
                start,
                plans.locate(start)[0] if start < plans.total else plans.epochs,
                fit_start_data(
                    rows,
                    total_examples=facts["total_examples"],
                    training=facts["training"],
                    optimizer={
                        "name": optimizer.name,
                        "lr": self._rate(start),
                        "betas": list(optimizer.betas),
                        "weight_decay": optimizer.weight_decay,
                        "groups": sorted(rates),
                    },
                ),
            )

    def follow(self, program: Program, update_in_epoch: Callable[[int], int]) -> None:
        """Names and numbers that the event log shows of `program`; known only after the step was built."""
        rates = program.update.learning_rates
        self._names[:] = [row.name for row in program.parameters]
        self._rate = lambda update: max(rate(update) for rate in rates.values())
        self._update_in_epoch = update_in_epoch

    def first_batch(self, batch: Mapping[str, Any], num_classes: Mapping[str, int]) -> None:
        """The first batch of this process, before its update."""
        self.event("data_sanity_check", self._first_update, 0, data_sanity_data(batch["label"], num_classes))
        self.flags.debug_line("dataloader", lambda: flags.fact_lines("first batch", dict(batch)))

    def epoch_start(self, program: Program, update: int, epoch: int) -> None:
        """Update `update` is the first of an epoch."""
        rates = self._rates(program.update.learning_rates, update)
        rows = program.update.optimizer.rows
        self.event("epoch_start", update, epoch, epoch_start_data(rows, rates, list(self.config.optimizer.betas)))
        self.flags.debug_line("training_loop", lambda: f"epoch {epoch} starts at update {update}")

    def around_update(self, update: int) -> AbstractContextManager[Any]:
        """The context in which update `update` is dispatched."""
        return self.profiler.before_step(update - self._first_update, update)

    def after_update(self, update: int, state: Any, outputs: Any, batch: Mapping[str, Any]) -> None:
        """Update `update` was dispatched and gave `state`.

        Raises:
          OverflowDetected, BatchLimitReached: as the options of the detector ask for; a bundle has been written.
        """
        self.profiler.after_step(outputs)
        if not self.reads_every_update:
            return
        finite, frames = fetch((outputs.finite, outputs.frames))
        if not finite and self.bundle_wanted:
            path = crash_bundle.write(self.directory.root / "crash", self.config, update, state, batch)
            log.warning(
                "update %d is not finite and was not applied; repeat it with: python -m linnaeus_jax.tools.replay %s",
                update,
                path,
            )
            self.bundle_wanted = False  # the first one tells the story
        if self.detecting:
            self.monitor.consume(update, frames)

    def log_point(self, row: Mapping[str, Any], step: int) -> None:
        """A row of the training log was written."""
        line = self.flags.debug_line
        line("train_metrics", lambda: flags.fact_lines(f"training row of step {step}", dict(row)))
        found = {name: value for name, value in row.items() if name.startswith("gradnorm/")}
        if any(name.startswith("gradnorm/weight/") for name in found):
            line("loss.gradnorm_metrics", lambda: flags.fact_lines(f"GradNorm at step {step}", found))
            line("loss.verbose_gradnorm_logging", lambda: flags.dump_lines(f"row of step {step}", dict(row)))
            line("loss.gradnorm_memory", lambda: flags.memory_lines(f"after step {step}", flags.device_memory()))

    def boundary(self, step: int, epoch: int, due: Any, row: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """An epoch boundary was served."""
        line = self.flags.debug_line
        decisions = {phase.name: True for phase in due.phases} | {"checkpoint": due.save}
        line("scheduling", lambda: flags.scheduling_lines(step, epoch, decisions, _numbers(row, "train/lr"), {}))
        line("training_loop", lambda: f"epoch {epoch} ends after {step} updates; phases: {list(decisions)}")
        line("dump_metrics", lambda: flags.dump_lines(f"metrics after step {step}", state))
        if due.save:
            line("checkpoint", lambda: f"checkpoint of step {step} saved")
        if self.event_log is not None:
            self.event_log.flush()

    def phase(self, name: str, sums: Mapping[str, Any], values: Mapping[str, float]) -> None:
        """A validation phase was evaluated."""
        self.flags.debug_line("validation_metrics", lambda: flags.validation_lines(name, sums, values))

    def close(self) -> None:
        """Writes what is left; harmless when repeated."""
        self.profiler.close()
        if self.event_log is not None:
            self.event_log.close()

    # ---- helpers -----------------------------------------------------------------------------------------------

    @staticmethod
    def _rates(schedules: Mapping[str, Any], update: int) -> dict[str, float]:
        return {name: float(schedule(update)) for name, schedule in schedules.items()}

    def _write_targets(self, update: int, epoch: int, found: Mapping[str, np.ndarray]) -> None:
        """Lines of the flags that look at targets, from one measured update."""
        line, label = self.flags.debug_line, found["label"]
        line("loss.null_masking", lambda: flags.null_input_lines(label, self.tasks), "INPUT")
        line(
            "loss.null_masking",
            lambda: flags.null_internal_lines(found["null"], found["keep"], self.tasks),
            "INTERNAL",
        )
        line(
            "loss.null_masking",
            lambda: flags.null_summary_lines(
                found["null"].sum(0).tolist(),
                (found["null"] & found["keep"]).sum(0).tolist(),
                len(label),
                self.tasks,
                probability=float(found["null_probability"]),
                phase1=self.config.train.phase1_mask_null_loss,
            ),
            "SUMMARY",
        )
        for t, task in enumerate(self.tasks):
            weights = self._class_weights.get(task)
            if weights is None:
                weights = np.ones(int(label[:, t].max()) + 1, np.float32)
            losses = np.full(len(label), found["task_losses"][t], np.float32)
            if self.flags.on("loss.class_weighting"):
                line("loss.class_weighting", flags.class_weight_lines(task, label[:, t], weights, losses))
        shown = found["preview"]
        line(
            "loss.taxonomy_smoothing",
            lambda: flags.sample_loss_lines(
                self.tasks[0], label[: len(shown), 0], shown[:, 0], np.full(len(shown), found["task_losses"][0])
            ),
            "FORWARD",
        )


def _measure_targets(inputs: ProbeInputs) -> dict[str, jax.Array]:
    """Targets of the first micro-batch and the losses."""
    return {
        "label": inputs.batch["label"][0],
        "null": inputs.null[0],
        "keep": inputs.keep[0],
        "task_losses": inputs.task_losses,
        "null_probability": inputs.probabilities["null_mask_prob"],
        "preview": inputs.preview,
    }


def _numbers(row: Mapping[str, Any], prefix: str) -> dict[str, float]:
    return {name: value for name, value in row.items() if name.startswith(prefix) and isinstance(value, float)}


__all__ = ["DebugSession", "StepRecorder"]
