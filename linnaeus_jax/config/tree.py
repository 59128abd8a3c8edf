"""Writing typed values into a configuration tree by path; shared by the YAML importer and the command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ml_collections.config_dict import ConfigDict, FieldReference

from linnaeus_jax.config.open_nodes import OPEN_NODES, head

#: keys whose value is a whole parameter filter: any keys, read by learning.filters
FILTER_KEYS = ("filter", "exclude_config")

_KIND_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a text", tuple: "a list"}


def known_keys(config: ConfigDict, prefix: str = "") -> list[str]:
    """Dotted paths of all values of the tree."""
    keys = []
    for key in config:
        path = f"{prefix}{key}"
        is_section = isinstance(config[key], ConfigDict) and key not in FILTER_KEYS
        keys += known_keys(config[key], f"{path}.") if is_section else [path]
    return keys


def nearest_key(config: ConfigDict, path: str) -> str | None:
    """The known dotted path most like `path` (by its whole, else by its last part), if any is alike."""
    keys = known_keys(config)
    close = difflib.get_close_matches(path, keys, n=1, cutoff=0.8)
    if close:
        return close[0]
    last = path.rpartition(".")[2]
    by_last = {key.rpartition(".")[2]: key for key in reversed(keys)}
    close = difflib.get_close_matches(last, by_last, n=1, cutoff=0.7)
    if close:
        candidates = [key for key in keys if key.rpartition(".")[2] == close[0]]
        return max(candidates, key=lambda key: difflib.SequenceMatcher(None, path, key).ratio())
    close = difflib.get_close_matches(path, keys, n=1)
    return close[0] if close else None


def locate(config: ConfigDict, path: Sequence[str]) -> tuple[ConfigDict, str]:
    """The section and key that a path names; entries of open nodes are created with the defaults of their kind.

    Raises:
      KeyError: the path names nothing in this tree.
    """
    *sections, key = path
    if sections and sections[-1] in FILTER_KEYS:  # free keys below
        node, last = locate(config, sections)
        return node[last], key
    node = config
    for depth, part in enumerate(path):
        opened = OPEN_NODES.get(".".join(path[:depth]))
        if opened and part not in node and part not in opened[1]:
            with node.unlocked():
                node[part] = opened[0](ConfigDict())
            node[part].lock()
        if not isinstance(node, ConfigDict) or part not in node:
            raise KeyError(".".join(path))
        section, node = node, node[part]
    return section, key


def kind_of(config: ConfigDict, path: Sequence[str]) -> type | None:
    """Type of the value at a path; None for a new key of a filter.

    Raises:
      KeyError: the path names nothing in this tree.
    """
    node, key = locate(config, path)
    return node.get_type(key) if key in node else None


def assign(config: ConfigDict, path: Sequence[str], value: Any) -> None:
    """Writes a value of plain Python types into a locked tree, converted to the type of the key.

    Integers serve as numbers, integral numbers as integers, scalars as lists of one; None empties texts and lists and
    unsets optional values.

    Raises:
      KeyError: the path names nothing in this tree.
      TypeError: the value does not fit; the text says what was expected.
    """
    node, key = locate(config, path)
    dotted = ".".join(path)
    kind = kind_of(config, path)
    if kind is None or key in FILTER_KEYS:
        if key in FILTER_KEYS and not isinstance(value, Mapping):
            raise TypeError(f"{dotted} = {value!r}: expected a filter, a mapping with a 'type'")
        with node.unlocked():
            node[key] = frozen(value)
        return
    if kind is ConfigDict:
        raise TypeError(f"{dotted} = {value!r}: this is a section; set one of its keys: {', '.join(node[key])}")
    if path[:3] == ("model", "classification", "heads") and key == "type" and value != node[key]:
        with node.unlocked():
            for option in list(node):
                del node[option]  # another type has other options
            node.update(head(ConfigDict({"type": value})))
        return
    optional = isinstance(dict(node.items(preserve_field_references=True))[key], FieldReference)
    try:
        node[key] = _convert(value, kind, optional)
    except (TypeError, ValueError, OverflowError):
        expected = _KIND_NAMES[kind] + (" or None" if optional else "")
        raise TypeError(f"{dotted} = {shown(value)}: expected {expected} (now {node[key]!r})") from None


def mark_given(config: ConfigDict, keys: Iterable[str]) -> None:
    """Notes which dotted keys the user gave on the command line, whatever their values; copies do not keep it."""
    object.__setattr__(config, "_given", frozenset(keys))


def given_keys(config: ConfigDict) -> frozenset[str]:
    """The dotted keys that `mark_given` noted; those of a configuration file cannot be told from its defaults."""
    found: frozenset[str] = vars(config).get("_given", frozenset())
    return found


def shown(value: Any) -> str:
    """A value as messages show it: not longer than a line."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:80]}... ({len(text)} characters)"


def _convert(value: Any, kind: type, optional: bool) -> Any:
    if value is None:
        if optional:
            return None
        if kind in (str, tuple):
            return kind()
        raise TypeError
    if kind is tuple:
        return frozen(value) if isinstance(value, list | tuple) else (value,)
    if isinstance(value, list | tuple | Mapping):
        raise TypeError
    if kind is str:
        return str(value)
    if kind is bool:
        if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
            return bool(value)
        raise TypeError
    if isinstance(value, bool | str) or (kind is int and int(value) != value):
        raise TypeError
    return kind(value)


def frozen(value: Any) -> Any:
    """Lists become tuples at every depth."""
    if isinstance(value, Mapping):
        return {key: frozen(item) for key, item in value.items()}
    return tuple(frozen(item) for item in value) if isinstance(value, list | tuple) else value
