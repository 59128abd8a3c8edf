"""Weights of this program as files for others: `torch_state` gives the arrays, `facts` what the file says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from linnaeus_jax import __version__
from linnaeus_jax.config.derived import value_of
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.joined import SHARED, Joined, can_be_joined
from linnaeus_jax.registry import MODELS
from linnaeus_jax.weights.files import SETTINGS, write_state
from linnaeus_jax.weights.formats.linnaeus import torch_state

__all__ = ["facts", "own_settings", "torch_state", "write_state"]


def own_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of its trunk beside `facts`: {"settings": {key within the `model` section: value}}.

    So the trunk can stand beside others, and one that is made of several can be built again. {}: nothing but family and
    variant decides what the trunk computes, or it cannot stand beside others.
    """
    family = MODELS.entries.get(settings["type"])
    if family is None or not (can_be_joined(family) or issubclass(family, Joined)):
        return {}
    keys = [key for key in family.keys.values() if key not in ("drop_rate", *SHARED)]
    found = {key: value_of(settings, key) for key in keys}
    found = {key: value for key, value in found.items() if value is not None and value not in ((), [])}
    return {SETTINGS: found} if found else {}


def facts(
    model: ModelFamily,
    model_type: str,
    variant: str,
    classes: Mapping[str, Sequence[int]],
    *,
    weights: str,
    step: int,
) -> dict[str, Any]:
    """What a file says about its weights, as JSON types.

    Args:
      model_type, variant: `model.type` and `model.variant`.
      classes: task -> taxon id of each class, 0 for null.
      weights: "ema" or "last".
    """
    return {
        "version": __version__,
        "model": model_type,
        "variant": variant,
        "img_size": list(model.img_size),
        "components": [[name, columns] for name, columns in model.components],
        "tasks": [spec.task for spec in model.head_specs],
        "classes": {task: [int(taxon) for taxon in ids] for task, ids in classes.items()},
        "head types": {spec.task: spec.type for spec in model.head_specs},
        "weights": weights,
        "step": int(step),
    }
