"""Orbax: how a checkpoint that is being written gets its name, by which clock a save may take too long, and which
arrays several devices copy in parts."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.path import atomicity

#: modules that end a wait by the clock of the day
_WITH_CLOCK = tuple(
    f"orbax.checkpoint._src.{name}"
    for name in ("futures.future", "futures.signaling_client", "checkpointers.async_checkpointer")
)


class _Renaming:
    """How a finished checkpoint gets its name; Orbax asks a snapshot for it where there is one, as its last act."""

    def __init__(self, rename: Callable[[], Awaitable[None]]) -> None:
        self._rename = rename

    async def replace_source(self) -> None:
        await self._rename()


class TemporaryPath(atomicity.AtomicRenameTemporaryPath):
    """A checkpoint, or an item of one, that is being written in a directory with another name.

    Without `finalize`, `_snapshot` or the class itself no checkpoint would have digests, which the tests of
    checkpoints show; there is no other way.
    """

    def paths(self) -> tuple[Path, Path]:
        """(directory in which it is written, directory that it becomes)."""
        return Path(self.get()), Path(self.get_final())

    async def finalize_by(self, rename: Callable[[], Awaitable[None]] | None) -> None:
        """Finishes it as Orbax does, but for the renaming, which is `rename()`; None: Orbax's own."""
        if rename is not None:
            self._snapshot = _Renaming(rename)
        await super().finalize()


class _SteadyTime:
    """The module `time`, but `time()` counts the seconds that this machine was awake, from any start."""

    @staticmethod
    def time() -> float:
        return time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def use_steady_clock() -> None:
    """Lets Orbax measure how long it waits by a clock that nobody sets and that stands still while a machine sleeps.

    There is no option for it. A version of Orbax that has no such module waits by the clock of the day: a save fails
    where that was set forward by more than the longest wait.
    """
    for name in _WITH_CLOCK:
        with contextlib.suppress(ModuleNotFoundError):
            module = importlib.import_module(name)
            if getattr(module, "time", None) is time:
                module.time = _SteadyTime()  # type: ignore[attr-defined]


#: bytes of a part of an array below which one device copies all of it to the host
SMALLEST_PART = 2**20


def copy_small_arrays_whole() -> None:
    """Lets one device copy small arrays to the host, of which Orbax lets each device that holds them copy a part.

    A part is a slice, which is a program for each shape and device. A handler of one's own could be told so publicly,
    but would write no metadata of arrays, as the registered one does. A version of Orbax that calls it otherwise
    slices as before.
    """
    handler = ocp.type_handlers.get_type_handler(jax.Array)
    if hasattr(handler, "_min_slice_bytes_for_replica_parallel"):
        handler._min_slice_bytes_for_replica_parallel = SMALLEST_PART
