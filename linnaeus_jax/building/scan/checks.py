"""The tables of checks: how bad what each finds is, how it is called, what it says, and how it is found.

A part of a data set is a class with a table `CHECKS`; a new check is one more row there. A text is a format string:
its fields are the part (`it`), the number of rows (`n`), and what the check adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.reading.text import printable

# ---- What a check of a data set found, as people and programs read it


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


# ----------------------------------------------------------------------------------------------------------------------


NOTHING: Mapping[str, Any] = MappingProxyType({})


class Found(NamedTuple):
    """One thing that a check found: rows of the labels file, from 0; lines below the message; further fields of its
    text; a level where it is another one than the check's."""

    rows: Sequence[int] | NDArray[np.integer] = ()
    examples: Sequence[str | bytes] = ()
    fields: Mapping[str, Any] = NOTHING
    level: str = ""


class Check(NamedTuple):
    """One row: `find` is given the part and returns whether, in which rows or what of it is so."""

    level: str
    name: str
    text: str
    find: Callable[[Any], Any]


error, warning, note = (partial(Check, level) for level in (ERROR, WARNING, NOTE))


class Part(Protocol):
    """A part of a data set that is looked at."""

    @property
    def CHECKS(self) -> tuple[Check, ...]: ...


def make_checks(part: Part, findings: Findings) -> bool:
    """Makes the checks of a part, in their order; False where it turned out to be unreadable, which is a finding."""
    with findings.of_damage():
        for check in part.CHECKS:
            for found in _each(check.find(part)):
                text = check.text.format(it=part, **{"n": len(found.rows), **found.fields})
                findings.add(found.level or check.level, check.name, text, found.rows, found.examples)
        return True
    return False


def _each(found: object) -> Iterable[Found]:
    if isinstance(found, np.ndarray):
        return [Found(found)] if len(found) else []
    if isinstance(found, Iterable):
        return found
    return [Found()] if found else []
