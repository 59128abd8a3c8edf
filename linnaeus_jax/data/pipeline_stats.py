"""What the input pipeline counts, and its documented names."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from linnaeus_jax.data.cache import CacheStats

#: what `Counters` adds up
COUNTED = tuple("batches batches_read samples placeholders bytes read_seconds decode_seconds wait_seconds".split())


@dataclass(frozen=True)
class PipelineStats:
    """Counters, and the queues now; read and decode seconds are summed over threads."""

    batch_index_q: int | None = 0  # batches submitted, not started; None: worker processes keep their own queues
    preprocess_q: int | None = 0  # batches being read
    processed_batch_q: int | None = 0  # batches finished, not consumed
    batches: int = 0  # consumed
    batches_read: int = 0  # finished, consumed or not
    samples: int = 0  # read, of weight 1
    placeholders: int = 0  # zero images delivered for unreadable ones
    bytes: int = 0  # of all arrays read
    read_seconds: float = 0.0  # putting batches together, including the wait for their images
    decode_seconds: float = 0.0  # inside ImageSource.read
    wait_seconds: float = 0.0  # the consumer's wait for data
    elapsed_seconds: float = 0.0  # since the first batch was asked for
    cache: CacheStats | None = None  # None: nothing is decoded, or data.prefetch.mem_cache_size is 0

    def since(self, earlier: PipelineStats) -> PipelineStats:
        """What was counted after `earlier`; the queues are those of now, and the cache counts on over the run."""
        names = (*COUNTED, "elapsed_seconds")
        return replace(self, **{name: getattr(self, name) - getattr(earlier, name) for name in names})

    def row(self) -> dict[str, float]:
        """Under the documented names; rates in images per second, times in seconds per batch and thread.

        The rows of a cache are there only where there is one, those of the queues only without worker processes.
        """
        batches, elapsed = max(self.batches_read, 1), max(self.elapsed_seconds, 1e-9)
        row: dict[str, float] = {
            "pipeline/throughput/prefetch": self.samples / elapsed,
            "pipeline/throughput/preprocess": self.samples / max(self.decode_seconds, 1e-9),
            "pipeline/timing/prefetch_times": self.read_seconds / batches,
            "pipeline/timing/preprocess_times": self.decode_seconds / batches,
            "pipeline/wait_frac": self.wait_seconds / elapsed,
        }
        for name in ("batch_index_q", "preprocess_q", "processed_batch_q"):
            if (depth := getattr(self, name)) is not None:
                row[f"pipeline/queue_depths/{name}"] = depth
        if self.cache is not None:
            row["pipeline/cache/size"] = self.cache.percent
            row |= {f"pipeline/cache/{name}": getattr(self.cache, name) for name in ("hits", "misses", "evictions")}
        return row


class Counters:
    """Totals of what is counted, under one lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.totals: dict[str, float] = dict.fromkeys(COUNTED, 0)

    def add(self, **amounts: float) -> None:
        with self.lock:
            for name, amount in amounts.items():
                self.totals[name] += amount

    def take(self) -> dict[str, float]:
        """What was counted since the last call."""
        with self.lock:
            counted, self.totals = self.totals, dict.fromkeys(COUNTED, 0)
            return counted
