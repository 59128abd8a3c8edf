"""SIGTERM, SIGINT, SIGUSR1 and SIGHUP: finish the update, save, leave with 128 + n.

Python calls a signal handler only between two of its own instructions, so not while XLA compiles or computes. What the
system itself does at a signal, writing its number into a socket, is therefore read by a thread, which answers at once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Self

import jax
import numpy as np
from jax.experimental import multihost_utils

from linnaeus_jax import system

#: clock of the preemption service, which wants equal numbers on all processes and may be asked by several runs
_asked = itertools.count(1)

#: clears the line of a progress bar, and shows the cursor that it hides
_CLEAR, _CURSOR = "\r\x1b[2K", "\x1b[?25h"


class Interruption:
    """Context manager that turns the first signal into a request and a second Ctrl-C into an immediate exit.

    Under `jax.distributed` its preemption service agrees on the update after which all processes stop: the largest
    count of updates that any process has reached, plus one. The service has a SIGTERM handler of its own, which stays;
    the other signals are passed on to it. Asking costs a comparison per update; processes talk only after a signal.
    A SIGHUP that is ignored, as under `nohup`, stays ignored.

    Attributes:
      doing: what the main thread may be in for long, for the answer to a signal.
    """

    SIGNALS = system.signals("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._distributed = jax.distributed.is_initialized()
        self._previous: dict[int, object] = {}
        self._written: socket.socket | None = None  # by the system; a thread reads from its other end
        self._previous_end = -1
        self._noticed = 0
        self.doing = "the start"

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                ignored = number.name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN
                if not (ignored or (self._distributed and number == signal.SIGTERM)):
                    self._previous[number] = signal.signal(number, self._handle)
            read, self._written = socket.socketpair()
            self._written.setblocking(False)
            self._previous_end = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._listen, args=(read,), name="signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._written is not None:
            signal.set_wakeup_fd(self._previous_end, warn_on_full_buffer=False)
            self._written.close()
            self._written = None

    def _listen(self, read: socket.socket) -> None:
        """Answers each signal until the other end is closed. No locks or buffers: what holds them may be what hangs."""
        own = os.getpid()
        with read:
            while numbers := read.recv(64):
                for number in numbers:
                    if number in self._previous and os.getpid() == own:
                        self._answer(number)

    def _answer(self, number: int) -> None:
        self._noticed += 1
        if self._noticed > 1 and number == signal.SIGINT:
            _end(number)
        if self._noticed == 1:
            name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            when = f"{self.doing} and one update are done" if self.doing else "the update at hand is done"
            _say(f"{name}: the run saves its state and ends as soon as {when}; Ctrl-C now ends it at once, unsaved")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None and number == signal.SIGINT:
            _end(number)
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

    @contextlib.contextmanager
    def during(self, doing: str) -> Iterator[None]:
        """Says in the answer to a signal what is waited for."""
        self.doing = doing
        try:
            yield
        finally:
            self.doing = ""

    @property
    def exit_code(self) -> int:
        return 128 + (self.signal_number or 0)


def _end(number: int) -> None:
    _say(f"ended at once; the same command goes on from the newest checkpoint{_CURSOR if _is_terminal() else ''}")
    os._exit(128 + number)


def _is_terminal() -> bool:
    return os.isatty(2)


def _say(text: str) -> None:
    """Writes a line to stderr, past Python's buffers, in place of a progress bar, which is drawn anew below it."""
    with contextlib.suppress(OSError):
        os.write(2, f"{_CLEAR if _is_terminal() else ''}{text}\n".encode())
