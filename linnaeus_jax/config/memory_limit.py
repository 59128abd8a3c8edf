"""Programs under `ulimit -v`: what C++ does without memory is to end the process, of which nothing in it can tell.

So where that limit is set, the program runs in a child process, and its parent says what happened.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from linnaeus_jax import system
from linnaeus_jax.config.errors import OUT_OF_MEMORY

#: signals by which a process dies that has no memory
_DEATHS = system.signals("SIGABRT", "SIGSEGV", "SIGBUS")
_FORWARDED = system.signals("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")
_PR_SET_PDEATHSIG = 1


def under_memory_limit(call: Callable[[], int], what_to_do: str, status: int) -> int:
    """What `call` returns.

    Args:
      what_to_do: end of the line that says that there was no memory.
      status: returned where the process of `call` died of it.
    """
    limit = system.memory_limit()
    if limit is None or not system.CAN_FORK:
        return call()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # until there is somebody to forward them to
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # a Ctrl-C reaches it by its parent, and once
        _prepare(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        found = call()
        if found:  # what is left may wait for threads that could not be started
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(found)
        return found

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if -ended in _DEATHS:
        print(
            f"{OUT_OF_MEMORY} (this shell's limit is {limit / 1e9:.1f} GB, see ulimit -v): {what_to_do}",
            file=sys.stderr,
        )
        ended = status
    elif ended < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended)  # what is at the end of a program was done by the child


def _prepare(parent: int) -> None:
    """Ends this process with its parent, and lets C++ end it without a word."""
    with contextlib.suppress(OSError, AttributeError):
        libc: Any = system.c_library()
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE(libc.abort)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
