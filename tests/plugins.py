"""What plugins register in one test is gone in the next, and so is that they were imported."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from linnaeus_jax.metrics import custom, phases, table
from linnaeus_jax.registry import ALL, METRICS

_PREFIX = "linnaeus_jax_plugin:"


def forget_plugins() -> None:
    """Takes out what plugins have registered, and forgets that they were imported, as in a new process."""
    for registry in ALL:
        modules = {name: getattr(item, "__module__", None) or "" for name, item in registry.entries.items()}
        for name in [name for name, module in modules.items() if module.startswith(_PREFIX)]:
            del registry.entries[name]
    for name in table.TABLE.keys() - table.BUILT_IN.keys():
        del table.TABLE[name]
    METRICS.entries.clear()  # the built-in ones are of the table alone
    custom.SUBSETS.clear()
    phases.REGISTERED.clear()
    for name in [name for name in sys.modules if name.startswith(_PREFIX)]:
        del sys.modules[name]


@contextlib.contextmanager
def plugins_kept() -> Iterator[None]:
    """Afterwards there are the plugins that there were before, with all that they had registered."""
    holders: list[dict[str, Any]] = [registry.entries for registry in ALL]
    holders += [table.TABLE, custom.SUBSETS, phases.REGISTERED]
    before = [dict(holder) for holder in holders]
    modules = {name: module for name, module in sys.modules.items() if name.startswith(_PREFIX)}
    try:
        yield
    finally:
        forget_plugins()
        for registry, entries in zip(ALL, before, strict=False):
            for name in [*registry.entries]:  # of the package there may be more: a module may be imported late
                if name not in entries and registry.from_plugin(name):
                    del registry.entries[name]
        for holder, entries in zip(holders, before, strict=True):
            holder.update(entries)
        sys.modules.update(modules)
