"""Debug flags: which of them are on, how their lines are printed, and the forms that their texts share.

A line goes to the debug file at level DEBUG and starts with `[DEBUG_<FLAG>]` or `[DEBUG_<FLAG>_<SUB>]`. What a flag
says at which point of a run is a row of `flag_texts.TEXTS`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from linnaeus_jax.config import get_config
from linnaeus_jax.config.typed import DebugConfig
from linnaeus_jax.reporting.logs import DATA, MAIN

_DEFAULTS = get_config().debug
#: switches of the same section that are no flags
_SWITCHES = ("nans", "infs", "crash_bundle")
FLAGS = (
    *(name for name, value in _DEFAULTS.items() if isinstance(value, bool) and name not in _SWITCHES),
    *(f"loss.{name}" for name in _DEFAULTS.loss),
)
#: flags that every process reports on; the others are those of process 0
EVERY_PROCESS = frozenset({"distributed", "dataloader"})
#: points of a run at which something can be said, in their order; what is given there stands in `FlagReports.say`
Point = Literal[
    "opened", "restoring", "compiled", "epoch_start", "first_batch", "before_update", "log_point", "targets",
    "first_validation_batch", "phase", "saved", "retained", "epoch_end",
]  # fmt: skip
Message = str | Sequence[str]


class Text(NamedTuple):
    """What a flag says at a point of a run: `make` is given the reports and what is known there, and returns a message,
    or an iterator of several. `sub` extends the prefix, e.g. SUMMARY."""

    point: Point
    flag: str
    make: Callable[..., Message | Iterator[Message]]
    sub: str = ""


def leaf(flag: str) -> str:
    """The last part of a dotted flag."""
    return flag.rpartition(".")[2]


@dataclass(frozen=True, eq=False)
class DebugFlags:
    """The flags of a run, read once.

    Attributes:
      enabled: those of `FLAGS` that are on in this process.
    """

    enabled: frozenset[str]
    _warned: set[str] = field(default_factory=set, repr=False)

    @classmethod
    def from_config(cls, debug: DebugConfig, process: int = 0) -> DebugFlags:
        """Reads the `debug` section of the configuration for one process."""
        values = {name: debug[name] for name in debug} | {f"loss.{name}": debug.loss[name] for name in debug.loss}
        return cls(frozenset(flag for flag in FLAGS if values[flag] and (process == 0 or flag in EVERY_PROCESS)))

    def on(self, flag: str) -> bool:
        """Whether `flag` (e.g. `loss.null_masking`, or `DEBUG.LOSS.NULL_MASKING`) is on.

        What is no flag, a section included, is off, with one warning.
        """
        if flag in self.enabled or flag in FLAGS:
            return flag in self.enabled
        name = flag.lower().removeprefix("debug.")
        if name not in FLAGS and name not in self._warned:
            self._warned.add(name)
            logging.getLogger(MAIN).warning("debug.%s is no debug flag: it counts as off", name)
        return name in self.enabled

    def debug_line(self, flag: str, message: Message | Callable[[], Message], sub: str = "") -> None:
        """Writes a message of a flag that is on, with its prefix on every line.

        Args:
          message: text, lines, or a callable that returns them and is called only if the flag is on.
          sub: extends the prefix, e.g. SUMMARY.
        """
        if not self.on(flag):
            return
        texts = message() if callable(message) else message
        lines = [line for text in ([texts] if isinstance(texts, str) else texts) for line in text.splitlines()]
        name = leaf(flag).upper() + (f"_{sub.upper()}" if sub else "")
        logger = logging.getLogger(DATA if name.startswith("DATALOADER") else MAIN)
        logger.debug("%s", "\n".join(f"[DEBUG_{name}] {line}" for line in lines or [""]))


# ---- for any flag


def values_text(title: str, values: Mapping[str, Any]) -> list[str]:
    """A title and one aligned `name : value` line per value; arrays as shape, dtype and range."""
    width = max((len(str(name)) for name in values), default=0)
    return [title, *(f"  {name!s:<{width}} : {short(value)}" for name, value in values.items())]


def short(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, np.ndarray) and value.ndim:
        span = f" in [{value.min():.4g}, {value.max():.4g}]" if value.size and value.dtype.kind in "iufb" else ""
        return f"{value.dtype}{list(value.shape)}{span}"
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """A title, and rows in aligned columns below their names."""
    texts = [list(header), *([short(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(header))]
    return [title, *("  " + "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in texts)]


def size_text(size: float) -> str:
    """Bytes for people."""
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"
