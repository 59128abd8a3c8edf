"""Everything a run remembers on the host between updates; saved with every checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from linnaeus_jax.metrics.step_logger import StepMetricsLogger
from linnaeus_jax.metrics.tracker import MetricsTracker
from linnaeus_jax.run.experiment import Experiment
from linnaeus_jax.run.retention import PreservationPolicy, retention_policy
from linnaeus_jax.schedules.ops_schedule import OpsSchedule
from linnaeus_jax.schedules.progress import TrainingProgress
from linnaeus_jax.schedules.resolved import ResolvedSchedule


@dataclass
class HostState:
    """Mutable; `to_json` and `load_json` are exact inverses."""

    schedule: OpsSchedule
    tracker: MetricsTracker
    logger: StepMetricsLogger
    #: index of the ranked checkpoints, as of `run.retention`
    ranking: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: name of the ranking metric, chosen at the first ranked checkpoint and kept
    ranking_metric: str = ""
    #: run id of external trackers, kept over resumes
    run_id: str = ""

    @classmethod
    def of(cls, experiment: Experiment) -> HostState:
        """The state before the first update of a run."""
        config, resolved, program = experiment.config, experiment.resolved, experiment.program
        logger = StepMetricsLogger(
            experiment.inputs.dataset.tasks,
            resolved.logging,
            components=program.evaluation.component_names,
            extras=program.objective.extras,
        )
        progress = TrainingProgress(expected_total_steps=resolved.total_steps, expected_epochs=resolved.epochs)
        null_tasks = config.metrics.null_vs_non_null_tasks if config.metrics.track_null_vs_non_null else ()
        return cls(OpsSchedule(resolved, progress), MetricsTracker(null_tasks), logger)

    def retention_policy(self) -> PreservationPolicy:
        """Which checkpoints stay, by what `ranking` holds when it is asked."""
        keep = self.schedule.resolved.checkpoint
        return retention_policy(lambda: self.ranking, keep.keep_top_n, keep.keep_last_n)

    @property
    def progress(self) -> TrainingProgress:
        return self.schedule.progress

    def to_json(self) -> dict[str, Any]:
        return {
            "progress": self.progress.state_dict(),
            "tracker": self.tracker.state_dict(),
            "recorder": self.logger.state_dict(),
            **self.schedule.state_dict(),
            "ranking": {str(step): dict(entry) for step, entry in self.ranking.items()},
            "ranking_metric": self.ranking_metric,
            "run_id": self.run_id,
        }

    def load_json(self, state: dict[str, Any], resolved: ResolvedSchedule) -> list[str]:
        """Takes over a saved state; returns warnings."""
        self.progress.load_state_dict(state["progress"])
        replanned = self.progress.replan(resolved)
        self.tracker.load_state_dict(state["tracker"])
        self.logger.load_state_dict(state["recorder"])
        warnings = self.schedule.load_state_dict(state)
        self.ranking = {int(step): dict(entry) for step, entry in state["ranking"].items()}
        self.ranking_metric, self.run_id = state["ranking_metric"], state["run_id"]
        return replanned + warnings
