"""SIGTERM, SIGINT, SIGUSR1 and SIGHUP: finish the update, save, leave with 128 + n."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from types import FrameType
from typing import Self

import jax
import numpy as np
from jax.experimental import multihost_utils

#: clock of the preemption service, which wants equal numbers on all processes and may be asked by several runs
_asked = itertools.count(1)


class Interruption:
    """Context manager that turns the first signal into a request and a second Ctrl-C into an immediate exit.

    Under `jax.distributed` its preemption service agrees on the update after which all processes stop: the largest
    count of updates that any process has reached, plus one. The service has a SIGTERM handler of its own, which stays;
    the other signals are passed on to it. Asking costs a comparison per update; processes talk only after a signal.
    A SIGHUP that is ignored, as under `nohup`, stays ignored.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._distributed = jax.distributed.is_initialized()
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                ignored = number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN
                if not (ignored or (self._distributed and number == signal.SIGTERM)):
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None and number == signal.SIGINT:
            os._exit(128 + number)
        self.signal_number = number
        if self._distributed:
            os.kill(os.getpid(), signal.SIGTERM)

    def requested(self) -> bool:
        """True when the run must stop now; the same answer on every process. Asked once after every update.

        Raises:
          RuntimeError: `jax.distributed` runs without its preemption service.
        """
        if not self._distributed:
            return self.signal_number is not None
        if not multihost_utils.reached_preemption_sync_point(next(_asked)):
            return False
        numbers = multihost_utils.process_allgather(np.int32(self.signal_number or 0)).ravel().tolist()
        self.signal_number = next((number for number in numbers if number), int(signal.SIGTERM))
        return True

    @property
    def exit_code(self) -> int:
        return 128 + (self.signal_number or 0)
