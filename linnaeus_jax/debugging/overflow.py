"""Underflow and overflow detection: reports the module calls that led to the first NaN or infinity.

The report format and the options are those of `transformers.debug_utils.DebugUnderflowOverflow`. In training,
`update_frames` computes the frames of an update and `OverflowMonitor` reads them before the update is made. For any
Linen module outside the trainer::

    debug = DebugUnderflowOverflow(model)
    logits = debug.apply(variables, images)  # raises at the first NaN or infinity

or, inside a step of one's own, with the frames as one more output::

    (loss, frames), grads = step(params, batch)  # uses `out, frames = debug.record(variables, images)`
    debug.check(frames)

Gradients of every call are an option, see `debugging.frame_recorder.FrameRecorder`; their frames follow those of the
forward pass in the report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from linnaeus_jax.config.errors import TrainingError
from linnaeus_jax.debugging.frame_recorder import CotangentTaps, FrameRecorder
from linnaeus_jax.debugging.frames import Frame, Frames, Row
from linnaeus_jax.mistakes import InputError

Writer = Callable[[str], None]

_PREFIX = " " * 17
_COLUMNS = "abs min  abs max  metadata"
_FOUND = (
    "DebugUnderflowOverflow: inf/nan detected, aborting as there is no point running further. "
    "Please scroll up above this traceback to see the activation values prior to this event."
)


class OverflowDetected(TrainingError, ValueError):
    """A weight, input or output was NaN or infinite; the report has been written."""

    alert = "Non-finite values"

    def __init__(self, batch_number: int, frame: Frame, more: str = "") -> None:
        """`more` follows the documented message."""
        super().__init__(f"{_FOUND}{more}")
        self.batch_number = batch_number
        self.frame = frame

    @property
    def where(self) -> str:
        """The call whose values are the first that are not finite: name and class."""
        return f"{self.frame.name or '(the model)'} {self.frame.class_name}"


class BatchLimitReached(TrainingError, ValueError):
    """The batch named by `abort_after_batch_num` is done."""


def row_text(row: Row) -> str:
    """One line of a frame: both magnitudes, or the note in their place, and the label."""
    if row.note:
        return f"{row.note:>17} {row.label}"
    return f"{row.absmin:8.2e} {row.absmax:8.2e} {row.label}"


def frame_text(frame: Frame, starts_batch: int | None = None) -> str:
    """A frame as it is printed; `starts_batch` is the number of the batch whose first frame it is."""
    lines = [f"{_PREFIX} {frame.name} {frame.class_name}", *map(row_text, frame.rows)]
    if starts_batch is not None:
        lines = [f"\n\n{_PREFIX} *** Starting batch number={starts_batch} ***", _COLUMNS, *lines]
    return "\n".join(lines)


def _alarms(label: str, has_nan: bool, has_inf: bool) -> Iterator[str]:
    if has_nan:
        yield f"{label} has nans"
    if has_inf:
        yield f"{label} has infs"


class OverflowMonitor:
    """Reads the frames of one batch after another, prints reports or traces and raises.

    Args:
      max_frames_to_save: frames that a report shows at most; they may reach back into earlier batches.
      trace_batch_nums: batches whose frames are all printed; with any, NaNs and infinities do not raise.
      abort_after_batch_num: the batch after which to stop; None never.
      write: receives every piece of text; a line break belongs after each, as `print` does.

    Raises:
      ValueError: an option that cannot work.
    """

    def __init__(
        self,
        max_frames_to_save: int = 21,
        trace_batch_nums: Sequence[int] = (),
        abort_after_batch_num: int | None = None,
        write: Writer = print,
    ) -> None:
        if max_frames_to_save < 1:
            raise InputError(f"max_frames_to_save is {max_frames_to_save}; at least 1 frame is needed for a report")
        numbers = (*trace_batch_nums, *(() if abort_after_batch_num is None else (abort_after_batch_num,)))
        if any(number < 0 for number in numbers):
            raise InputError(
                f"trace_batch_nums {tuple(trace_batch_nums)} and abort_after_batch_num {abort_after_batch_num} count "
                "batches from 0 and cannot be negative"
            )
        self.max_frames_to_save = max_frames_to_save
        self.trace_batch_nums = frozenset(trace_batch_nums)
        self.abort_after_batch_num = abort_after_batch_num
        self._write = write
        self._recent: deque[tuple[int, Frames]] = deque()  # formatted only if a report needs them

    def looks_at(self, batch_number: int) -> bool:
        """Whether the frames of a batch are wanted: of every one, or of those that are traced."""
        return not self.trace_batch_nums or batch_number in self.trace_batch_nums

    def consume(self, batch_number: int, frames: Frames) -> None:
        """Looks at the frames of one batch, in order of their completion.

        Args:
          batch_number: counted from 0.
          frames: fetched or not.

        Raises:
          OverflowDetected: a value is NaN or infinite; the report has been written.
        """
        if batch_number in self.trace_batch_nums:
            for text in _frame_texts(batch_number, frames.listing()):
                self._write(text)
        elif not self.trace_batch_nums and frames.bad:
            self._report(batch_number, frames.listing())
        self._remember(batch_number, frames)

    def finished(self, batch_number: int) -> None:
        """A batch is done.

        Raises:
          BatchLimitReached: it was that of `abort_after_batch_num`.
        """
        if self.abort_after_batch_num is not None and batch_number >= self.abort_after_batch_num:
            raise BatchLimitReached(
                f"DebugUnderflowOverflow: aborting after {batch_number + 1} batches due to "
                f"`abort_after_batch_num={self.abort_after_batch_num}` arg"
            )

    def _remember(self, batch_number: int, frames: Frames) -> None:
        """Keeps as many batches as a window of `max_frames_to_save` frames can touch."""
        self._recent.append((batch_number, frames))
        while (
            sum(len(kept.table) for _, kept in self._recent) - len(self._recent[0][1].table) >= self.max_frames_to_save
        ):
            self._recent.popleft()

    def _report(self, batch_number: int, listing: Sequence[Frame]) -> None:
        """Writes the frames up to the first that is not finite, and raises."""
        last = next(i for i, frame in enumerate(listing) if frame.bad)
        for row in listing[last].rows:
            for alarm in _alarms(row.label, row.has_nan, row.has_inf):
                self._write(alarm)
        window: deque[str] = deque(maxlen=self.max_frames_to_save)
        batches = [
            *((number, frames.listing()) for number, frames in self._recent),
            (batch_number, listing[: last + 1]),
        ]
        for number, frames in batches:
            window.extend(_frame_texts(number, frames))
        backward = any(frame.backward for _, frames in batches for frame in frames)
        self._recent.clear()
        self._write(f"\nDetected inf/nan during batch_number={batch_number}")
        self._write(f"Last {len(window)} forward {'and gradient ' if backward else ''}frames:")
        self._write(_COLUMNS)
        self._write("\n".join(window))
        self._write("\n\n")
        raise OverflowDetected(batch_number, listing[last])


def _frame_texts(batch_number: int, frames: Sequence[Frame]) -> list[str]:
    return [frame_text(frame, batch_number if i == 0 else None) for i, frame in enumerate(frames)]


class DebugUnderflowOverflow:
    """Watches every forward pass of a Linen module; see `OverflowMonitor` for the options.

    `apply` runs eagerly, operation by operation: slow, but every value has exactly the range of its type. For compiled
    code use `record` inside `jax.jit` (also under grad, remat, scans and sharding) and `check` on what it returned.
    Compiled float16 code may go on with values that the type could not hold, so that frames after an overflow may look
    finite there; the frame whose value leaves the type's range is reported all the same. Passes are numbered from 0 in
    the order in which they are checked.

    Args:
      model: any Linen module; calls of its submodules are the frames.
    """

    def __init__(
        self,
        model: nn.Module,
        max_frames_to_save: int = 21,
        trace_batch_nums: Sequence[int] = (),
        abort_after_batch_num: int | None = None,
        write: Writer = print,
    ) -> None:
        self.monitor = OverflowMonitor(max_frames_to_save, trace_batch_nums, abort_after_batch_num, write)
        self.batch_number = 0
        self._recorder = FrameRecorder(model)

    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        """As `model.apply`, then `check`.

        Raises:
          OverflowDetected, BatchLimitReached: both ValueError, see `OverflowMonitor.consume`.
          ValueError: called while JAX is tracing.
        """
        out, frames = self.record(variables, *args, **kwargs)
        if isinstance(frames.rows, jax.core.Tracer):
            raise InputError(
                "DebugUnderflowOverflow.apply was called inside jax.jit or another transform, where values are not "
                "known yet; use `out, frames = debug.record(...)` there, return the frames and call "
                "`debug.check(frames)` outside"
            )
        self.check(frames)
        return out

    def record(self, variables: Any, *args: Any, **kwargs: Any) -> tuple[Any, Frames]:
        """(What `model.apply` returns, frames), to be used inside compiled code; `taps=` as for the recorder."""
        return self._recorder.apply(variables, *args, **kwargs)

    def cotangent_taps(self, variables: Any, *args: Any, **kwargs: Any) -> CotangentTaps:
        """What a loss takes as one more argument to have gradient frames; see `FrameRecorder`."""
        return self._recorder.cotangent_taps(variables, *args, **kwargs)

    def check(self, frames: Frames) -> None:
        """Consumes the frames of the next batch; waits for them. Raises as `apply`.

        Frames that `jax.vmap`, `jax.pmap`, `jax.shard_map` or a scan returned for several passes count as one batch;
        their rows are the extremes over all of them. For batches of their own, check them one by one:
        `for i in range(n): debug.check(jax.tree.map(lambda x: x[i], frames))`.
        """
        number, self.batch_number = self.batch_number, self.batch_number + 1
        self.monitor.consume(number, frames.replace(rows=frames.host()))
        self.monitor.finished(number)


def detect_overflow(var: Any, ctx: str) -> Any:
    """Prints `{ctx} has nans` and `{ctx} has infs` where `var` holds any; for values inside a module's call.

    Inside compiled code the lines come from a host callback, in any order and at any time before
    `jax.effects_barrier()` returns: once per execution, hence again where `jax.checkpoint` recomputes, once per
    element under `jax.vmap` and once per device under `jax.shard_map`. It never raises there.

    Args:
      var: an array of any shape; integers never overflow detectably.
      ctx: what to call it.

    Returns:
      Whether NaNs or infinities were found: a bool, or a traced bool [] inside compiled code.

    Raises:
      TypeError: `var` is no array of numbers.
    """
    if not jnp.issubdtype(getattr(var, "dtype", bool), jnp.number):
        kind = getattr(var, "dtype", type(var).__name__)
        raise TypeError(f"detect_overflow({ctx!r}) got {kind}; an array of numbers is needed")
    values = jnp.asarray(var)
    has_nan, has_inf = jnp.isnan(values).any(), jnp.isinf(values).any()
    if isinstance(values, jax.core.Tracer):
        jax.debug.callback(_print_alarms, has_nan, has_inf, label=ctx)
        return has_nan | has_inf
    _print_alarms(has_nan, has_inf, label=ctx)
    return bool(has_nan | has_inf)


def _print_alarms(has_nan: Any, has_inf: Any, *, label: str) -> None:
    for alarm in _alarms(label, bool(has_nan), bool(has_inf)):
        print(alarm, flush=True)
