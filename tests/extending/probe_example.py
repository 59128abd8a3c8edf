"""Share of units without gradient, by module of the model: rows `probe/dead_units/<module>` of the metrics log.

env.plugins = ("probe_example.py",) adds the keys debug.probes.dead_units.every and debug.probes.dead_units.threshold.
"""

import jax
import jax.numpy as jnp

from linnaeus_jax.registry import PROBES
from linnaeus_jax.step.probes import Probe, ProbeInputs


@PROBES.register("dead_units")
class DeadUnits(Probe):
    """A unit is dead where no weight that leads to it has a gradient above `threshold`.

    Its `consume`, what the host does with the shares, is that of every probe: they are logged.
    """

    every: int = 50
    threshold: float = 0.0

    def __post_init__(self) -> None:
        if self.threshold < 0:
            raise ValueError(f"threshold = {self.threshold} is below 0, so that no unit could be dead")

    def measure(self, inputs: ProbeInputs) -> dict[str, jax.Array]:
        """Module -> float32 [], share of its units; modules without a trained matrix are left out."""
        shares = {}
        for module, grads in inputs.grads.items():
            kernels = [grad.reshape(-1, grad.shape[-1]) for grad in jax.tree.leaves(grads) if grad.ndim > 1]
            if kernels:
                dead = [jnp.abs(kernel).max(axis=0) <= self.threshold for kernel in kernels]
                shares[module] = jnp.concatenate(dead).mean(dtype=jnp.float32)
        return shares
