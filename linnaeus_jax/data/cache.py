"""A byte-bounded, thread-safe cache of decoded images."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np


class CacheStats(NamedTuple):
    """Counters since creation, and what is held now."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    bytes: int = 0
    capacity: int = 0

    @property
    def percent(self) -> float:
        """Share of the capacity in use, in percent."""
        return 100.0 * self.bytes / self.capacity if self.capacity else 0.0


class ImageCache:
    """Least-recently-used cache of uint8 images under any hashable key, e.g. (source, row).

    The bytes of the images held never exceed `capacity`; an image larger than that is not kept. Copies are made
    outside the lock, so that threads do not wait for each other's pixels.

    Args:
      capacity: bytes; 0 keeps nothing.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._images: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()
        self._hits = self._misses = self._evictions = self._bytes = 0

    def get(self, key: Hashable, out: np.ndarray) -> bool:
        """Copies the image of `key` into `out`; False (and a miss) where it is not held."""
        with self._lock:
            image = self._images.get(key)
            if image is None:
                self._misses += 1
                return False
            self._hits += 1
            self._images.move_to_end(key)
        out[...] = image
        return True

    def put(self, key: Hashable, image: np.ndarray) -> None:
        """Keeps a copy of `image` under `key`, dropping the least recently used ones until it fits."""
        if image.nbytes > self.capacity:
            return
        image = image.copy()
        with self._lock:
            replaced = self._images.pop(key, None)
            if replaced is not None:
                self._bytes -= replaced.nbytes
            while self._bytes + image.nbytes > self.capacity:
                self._bytes -= self._images.popitem(last=False)[1].nbytes
                self._evictions += 1
            self._images[key] = image
            self._bytes += image.nbytes

    def stats(self) -> CacheStats:
        """The counters, consistent with each other."""
        with self._lock:
            return CacheStats(self._hits, self._misses, self._evictions, self._bytes, self.capacity)

    def __reduce__(self) -> tuple[type[ImageCache], tuple[int]]:
        return ImageCache, (self.capacity,)
