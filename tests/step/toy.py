"""A model so small that the whole update compiles in a second; everything around it is the real program."""

from __future__ import annotations

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import complete_open_nodes
from linnaeus_jax.models import ModelFamily
from linnaeus_jax.registry import MODELS


class Toy(ModelFamily):
    """Mean colour and metadata through `stem` and `aggregate`, then one `head.<task>` each."""

    statistics: bool  # normalise by the batch's statistics: a state that is not trained
    dropout: float

    variants: ClassVar = {
        "tiny": {"statistics": False, "dropout": 0.0},
        "statistics": {"statistics": True, "dropout": 0.0},
        "dropout": {"statistics": False, "dropout": 0.5},
    }

    def setup(self) -> None:
        self.stem = nn.Dense(8, name="stem")
        self.aggregate = nn.Dense(8, name="aggregate")
        self.heads = {spec.task: nn.Dense(spec.num_classes, name=f"head.{spec.task}") for spec in self.head_specs}
        self.drop = nn.Dropout(self.dropout)
        if self.statistics:
            self.final_norm = nn.BatchNorm(momentum=0.5, name="final_norm")

    def encode_image(self, image: jax.Array, *, row_weight_B: Any = None, train: bool = False) -> jax.Array:
        return image.mean(axis=(1, 2))

    def encode_tokens(
        self, features: jax.Array, meta: jax.Array | None = None, *, meta_valid_BK: Any = None, train: bool = False
    ) -> jax.Array:
        meta = jnp.zeros((len(features), self.meta_dim)) if meta is None else meta
        x = nn.tanh(self.aggregate(nn.tanh(self.stem(jnp.concatenate([features, meta], axis=1)))))
        x = self.drop(x, deterministic=not train)
        return self.final_norm(x, use_running_average=not train) if self.statistics else x

    def classify(self, features: jax.Array, *, train: bool = False, refine: bool = True) -> dict[str, jax.Array]:
        return {task: head(features) for task, head in self.heads.items()}


class ToyWithHeads(Toy):
    """With the heads of the real families."""

    def setup(self) -> None:
        self.stem, self.aggregate = nn.Dense(8, name="stem"), nn.Dense(8, name="aggregate")
        self.drop = nn.Dropout(self.dropout)
        self.setup_classifier()

    classify = ModelFamily.classify  # type: ignore[assignment]  # which calls its argument otherwise


def register(patch: pytest.MonkeyPatch, family: type[Toy] = Toy) -> None:
    """Makes `model.type = "toy"` known until the patch is undone."""
    patch.setitem(MODELS.entries, "toy", family)


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
