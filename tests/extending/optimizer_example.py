"""An optimizer of one's own: signum (Bernstein et al., 2018), the sign of the momentum.

linnaeus train --config=configs/quickstart.py --config.env.plugins=optimizer_example.py \
    --config.optimizer.name=signum --config.optimizer.signum.beta=0.95 --config.lr_scheduler.base_lr=1e-4
"""

import optax

from linnaeus_jax.registry import OPTIMIZERS


@OPTIMIZERS.register("signum")
def signum(*, beta: float = 0.9) -> optax.GradientTransformation:
    """What is subtracted per unit of learning rate: every entry is 1 or -1.

    The step applies learning rate and sign; the weight decay is added after this transform. Parameter groups, layer
    decay and clipping need nothing from here.

    Args:
      beta: weight of the old momentum, in [0, 1).
    """
    if not 0 <= beta < 1:
        raise ValueError(f"beta = {beta} must be in [0, 1)")
    return optax.chain(optax.ema(beta, debias=False), optax.scale_by_sign())
