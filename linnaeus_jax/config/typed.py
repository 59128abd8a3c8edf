"""The configuration as the program reads it: typed, frozen sections, made from the tree whose keys files and flags set.

Its classes follow from the declarations of the keys; `typed.pyi`, which `make reference` writes, says the type of each
attribute to mypy and editors. Attributes are the declared keys, but

* the keys of one quantity in several units are one `Duration`, by the quantity's name, such as `lr_scheduler.warmup`;
* "off" is None, whatever the key's spelling of it (`Key.off`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import SECTIONS
from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.config.keys import Key
from linnaeus_jax.config.open_nodes import ENTRIES
from linnaeus_jax.config.section import Duration, Section
from linnaeus_jax.config.values import wrong_values


def sections(declared: Mapping[str, Any] = SECTIONS, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(dotted path, declarations) of every section; the entries of an open node have the path `<node>.*`."""
    yield path, declared
    for name, found in declared.items():
        if isinstance(found, dict) and (path not in ENTRIES or _is_section(found)):
            yield from sections(found, f"{path}.{name}".lstrip("."))
    if path in ENTRIES:
        yield f"{path}.*", ENTRIES[path]


def class_name(path: str) -> str:
    """Name of the class of a section: `data.h5` -> `DataH5Config`."""
    words = path.replace(".", "_").replace("*", "entry").split("_")
    return "".join(word[:1].upper() + word[1:] for word in words) + "Config"


def typed(config: ConfigDict) -> Section:
    """The whole configuration as subpackages read it, each value checked; `checks.checked` knows the other rules, too.

    Raises:
      ConfigError: every value that may not be.
    """
    if errors := list(dict.fromkeys(error for _, error in wrong_values(config))):
        raise ConfigError(errors)
    return _section("", SECTIONS, config)


def _section(path: str, declared: Mapping[str, Any], given: Mapping[str, Any]) -> Section:
    values: dict[str, Any] = {}
    for name in given:
        found, value, here = declared.get(name), given[name], f"{path}.{name}".lstrip(".")
        if isinstance(found, Key) and found.quantity:
            values.setdefault(found.quantity, _duration(declared, given, found.quantity))
        elif isinstance(found, Key) and found.kind is not dict:
            values[name] = found.setting(value)
        elif not isinstance(value, ConfigDict):
            values[name] = value
        elif path in ENTRIES and not _is_section(found):
            values[name] = _section(f"{path}.*", ENTRIES[path], value)
        else:
            values[name] = _section(here, found if isinstance(found, dict) else {}, value)
    return _CLASSES.get(path, Section)(values)


def _is_section(found: Any) -> bool:
    """Whether it declares keys; the entries that an open node has at first are plain values."""
    return isinstance(found, dict) and any(isinstance(value, Key) for value in found.values())


def _duration(declared: Mapping[str, Any], given: Mapping[str, Any], quantity: str) -> Duration | None:
    """The one of a quantity's keys that is in use, or what counts where none is given; None where it is off."""
    keys = {name: key for name, key in declared.items() if isinstance(key, Key) and key.quantity == quantity}
    for name, key in keys.items():
        if (value := key.setting(given[name])) is not None:
            return Duration(key.unit, value)
    if any(given[name] is not None for name in keys):
        return None
    if like := next(iter(keys.values())).like:
        return _duration(declared, given, like)
    return next((Duration(key.unit, key.counts, False) for key in keys.values() if key.counts is not None), None)


_CLASSES = {path: type(class_name(path), (Section,), {"__module__": __name__}) for path, _ in sections()}
globals().update({found.__name__: found for found in _CLASSES.values()})
