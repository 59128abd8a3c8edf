"""Whole batches through Grain: an index plan in, dictionaries of NumPy arrays out.

The element that flows through Grain is one whole update, since handing single images between threads costs far more
than copying them. Everything is a pure function of the step, so that a loader restarts exactly at any step,
whatever the number of threads or processes that read.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import grain
import numpy as np

from linnaeus_jax import system
from linnaeus_jax.compat.grain_parts import allow_processes, close, go_to
from linnaeus_jax.config.typed import DataConfig
from linnaeus_jax.data.batch import Batch
from linnaeus_jax.data.batch_reader import BatchReader
from linnaeus_jax.data.cache import CacheStats, ImageCache
from linnaeus_jax.data.images import ImageSource, input_dtype
from linnaeus_jax.data.pipeline_stats import PipelineStats
from linnaeus_jax.data.plans import EpochPlan, PlanSequence
from linnaeus_jax.system import usable_cores

# ---- Reading in worker processes of Grain: what travels to them and back, and how they end


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


# ----------------------------------------------------------------------------------------------------------------------


logger = logging.getLogger("linnaeus_jax.data")

#: most decoding threads that are started by default: more would wait for the GIL
MOST_THREADS = 32


@dataclass(frozen=True)
class ReadSettings:
    """How batches are read ahead.

    Attributes:
      num_threads: Grain threads that read whole updates; 0 reads in the calling thread.
      buffer: updates that Grain keeps in flight, see `TrainLoader.memory_bytes`.
      io_threads: decoding threads, shared by all updates in flight; 0 decodes in the reading thread.
      worker_processes: processes that read whole updates instead of threads, for sources that hold the GIL or HDF5's
        lock; each has `io_threads` decoding threads and its share of the cache. 0: none.
    """

    num_threads: int = 1
    buffer: int = 2
    io_threads: int = 1
    worker_processes: int = 0

    @classmethod
    def from_config(cls, data: DataConfig) -> ReadSettings:
        """What the section `data` says."""
        prefetch, processes, decoding = data.prefetch, data.worker_processes, data.prefetch.num_io_threads
        if decoding is None:
            decoding = max(1, min(MOST_THREADS, usable_cores()) // max(1, processes))
        return cls(data.num_workers, prefetch.max_processed_batches, decoding, processes)

    @property
    def per_worker(self) -> int:
        """Finished batches that each process may keep."""
        return max(1, self.buffer // max(1, self.worker_processes))

    @property
    def depth(self) -> int:
        """Most batches in flight."""
        if self.worker_processes:  # one being read, and two buffers of Grain: in the process and in front of it
            return self.worker_processes * (1 + 2 * self.per_worker)
        return self.buffer if self.num_threads else 0


class _GrainReader:
    """A Grain iterator over the batches of plan(0) ... plan(total - 1) that knows its queues and ends without leaving
    threads or processes."""

    def __init__(
        self,
        reader: BatchReader,
        plan: Callable[[int], EpochPlan],
        total: int,
        settings: ReadSettings,
        *,
        positions: np.ndarray | None = None,
        start: int = 0,
    ) -> None:
        self._reader, self._plan, self._positions, self._total = reader, plan, positions, total
        self.counters, self.settings = reader.counters, settings
        self.next_index = start
        self._threads: set[threading.Thread] = set()
        self._reading: set[int] = set()
        self._ready: set[int] = set()
        self._caches: dict[int, CacheStats] = {}  # of the worker processes
        self._iterator = self._iterate(start)
        self._first_ask: float | None = None
        self.closed = False

    def _iterate(self, start: int) -> Any:
        workers = self.settings.worker_processes
        if not workers:
            threads = grain.ReadOptions(self.settings.num_threads, self.settings.buffer)
            iterator = iter(grain.MapDataset.range(self._total).map(self._element).to_iter_dataset(threads))
            go_to(iterator, start)
            return iterator
        # The state of such an iterator belongs to its number of workers, so that it starts with a range instead.
        allow_processes()
        read = WorkerRead(self._reader, self._plan, self._positions, workers)
        dataset = grain.MapDataset.range(start, self._total).map(read)
        one_by_one = dataset.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=1))
        processes = grain.MultiprocessingOptions(workers, self.settings.per_worker)
        return iter(one_by_one.mp_prefetch(processes, worker_init_fn=start_worker))

    def _element(self, index: int) -> Batch | Exception:
        # An exception travels as an element, because Grain rewrites the messages of those it raises.
        if self.settings.depth:
            self._threads.add(threading.current_thread())
        with self.counters.lock:
            self._reading.add(index)
        try:
            batch = self._reader.read(self._plan(index), self._positions)
        except Exception as error:
            return error
        finally:
            with self.counters.lock:
                self._reading.discard(index)
        with self.counters.lock:
            self._ready.add(index)
        return batch

    def next(self) -> Batch:
        if self.closed:
            raise ValueError("the loader is closed; make a new one")
        start = time.perf_counter()
        self._first_ask = start if self._first_ask is None else self._first_ask
        batch = next(self._iterator)
        if self.settings.worker_processes:
            batch = self._receive(batch)
        if isinstance(batch, Exception):
            self._rewind()
            raise batch
        self.counters.add(wait_seconds=time.perf_counter() - start, batches=1)
        with self.counters.lock:
            self._ready.discard(self.next_index)
        self.next_index += 1
        return batch

    def _receive(self, element: dict[str, Any]) -> Batch | Exception:
        self.counters.add(**element["counted"])
        if element["cached"] is not None:
            self._caches[element["worker"]] = CacheStats(*element["cached"])
        result = element["result"]
        if isinstance(result, Exception):
            return result
        # Copies, because shared memory must not outlive the loader, as arrays that the device still reads would.
        return cast(Batch, {name: np.array(array) for name, array in result.items()})

    def _rewind(self) -> None:
        """A retry after an error must not skip the batch."""
        if self.settings.worker_processes:
            self._close_iterator()
            self._iterator = self._iterate(self.next_index)
        else:
            go_to(self._iterator, self.next_index)
            with self.counters.lock:
                self._ready.clear()

    def stats(self, cache: ImageCache | None) -> PipelineStats:
        c, now = self.counters, time.perf_counter()
        with c.lock:
            reading, ready = len(self._reading), len(self._ready)
            idle = self._first_ask is None or self.closed
            submitted = 0 if idle else min(self.settings.depth, self._total - self.next_index)
            counted_here = not self.settings.worker_processes  # the queues of other processes are not
            return PipelineStats(
                batch_index_q=max(0, submitted - reading - ready) if counted_here else None,
                preprocess_q=reading if counted_here else None,
                processed_batch_q=ready if counted_here else None,
                **c.totals,  # type: ignore[arg-type]
                elapsed_seconds=0.0 if self._first_ask is None else now - self._first_ask,
                cache=self._cache_stats(cache),
            )

    def _cache_stats(self, cache: ImageCache | None) -> CacheStats | None:
        if cache is None or not cache.capacity:
            return None
        if self.settings.worker_processes:
            return CacheStats(*map(sum, zip(CacheStats(), *self._caches.values())))
        return cache.stats()

    def _close_iterator(self) -> None:
        processes = self.settings.worker_processes > 0
        close(self._iterator, processes=processes, asked=self._first_ask is not None)

    def close(self) -> None:
        """Cancels what has not started, waits for what has, and for the threads and processes."""
        if self.closed:
            return
        self.closed = True
        self._close_iterator()  # does not wait for threads
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join()


class TrainLoader:
    """Iterator over (step, batch) for steps start_step ... stop_step - 1; arrays are `[A, B_local, ...]`.

    Keys of a batch: `linnaeus_jax.data.batch`; `partner` counts from the start of the global micro-batch. An exception
    while reading reaches `next()` unchanged. Use it as a context manager or call `close`.

    Args:
      arrays: per split position, what each batch ships besides the image: label int32[n, T], meta float32[n, D],
        meta_valid bool[n, K], and optionally rarity int32[n], taxa_subset bool[n, S].
      rows: int64[n], row of the labels file of each split position.
      images: source of the pixels, indexed by row.
      plans: which positions form which update.
      settings: how they are read ahead.
      start_step: first step, e.g. that of a restored state.
      stop_step: end; None: the whole run.

    Raises:
      ValueError: steps outside of the run.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        rows: np.ndarray,
        images: ImageSource,
        plans: PlanSequence,
        settings: ReadSettings = ReadSettings(),
        *,
        start_step: int = 0,
        stop_step: int | None = None,
    ) -> None:
        stop = plans.total if stop_step is None else stop_step
        if not 0 <= start_step <= stop <= plans.total:
            raise ValueError(f"steps {start_step}..{stop} do not lie within the run of {plans.total} updates")
        self._plans, self._images = plans, images
        self._last_interval = PipelineStats()
        self._reader = BatchReader(arrays, rows, images, settings.io_threads)
        self._grain = _GrainReader(
            self._reader, plans.plan_of_step, stop, settings, positions=plans.positions, start=start_step
        )
        logger.info("training batches in flight take at most %.0f MB", self.memory_bytes / 1e6)

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        return self

    def __next__(self) -> tuple[int, Batch]:
        step = self._grain.next_index
        return step, self._grain.next()

    def stats(self) -> PipelineStats:
        """Queue depths now and counters since the start."""
        return self._grain.stats(getattr(self._images, "cache", None))

    def interval(self) -> PipelineStats:
        """Queue depths now and counters since the last call, or since the start."""
        now = self.stats()
        since, self._last_interval = now.since(self._last_interval), now
        return since

    @property
    def memory_bytes(self) -> int:
        """Most bytes of images in flight: the buffered updates, the one handed over and the one still in use."""
        rows = self._plans.settings.accumulation_steps * len(self._plans.positions)
        row = int(np.prod(self._images.image_shape)) * input_dtype(self._images).itemsize
        return (self._grain.settings.depth + 2) * rows * row

    def close(self) -> None:
        """Stops reading; returns when no thread and no process is left. Harmless when repeated."""
        self._grain.close()
        self._reader.close()

    def __enter__(self) -> TrainLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EvalLoader:
    """Batches `[B_local, ...]` of a split in its own order, as often as it is iterated.

    The last batch is padded with rows of weight 0 to the static shape; nothing is mixed.

    Args:
      arrays, rows, images, settings: see `TrainLoader`; worker processes start anew with every iteration.
      batch_size: rows of one batch over all devices of all processes.
      positions: int [B_local], ascending: this process's rows of each batch, see `Placement.positions`. None: all.
      retry: calls the read of one batch that it is given, again where that may help; errors of the reading are raised
        there. Never more than a batch is read again, since other processes wait for just that one.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        rows: np.ndarray,
        images: ImageSource,
        batch_size: int,
        settings: ReadSettings = ReadSettings(),
        *,
        positions: np.ndarray | None = None,
        retry: Callable[[Callable[[], Batch]], Batch] = lambda read: read(),
    ) -> None:
        self.batch_size, self._images = batch_size, images
        self._positions = np.arange(batch_size) if positions is None else positions
        self._settings, self._retry = settings, retry
        self._reader = BatchReader(arrays, rows, images, settings.io_threads)
        self._active: list[_GrainReader] = []

    def __len__(self) -> int:
        return -(-len(self._reader.rows) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        plan = functools.partial(_plan_in_order, len(self._reader.rows), self.batch_size, self._positions)
        reader = _GrainReader(self._reader, plan, len(self), self._settings, positions=self._positions)
        self._active.append(reader)
        try:
            while reader.next_index < len(self):
                yield self._retry(reader.next)
        finally:
            reader.close()
            self._active.remove(reader)

    def close(self) -> None:
        """Ends iterations in progress and the decoding threads; a later iteration starts them again."""
        for reader in self._active:
            reader.close()
        self._reader.close()


def _plan_in_order(count: int, batch_size: int, positions: np.ndarray, batch: int) -> EpochPlan:
    """The plan `[B_local]` of one batch of `count` rows in their own order, of a process that has these positions."""
    index = batch * batch_size + positions
    index = np.where(index < count, index, -1)
    alone = np.full(len(index), -1, np.int32)
    return EpochPlan(index, alone, positions.astype(np.int32), (index >= 0).astype(np.float32), None)
