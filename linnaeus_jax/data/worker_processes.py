"""Reading in worker processes of Grain: what travels to them and back, and how they end."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from linnaeus_jax import system
from linnaeus_jax.data.batch import Batch
from linnaeus_jax.data.batch_reader import BatchReader
from linnaeus_jax.data.plans import EpochPlan


class WorkerRead:
    """The reading of one update in a worker process; its result says what was counted meanwhile."""

    def __init__(
        self, reader: BatchReader, plan: Callable[[int], EpochPlan], positions: np.ndarray | None, workers: int
    ) -> None:
        self._what = (reader, plan, positions, workers)

    def __getstate__(self) -> tuple[Any, ...]:
        return self._what

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._what = state
        cache = getattr(state[0].images, "cache", None)
        if cache is not None:
            cache.capacity //= state[3]  # each process has a cache of its own

    def __call__(self, index: int) -> dict[str, Any]:
        reader, plan, positions, _ = self._what
        result: Batch | Exception
        try:
            result = reader.read(plan(index), positions)
        except Exception as error:
            result = _portable(error)
        cache = getattr(reader.images, "cache", None)
        cached = None if cache is None else tuple(cache.stats())
        return {"result": result, "counted": reader.counters.take(), "worker": os.getpid(), "cached": cached}


def _portable(error: Exception) -> Exception:
    """The error itself where it can travel between processes, else its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def start_worker(index: int, count: int) -> None:
    """Lets a worker process end by its parent alone: by its closing, or with its death."""
    for number in system.signals("SIGINT", "SIGTERM", "SIGUSR1"):  # the parent may still need batches to stop well
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_platforms", "cpu")  # the accelerator is the parent's
