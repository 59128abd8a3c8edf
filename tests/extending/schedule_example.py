"""Schedules of the user's own: polynomial decay, and the inverse square root, which has a warmup of its own.

config.env.plugins = ("schedule_example.py",)
config.lr_scheduler.name = "polynomial"  # or of one group: config.lr_scheduler.parameter_groups.<group>.name
config.lr_scheduler.polynomial.power = 0.9
"""

import jax.numpy as jnp
import optax

from linnaeus_jax.registry import SCHEDULES
from linnaeus_jax.schedules.kinds import ScheduleKind
from linnaeus_jax.schedules.resolved import LearningRateSpec


@SCHEDULES.register("polynomial")
class Polynomial(ScheduleKind):
    """Chen et al., arXiv:1606.00915: (1 - k / K) ** power."""

    power: float = 2.0

    def __post_init__(self) -> None:
        if self.power <= 0:
            raise ValueError(f"power = {self.power} must be above 0; 1 is a linear decay")

    def after_warmup(self, spec: LearningRateSpec) -> optax.Schedule:
        return optax.polynomial_schedule(spec.peak, spec.min_lr, self.power, spec.decay_span)


@SCHEDULES.register("inverse_sqrt")
class InverseSquareRoot(ScheduleKind):
    """Vaswani et al., arXiv:1706.03762: the peak after `warmup_steps`, which are part of the formula."""

    def __call__(self, spec: LearningRateSpec) -> optax.Schedule:
        warmup = max(1, spec.warmup_steps)
        return lambda step: spec.peak * jnp.minimum((step + 1) / warmup, jnp.sqrt(warmup / (step + 1)))
