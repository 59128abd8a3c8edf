"""Ranks and their label columns.

Taxonomic ranks have numbers: the higher the level, the coarser the rank; half ranks are written with an underscore. The
column of species is "taxa_L10". Ranks of other data have names of their own and no number: that of "fine" is
"taxa_fine", and their order is the order in which they are listed, finest first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from linnaeus_jax.mistakes import InputError

#: rank name -> level, finest first
RANK_LEVELS: dict[str, float] = {
    "subspecies": 5.0,
    "species": 10.0,
    "complex": 11.0,
    "subsection": 12.0,
    "section": 13.0,
    "subgenus": 15.0,
    "genus": 20.0,
    "subtribe": 24.0,
    "tribe": 25.0,
    "supertribe": 26.0,
    "subfamily": 27.0,
    "family": 30.0,
    "epifamily": 32.0,
    "superfamily": 33.0,
    "zoosubsection": 33.5,
    "zoosection": 34.0,
    "parvorder": 34.5,
    "infraorder": 35.0,
    "suborder": 37.0,
    "order": 40.0,
    "superorder": 43.0,
    "subterclass": 44.0,
    "infraclass": 45.0,
    "subclass": 47.0,
    "class": 50.0,
    "superclass": 53.0,
    "subphylum": 57.0,
    "phylum": 60.0,
    "subkingdom": 67.0,
    "kingdom": 70.0,
    "stateofmatter": 100.0,
}
_NAMES = {level: name for name, level in RANK_LEVELS.items()}
_LEVEL_TASK = re.compile(r"taxa_[lL](\d+(?:_\d+)?)")
#: a rank with a name of its own, as it stands in the name of a label column
OWN_NAME = r"[^\W\d_][\w-]*"
#: what a label column is called, for patterns of longer names
TASK_PATTERN = rf"taxa_{OWN_NAME}"
_TASK = re.compile(TASK_PATTERN)


def is_task(name: str) -> bool:
    """Whether that is the name of a label column: "taxa_L10", "taxa_fine"."""
    return _TASK.fullmatch(name) is not None


def task_level(task: str) -> float | None:
    """Level of a label column: "taxa_L10" -> 10.0, "taxa_L33_5" -> 33.5, "taxa_fine" -> None.

    Raises ValueError for what is no label column.
    """
    if match := _LEVEL_TASK.fullmatch(task):
        return float(match[1].replace("_", "."))
    if is_task(task):
        return None
    raise InputError(f"task {task!r} is not of the form 'taxa_L<level>' or 'taxa_<name>', e.g. taxa_L10 or taxa_fine")


def task_name(task: str) -> str:
    """What people call the rank of a label column: "taxa_L10" -> "species", "taxa_fine" -> "fine"; the column's name
    where its level has none."""
    if match := _LEVEL_TASK.fullmatch(task):
        return _NAMES.get(float(match[1].replace("_", ".")), task)
    return task.removeprefix("taxa_") if is_task(task) else task


def in_order(tasks: Iterable[str], *known: Sequence[str]) -> list[str]:
    """Label columns, finest first: by their levels, those without one where the known orders of columns have them."""
    listed = list(dict.fromkeys(task for order in known for task in order))
    missing = sorted(set(tasks).difference(listed), key=lambda task: (task_level(task) or float("inf"), task))
    given = [task for task in listed if task in set(tasks)]
    if all(task_level(task) is not None for task in (*given, *missing)):
        return sorted((*given, *missing), key=lambda task: task_level(task) or 0.0)
    return given + missing


def check_task_order(tasks: Sequence[str]) -> None:
    """Raises ValueError unless tasks are given, each once, and the levels of those that have one rise: the finest rank
    comes first."""
    if not tasks:
        raise InputError("data.task_keys_h5 is empty; name at least one label column, e.g. ('taxa_L10',)")
    levels = {task: task_level(task) for task in tasks}
    known = {task: level for task, level in levels.items() if level is not None}
    if len(levels) < len(tasks) or list(known.values()) != sorted(set(known.values())):
        in_order = iter(sorted(known, key=known.__getitem__))
        ordered = tuple(task if levels[task] is None else next(in_order) for task in levels)
        raise InputError(f"data.task_keys_h5 = {tuple(tasks)} must list each rank once, finest first: use {ordered}")
