"""Work on all cores, whose results come in order and in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from linnaeus_jax.system import usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int = 0, ahead: int = 0
) -> Iterator[Result]:
    """`work` of every item, computed by threads, in the order of the items.

    Args:
      threads: 0: one per core.
      ahead: results that may wait to be taken; 0: two per thread.
    """
    threads = threads or usable_cores()
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) >= (ahead or 2 * threads):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
