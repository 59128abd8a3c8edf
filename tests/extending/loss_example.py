"""A loss of one's own: the focal loss (Lin et al., 2017), in which rows that are classified well count less.

linnaeus train --config=configs/quickstart.py --config.env.plugins=loss_example.py \
    --config.loss.task_specific.train.funcs=FocalLoss --config.loss.FocalLoss.gamma=1.5
"""

import jax
import jax.numpy as jnp

from linnaeus_jax.registry import LOSSES


@LOSSES.register("FocalLoss")
def focal_loss(logits: jax.Array, label: jax.Array, *, gamma: float = 2.0) -> jax.Array:
    """``-(1 - p) ** gamma * log(p)``, p = probability of the label.

    Args:
      logits: float32 [B, C].
      label: int32 [B].
      gamma: 0 is cross entropy; the larger, the less a well classified row counts.

    Returns:
      float32 [B].
    """
    if gamma < 0:
        raise ValueError(f"gamma = {gamma} must be 0 or more")
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), label[:, None], axis=1)[:, 0]
    return -((1 - jnp.exp(log_p)) ** gamma) * log_p
