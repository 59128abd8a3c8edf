"""What a model family is, and how one is built from the `model` section of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from linnaeus_jax.models.heads import HeadSpec, head_specs
from linnaeus_jax.models.layers import Dtype
from linnaeus_jax.registry import MODELS


class ModelFamily(nn.Module, kw_only=True):
    """Base of the model families, each registered with `@MODELS.register("Name")` and chosen by `model.type`.

    A family defines `encode_image`, `encode_tokens` and `classify`. They are separate so that several evaluations of
    the same images under different metadata share the part that no metadata enter. Further fields are settings: those
    with a default value are the keys `model.<Name>.<field>`, the others stand in `variants`. Parameters have the names
    of their modules; where these are those of a torch model, so are the canonical names (`models/names.py`).

    Attributes:
      components: (name, columns) of every metadata component, in the order of the columns of `meta_BD`.
      head_specs: one head per task; `ClassificationHeads(head_specs)` makes them.
      img_size: (height, width) of the images in pixels.
      dtype: dtype of the computation; parameters are float32.
      remat: whether the backward pass computes activations again to save memory.
      variants: `model.variant` -> values of fields; empty: the family has no variants and ignores the key.
      layer_index: depth of the parameter with a canonical name, 0 at the input and largest at the heads, for
        `optimizer.layer_decay`; None: the family does not number its layers.
    """

    components: tuple[tuple[str, int], ...]
    head_specs: tuple[HeadSpec, ...]
    img_size: tuple[int, int]
    dtype: Dtype
    remat: bool

    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    layer_index: ClassVar[Callable[[Any, str], int] | None] = None

    @classmethod
    def build(cls, model: Mapping[str, Any], **given: Any) -> Self:
        """The model that a `model` section describes; an option that is None takes the variant's value.

        Args:
          model: the `model` section.
          given: `components`, `head_specs`, `img_size`, `dtype` and `remat`.

        Raises:
          ValueError: settings that do not fit, one line each with key, value and fix.
        """
        options = {key: value for key, value in model.get(model["type"], {}).items() if value is not None}
        return cls(**{**cls.variants.get(model["variant"], {}), **options}, **given)

    @staticmethod
    def stage_of(name: str) -> str:
        """Group of the parameter with a canonical name, for filters of type `stage_based`: its outermost module."""
        return name.partition(".")[0]

    @property
    def meta_dim(self) -> int:
        """Number of metadata columns."""
        return sum(columns for _, columns in self.components)

    def __call__(
        self, image_BHWC: jax.Array, meta_BD: jax.Array | None = None, *, train: bool = False
    ) -> dict[str, jax.Array]:
        """Returns {task: float32 logits [B, C]} in task order.

        Args:
          image_BHWC: float [B, H, W, 3], already normalised.
          meta_BD: float [B, sum of the components' columns]; a masked component is zero, None is all zero.
          train: whether dropout and drop path act, with the rng streams `dropout` and `drop_path`.
        """
        return self.classify(self.encode_tokens(self.encode_image(image_BHWC, train=train), meta_BD, train=train))

    def encode_image(self, image_BHWC: jax.Array, *, train: bool = False) -> Any:
        """The part that no metadata enter: images -> features of any shape."""
        raise NotImplementedError

    def encode_tokens(self, features: Any, meta_BD: jax.Array | None = None, *, train: bool = False) -> jax.Array:
        """Output of `encode_image` and metadata -> features [B, D] for the heads."""
        raise NotImplementedError

    def classify(self, feats_BD: jax.Array) -> dict[str, jax.Array]:
        """Features [B, D] -> {task: float32 logits [B, C]}."""
        raise NotImplementedError


def build_model(
    model: Mapping[str, Any],
    *,
    components: Sequence[tuple[str, int]],
    num_classes: Mapping[str, int],
    img_size: int,
    dtype: Dtype = jnp.float32,
    remat: bool = False,
) -> ModelFamily:
    """The model that a `model` section describes, sized for the data; see `ModelFamily` for the fields.

    Args:
      model: the `model` section of a configuration, e.g. `get_config().model`.
      num_classes: task -> number of classes, in the order of the returned logits.
      img_size: side of the images in pixels.

    Raises:
      ValueError: settings that do not fit, one line each with key, value and fix.
    """
    family, variant = MODELS[model["type"]], model["variant"]
    if family.variants and variant not in family.variants:
        choices = ", ".join(family.variants)
        raise ValueError(f"model.variant = {variant!r} is unknown for {model['type']}; choose one of {choices}")
    built: ModelFamily = family.build(
        model,
        components=tuple(components),
        head_specs=head_specs(num_classes, model["classification"]["heads"]),
        img_size=(img_size, img_size),
        dtype=dtype,
        remat=remat,
    )
    return built
