"""The tables of checks: how bad what each finds is, how it is called, what it says, and how it is found.

A part of a data set is a class with a table `CHECKS`; a new check is one more row there. A text is a format string:
its fields are the part (`it`), the number of rows (`n`), and what the check adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.building.scan.findings import ERROR, NOTE, WARNING, Findings

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
