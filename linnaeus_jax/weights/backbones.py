"""What the trunks cost whose published weights are known; nothing is compiled and no array is made."""

from __future__ import annotations

from typing import Any

from linnaeus_jax.config.defaults import complete_open_nodes, get_config
from linnaeus_jax.models import ModelFamily, build_model
from linnaeus_jax.models.cost import forward_multiply_adds, parameters_by_stage
from linnaeus_jax.weights.formats.base import Known


def trunk_of(known: Known) -> ModelFamily | None:
    """The model of known weights at the size of their pictures, with a single small head and no metadata; None where
    they do not say what they are of."""
    if not known.type:
        return None
    model = complete_open_nodes(get_config()).model.unlock()
    model.type, model.variant = known.type, known.variant
    return build_model(model, components=(), num_classes={"class": 2}, img_size=known.preprocessing.size[0])


def costs_of(known: Known) -> dict[str, Any]:
    """`parameters` without heads and `multiply_adds` of a forward pass of one picture; empty where not known."""
    model = trunk_of(known)
    if model is None:
        return {}
    parts = parameters_by_stage(model)
    parameters = sum(count for part, count in parts.items() if not part.startswith("heads"))
    return {"parameters": parameters, "multiply_adds": forward_multiply_adds(model)}
