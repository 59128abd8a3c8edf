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

from linnaeus_jax.data.dataset import Dataset
from linnaeus_jax.debugging import crash_bundle, nonfinite
from linnaeus_jax.debugging.event_log import (
    DebugEventLog,
    data_sanity_data,
    epoch_start_data,
    event_log_probes,
    fit_start_data,
    supersede,
)
from linnaeus_jax.debugging.flag_reports import FlagReports
from linnaeus_jax.debugging.flags import DebugFlags
from linnaeus_jax.debugging.frame_recorder import FrameRecorder
from linnaeus_jax.debugging.frames import concatenate, merge
from linnaeus_jax.debugging.overflow import OverflowMonitor
from linnaeus_jax.debugging.profiler import StepProfiler
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.learning.optimizers import ParameterRow
from linnaeus_jax.step.compilation import CompiledStep
from linnaeus_jax.step.objective import Recorder
from linnaeus_jax.step.placement import fetch
from linnaeus_jax.step.probes import Probe, registered_probes
from linnaeus_jax.step.program import Program

log = logging.getLogger("linnaeus_jax")


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
        self.profiles = directory.resolve(debug.profiler.output_dir)
        self.reports = FlagReports(
            DebugFlags.from_config(debug, jax.process_index()),
            tasks,
            self.profiles,
            phase1=config.train.phase1_mask_null_loss,
        )
        self.event_log: DebugEventLog | None = None
        self.profiler = StepProfiler(debug.profiler, self.profiles, lead=False)
        detector = debug.underflow_overflow
        self.detecting = detector.enabled
        self.monitor = OverflowMonitor(
            detector.max_frames_to_save,
            detector.trace_batch_nums,
            detector.abort_after_batch_num,
            write=lambda text: log.warning("%s", text),
        )
        self.bundle_wanted = debug.crash_bundle or self.detecting
        self._rows: list[ParameterRow] = []
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
        """The measurements of plugins, of the event log and of the flags that look into the step.

        Raises:
          ValueError: a plugin's probe has a bad option.
        """
        probes = registered_probes(self.config.debug.get("probes", {}))
        if self.config.debug.jsonl.enabled:
            probes += event_log_probes(
                self.event,
                rows=self._rows,
                tasks=self.tasks,
                learning_rate=lambda step: self._rate(step),
                batch_index=lambda step: self._update_in_epoch(step),
            )
        return probes + self.reports.probes()

    def event(self, event_type: str, step: int, epoch: int, data: Mapping[str, Any]) -> None:
        """Adds to the event log, if it is open."""
        if self.event_log is not None:
            self.event_log.event(event_type, step, epoch, data)

    # ---- points of a run ---------------------------------------------------------------------------------------

    def open(self, program: Program, facts: Mapping[str, Any], *, start: int, plans: Any) -> None:
        """The run directory exists, the state is restored, update `start` comes next."""
        debug, rates = self.config.debug, program.settings.learning_rates
        self.follow(program, lambda update: plans.locate(update)[1])
        self._first_update = start
        self.profiler = StepProfiler(debug.profiler, self.profiles, start_step=start, lead=self.lead)
        self.reports.opened(program, facts, start=start)
        if self.lead and debug.jsonl.enabled:
            folder = self.directory.resolve(debug.jsonl.dir)
            supersede(folder, start, run=self.directory.root)
            self.event_log = DebugEventLog(folder, int(time.time()), run=self.directory.root)
            optimizer = self.config.optimizer
            self.event(
                "fit_start",
                start,
                plans.locate(start)[0] if start < plans.total else plans.epochs,
                fit_start_data(
                    program.settings.optimizer.rows,
                    run=self.directory.root,
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
        rates = program.settings.learning_rates
        self._rows[:] = program.settings.optimizer.rows
        self._rate = lambda update: max(rate(update) for rate in rates.values())
        self._update_in_epoch = update_in_epoch

    def first_batch(self, program: Program, batch: Mapping[str, Any], dataset: Dataset) -> None:
        """The first batch of this process, before its update; the check covers it and the whole training split."""
        if self._first_update == 0:
            tables = [batch["label"].reshape(-1, len(self.tasks)), dataset.train.labels]
            extremes = np.stack([pick(axis=0) for table in tables for pick in (table.min, table.max)])
            self.event("data_sanity_check", 0, 0, data_sanity_data(extremes, dataset.num_classes))
        self.reports.first_batch(program, batch, self._first_update)

    def epoch_start(self, program: Program, update: int, epoch: int) -> None:
        """Update `update` is the first of an epoch."""
        rates = self._rates(program.settings.learning_rates, update)
        rows = program.settings.optimizer.rows
        self.event("epoch_start", update, epoch, epoch_start_data(rows, rates, list(self.config.optimizer.betas)))
        self.reports.debug.debug_line("training_loop", lambda: f"epoch {epoch} starts at update {update}")

    def around_update(self, update: int, variant: str) -> AbstractContextManager[Any]:
        """The context in which update `update` is dispatched, as the `variant` of the step."""
        self.reports.before_update(update, variant)
        return self.profiler.before_step(update - self._first_update, update)

    @property
    def donates(self) -> bool:
        """Whether a step may write over the state that it gets: unless it may have to be made again."""
        debug = self.config.debug
        return not (debug.nans or debug.infs or nonfinite.kinds())

    def dispatch(
        self, update: int, step: CompiledStep, state: Any, placed: Any, batch: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """What update `update` makes of `state` and `placed`, which is `batch` on the devices.

        Raises:
          InvalidOperation: under debug.nans or debug.infs, a result is bad.
        """
        if not nonfinite.kinds():
            result: tuple[Any, Any] = step(state, placed)
            return result
        result, error = nonfinite.checked(update, step, state, placed)
        if error is None:
            return result
        if self.bundle_wanted:
            self._write_bundle(update, result[0], batch)
        raise error

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
            self._write_bundle(update, state, batch)
        if self.detecting:
            self.monitor.consume(update, frames)

    def saved(self, step: int, state: Any) -> None:
        """A checkpoint of `state` is being written; no event from before it may be lost to a kill after it."""
        if self.event_log is not None:
            self.event_log.flush()
        self.reports.saved(step, state)

    def boundary_served(self) -> None:
        """An epoch boundary was served and everything of it written."""
        if self.event_log is not None:
            self.event_log.flush()

    def close(self) -> None:
        """Writes what is left; harmless when repeated."""
        self.profiler.close()
        if self.event_log is not None:
            self.event_log.close()

    def _write_bundle(self, update: int, state: Any, batch: Mapping[str, Any]) -> None:
        path = crash_bundle.write(self.directory.root / "crash", self.config, update, state, batch)
        log.warning(
            "update %d is not finite and was not applied; repeat it with: python -m linnaeus_jax.tools.replay %s",
            update,
            path,
        )
        self.bundle_wanted = False  # the first one tells the story

    # ---- helpers -----------------------------------------------------------------------------------------------

    @staticmethod
    def _rates(schedules: Mapping[str, Any], update: int) -> dict[str, float]:
        return {name: float(schedule(update)) for name, schedule in schedules.items()}
