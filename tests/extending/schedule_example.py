"""A schedule of the user's own: polynomial decay from the peak to `min_lr`, as in the training of DeepLab.

In the config, beside `env.plugins = ("path/to/schedule_example.py",)`:

    lr_scheduler.name = "polynomial"
    lr_scheduler.polynomial.power = 0.9

Warmup, peak, floor and the length of the run are those of every schedule; one parameter group alone takes it with
`lr_scheduler.parameter_groups.<group>.name = "polynomial"`.
"""

from types import ModuleType
from typing import Any

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

    def rate(self, xp: ModuleType, k: Any, spec: LearningRateSpec) -> Any:
        progress = xp.minimum(k, spec.decay_span) / spec.decay_span
        return spec.min_lr + (spec.peak - spec.min_lr) * (1 - progress) ** self.power
