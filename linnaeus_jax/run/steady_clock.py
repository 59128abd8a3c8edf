"""Orbax counts the time that a save may take by the clock of the day, which is set, and jumps after a suspension."""

from __future__ import annotations

import contextlib
import importlib
import time
from typing import Any

#: modules of Orbax that end a wait by the clock
_MODULES = tuple(
    f"orbax.checkpoint._src.{name}"
    for name in ("futures.future", "futures.signaling_client", "checkpointers.async_checkpointer")
)


class _SteadyTime:
    """The module `time`, but `time()` counts the seconds that this machine was awake, from any start."""

    @staticmethod
    def time() -> float:
        return time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def use() -> None:
    """Lets Orbax measure how long it waits by a clock that nobody sets.

    There is no option for it; a version of Orbax that has no such module waits as it does.
    """
    for name in _MODULES:
        with contextlib.suppress(ModuleNotFoundError):
            module = importlib.import_module(name)
            if getattr(module, "time", None) is time:
                module.time = _SteadyTime()  # type: ignore[attr-defined]
