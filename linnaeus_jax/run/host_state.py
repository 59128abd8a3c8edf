"""Everything a run remembers on the host between updates; saved with every checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from linnaeus_jax.metrics import table
from linnaeus_jax.metrics.names import split_result
from linnaeus_jax.metrics.step_logger import StepMetricsLogger
from linnaeus_jax.metrics.tracker import MetricsTracker
from linnaeus_jax.reporting.metrics_log import Row
from linnaeus_jax.run.experiment import Experiment
from linnaeus_jax.run.retention import PreservationPolicy, retention_policy
from linnaeus_jax.schedules.ops_schedule import OpsSchedule
from linnaeus_jax.schedules.progress import TrainingProgress
from linnaeus_jax.schedules.resolved import ResolvedSchedule

#: ranking metrics in order of preference
RANKING_METRICS = ("val/partial_chain_accuracy", "val/chain_accuracy", "val/loss")


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

    def rank_anew(self, configured: str, rows: Iterable[Row], steps: Sequence[int]) -> list[str]:
        """Ranks the checkpoints by another metric, if that of the configuration is not the one they are ranked by.

        Args:
          configured: name of the ranking metric as it is logged; "" for the first of `RANKING_METRICS` that is there.
          rows: of the metrics log, from the beginning of the run.
          steps: of the checkpoints that are left.

        Returns:
          A line that says so; nothing where the metric is the same.
        """
        before, candidates = self.ranking_metric, (configured,) if configured else RANKING_METRICS
        if not before or before in candidates:
            return []
        measured = {row.step: row.values for row in rows if row.event == "epoch" and row.step in steps}
        logged = (name for name in candidates if any(name in values for values in measured.values()))
        self.ranking_metric = configured or next(logged, "")
        info = table.entry(split_result(self.ranking_metric)[1])
        sign = -1 if info is not None and not info.higher_is_better else 1
        ranked, self.ranking = self.ranking, {}
        for step, values in measured.items():
            if (value := values.get(self.ranking_metric)) is not None:
                epoch, finite = ranked.get(step, {}).get("epoch", 0), math.isfinite(value)
                self.ranking[step] = {"epoch": epoch, "metric": sign * value if finite else None}
        unknown = ", ".join(str(step) for step in steps if step in ranked and step not in self.ranking)
        less = f"; it was not measured for those of updates {unknown}, which count as worse than all others"
        return [
            f"checkpoints are ranked by {self.ranking_metric or 'nothing yet'} now, no longer by {before}, from the "
            f"metrics log{less if unknown else ''}"
        ]

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
