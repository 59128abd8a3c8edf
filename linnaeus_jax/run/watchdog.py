"""Says which thread waits for what when nothing has finished for long: stalled storage, a device or a lock."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self, TypeVar

import linnaeus_jax

T = TypeVar("T")

_PACKAGE = str(Path(linnaeus_jax.__file__).parent)
#: longest time until a stall is noticed, relative to its length, and in seconds
_SHARE, _LONGEST = 0.25, 10.0


class Watchdog:
    """A context manager with a thread that looks whether `finished` is called often enough.

    Args:
      seconds: of a stall; 0: nothing is watched.
      tell: gets, once per stall and in that thread, what finished last, the seconds since then, one line about who
        waits for what, and the stacks of all threads.
      goes_on: gets what finished last before a stall, and the seconds that it took.
    """

    def __init__(
        self,
        seconds: float,
        tell: Callable[[str, float, str, str], None],
        goes_on: Callable[[str, float], None] = lambda what, seconds: None,
    ) -> None:
        self.seconds, self._tell, self._goes_on = seconds, tell, goes_on
        self._last = ("nothing yet", time.monotonic())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def finished(self, what: str) -> None:
        """Something was finished, such as an update."""
        self._last = (what, time.monotonic())

    def each(self, items: Iterable[T], what: str) -> Iterator[T]:
        """The items; each time that one is asked for, the one before is finished."""
        for item in items:
            yield item
            self.finished(what)

    def _watch(self) -> None:
        told = None
        while not self._ended.wait(min(_SHARE * self.seconds, _LONGEST)):
            last = self._last
            if told is not None and last is not told:
                self._goes_on(told[0], last[1] - told[1])
                told = None
            stalled = time.monotonic() - last[1]
            if told is None and stalled > self.seconds:
                told = last
                try:
                    self._tell(last[0], stalled, waiting(), stacks())
                except Exception as error:  # telling must end neither the watch nor the run
                    print(f"nothing has finished for {stalled:.0f} s, and telling failed: {error}", file=sys.stderr)

    def __enter__(self) -> Self:
        if self.seconds > 0:
            self._last = (self._last[0], time.monotonic())
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_LONGEST)  # it may be stuck in what it tells of


def _stacks() -> Iterator[tuple[threading.Thread, list[traceback.FrameSummary]]]:
    """Of every thread but this one, outermost call first."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.ident in frames:
            yield thread, list(traceback.extract_stack(frames[thread.ident]))


def stacks() -> str:
    """Of all threads, as Python prints them."""
    return "\n".join(f"{thread.name}:\n{''.join(traceback.format_list(stack))}" for thread, stack in _stacks())


def waiting() -> str:
    """One line: where the main thread is, and every thread that does something for it."""
    texts = []
    for thread, stack in _stacks():
        own = [frame for frame in stack if frame.filename.startswith(_PACKAGE)]
        main = thread is threading.main_thread()
        idle = stack[-1].filename in (threading.__file__,)  # for work, or for another thread, which is told of, too
        if stack and (main or (own and not idle)):
            by = f", called by {_place(own[-1])}" if own and own[-1] is not stack[-1] else ""
            texts.append(f"{thread.name} is in {_place(stack[-1])}{by}")
    return "; ".join(texts)


def _place(frame: traceback.FrameSummary) -> str:
    path = Path(frame.filename)
    return f"{frame.name} ({path.parent.name}/{path.name}:{frame.lineno})"
