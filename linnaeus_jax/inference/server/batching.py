"""Dynamic batching: pictures of many callers are computed together, in batches of the compiled sizes.

One thread owns the model. It takes what waits as soon as the devices are idle; a second one waits for the logits and
turns them into predictions while the next batch is computed.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.inference.forward import Pending
from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.paths import Logits
from linnaeus_jax.reading.metadata import Encoded

#: seconds that a picture waits for others, where others are known to come
WAIT = 0.020
#: times that every batch size is measured; the shortest one counts
REPEATS = 3
#: batches that may be on the devices: one that is computed, and a full one behind it
IN_FLIGHT = 2


class BatcherClosed(RuntimeError):
    """Pictures came after the end."""


T = TypeVar("T")
#: outputs of the model, options, inputs and notes of some pictures -> what is said of each, see `Answers.__call__`
Answering = Callable[[Logits, Any, Sequence[tuple[str, ...]], Sequence[tuple[str, ...]]], list[T]]


@dataclass(eq=False)
class Job(Generic[T]):
    """Pictures that one caller waits for; see `Batcher.submit`."""

    pixels: NDArray[np.uint8]
    encoded: Encoded
    options: Any
    future: Future[list[T | None]] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)

    @property
    def rows(self) -> int:
        return len(self.pixels)


class Batcher(Generic[T]):
    """Computes the pictures of concurrent callers in common batches; the model is used by nobody else meanwhile.

    Args:
      answer: what is made of the logits, for example `model.answers`.
      wait: seconds that a picture waits for others that are known to come.

    Attributes:
      seconds: batch size -> what it took after its compilation; known once it is started.
      on_batch: called with (rows, rows of the bucket) of every batch, from the thread that owns the model.
    """

    def __init__(
        self,
        model: Model,
        answer: Answering[T],
        wait: float = WAIT,
        on_batch: Callable[[int, int], None] = lambda rows, bucket: None,
    ) -> None:
        self._model, self._answering, self._wait, self.on_batch = model, answer, wait, on_batch
        self.seconds: dict[int, float] = {}
        self._changed = threading.Condition()
        self._jobs: deque[Job[T]] = deque()
        self._expected = self._in_flight = 0
        self._closing = False
        self._computed: SimpleQueue[tuple[list[Job[T]], Pending] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._compute, name="model", daemon=True),
            threading.Thread(target=self._answer, name="answers", daemon=True),
        ]

    def start(self) -> None:
        """Compiles every batch size, measures it and begins to work."""
        forward = self._model.forward
        forward.warm_up()
        for rows in forward.buckets:
            self.seconds[rows] = min(self._measured(rows) for _ in range(REPEATS))
        self.start_threads()

    def _measured(self, rows: int) -> float:
        start = time.perf_counter()
        self._model.forward(*self._model.forward.zeros(rows))
        return time.perf_counter() - start

    def start_threads(self) -> None:
        """Begins to work; `seconds` must be known."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Answers what was submitted, then ends the threads; more is refused."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    @property
    def alive(self) -> bool:
        """Whether both threads are at work."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def compilations(self) -> int:
        """Of the model."""
        return self._model.forward.compilations

    @property
    def waiting(self) -> int:
        """Pictures that no batch has taken yet."""
        with self._changed:
            return sum(job.rows for job in self._jobs)

    @contextmanager
    def expect_request(self) -> Iterator[None]:
        """Around what leads to a `submit`: a batch then waits for it, for at most the time of waiting."""
        with self._changed:
            self._expected += 1
        try:
            yield
        finally:
            with self._changed:
                self._expected -= 1
                self._changed.notify_all()

    def submit(self, pixels: NDArray[np.uint8], encoded: Encoded, options: Any) -> Future[list[T | None]]:
        """What is said of some pictures, in their order; None of one whose logits are not finite.

        A future that is cancelled before is not computed.

        Args:
          pixels: uint8 [N, H, W, 3], at least one row.
          encoded: their metadata.
          options: of what is made of them; where it is the same object for several callers, they are answered together.

        Raises:
          BatcherClosed: after `close`.
        """
        job: Job[T] = Job(pixels, encoded, options)
        with self._changed:
            if self._closing:
                raise BatcherClosed("the server is stopping")
            self._jobs.append(job)
            self._changed.notify_all()
        return job.future

    # ---- the thread that owns the model

    def _compute(self) -> None:
        while (jobs := self._take()) is not None:
            try:
                pixels = np.concatenate([job.pixels for job in jobs])
                known = Encoded.joined([job.encoded for job in jobs])
                pending = self._model.forward.dispatch(pixels, known.meta, known.valid)
                self.on_batch(len(pixels), self._model.forward.bucket(len(pixels)))
            except Exception as error:  # of these pictures; the next ones may be well
                self._fail(jobs, error)
                self._batch_done()
                continue
            self._computed.put((jobs, pending))
        self._computed.put(None)

    def _take(self) -> list[Job[T]] | None:
        """The jobs of the next batch; None at the end."""
        while True:
            with self._changed:
                while (until := self._earliest_start()) is not None:
                    if self._closing and not self._jobs:
                        return None
                    self._changed.wait(until if until < float("inf") else None)
                jobs = self._first_jobs()
                self._in_flight += 1
            jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            if jobs:
                return jobs
            self._batch_done()

    def _earliest_start(self) -> float | None:
        """Seconds after which a batch may be taken, infinite where something must happen first; None: now."""
        rows = sum(job.rows for job in self._jobs)
        if self._in_flight < IN_FLIGHT and rows >= self._model.forward.buckets[-1]:
            return None
        if not rows or self._in_flight:
            return float("inf")
        if self._closing or not self._expected:
            return None
        left = self._jobs[0].arrived + self._wait - time.monotonic()
        return left if left > 0 else None

    def _first_jobs(self) -> list[Job[T]]:
        """Takes jobs from the head of the queue: as many as fit the batch size that costs least per picture."""
        waiting = sum(job.rows for job in self._jobs)
        bucket = best_bucket(self.seconds, waiting, self._jobs[0].rows)
        taken: list[Job[T]] = []
        rows = 0
        while self._jobs and (not taken or rows + self._jobs[0].rows <= bucket):
            taken.append(self._jobs.popleft())
            rows += taken[-1].rows
        return taken

    def _batch_done(self) -> None:
        with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()

    @staticmethod
    def _fail(jobs: list[Job[T]], error: Exception) -> None:
        for job in jobs:
            if not job.future.done():
                job.future.set_exception(error)

    # ---- the thread that answers

    def _answer(self) -> None:
        while (computed := self._computed.get()) is not None:
            jobs, pending = computed
            try:
                logits = pending.result()
            except Exception as error:
                self._fail(jobs, error)
                continue
            finally:
                self._batch_done()
            start = 0
            for _, group in itertools.groupby(jobs, key=lambda job: id(job.options)):
                same = list(group)
                stop = start + sum(job.rows for job in same)
                try:
                    self._answer_jobs(same, {task: z[start:stop] for task, z in logits.items()})
                except Exception as error:
                    self._fail(same, error)
                start = stop

    def _answer_jobs(self, jobs: list[Job[T]], logits: Mapping[str, NDArray[np.float32]]) -> None:
        def answer(some: Logits, known: Encoded) -> list[T]:
            return self._answering(some, jobs[0].options, self._model.inputs(known), known.notes)

        known = Encoded.joined([job.encoded for job in jobs])
        answers = iter(self._model.answered(logits, known, answer))
        for job in jobs:
            job.future.set_result(list(itertools.islice(answers, job.rows)))


def best_bucket(seconds: Mapping[int, float], waiting: int, first: int) -> int:
    """The batch size whose time per picture is least when so many wait; one that holds the first job if any does.

    On a CPU twice the rows take twice the time, and a large batch that is half empty does not pay; on an accelerator it
    may.

    Args:
      seconds: of every batch size.
      waiting: pictures, at least one.
      first: pictures of the job at the head of the queue.
    """
    fitting = [rows for rows in seconds if rows >= first] or [max(seconds)]
    return min(fitting, key=lambda rows: (seconds[rows] / min(rows, waiting), rows))
