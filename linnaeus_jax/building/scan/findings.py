"""What a check of a data set found, as people and programs read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.reading.text import printable

ERROR, WARNING, NOTE = LEVELS = ("error", "warning", "note")
#: rows and examples that a finding keeps
SHOWN = 5


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (error), probably not meant (warning) or good to know (note).

    Attributes:
      level: one of LEVELS.
      check: short name that does not change, for programs.
      message: one line.
      rows: up to `SHOWN` rows of the labels file (from 0) that it is about.
      examples: up to `SHOWN` lines.
    """

    level: str
    check: str
    message: str
    rows: tuple[int, ...] = ()
    examples: tuple[str, ...] = ()


class Findings(list[Finding]):
    """Findings in the order in which they were made; all text is made printable here, and nowhere else."""

    def _add(self, level: str, check: str, message: str, rows: Iterable[int], examples: Sequence[str | bytes]) -> None:
        first = tuple(int(row) for row, _ in zip(rows, range(SHOWN)))
        lines = tuple(printable(line, 400) for line in examples[:SHOWN])
        self.append(Finding(level, check, printable(message, 2000), first, lines))

    def error(self, check: str, message: str, rows: Iterable[int] = (), examples: Sequence[str | bytes] = ()) -> None:
        self._add(ERROR, check, message, rows, examples)

    def warning(self, check: str, message: str, rows: Iterable[int] = (), examples: Sequence[str | bytes] = ()) -> None:
        self._add(WARNING, check, message, rows, examples)

    def note(self, check: str, message: str, rows: Iterable[int] = (), examples: Sequence[str | bytes] = ()) -> None:
        self._add(NOTE, check, message, rows, examples)

    def number(self, level: str) -> int:
        """How many findings there are of a level."""
        return Counter(finding.level for finding in self)[level]

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(finding) for finding in self]


class Tally:
    """Counts rows that fall under something, slab by slab, and keeps the first ones."""

    def __init__(self) -> None:
        self.count = 0
        self.rows: list[int] = []

    def __bool__(self) -> bool:
        return self.count > 0

    def add(self, mask: NDArray[np.bool_], start: int = 0) -> None:
        """Args: mask: bool [n], rows start ... start + n."""
        found = np.flatnonzero(mask)
        self.count += len(found)
        if len(self.rows) < SHOWN:
            self.rows += (found[: SHOWN - len(self.rows)] + start).tolist()
