"""What a run does when: learning rates, probabilities, validations, checkpoints, early stop and resume.

`resolve_all_schedule_params` turns a configuration into a `ResolvedSchedule`; everything else here is a pure function
of it and of the step.
"""

from linnaeus_jax.schedules.kinds import ScheduleKind
from linnaeus_jax.schedules.learning_rate import apply_lr_scaling, build_scheduler
from linnaeus_jax.schedules.ops_schedule import OpsSchedule
from linnaeus_jax.schedules.progress import TrainingProgress
from linnaeus_jax.schedules.resolve import resolve_all_schedule_params
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.schedules.sanity import validate_schedule_sanity

__all__ = [
    "OpsSchedule",
    "ResolvedSchedule",
    "ScheduleKind",
    "TrainingProgress",
    "apply_lr_scaling",
    "build_scheduler",
    "resolve_all_schedule_params",
    "validate_schedule_sanity",
]
