"""The checks of single values: each by the declaration of its key, before anything reads it.

`config.typed` makes no configuration of values that fail here. The rules between keys are those of `checks.config`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import declared
from linnaeus_jax.config.keys import UNITS, Key
from linnaeus_jax.config.open_nodes import ENTRIES
from linnaeus_jax.config.tree import shown

#: numbers of values without a declaration, as of plugins and filters; float32 holds no larger ones
LARGEST_INTEGER, LARGEST_NUMBER = 10**12, 3.4e38
#: upper bounds from here on only keep nonsense away, and are not shown to who is below the lower one
FAR = 1000
_KINDS = {
    int: "an integer",
    float: "a number",
    str: "a text",
    bool: "True or False",
    tuple: "a tuple",
    dict: "a filter",
}
_ITEMS = {int: "integers", float: "numbers", str: "texts", bool: "True or False", tuple: "tuples"}


def wrong_values(config: ConfigDict) -> Iterator[tuple[str, str]]:
    """(key, what is wrong with it) of every value that may not be; of quantities that exclude each other, of all."""
    tasks = config.data.task_keys_h5
    quantities: dict[tuple[str, str], list[tuple[str, Key, Any]]] = {}
    for key, rule, value in leaves(config):
        if wrong := _undeclared(value) if rule is None else problem(rule, value, tasks):
            yield key, f"{key}{wrong}"
        elif rule is not None and rule.quantity:
            quantities.setdefault((key.rpartition(".")[0], rule.quantity), []).append((key, rule, value))
    for rows in quantities.values():
        rows.sort(key=lambda row: UNITS.index(row[1].unit))
        used = [(key, value) for key, rule, value in rows if rule.setting(value) is not None]
        if len(used) > 1:
            given = " and ".join(f"{key} = {value}" for key, value in used)
            for key, _ in used:
                yield key, f"{given} exclude each other; keep one of them and set the others to None"


def rule_of(key: str) -> Key | None:
    """The declaration of a dotted key; None of what plugins and filters bring."""
    node, _, name = key.rpartition(".")
    pattern = f"{node.rpartition('.')[0]}.*.{name}"
    return declared().get(key) or declared().get(pattern if node.rpartition(".")[0] in ENTRIES else "")


def leaves(section: ConfigDict, path: str = "") -> Iterator[tuple[str, Key | None, Any]]:
    """(dotted key, declaration, value) of everything in a tree; a filter's keys have no declaration."""
    for name, value in section.items():
        key = f"{path}.{name}" if path else str(name)
        rule = rule_of(key)
        if isinstance(value, ConfigDict) and (rule is None or rule.kind is not dict):
            yield from leaves(value, key)
        else:
            yield key, rule, value


def problem(rule: Key, value: Any, tasks: tuple[str, ...]) -> str:
    """What is wrong with a value, as it follows the name of its key; empty: nothing."""
    if value is None:
        return "" if rule.default is None else f" = None must be {_KINDS[rule.kind]}"
    if rule.items is not None:
        return _tuple_problem(rule, value if isinstance(value, tuple | list) else (value,), tasks) or _undeclared(value)
    if rule.kind in (int, float):
        if not _is(value, rule.kind):
            return f" = {shown(value)} must be {_KINDS[rule.kind]}"
        if rule.unit:
            return _unit_problem(rule, value)
        out = f" = {shown(value)} is out of range; it must be {_wanted(rule, value)}"
        return "" if rule.holds(value) else out
    if not isinstance(value, (dict, ConfigDict) if rule.kind is dict else rule.kind):
        return f" = {shown(value)} must be {_KINDS[rule.kind]}"
    if rule.kind is str:
        if rule.not_empty and not value:
            return " is empty; give it a value"
        if rule.choices and not rule.refused_elsewhere and value != rule.default:  # its names may need many imports
            names = rule.names()
            if value not in names and not (rule.any_case and str(value).lower() in names):
                return f" = {shown(value)} is unknown; choose one of {', '.join(names)}"
    return _undeclared(value)


def _is(value: Any, kind: type) -> bool:
    """Whether a value is of that type; integers are numbers, truth values are neither."""
    return isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))


def _wanted(rule: Key, number: float) -> str:
    """What a number must be that its key does not hold; of the bounds, the one that it misses."""
    low, high = rule.bounds
    text = _interval_text(rule.within or "[0, inf)")
    if number > high >= FAR:
        text = f"at most {int(high) if high == int(high) and high < 1e16 else high}"
    elif number < low <= -FAR:
        text = f"at least {int(low) if low > -1e16 else low}"
    finite = math.isfinite(number) or text.startswith(("finite", "within"))
    return text if finite else f"finite and {text}"


def _unit_problem(rule: Key, value: float) -> str:
    """Of a quantity: it says "off", or is above 0 and no more than its unit can be."""
    if rule.setting(value) is None and abs(value) <= LARGEST_INTEGER:
        return ""
    if rule.unit == "fraction" and not 0 < value <= 1:
        steps = next(name for name in rule.rivals if name.endswith(("_steps", "_interval")))
        return f" = {shown(value)} must lie in (0, 1]; use {steps} for a step count"
    if not 0 < value < math.inf:
        return f" = {shown(value)} must be a positive number, or 0 to switch it off"
    return "" if rule.holds(value) else f" = {shown(value)} is out of range; it must be {_wanted(rule, value)}"


def _tuple_problem(rule: Key, value: tuple[Any, ...] | list[Any], tasks: tuple[str, ...]) -> str:
    """A wrong number or kind of items."""
    assert rule.items is not None
    lengths = {1, len(tasks)} if rule.per_task else set(rule.lengths)
    if not all(_is(item, rule.items) for item in value):
        return f" = {shown(value)} must be a tuple of {_ITEMS[rule.items]}"
    if lengths and len(value) not in lengths and not (rule.optional and not value):
        counts = " or ".join(map(str, sorted(lengths)))
        each = f", one per task of data.task_keys_h5 = {shown(tasks)}" if rule.per_task else ""
        return f" = {shown(value)} has {len(value)} items; give {counts}{each}"
    if rule.choices:
        names = rule.names()
        if wrong := [item for item in value if item not in names]:
            return f" holds {shown(wrong[0])}, which is unknown; choose among {', '.join(names)}"
    if rule.items in (int, float) and (wrong := [item for item in value if not rule.holds(item)]):
        return f" = {shown(value)} holds {shown(wrong[0])}; each item must be {_wanted(rule, wrong[0])}"
    return ""


def _undeclared(value: Any) -> str:
    """Numbers that no key may have and texts that no file and no library takes, at any depth."""
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, Mapping):
            rest += [*item.keys(), *item.values()]
        elif isinstance(item, tuple | list):
            rest += item
        elif isinstance(item, str) and "\0" in item:
            return f" = {shown(value)} holds a NUL character; take it out"
        elif isinstance(item, int) and abs(item) > LARGEST_INTEGER:
            return f" = {shown(value)} is out of range; integers are at most {LARGEST_INTEGER}"
        elif isinstance(item, float) and not abs(item) <= LARGEST_NUMBER:
            return f" = {shown(value)} is out of range; numbers are finite and at most {LARGEST_NUMBER:g}"
    return ""


def _interval_text(interval: str) -> str:
    low, high = (text.strip() for text in interval[1:-1].split(","))
    if low == high:
        return low
    if low == "-inf":
        return "finite" if high == "inf" else f"at most {high}"
    if high == "inf" or float(high) >= FAR:  # the other bound is far away
        return f"above {low}" if interval[0] == "(" else f"{low} or more"
    return f"within {interval}"
