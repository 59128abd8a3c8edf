"""A model so small that the whole update compiles in a second; everything around it is the real program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import complete_open_nodes
from linnaeus_jax.models import registry


class Toy(nn.Module):
    """Mean colour and metadata through `stem` and `aggregate`, then one `head.<task>` each."""

    tasks: tuple[tuple[str, int], ...]
    columns: int
    statistics: bool  # normalise by the batch's statistics
    img_size: tuple[int, int] = (32, 32)
    in_chans: int = 3
    dtype: Any = jnp.float32
    block_depths: tuple[int, ...] = (1, 1, 1, 1)  # of the layers whose names it borrows

    def setup(self) -> None:
        self.stem = nn.Dense(8, name="stem")
        self.aggregate = nn.Dense(8, name="aggregate")
        self.heads = {task: nn.Dense(count, name=f"head.{task}") for task, count in self.tasks}
        if self.statistics:
            self.final_norm = nn.BatchNorm(momentum=0.5, name="final_norm")

    def __call__(self, image: jax.Array, meta: jax.Array | None = None, *, train: bool = False) -> dict[str, jax.Array]:
        return self.classify(self.encode_tokens(self.encode_image(image, train=train), meta, train=train))

    def encode_image(self, image: jax.Array, *, train: bool = False) -> jax.Array:
        return image.mean(axis=(1, 2))

    def encode_tokens(self, features: jax.Array, meta: jax.Array | None = None, *, train: bool = False) -> jax.Array:
        meta = jnp.zeros((len(features), self.columns)) if meta is None else meta
        x = nn.tanh(self.aggregate(nn.tanh(self.stem(jnp.concatenate([features, meta], axis=1)))))
        return self.final_norm(x, use_running_average=not train) if self.statistics else x

    def classify(self, features: jax.Array) -> dict[str, jax.Array]:
        return {task: self.heads[task](features) for task, _ in self.tasks}


def register(patch: pytest.MonkeyPatch) -> None:
    """Makes `model.type = "toy"` known; its variant `statistics` has a non-trainable state."""

    def build(
        *, variant: str, num_classes: Mapping[str, int], components: Sequence[tuple[str, int]], **unused: Any
    ) -> Toy:
        return Toy(tuple(num_classes.items()), sum(columns for _, columns in components), variant == "statistics")

    patch.setitem(registry._FAMILIES, "toy", (build, ("tiny", "statistics")))


def starting(*patterns: str) -> dict[str, Any]:
    """Filter for the parameters whose name starts with one of `patterns`."""
    return {"type": "name", "patterns": patterns, "match_type": "startswith"}


def with_group(config: ConfigDict, filter: dict[str, Any], **settings: Any) -> ConfigDict:
    """The config with a parameter group `chosen`."""
    with config.unlocked():
        groups = config.optimizer.parameter_groups
        groups.enabled = True
        groups.chosen = {"filter": filter, **settings}
    return complete_open_nodes(config)
