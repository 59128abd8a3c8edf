"""The debugging of a run: flags, event log, overflow detector, crash bundle, profiler.

The trainer calls one method at each point of a run that they report on; with everything off, none does anything. Only
probes are traced into the step. What else looks inside an update computes it once more from the same state and batch:
the overflow detector before the update is made, the search for the operation and `linnaeus debug replay` after it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from linnaeus_jax.config.paths import program
from linnaeus_jax.config.typed import Config
from linnaeus_jax.debugging import crash_bundle, flag_texts, nonfinite
from linnaeus_jax.debugging.event_log import (
    DebugEventLog,
    EventFacts,
    data_sanity_data,
    epoch_start_data,
    event_log_probes,
    fit_start_data,
    supersede,
)
from linnaeus_jax.debugging.flag_reports import FlagReports, RunFacts
from linnaeus_jax.debugging.flags import DebugFlags
from linnaeus_jax.debugging.overflow import OverflowDetected, OverflowMonitor
from linnaeus_jax.debugging.profiler import StepProfiler
from linnaeus_jax.debugging.update_frames import compile_update_frames
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.schedules.values import on_host
from linnaeus_jax.step.compilation import CompiledStep
from linnaeus_jax.step.placement import Placement, fetch
from linnaeus_jax.step.probes import Probe, registered_probes
from linnaeus_jax.step.program import Program

log = logging.getLogger("linnaeus_jax")


class DebugSession:
    """The debugging of one run; built before the program, because it decides which probes the step has."""

    def __init__(self, config: Config, directory: RunDirectory, tasks: Sequence[str], *, is_coordinator: bool) -> None:
        debug = config.debug
        self.config, self.directory, self.is_coordinator = config, directory, is_coordinator
        self.tasks = tuple(tasks)
        self.profiles = directory.resolve(debug.profiler.output_dir)
        flags = DebugFlags.from_config(debug, jax.process_index())
        self.reports = FlagReports(config, flags, tasks, self.profiles, flag_texts.TEXTS)
        self.event_log: DebugEventLog | None = None
        self.event_facts = EventFacts(self.tasks)
        self.profiler = StepProfiler(debug.profiler, self.profiles, is_coordinator=False)
        self.detector = debug.underflow_overflow
        self.monitor = OverflowMonitor(
            self.detector.max_frames_to_save,
            self.detector.trace_batch_nums,
            self.detector.abort_after_batch_num,
            write=lambda text: log.warning("%s", text),
        )
        self.writes_bundle = debug.crash_bundle or self.detector.enabled
        self._update_frames: CompiledStep | None = None
        self._repeat: tuple[Any, Any, Any] | None = None  # function, state and batch of an update to be made again
        self._start = 0

    # ---- what is traced into the step

    def probes(self) -> list[Probe]:
        """The measurements of plugins, of the event log and of the flags that look into the step.

        Raises:
          ValueError: a plugin's probe has a bad option.
        """
        probes = registered_probes(self.config.debug.get("probes", {}))
        if self.config.debug.jsonl.enabled:
            probes += event_log_probes(self.event, self.event_facts)
        return probes + self.reports.probes()

    def event(self, event_type: str, step: int, epoch: int, data: Mapping[str, Any]) -> None:
        """Adds to the event log, if it is open."""
        if self.event_log is not None:
            self.event_log.event(event_type, step, epoch, data)

    # ---- points of a run

    def open(self, facts: RunFacts) -> None:
        """The run directory exists, the state is restored, the next update is that of step `facts.start`."""
        self.describe(facts.program, lambda step: facts.plans.locate(step)[1])
        self._facts, self._start, start = facts, facts.start, facts.start
        profiler = self.config.debug.profiler
        self.profiler = StepProfiler(profiler, self.profiles, start_step=start, is_coordinator=self.is_coordinator)
        self.reports.opened(facts)
        if self.is_coordinator and self.config.debug.jsonl.enabled:
            folder, run = self.directory.resolve(self.config.debug.jsonl.dir), self.directory.root
            supersede(folder, start, run=run)
            self.event_log = DebugEventLog(folder, int(time.time()), run=run)
            optimizer = self.config.optimizer
            data = fit_start_data(
                facts.program.settings.optimizer.rows,
                run=run,
                total_examples=len(facts.dataset.train),
                training=facts.training,
                optimizer={
                    "name": optimizer.name,
                    "lr": self.event_facts.learning_rate(start),
                    "betas": list(optimizer.betas),
                    "weight_decay": optimizer.weight_decay,
                    "groups": sorted(facts.program.settings.learning_rates),
                },
            )
            epoch = facts.plans.locate(start)[0] if start < facts.plans.total else facts.plans.epochs
            self.event("fit_start", start, epoch, data)

    def describe(self, program: Program, batch_index: Callable[[int], int]) -> None:
        """Sets the names and numbers that the event log shows of `program`."""
        rates = on_host(program.settings.learning_rates)
        self.event_facts.rows = program.settings.optimizer.rows
        self.event_facts.learning_rate = lambda step: max(rate.item() for rate in rates(step).values())
        self.event_facts.batch_index = batch_index

    def first_batch(self, batch: Mapping[str, Any]) -> None:
        """The first batch of this process, before its update; the check covers it and the whole training split."""
        if self._start == 0:
            dataset = self._facts.dataset
            tables = [batch["label"].reshape(-1, len(self.tasks)), dataset.train.labels]
            extremes = np.stack([pick(axis=0) for table in tables for pick in (table.min, table.max)])
            self.event("data_sanity_check", 0, 0, data_sanity_data(extremes, dataset.num_classes))
        self.reports.say("first_batch", batch)

    def epoch_start(self, step: int, epoch: int) -> None:
        """`step` is the first of `epoch`."""
        rates, betas = self._facts.learning_rates(step), list(self.config.optimizer.betas)
        self.event("epoch_start", step, epoch, epoch_start_data(self.event_facts.rows, rates, betas))
        self.reports.say("epoch_start", epoch, step)

    def compile(self, program: Program, state: Any, placed: Any, placement: Placement) -> list[CompiledStep]:
        """Compiles the overflow detector, where it is on, for the shapes of a state and a batch on the devices."""
        if not self.detector.enabled:
            return []
        gradients = self.detector.gradients
        self._update_frames = compile_update_frames(program, state, placed, placement, gradients=gradients)
        return [self._update_frames]

    @property
    def donates(self) -> bool:
        """Whether a step may write over the state that it gets: unless it may have to be made again."""
        debug = self.config.debug
        return not (debug.nans or debug.infs or nonfinite.kinds())

    @contextmanager
    def around_update(
        self, step: int, compiled: CompiledStep, state: Any, placed: Any, batch: Mapping[str, Any]
    ) -> Iterator[None]:
        """The context in which `compiled` makes the update of `placed`, which is `batch` on the devices, from `state`.

        Raises:
          OverflowDetected: a module call of this update is not finite; it is not made, and a bundle has been written.
        """
        self.reports.say("before_update", step, compiled.name)
        if self._update_frames is not None and self.monitor.looks_at(step):
            with nonfinite.unchecked():  # a frame may be NaN
                frames = fetch(self._update_frames(state, placed))
            try:
                self.monitor.consume(step, frames)
            except OverflowDetected as error:  # what the user and the alerts see last names the place
                self._write_bundle(step, state, batch)
                more = f" First frame that is not finite: {error.where}, in update {step}"
                raise OverflowDetected(step, error.frame, more) from error
        self._repeat = (compiled.function, state, placed) if nonfinite.kinds() else None
        with self.profiler.before_step(step - self._start, step), nonfinite.unchecked():
            yield

    def after_update(self, step: int, state: Any, outputs: Any, batch: Mapping[str, Any]) -> None:
        """The update of `step` was dispatched and gave `state`.

        Raises:
          InvalidOperation: under debug.nans or debug.infs, a result is bad; a bundle has been written.
          BatchLimitReached: the detector is to stop after it.
        """
        self.profiler.after_step(outputs)
        if self._repeat is not None:
            error = nonfinite.examined(step, *self._repeat, result=(state, outputs))
            if error is not None:
                self._write_bundle(step, self._repeat[1], batch)
                raise error
            self._repeat = None
        if self.writes_bundle and not fetch(outputs.finite):
            self._write_bundle(step, crash_bundle.before_skipped(state), batch)
        if self.detector.enabled:
            self.monitor.finished(step)

    def saved(self, step: int, state: Any) -> None:
        """A checkpoint of `state` is being written; no event from before it may be lost to a kill after it."""
        self.epoch_end()
        self.reports.say("saved", step, state)

    def epoch_end(self) -> None:
        """Everything of the end of an epoch is written."""
        if self.event_log is not None:
            self.event_log.flush()

    def close(self) -> None:
        """Writes what is left; harmless when repeated."""
        self.profiler.close()
        if self.event_log is not None:
            self.event_log.close()

    def _write_bundle(self, step: int, state: Any, batch: Mapping[str, Any]) -> None:
        """Writes the first bundle of this process, where bundles are wanted."""
        if not self.writes_bundle:
            return
        self.writes_bundle = False
        path = crash_bundle.write(self.directory.root / "crash", self._facts.config, step, state, batch)
        log.warning(
            "update %d is not finite and was not applied; repeat it with: %s",
            step,
            program("debug replay", path),
        )
