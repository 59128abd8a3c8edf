"""The checks of single values, by the declarations of the keys, and the errors of those that may not be.

Types of single values are checked where they are set (`config.tree`); a model family checks its own keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import declared
from linnaeus_jax.config.keys import Key, inside, value_of
from linnaeus_jax.config.saved import flatten

#: sizes of numbers of every key; float32 holds no larger ones
MAX_INTEGER = 10**12
MAX_FLOAT = 3.4e38
#: upper bounds from here on only keep nonsense away, and are not shown to who is below the lower one
FAR = 1000
_KIND_NAMES = {int: "integers", float: "numbers", str: "texts", bool: "True or False", tuple: "tuples"}


def expand(config: ConfigDict, key: str) -> Iterator[tuple[str, Any]]:
    """(key, value) of a declared key; `*` stands for every entry of an open node that has the rest."""
    node, _, rest = key.partition(".*.")
    if not rest:
        yield key, value_of(config, key)
        return
    section = value_of(config, node)
    for name in section:
        if isinstance(section[name], ConfigDict) and rest in section[name]:
            yield f"{node}.{name}.{rest}", section[name][rest]


def _interval_text(interval: str) -> str:
    low, high = (text.strip() for text in interval[1:-1].split(","))
    if low == high:
        return low
    if low == "-inf":
        return "finite" if high == "inf" else f"at most {high}"
    if high == "inf" or float(high) >= FAR:  # the other bound is far away
        return f"above {low}" if interval[0] == "(" else f"{low} or more"
    return f"within {interval}"


def size_errors(config: ConfigDict, errors: Sequence[str]) -> list[str]:
    """Numbers that are too large for any key, each text beginning with its key, but for those that `errors` name."""
    found = []
    for key, value in flatten(config.to_dict()).items():
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            found.append(f"{key} = {str(value)[:20]}... is out of range; integers are at most {MAX_INTEGER}")
        elif isinstance(value, float) and not abs(value) <= MAX_FLOAT:
            found.append(f"{key} = {value} is out of range; numbers are finite and at most {MAX_FLOAT:g}")
    return [error for error in found if not any(error.partition(" ")[0] in other for other in errors)]


def value_errors(config: ConfigDict) -> Iterator[str]:
    """Numbers out of range and unknown names, each text beginning with its key."""
    for pattern, rule in declared().items():
        for key, value in expand(config, pattern) if rule.within and not rule.items else ():
            if value is not None and not inside(value, rule.within):
                high = rule.within[1:-1].split(",")[1].strip()
                text = f"at most {high}" if FAR <= float(high) < value else _interval_text(rule.within)
                yield f"{key} = {value} is out of range; it must be {text}"
    for pattern, rule in declared().items():
        if not rule.choices or rule.items or rule.refused_elsewhere:
            continue
        choices = rule.names()
        for key, value in expand(config, pattern):
            inherited = "*" in pattern and not value  # of an entry of an open node
            if not inherited and value not in choices and not (rule.any_case and value.lower() in choices):
                yield f"{key} = {value!r} is unknown; choose one of {', '.join(choices)}"


def quantity_errors(config: ConfigDict) -> Iterator[str]:
    """Quantities out of range, and keys of one that exclude each other."""
    members: dict[tuple[str, str], list[tuple[str, Key, Any]]] = {}
    for pattern, rule in declared().items():
        for key, value in expand(config, pattern) if rule.quantity else ():
            members.setdefault((key.rpartition(".")[0], rule.quantity), []).append((key, rule, value))
    for rows in members.values():
        used = [(key, rule, value) for key, rule, value in rows if rule.setting(value) is not None]
        for key, rule, value in used:
            if rule.unit == "fraction" and not 0 < value <= 1:
                steps = next(other for other, its, _ in rows if its.unit == "steps")
                yield f"{key} = {value} must lie in (0, 1]; use {steps} for a step count"
            elif not (value > 0 and math.isfinite(value)):
                yield f"{key} = {value} must be a positive number, or 0 to switch it off"
        if len(used) > 1:
            given = " and ".join(f"{key} = {value}" for key, _, value in used)
            yield f"{given} exclude each other; keep one of them and set the others to None"


def empty_errors(config: ConfigDict) -> list[str]:
    """Keys that must hold a text and do not."""
    return [
        f"{key} is empty; give it a value"
        for key, rule in declared().items()
        if rule.not_empty and not value_of(config, key)
    ]


def tuple_errors(config: ConfigDict) -> Iterator[tuple[str, str]]:
    """(key, error) of tuples with a wrong number or kind of items."""
    tasks = len(config.data.task_keys_h5)
    for pattern, rule in declared().items():
        if rule.items is None:
            continue
        kinds = (int, float) if rule.items is float else rule.items
        lengths = {1, tasks} if rule.per_task else set(rule.lengths)
        within, choices = rule.within or "(-inf, inf)", rule.names()
        for key, given in expand(config, pattern):
            value = given if isinstance(given, tuple | list) else (given,)
            if not all(isinstance(x, kinds) and (rule.items is bool or not isinstance(x, bool)) for x in value):
                yield key, f"{key} = {value!r} must be a tuple of {_KIND_NAMES[rule.items]}"
            elif lengths and len(value) not in lengths and not (rule.optional and not value):
                counts = " or ".join(map(str, sorted(lengths)))
                each = f", one per task of data.task_keys_h5 = {config.data.task_keys_h5}" if rule.per_task else ""
                yield key, f"{key} = {value!r} has {len(value)} items; give {counts}{each}"
            elif wrong := [x for x in value if choices and x not in choices]:
                yield key, f"{key} holds {wrong[0]!r}, which is unknown; choose among {', '.join(choices)}"
            elif wrong := [x for x in value if rule.items in (int, float) and not inside(x, within)]:
                yield key, f"{key} = {value!r} holds {wrong[0]}; each item must be {_interval_text(within)}"


def error_lines(check: Callable[[], object]) -> list[str]:
    """The message, by lines, of what a check of another subpackage raises."""
    try:
        check()
    except ValueError as error:
        return str(error).splitlines()
    return []
