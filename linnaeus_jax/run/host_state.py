"""Everything a run remembers on the host between updates; saved with every checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from linnaeus_jax.metrics.tracker import MetricsTracker
from linnaeus_jax.run.recorder import TrainRecorder
from linnaeus_jax.schedules import early_stop
from linnaeus_jax.schedules.progress import TrainingProgress
from linnaeus_jax.schedules.resolved import ResolvedSchedule


@dataclass
class HostState:
    """Mutable; `to_json` and `load_json` are exact inverses."""

    progress: TrainingProgress
    tracker: MetricsTracker
    recorder: TrainRecorder
    early_stop: early_stop.State
    #: index of the ranked checkpoints, as of `run.retention`
    ranking: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: name of the ranking metric, chosen at the first ranked boundary and kept
    ranking_metric: str = ""
    #: run id of external trackers, kept over resumes
    run_id: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "progress": self.progress.state_dict(),
            "tracker": self.tracker.state_dict(),
            "recorder": self.recorder.state_dict(),
            "early_stop": dict(self.early_stop),
            "ranking": {str(step): dict(entry) for step, entry in self.ranking.items()},
            "ranking_metric": self.ranking_metric,
            "run_id": self.run_id,
        }

    def load_json(self, state: dict[str, Any], resolved: ResolvedSchedule) -> list[str]:
        """Takes over a saved state; returns warnings."""
        self.progress.load_state_dict(state["progress"])
        replanned = self.progress.replan(resolved)
        self.tracker.load_state_dict(state["tracker"])
        self.recorder.load_state_dict(state["recorder"])
        self.early_stop, warnings = early_stop.restore_state(
            resolved.early_stop, state["early_stop"], self.progress.global_step
        )
        self.ranking = {int(step): dict(entry) for step, entry in state["ranking"].items()}
        self.ranking_metric, self.run_id = state["ranking_metric"], state["run_id"]
        return replanned + warnings
