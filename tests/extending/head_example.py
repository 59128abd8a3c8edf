"""A cosine head (Gidaris & Komodakis 2018): logits are the scaled cosine of features and one direction per class.

Set `model.classification.heads.<task>.type = "Cosine"`; options stand beside the type.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from linnaeus_jax.registry import HEADS


@HEADS.register("Cosine")
class CosineHead(nn.Module):
    """Features [B, D], float32, to logits [B, num_classes]."""

    num_classes: int
    scale: float = 16.0
    learn_scale: bool = False

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ValueError(f"scale = {self.scale} must be above 0")
        super().__post_init__()

    @nn.compact
    def __call__(self, feats_BD: jax.Array) -> jax.Array:
        kernel = self.param("kernel", nn.initializers.normal(0.02), (feats_BD.shape[-1], self.num_classes))
        scale = self.param("temperature", nn.initializers.constant(self.scale), ()) if self.learn_scale else self.scale
        feats_BD = feats_BD / jnp.linalg.norm(feats_BD, axis=1, keepdims=True)
        return scale * feats_BD @ (kernel / jnp.linalg.norm(kernel, axis=0, keepdims=True))
