"""How a key of the configuration is declared: its default, its meaning, its type, and what it may be.

Everything else follows from the declarations in `config/sections`: the tree of defaults, the checks of single values
(`config.values`), `docs/reference/config.md`, `--help KEY` and the completion of a shell.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ml_collections.config_dict import placeholder

#: fixed names, or `module:NAME` of the names, or the registry, of another subpackage, looked up when they are needed
Names = Sequence[str] | str
#: declarations, and sections of such, by name; plain values are an entry of an open node that is there at first
Section = dict[str, Any]

_KINDS = {bool: "bool", int: "int", float: "float", str: "text", tuple: "tuple", dict: "mapping"}
_ITEMS = {int: "integers", float: "numbers", str: "texts", bool: "bools", tuple: "tuples"}
#: ends of an interval without an end, by type: what an array of 32 bits holds, as counters and settings are on a device
_ENDS = {int: 2**31 - 1, float: 3.4e38}
_IN_WORDS = {"steps": "updates", "fraction": "share of all updates", "epochs": "epochs"}
UNITS = tuple(_IN_WORDS)


class InOrder(dict[str, Any]):
    """A section whose keys keep the order in which they are given."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key.

    Attributes:
      default: None of a key that is unset.
      meaning: one or two plain sentences, of which the first may begin in lower case.
      kind: type of its values; `dict` of one that holds a whole mapping.
      within: the interval of its numbers, or of those of its tuple, which every key of numbers has but those of
        quantities; what is not finite lies in none. None is always allowed.
      choices: the texts that it, or an item of its tuple, may be.
      any_case: these texts in upper case, too.
      refused_elsewhere: who reads the key refuses other texts, not the checks of single keys.
      not_empty: it must hold a text.
      items: type of what its tuple holds.
      lengths: numbers of items; empty: any.
      per_task: one item, or one for each task.
      optional: or no item.
      off: the interval of its numbers that say "off", as None does.
      unit: of a quantity that can be given in several: `steps`, `fraction` or `epochs`.
      quantity: the name of that.
      rivals: names of the keys for its other units.
      counts: what counts, in this unit, where none of them is given; None: another unit's, or off.
      like: the quantity of the same section that counts where none of them is given.
    """

    default: Any
    meaning: str
    kind: type
    within: str = ""
    choices: Names = ()
    any_case: bool = False
    refused_elsewhere: bool = False
    not_empty: bool = False
    items: type | None = None
    lengths: tuple[int, ...] = ()
    per_task: bool = False
    optional: bool = False
    off: str = ""
    unit: str = ""
    quantity: str = ""
    rivals: tuple[str, ...] = ()
    counts: float | None = None
    like: str = ""

    def initial(self) -> Any:
        """The value in the tree of defaults."""
        return placeholder(self.kind) if self.default is None else self.default

    def setting(self, value: Any) -> Any:
        """A value as the program reads it: None where it says "off"."""
        return None if self.off and value is not None and inside(value, self.off) else value

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and largest of its numbers; where its interval has no end, that of its type."""
        low, high = (float(text) for text in (self.within or "[0, inf)")[1:-1].split(","))
        end = _ENDS[self.items or self.kind]
        return (-end if low == -math.inf else low), (end if high == math.inf else high)

    def holds(self, number: float) -> bool:
        """Whether a number, or an item of its tuple, may be."""
        low, high = self.bounds
        return low <= number <= high and (not self.within or inside(number, self.within))

    def names(self) -> Collection[str]:
        """The texts that it may be; empty: any."""
        if not isinstance(self.choices, str):
            return self.choices
        module, _, name = self.choices.partition(":")
        names = getattr(importlib.import_module(module), name)
        return names() if callable(names) else names

    def completions(self) -> Collection[str]:
        """What a shell offers as its value."""
        return ("True", "False") if self.kind is bool else self.names()

    def values(self, quoted: Callable[[str], str] = str) -> str:
        """Type and possible values, in words; `quoted` writes a text as such."""
        kind = _KINDS[self.kind] + (" or None" if self.default is None else "")
        if self.unit:
            return f"{kind}: {_IN_WORDS[self.unit]}, {'in (0, 1], or 0' if self.unit == 'fraction' else '0 or more'}"
        names = self.names()
        unnamed = ("",) if names and self.default == "" and "" not in names else ()
        choices = ", ".join(quoted(name or '""') for name in (*unnamed, *names))
        if self.items:
            return f"{kind}: {self._items(choices)}"
        if choices:
            return f"{kind}: {choices}{'; also in upper case' if self.any_case else ''}"
        if self.within:
            return f"{kind}: {_interval(self.within)}"
        return f"{kind}, not empty" if self.not_empty else kind

    def _items(self, choices: str) -> str:
        assert self.items is not None
        kind = _ITEMS[self.items]
        parts = ["one per task, or one for all" if self.per_task else kind]
        if self.lengths:
            parts[0] = f"{' or '.join(map(str, self.lengths))} {kind}"
        if self.within:
            parts.append(f"each {_interval(self.within)}")
        if choices:
            parts.append(f"of {choices}")
        return ", ".join([*parts, "or empty"] if self.optional else parts)


def inside(value: float, interval: str) -> bool:
    """Whether a number lies in an interval such as `[0, inf)`."""
    low, high = (float(text) for text in interval[1:-1].split(","))
    above = value > low if interval[0] == "(" else value >= low
    return above and (value < high if interval[-1] == ")" else value <= high)


def _interval(text: str) -> str:
    low, high = (part.strip() for part in text[1:-1].split(","))
    if low == "-inf":
        return "finite" if high == "inf" else f"at most {high}"
    if high == "inf":
        return f"above {low}" if text[0] == "(" else f"{low} or more"
    return f"in {text}"


def key(default: Any, meaning: str, **rules: Any) -> Key:
    """A key with a default value, whose type it has; `rules` are attributes of `Key`."""
    return Key(default=default, meaning=meaning, kind=type(default), **rules)


def unset(kind: type, meaning: str, **rules: Any) -> Key:
    """A key of that type, or None, which it is by default."""
    return Key(default=None, meaning=meaning, kind=kind, **rules)


def quantity(
    name: str,
    names: Mapping[str, tuple[str, type]],
    meaning: str,
    default: tuple[str, float] | None = None,
    off: Mapping[str, str] = MappingProxyType({}),
    **rules: Any,
) -> Section:
    """Keys of one quantity, of which one is given.

    Args:
      name: of the quantity, which the program reads as one `Duration`.
      names: unit -> name and type of its key.
      default: unit and value that count where none is given; None: it is off.
      off: unit -> the interval of its numbers that say "off"; of other units 0 alone.
      rules: attributes of all these keys.
    """
    every = [key for key, _ in names.values()]
    return {
        key: unset(
            kind,
            meaning,
            off=off.get(unit, "[0, 0]"),
            unit=unit,
            quantity=name,
            rivals=tuple(other for other in every if other != key),
            counts=default[1] if default and default[0] == unit else None,
            **rules,
        )
        for unit, (key, kind) in names.items()
    }


def duration(
    prefix: str, meaning: str, epochs: type | None = None, default: tuple[str, float] | None = None
) -> Section:
    """The keys `<prefix>_<unit>` of a quantity in updates, as a share of the run or, where `epochs` is their type, in
    epochs; `default` as of `quantity`."""
    kinds = {"steps": int, "fraction": float} | ({"epochs": epochs} if epochs else {})
    return quantity(prefix, {unit: (f"{prefix}_{unit}", kind) for unit, kind in kinds.items()}, meaning, default)


def walk(section: Mapping[str, Any], path: str, entries: Mapping[str, Section]) -> Iterator[tuple[str, Key]]:
    """(dotted key, declaration) of a section in its order, `*` for an entry of the open nodes that `entries` has."""
    behind = [path] if path in entries else []  # entries follow the keys of their node, or of the section around it
    for name, found in section.items():
        here = f"{path}.{name}" if path else name
        if isinstance(found, Key):
            yield here, found
        elif here in entries and not any(isinstance(value, Key) for value in found.values()):
            behind.append(here)
        else:
            yield from walk(found, here, entries)
    for node in behind:
        yield from ((f"{node}.*.{name}", found) for name, found in entries[node].items())


def value_of(config: Mapping[str, Any], key: str) -> Any:
    """The value, or section, of a dotted key."""
    node = config
    for part in key.split("."):
        node = node[part]
    return node
