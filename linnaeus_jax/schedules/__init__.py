"""What a run does when: learning rates, probabilities, validations, checkpoints, early stop and resume.

`resolve_all_schedule_params` turns a configuration into a `ResolvedSchedule`; everything else here is a pure function
of it and of the update index.
"""

from linnaeus_jax.schedules.learning_rate import apply_lr_scaling, build_scheduler
from linnaeus_jax.schedules.ops_schedule import OpsSchedule
from linnaeus_jax.schedules.probabilities import Probabilities, build_probabilities
from linnaeus_jax.schedules.progress import ResumePlan, TrainingProgress, plan_resume
from linnaeus_jax.schedules.resolve import resolve_all_schedule_params
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.schedules.triggers import Due, Phase, Stage, due_at_boundary, exhaustive_phases, firing_epochs
from linnaeus_jax.schedules.validation import validate_schedule_config, validate_schedule_sanity

__all__ = [
    "Due",
    "OpsSchedule",
    "Phase",
    "Probabilities",
    "ResolvedSchedule",
    "ResumePlan",
    "Stage",
    "TrainingProgress",
    "apply_lr_scaling",
    "build_probabilities",
    "build_scheduler",
    "due_at_boundary",
    "exhaustive_phases",
    "firing_epochs",
    "plan_resume",
    "resolve_all_schedule_params",
    "validate_schedule_config",
    "validate_schedule_sanity",
]
