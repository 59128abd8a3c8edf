"""The model families by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import flax.linen as nn

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])

_FAMILIES: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {}


def register_model(name: str, variants: tuple[str, ...]) -> Callable[[Builder], Builder]:
    """Decorator: makes `builder(*, variant, **settings) -> nn.Module` available as `build_model(name, ...)`.

    Raises:
      ValueError: the name is taken.
    """

    def register(builder: Builder) -> Builder:
        if name in _FAMILIES:
            raise ValueError(f"model type {name!r} is registered already; choose another name")
        _FAMILIES[name] = (builder, variants)
        return builder

    return register


def model_variants() -> dict[str, tuple[str, ...]]:
    """All registered model types with their variants."""
    return {name: variants for name, (_, variants) in _FAMILIES.items()}


def build_model(type: str, *, variant: str, **settings: Any) -> nn.Module:
    """Builds a model; see the family's builder (`mformer_v1`) for the settings.

    Raises:
      ValueError: unknown type or variant (the message lists the known ones), or a setting that does not fit.
      TypeError: a setting that the family does not have.
    """
    if type not in _FAMILIES:
        raise ValueError(f"model type {type!r} is unknown; known types: {', '.join(sorted(_FAMILIES))}")
    builder, variants = _FAMILIES[type]
    if variant not in variants:
        raise ValueError(f"{type} has no variant {variant!r}; known variants: {', '.join(variants)}")
    return builder(variant=variant, **settings)
