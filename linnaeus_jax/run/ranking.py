"""By which metric the checkpoints of a run are ranked, and ranking them anew where a resume has another one."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.experimental import multihost_utils

from linnaeus_jax.metrics import table
from linnaeus_jax.metrics.names import split_result
from linnaeus_jax.reporting.metrics_log import MetricsLog, Row
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.experiment import Experiment
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.schedules import early_stop

log = logging.getLogger("linnaeus_jax")


def rank_restored(
    experiment: Experiment, checkpoints: Checkpoints, host: HostState, step: int, after: dict[str, Any] | None
) -> None:
    """Ranks the checkpoints of a run that goes on by the metric that is configured now, if that is another one.

    Args:
      after: the host state from after the boundary at `step`, the newest checkpoint's; None: it was not finished.
    """
    configured = early_stop.ranking_key(experiment.config, experiment.program.evaluation.component_names)
    if not host.ranking_metric or host.ranking_metric in early_stop.ranking_candidates(configured):
        return
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("the metrics log is as the run goes on with it")
    rows = MetricsLog(experiment.directory.metrics_log).rows()
    log.warning("%s", rank_anew(host, configured, rows, checkpoints.steps()))
    if after is not None and experiment.is_coordinator:  # for whoever asks for the best from now on
        ranked = host.to_json()
        checkpoints.finish_boundary(step, {**after, **{name: ranked[name] for name in ("ranking", "ranking_metric")}})


def rank_anew(host: HostState, configured: str, rows: Iterable[Row], steps: Sequence[int]) -> str:
    """Ranks by the metric that is configured; returns a line that says so.

    Args:
      rows: of the metrics log, from the beginning of the run.
      steps: of the checkpoints that are left.
    """
    before = host.ranking_metric
    measured = {row.step: row.values for row in rows if row.event == "epoch" and row.step in steps}
    logged = (
        name
        for name in early_stop.ranking_candidates(configured)
        if any(name in values for values in measured.values())
    )
    host.ranking_metric = configured or next(logged, "")
    info = table.entry(split_result(host.ranking_metric)[1])
    sign = -1 if info is not None and not info.higher_is_better else 1
    ranked, host.ranking = host.ranking, {}
    for step, values in measured.items():
        if (value := values.get(host.ranking_metric)) is not None:
            epoch, finite = ranked.get(step, {}).get("epoch", 0), math.isfinite(value)
            host.ranking[step] = {"epoch": epoch, "metric": sign * value if finite else None}
    unknown = ", ".join(str(step) for step in steps if step in ranked and step not in host.ranking)
    less = f"; it was not measured for those of updates {unknown}, which count as worse than all others"
    return (
        f"checkpoints are ranked by {host.ranking_metric or 'nothing yet'} now, no longer by {before}, from the "
        f"metrics log{less if unknown else ''}"
    )
