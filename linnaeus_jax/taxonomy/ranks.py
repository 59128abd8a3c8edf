"""Taxonomic ranks as numbers: the higher the level, the coarser the rank. Half ranks are written with an underscore."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

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
_TASK = re.compile(r"taxa_[lL](\d+(?:_\d+)?)")


def task_level(task: str) -> float:
    """Level of a label column: "taxa_L10" -> 10.0, "taxa_L33_5" -> 33.5. Raises ValueError for other names."""
    match = _TASK.fullmatch(task)
    if match is None:
        raise InputError(f"task {task!r} is not of the form 'taxa_L<level>', e.g. taxa_L10 or taxa_L33_5")
    return float(match[1].replace("_", "."))


def task_name(task: str) -> str:
    """What people call the rank of a label column: "taxa_L10" -> "species"; the column's name where that is unknown."""
    return _NAMES.get(task_level(task), task) if _TASK.fullmatch(task) else task


def check_task_order(tasks: Sequence[str]) -> None:
    """Raises ValueError unless tasks are given and their levels rise strictly: the finest rank comes first."""
    if not tasks:
        raise InputError("data.task_keys_h5 is empty; name at least one label column, e.g. ('taxa_L10',)")
    levels = [task_level(task) for task in tasks]
    if any(coarse <= fine for fine, coarse in pairwise(levels)):
        ordered = tuple(sorted(set(tasks), key=task_level))
        raise InputError(f"data.task_keys_h5 = {tuple(tasks)} must list each rank once, finest first: use {ordered}")
