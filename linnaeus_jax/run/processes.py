"""Several processes that make one run: joining them, agreement, failing on all of them, exit."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.exit_status import USER_ERROR
from linnaeus_jax.config.processes import Processes
from linnaeus_jax.step.process import keep_freed_memory

log = logging.getLogger("linnaeus_jax")

#: seconds until a process that cannot be reached ends the others: at the start, and later
JOIN_TIMEOUT, HEARTBEAT_TIMEOUT = 300, 100
#: seconds that the others wait at the end, while process 0 writes the report and the last copies
LEAVE_TIMEOUT = 3600
#: seconds that process 0 leaves the others to fail by themselves before its end ends them
GRACE = 5
#: bytes of an error that the other processes are told
MAX_ERROR_BYTES = 1000


def join(processes: Processes | None, *, keep_memory: bool = False) -> None:
    """Starts `jax.distributed` where several processes make this run; before the first use of a device.

    Args:
      processes: None: this one trains alone.
      keep_memory: freed memory stays with this process, see `keep_freed_memory`.

    Raises:
      UserError: process 0 cannot be reached.
    """
    if processes is None or jax.distributed.is_initialized():
        return
    if keep_memory:
        keep_freed_memory()  # now, since joining starts threads, which would have heaps of their own
    # JAX ends the process with a trace of C++ where it waits in vain
    waiting = threading.Timer(JOIN_TIMEOUT, _give_up, (processes.found, f"nothing after {JOIN_TIMEOUT} s"))
    waiting.daemon = True
    waiting.start()
    try:
        jax.distributed.initialize(
            **processes.arguments,
            initialization_timeout=2 * JOIN_TIMEOUT,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=LEAVE_TIMEOUT,
        )
    except (RuntimeError, ValueError, KeyError) as error:
        raise UserError(_not_found(processes.found, str(error).splitlines()[0])) from error
    finally:
        waiting.cancel()


def _not_found(found: str, reason: str) -> str:
    return (
        f"the processes of this run ({found}) did not find each other: {reason}; see that the address is that of "
        "process 0, that its port is free and open between the hosts, and that all were started"
    )


def _give_up(found: str, reason: str) -> None:
    print(_not_found(found, reason), file=sys.stderr, flush=True)
    os._exit(USER_ERROR)


@contextlib.contextmanager
def fail_on_all() -> Iterator[None]:
    """Within it, a `UserError` of one process is raised on all, so that none waits for a collective that never comes.

    Every process must pass here.

    Raises:
      UserError: that of this process, or the first of another.
    """
    if jax.process_count() == 1:
        yield
        return
    failure: UserError | None = None
    try:
        yield
    except UserError as error:
        failure = error
    told = np.zeros(MAX_ERROR_BYTES, np.uint8)
    text = b"" if failure is None else str(failure).encode()[:MAX_ERROR_BYTES] or b"error"
    told[: len(text)] = np.frombuffer(text, np.uint8)
    texts = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in multihost_utils.process_allgather(told)]
    if failure is not None:
        raise failure
    for index, text_of in enumerate(texts):
        if text_of:
            raise UserError(f"process {index} of {len(texts)} cannot take part: {text_of}")


def check_agreement(made: Mapping[str, Any]) -> None:
    """Checks that all processes are about to make the same run, in the same directory.

    Args:
      made: JSON values that must be the same on all of them, by what people call them.

    Raises:
      UserError: they are not; on every process.
    """
    digests = [hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest() for value in made.values()]
    every = multihost_utils.process_allgather(np.frombuffer(b"".join(digests), np.uint8).reshape(len(made), -1))
    for index, of_process in enumerate(every):
        for name, same in zip(made, (of_process == every[0]).all(axis=1), strict=True):
            if not same:
                raise UserError(
                    f"process {index} of {len(every)} has another {name} than process 0; give all processes the same "
                    "command, files and installation, and a --workdir on a file system that all hosts share"
                )


def ended_elsewhere(error: Exception) -> bool:
    """Whether an error of this process means that another one has ended."""
    return (
        isinstance(error, jax.errors.JaxRuntimeError)
        and jax.process_count() > 1
        and re.search(r"gloo|nccl|connection (reset|closed|refused)|heartbeat|coordination", str(error), re.I)
        is not None
    )


def exit_process(status: int) -> int:
    """`status`, for `sys.exit`. One of several processes that failed ends here.

    Ending in the ordinary way would wait for the others, which wait for this one in an update that it never makes.
    Process 0 holds the service that the others talk to, so it lets those go first that fail as well.
    """
    if status and jax.distributed.is_initialized() and jax.process_count() > 1:
        if jax.process_index() == 0:
            time.sleep(GRACE)
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)
    return status
