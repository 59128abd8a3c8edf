"""Metadata beside the features of a finished trunk."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from linnaeus_jax.models import initial
from linnaeus_jax.models.layers import Dtype, Gelu, Linear, Residual, Sigmoid


class LateFusion(nn.Module):
    """features + gate(metadata) * MLP(metadata), the last layer of the MLP 0 at first.

    So the first update starts from the features of the trunk, pretrained ones among them.
    """

    hidden: int = 256
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, feats_BD: jax.Array, meta_BM: jax.Array, known_BK: jax.Array | None = None) -> jax.Array:
        """Maps features [B, D] and metadata [B, M] to [B, D].

        Args:
          known_BK: bool [B, K], which components are known; rows without any keep their features. None: the network
            answers them, too. Columns of what is not known are 0.
        """
        features = feats_BD.shape[-1]
        y = Gelu(name="act")(Linear(self.hidden, dtype=self.dtype, name="fc1")(meta_BM))
        y = Linear(features, dtype=self.dtype, kernel_init=initial.zeros, name="fc2")(y)
        y = y * Sigmoid(name="gate_act")(Linear(features, dtype=self.dtype, name="gate")(meta_BM))
        if known_BK is not None:
            y = jnp.where(known_BK.any(axis=1, keepdims=True), y, jnp.zeros_like(y))
        return Residual(name="residual")(feats_BD, y.astype(feats_BD.dtype))
