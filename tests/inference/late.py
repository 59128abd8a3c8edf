"""A model that is compiled at once, whose metadata join late; that of `conftest` has tokens of metadata."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from linnaeus_jax.inference.bundle.bundle import Bundle
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.heads import HeadSpec


class Late(ModelFamily):
    """A trunk of one layer, which metadata join late. It can be cut before it, where a map of the picture enters."""

    trunk_blocks = 2

    def setup(self) -> None:
        self.stem = nn.Dense(5, name="stem")
        self.setup_classifier()

    def encode_image(self, image_BHWC: Any, *, row_weight_B: Any = None, train: bool = False) -> Any:
        return self.forward_suffix(self.forward_prefix(image_BHWC, 1), 1)

    def forward_prefix(self, image_BHWC: Any, block: int) -> Any:
        return image_BHWC[:, ::8, ::8]

    def forward_suffix(self, x: Any, block: int, *, row_weight_B: Any = None, train: bool = False) -> Any:
        return self.stem(x.reshape(len(x), -1))


def late_bundle(bundle: Bundle) -> Bundle:
    """The same with such a model, of random weights."""
    of = bundle.model
    model = Late(
        components=of.components,
        head_specs=tuple(HeadSpec(spec.task, spec.num_classes, "Linear", ()) for spec in of.head_specs),
        img_size=of.img_size,
        dtype=jnp.float32,
        remat=False,
        missing_metadata="zero",
    )
    variables = model.init(jax.random.key(0), jnp.zeros((1, *of.img_size, 3)), jnp.ones((1, of.meta_dim)))
    return dataclasses.replace(bundle, model=model, variables=jax.tree.map(lambda drawn: drawn + 0.1, variables))
