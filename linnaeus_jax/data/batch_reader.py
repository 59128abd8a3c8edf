"""Rows of a plan -> one batch in memory: arrays gathered, images decoded in chunks by a pool of threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.batch import Batch
from linnaeus_jax.data.images import ImageSource, input_dtype, rows_of_views
from linnaeus_jax.data.pipeline_stats import Counters
from linnaeus_jax.data.plans import EpochPlan

MAX_CHUNK = 64  # rows per piece of decoding work


class BatchReader:
    """Gathers arrays and decodes images for the rows of a plan."""

    def __init__(
        self, arrays: Mapping[str, np.ndarray], rows: np.ndarray, images: ImageSource, io_threads: int
    ) -> None:
        self.arrays, self.rows = dict(arrays), np.asarray(rows, np.int64)
        self.images, self.io_threads = images, io_threads
        self.counters = Counters()
        self._pool: ThreadPoolExecutor | None = None
        self._pool_lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchReader, (self.arrays, self.rows, self.images, self.io_threads)

    def _decode(self, rows: np.ndarray, out: np.ndarray, ok: np.ndarray, piece: slice) -> None:
        start = time.perf_counter()
        ok[piece] = self.images.read(rows[piece], out[piece])
        self.counters.add(decode_seconds=time.perf_counter() - start)

    def _pieces(self, rows: np.ndarray) -> list[slice]:
        """Pieces of work that together are rows[n]."""
        pieces = 2 * self.io_threads  # a few per thread even out images that decode slowly
        chunk = max(1, min(MAX_CHUNK, -(-len(rows) // pieces))) if pieces else MAX_CHUNK
        return [slice(start, start + chunk) for start in range(0, len(rows), chunk)]

    @property
    def _copies_only(self) -> bool:
        return getattr(self.images, "copies_only", False)

    def _read_images(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Reads rows[n] into out[n, ...] in pieces on the pool; bool[n] ok. The first failure is raised."""
        ok = np.ones(len(rows), bool)
        if self._copies_only:  # uncompressed: threads would only wait for each other and the memory
            self._decode(rows, out, ok, slice(None))
            return ok
        pieces = self._pieces(rows)
        if self.io_threads == 0:
            for piece in pieces:
                self._decode(rows, out, ok, piece)
            return ok
        with self._pool_lock:
            if self._pool is None:
                cv2.setNumThreads(1)  # this pool is the parallelism; OpenCV's own would compete with it
                self._pool = ThreadPoolExecutor(self.io_threads, thread_name_prefix="linnaeus-images")
            pool = self._pool
        futures = [pool.submit(self._decode, rows, out, ok, piece) for piece in pieces]
        wait(futures)
        for future in futures:
            future.result()
        return ok

    def read(self, plan: EpochPlan, positions: np.ndarray | None = None) -> Batch:
        """The batch of a plan `[..., B_local]`; `positions` int [B_local], ascending, are those of its rows within B.

        None: it is the whole batch.
        """
        start = time.perf_counter()
        real = plan.index >= 0
        index = np.maximum(plan.index, 0)
        rows = self.rows[index]
        image = np.empty((*index.shape, *self.images.image_shape), input_dtype(self.images))
        flat, flat_real = image.reshape(-1, *self.images.image_shape), real.reshape(-1)
        ok: NDArray[np.bool_] = np.ones(flat_real.shape, bool)
        # Padding comes last, so the real rows are one contiguous part.
        count = int(flat_real.sum())
        assert flat_real[:count].all(), "padding must follow the rows"
        wanted = rows_of_views(self.images, rows.reshape(-1)[:count], plan.epoch)
        ok[:count] = self._read_images(wanted, flat[:count])
        flat[count:] = 0
        ok = ok.reshape(index.shape)

        position = np.broadcast_to(np.arange(index.shape[-1]), index.shape)
        partner = plan.partner if positions is None else np.searchsorted(positions, plan.partner)
        # A placeholder must not be mixed into a good image, nor the other way round.
        alone = ~(ok & np.take_along_axis(ok, partner, axis=-1))
        partner = np.where(alone, position, partner)
        gathered = {name: array[index] for name, array in self.arrays.items()}
        batch = Batch(
            **gathered,  # type: ignore[typeddict-item]
            image=image,
            group=np.where(alone, -1, plan.group).astype(np.int32),
            partner=(partner if positions is None else positions[partner]).astype(np.int32),
            row=rows.astype(np.int32),
            weight=(plan.weight * ok).astype(np.float32),
        )
        self.counters.add(
            read_seconds=time.perf_counter() - start,
            batches_read=1,
            placeholders=int((~ok).sum()),
            bytes=sum(np.asarray(array).nbytes for array in batch.values()),
            samples=int(np.count_nonzero(batch["weight"])),
        )
        return batch

    def close(self) -> None:
        with self._pool_lock:
            if self._pool is not None:
                self._pool.shutdown(wait=True)
                self._pool = None
