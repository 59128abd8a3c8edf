"""Programs whose address space is limited (`ulimit -v`): that it is used up is told in one line, however it shows.

C++ libraries end a process at once where they get no memory (SIGABRT, SIGSEGV), and Python finds modules that cannot be
loaded. So under such a limit, and there alone, a program runs in a child, and its parent sees how it ends.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable

OUT_OF_MEMORY = "out of memory; use smaller batches, fewer threads or a machine with more memory"
#: how a process ends that C code gets no memory in
_ENDS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGTRAP)
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1


def out_of_memory() -> str:
    """What is said where memory is used up."""
    limit = _limit()
    return f"{OUT_OF_MEMORY}, or raise the limit of {limit // 2**20} MiB (ulimit -v)" if limit else OUT_OF_MEMORY


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error comes of memory that is used up; under a limit, also one that does not say so."""
    if isinstance(error, MemoryError):
        return True
    limit = _limit()
    return limit > 0 and (_peak() > 0.75 * limit or "failed to map segment" in str(error))


def watched(call: Callable[[], int]) -> int:
    """The exit status of `call`; under a limit of memory it runs in a child, and the caller goes on in both processes.

    Signals reach the child. One that ends for want of memory is told of on stderr, with status 2.
    """
    if not _limit() or threading.active_count() > 1:
        return call()
    parent = os.getpid()
    child = os.fork()
    if not child:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        return call() if os.getppid() == parent else 1
    for number in _FORWARDED:
        signal.signal(number, lambda number, _: os.kill(child, number))
    # of a terminal, Ctrl-C goes to both
    forward = signal.SIG_IGN if os.isatty(0) else (lambda number, _: os.kill(child, number))
    signal.signal(signal.SIGINT, forward)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended >= 0:
        return ended
    if -ended in _ENDS:
        print(out_of_memory(), file=sys.stderr)
        return 2
    if -ended != signal.SIGKILL:
        signal.signal(-ended, signal.SIG_DFL)
    os.kill(parent, -ended)
    return 128 - ended


def _limit() -> int:
    """Bytes of address space that the process may have; 0: no limit."""
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return 0 if soft == resource.RLIM_INFINITY else soft


def _peak() -> int:
    """Bytes of address space that the process has had at most; 0 where the system does not tell."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmPeak"))
    except (OSError, StopIteration):
        return 0
