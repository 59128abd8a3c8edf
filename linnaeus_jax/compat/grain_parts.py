"""Grain: the state of an iterator, its flags, and how one with processes ends."""

from __future__ import annotations

import gc
from typing import Any

from absl import flags


def go_to(iterator: Any, index: int) -> None:
    """Lets an iterator over a mapped range give element `index` next.

    Without this form of its state `set_state` raises, and no loader can be made in the middle of a run; the tests of
    the loader show it.
    """
    iterator.set_state({"next_index": index})


def allow_processes() -> None:
    """Marks absl's flags as read where no program has, since Grain reads its own before it starts a process.

    Without such flags it does nothing that matters.
    """
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


def close(iterator: Any, *, processes: bool, asked: bool) -> None:
    """Ends an iterator; its threads end later, its processes and their shared memory now.

    Without `close` its threads and processes would end with the program.

    Args:
      processes: it reads in processes.
      asked: an element was asked for, so that the processes were started.
    """
    if processes and asked:
        iterator.get_state()  # takes over the workers that it has started but not yet asked
    iterator.close()
    if processes:
        gc.collect()  # an exhausted iterator keeps its last batch, in shared memory, in a cycle
