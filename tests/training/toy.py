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
    block_depths: tuple[int, ...] = (1, 1, 1, 1)  # of the layers whose names it borrows

    @nn.compact
    def __call__(self, image: jax.Array, meta: jax.Array | None = None, *, train: bool = False) -> dict[str, jax.Array]:
        meta = jnp.zeros((len(image), self.columns)) if meta is None else meta
        x = nn.tanh(nn.Dense(8, name="stem")(jnp.concatenate([image.mean(axis=(1, 2)), meta], axis=1)))
        x = nn.tanh(nn.Dense(8, name="aggregate")(x))
        if self.statistics:
            x = nn.BatchNorm(use_running_average=not train, momentum=0.5, name="final_norm")(x)
        return {task: nn.Dense(count, name=f"head.{task}")(x) for task, count in self.tasks}


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
