"""Profiling on a schedule: a few updates of every cycle are traced into a run that TensorBoard's profile tab shows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jax

from linnaeus_jax.config.paths import program, typed_command
from linnaeus_jax.mistakes import InputError

log = logging.getLogger("linnaeus_jax")

NONE, WARMUP, RECORD, RECORD_AND_SAVE = "NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE"
#: names of the host events that `linnaeus debug profile` looks for
STEP_NAME, WAIT_NAME = "train", "input_wait"


def schedule_errors(schedule: Sequence[int]) -> list[str]:
    """What is wrong with `debug.profiler.schedule`."""
    numbers = list(schedule)
    counts = len(numbers) == 4 and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers)
    if counts and numbers[2] >= 1:
        return []
    return [
        f"debug.profiler.schedule = {tuple(numbers)}: give four integers (wait, warmup, active, repeat), "
        "active >= 1, the others >= 0; repeat 0 goes on to the end"
    ]


def profiler_state(schedule: Sequence[int], i: int) -> str:
    """What happens at the i-th update of this process (from 0): NONE, WARMUP, RECORD or RECORD_AND_SAVE.

    A cycle has `wait` updates without profiling, `warmup` updates whose results are discarded and `active` recorded
    ones, of which the last saves; after `repeat` cycles (0: never) it ends. The rule is that of
    `torch.profiler.schedule`.
    """
    wait, warmup, active, repeat = schedule
    cycle, position = divmod(i, wait + warmup + active)
    if (repeat > 0 and cycle >= repeat) or position < wait:
        return NONE
    if position < wait + warmup:
        return WARMUP
    return RECORD_AND_SAVE if position == wait + warmup + active - 1 else RECORD


class StepProfiler:
    """Traces the updates that the schedule names.

    Around every update `i` (counted in this process):

        with profiler.input_wait():
            batch = next(loader)
        with profiler.before_step(i, global_step):
            state, outputs = step(state, batch)
        profiler.after_step(outputs)

    and `close()` in a `finally`: a trace that is not stopped leaves no file. The steps must have been compiled before.
    A failure of the profiler is a warning and ends profiling, never training.

    Args:
      settings: the `debug.profiler` section: enabled, schedule, record_shapes, with_stack, device_memory.
      output_dir: gets `plugins/profile/cycle_0001/…`, made with the first trace, and `device_memory_cycle_0001.prof`.
      start_step: the global step of the first update of this process; names the cycles of a resumed run.
      is_coordinator: whether this is process 0; the others do not profile.

    Raises:
      ValueError: the schedule is wrong.
    """

    def __init__(self, settings: Any, output_dir: Path, *, start_step: int = 0, is_coordinator: bool = True) -> None:
        self.schedule = tuple(settings.schedule)
        self.active = bool(settings.enabled) and is_coordinator
        self.output_dir = output_dir
        self.tracing = False
        self._suffix = f"_from_{start_step}" if start_step else ""
        self._shapes, self._stack = bool(settings.record_shapes), bool(settings.with_stack)
        self._device_memory, self._cycle = bool(settings.device_memory), ""
        self._i = -1
        if errors := schedule_errors(self.schedule) if self.active else []:
            raise InputError(errors[0])

    def before_step(self, i: int, global_step: int) -> AbstractContextManager[Any]:
        """The context of update `i`: an annotation that groups its events; starts a trace where one is due."""
        if not self.active:
            return nullcontext()
        self._i = i
        if not self.tracing and profiler_state(self.schedule, i) in (RECORD, RECORD_AND_SAVE):
            self._start(i // sum(self.schedule[:3]) + 1)
        return jax.profiler.StepTraceAnnotation(STEP_NAME, step_num=global_step)

    def input_wait(self) -> AbstractContextManager[Any]:
        """Marks waiting for data in the trace."""
        return jax.profiler.TraceAnnotation(WAIT_NAME) if self.active else nullcontext()

    def after_step(self, outputs: Any) -> None:
        """Saves the trace after the last update of a cycle, once `outputs` (all arrays of the step) are computed.

        Also waits for them before the first recorded update, so that a trace holds only its own updates.
        """
        if not self.active:
            return
        done = profiler_state(self.schedule, self._i)
        following = profiler_state(self.schedule, self._i + 1)
        if done == RECORD_AND_SAVE or (not self.tracing and following in (RECORD, RECORD_AND_SAVE)):
            jax.block_until_ready(outputs)
        if done == RECORD_AND_SAVE and self.tracing:
            self._stop(complete=True)
            if self._device_memory and self.active:
                path = self.output_dir / f"device_memory_{self._cycle}.prof"
                self._try("save the device memory", lambda: jax.profiler.save_device_memory_profile(str(path)))

    def close(self) -> None:
        """Saves an unfinished trace; no further profiling."""
        if self.tracing:
            self._stop(complete=False)
        self.active = False

    def _start(self, cycle: int) -> None:
        options = jax.profiler.ProfileOptions()
        self._cycle = f"cycle_{cycle:04d}{self._suffix}"
        options.session_id = self._cycle  # the default, a time in seconds, may repeat
        options.python_tracer_level = 1 if self._stack else 0
        options.host_tracer_level = 2 if self._shapes else 1  # 0 would drop the annotation of the steps
        options.enable_hlo_proto = self._shapes
        self._try("start a trace", lambda: jax.profiler.start_trace(str(self.output_dir), profiler_options=options))
        self.tracing = self.active

    def _stop(self, *, complete: bool) -> None:
        self.tracing = False
        self._try("save a trace", jax.profiler.stop_trace)
        if self.active:
            log.info(
                "profiler: %s trace saved; view it with: %s (tab Profile), or: %s",
                "complete" if complete else "unfinished",
                typed_command("tensorboard", "--logdir", self.output_dir),
                program("debug profile", self.output_dir),
            )

    def _try(self, what: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # whatever the profiler raises, training matters more
            log.warning("profiler: cannot %s: %s; profiling ends, training goes on", what, error)
            self.active = False
