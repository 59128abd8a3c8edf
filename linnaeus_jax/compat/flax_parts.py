"""Flax's scopes: what a module that is being applied has declared, and in which trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import flax.linen as nn
from flax.core.scope import union_filters

__all__ = ["declared_parameters", "reserve", "trace_levels", "union_filters"]


def reserve(module: nn.Module, name: str, collection: str) -> bool:
    """Notes that a module has declared a variable, as `Module.param` does; False where Flax has no such method.

    Without `Scope.reserve`: the caller takes `Module.param`, which traces the initializer at every use.
    """
    note = getattr(module.scope, "reserve", None)
    if note is None:
        return False
    note(name, collection)
    return True


def declared_parameters(module: nn.Module) -> list[str]:
    """Names of the parameters that a bound module has declared so far, in order.

    Without `Scope.reservations`: none, and frames show no parameters.
    """
    reservations = getattr(module.scope, "reservations", {})
    return [name for name, collections in reservations.items() if "params" in collections]


def trace_levels(module: nn.Module) -> Iterator[Any]:
    """The traces in which the scopes of a bound module were made, up to the lifted transform around it.

    Without `Scope.trace_level`: none.
    """
    scope = module.scope
    while scope is not None and hasattr(scope, "trace_level"):
        yield scope.trace_level
        scope = scope.parent
