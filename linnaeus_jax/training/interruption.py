"""SIGTERM, SIGINT and SIGUSR1: finish the step, save, leave with 128 + n."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Self

import jax


class Interruption:
    """Context manager that turns the first signal into a request and a second Ctrl-C into an immediate exit."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None and number == signal.SIGINT:
            os._exit(128 + number)
        self.signal_number = number

    def requested(self, step: int) -> bool:
        """True when the run must stop before the update after `step`; the same answer on every process."""
        if jax.process_count() == 1:
            return self.signal_number is not None
        from jax.experimental import multihost_utils

        if multihost_utils.reached_preemption_sync_point(step):
            self.signal_number = self.signal_number or signal.SIGTERM
            return True
        return False

    @property
    def exit_code(self) -> int:
        return 128 + (self.signal_number or 0)
