"""What a check of a data set found, as people and programs read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from linnaeus_jax.reading.text import printable

ERROR, WARNING, NOTE = LEVELS = ("error", "warning", "note")
#: rows and examples that a finding keeps
SHOWN = 5


class DamagedError(Exception):
    """A part of the data that cannot be read. `check`: the finding that it becomes."""

    def __init__(self, message: str, check: str = "unreadable") -> None:
        super().__init__(message)
        self.check = check


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

    def add(
        self, level: str, check: str, message: str, rows: Iterable[int] = (), examples: Sequence[str | bytes] = ()
    ) -> None:
        """One more, with its first rows and examples."""
        first = tuple(int(row) for row, _ in zip(rows, range(SHOWN)))
        lines = tuple(printable(line, 400) for line in examples[:SHOWN])
        self.append(Finding(level, check, printable(message, 2000), first, lines))

    @contextmanager
    def of_damage(self) -> Iterator[None]:
        """A DamagedError within becomes an error, and the check goes on behind the block."""
        try:
            yield
        except DamagedError as error:
            self.add(ERROR, error.check, str(error))

    def number(self, level: str) -> int:
        """How many findings there are of a level."""
        return Counter(finding.level for finding in self)[level]

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(finding) for finding in self]
