"""The cache of decoded images: bounded in bytes, least recently used first out, safe to share."""

from __future__ import annotations

import pickle
import threading

import numpy as np

from linnaeus_jax.data.cache import CacheStats, ImageCache

SIZE = 12


def image(value):
    return np.full((2, 2, 3), value, np.uint8)


def get(cache, key):
    out = np.zeros((2, 2, 3), np.uint8)
    """The value of the image held under `key`, 0 where none is."""
    return int(out[0, 0, 0]) if cache.get(key, out) else 0


def test_least_recently_used_goes_first():
    cache = ImageCache(2 * SIZE + 5)
    cache.put(1, image(1))
    cache.put(2, image(2))
    assert get(cache, 1) == 1  # now 2 is the oldest
    cache.put(3, image(3))
    assert [get(cache, key) for key in (1, 2, 3)] == [1, 0, 3]
    assert cache.stats() == CacheStats(hits=3, misses=1, evictions=1, bytes=2 * SIZE, capacity=2 * SIZE + 5)
    np.testing.assert_allclose(cache.stats().percent, 100 * 24 / 29)


def test_reading_does_not_remove_and_a_copy_is_kept():
    cache, mine = ImageCache(10 * SIZE), image(4)
    cache.put("a", mine)
    mine[:] = 9
    assert get(cache, "a") == get(cache, "a") == 4
    cache.put("a", image(5))
    assert get(cache, "a") == 5
    assert cache.stats().bytes == SIZE


def test_nothing_larger_than_the_capacity():
    cache = ImageCache(SIZE - 1)
    cache.put(1, image(1))
    assert get(cache, 1) == 0
    assert cache.stats().bytes == 0
    assert ImageCache(0).stats().percent == 0


def test_a_pickled_cache_starts_empty():
    cache = ImageCache(5 * SIZE)
    cache.put(1, image(1))
    copy = pickle.loads(pickle.dumps(cache))
    assert copy.stats() == CacheStats(capacity=5 * SIZE)


def test_threads():
    cache, wrong = ImageCache(8 * SIZE), []

    def work(seed):
        for key in np.random.default_rng(seed).integers(1, 20, 500).tolist():
            found = get(cache, key)
            if found not in (0, key):
                wrong.append((key, found))
            cache.put(key, image(key))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    stats = cache.stats()
    assert stats.bytes <= stats.capacity
    assert stats.hits + stats.misses == 2000
