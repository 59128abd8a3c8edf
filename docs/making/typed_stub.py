"""The types of `linnaeus_jax/config/typed.py`, whose classes are made from the declarations of the keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from linnaeus_jax.config.keys import Key
from linnaeus_jax.config.open_nodes import ENTRIES
from linnaeus_jax.config.typed import class_name, sections

_HEAD = """\
# Written by `make reference` from the declarations in config/sections.
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from linnaeus_jax.config.section import Duration, Section

def typed(config: ConfigDict) -> Config: ...
def sections(declared: Mapping[str, Any] = ..., path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]: ...
def class_name(path: str) -> str: ...
"""


def make() -> str:
    """The text of the file, as ruff formats it."""
    known = dict(sections())
    return _HEAD + "".join(f"\nclass {class_name(path)}(Section):\n{_body(path, known)}" for path in known)


def _body(path: str, known: Mapping[str, Mapping[str, Any]]) -> str:
    lines: list[str] = []
    for name, kind in _attributes(path, known):
        if (line := f"    {name}: {kind}") not in lines:
            lines.append(line)
    if path in ENTRIES:
        lines.append(f"    def __getitem__(self, name: str) -> {class_name(f'{path}.*')}: ...")
    return "\n".join([*lines, ""])


def _attributes(path: str, known: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for name, found in known[path].items():
        here = f"{path}.{name}".lstrip(".")
        if here in known:
            yield name, class_name(here)
        elif isinstance(found, Key):
            yield (found.quantity, "Duration | None") if found.quantity else (name, _type(found))


def _type(key: Key) -> str:
    """The type of a key's values as the program reads them."""
    if key.kind is dict:
        return "Mapping[str, Any]"
    if key.kind is tuple:
        item = key.items.__name__ if key.items and key.items is not tuple else "Any"
        count = key.lengths[0] if len(key.lengths) == 1 and not key.optional else 0
        return f"tuple[{', '.join([item] * count or [item, '...'])}]"
    return key.kind.__name__ + (" | None" if key.default is None or key.off else "")
