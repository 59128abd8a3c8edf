"""mFormerV1 as the `model` section describes it, without the rest of a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.tree import assign
from linnaeus_jax.models import ModelFamily, build_model
from linnaeus_jax.models.heads import Parents


def build(
    *,
    components: Sequence[tuple[str, int]],
    num_classes: Mapping[str, int],
    img_size: int,
    parents: Mapping[str, Parents] | None = None,
    dtype: Any = jnp.float32,
    remat: bool = False,
    **keys: Any,
) -> Any:
    """The default model, of variant `tiny`; `keys` are those of the section, with __ for dots."""
    config = get_config()
    for key, value in {"variant": "tiny", **keys}.items():
        assign(config, ("model", *key.split("__")), value)
    model: ModelFamily = build_model(
        config.model,
        components=components,
        num_classes=num_classes,
        img_size=img_size,
        parents=parents,
        dtype=dtype,
        remat=remat,
    )
    return model
