"""Building the model that the `model` section of a configuration describes, and the block at which its trunk is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models.family import LATE, TOKENS, ModelFamily
from linnaeus_jax.models.heads import Parents, head_specs
from linnaeus_jax.models.layers import Dtype
from linnaeus_jax.registry import MODELS


def split_block(model: ModelFamily, tune: str) -> int | None:
    """Block of a model that stored inputs enter: `full` None, `head` all, `last:N` and `auto:N` all but the last N.

    Raises:
      InputError: another text, or a model that cannot be cut there.
    """
    if tune == "full":
        return None
    if not model.trunk_blocks and model.metadata_fusion == TOKENS and model.fusions[0] == LATE:
        raise InputError(
            f"train.tune = {tune!r} needs a trunk that no metadata enter, but model.metadata_fusion is 'tokens'; use "
            "model.metadata_fusion='late', or train.tune='full'"
        )
    if not model.trunk_blocks:
        families = ", ".join(
            name for name, family in MODELS.entries.items() if family.forward_prefix is not ModelFamily.forward_prefix
        )
        raise InputError(
            f"train.tune = {tune!r} needs a family whose trunk can be cut: {families}; model.type is "
            f"{type(model).__name__}: use train.tune='full'"
        )
    if tune == "head":
        return model.trunk_blocks
    kind, _, count = tune.partition(":")
    if (
        kind not in ("last", "auto")
        or not count.isascii()
        or not count.isdecimal()
        or not 1 <= int(count[:9]) <= model.trunk_blocks
    ):
        raise InputError(
            f"train.tune = {tune!r} is unknown; use full, head, last:N or auto:N with N from 1 to "
            f"{model.trunk_blocks}, the blocks of this model"
        )
    return model.trunk_blocks - int(count)


def build_model(
    model: Mapping[str, Any],
    *,
    components: Sequence[tuple[str, int]],
    num_classes: Mapping[str, int],
    img_size: int,
    parents: Mapping[str, Parents] | None = None,
    dtype: Dtype = jnp.float32,
    remat: bool = False,
) -> ModelFamily:
    """The model that a `model` section describes, sized for the data; see `ModelFamily` for the fields.

    Args:
      model: the `model` section of a configuration, e.g. `get_config().model`.
      num_classes: task -> number of classes, in the order of the returned logits.
      img_size: side of the images in pixels.
      parents: task -> parent of each class, an index into the next task's classes or -1; for hierarchical heads.

    Raises:
      ValueError: settings that do not fit, one line each with key, value and fix.
    """
    family, variant = MODELS[model["type"]], model["variant"]
    if family.variants and variant not in family.variants:
        choices = ", ".join(family.variants)
        raise InputError(f"model.variant = {variant!r} is unknown for {model['type']}; choose one of {choices}")
    built: ModelFamily = family.build(
        model,
        components=tuple(components),
        head_specs=head_specs(
            num_classes,
            model["classification"]["heads"],
            parents=parents or {},
            hierarchy_mode=model["classification"]["hierarchy_mode"],
        ),
        img_size=(img_size, img_size),
        dtype=dtype,
        remat=remat,
        missing_metadata=model["missing_metadata"],
        metadata_fusion=_fusion(family, model),
        weight_init=model.get("weight_init", "normal"),
    )
    return built


def _fusion(family: type[ModelFamily], model: Mapping[str, Any]) -> str:
    """How metadata join: what is given, else the default of the family; "" of one that says nothing of it."""
    given = model.get("metadata_fusion", "")
    choices = family.fusions or ((LATE,) if family.encode_tokens is ModelFamily.encode_tokens else ())
    if given and given not in choices:
        raise InputError(
            f"model.metadata_fusion = {given!r} is not for model.type = {model['type']!r}"
            + (f"; choose one of {', '.join(choices)}" if choices else ", which has its own way; leave it empty")
        )
    return str(given or (choices[0] if choices else ""))
