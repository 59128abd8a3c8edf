"""Which metadata components are in use, and in which order: the one rule for data, model and schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def active_components(meta: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the components of `data.meta` that are enabled with `idx` >= 0, by ascending `idx`.

    None where `data.meta.active` is False.
    """
    components = meta["components"]
    used = [name for name in components if components[name]["enabled"] and components[name]["idx"] >= 0]
    return tuple(sorted(used, key=lambda name: (components[name]["idx"], name))) if meta["active"] else ()


__all__ = ["active_components"]
