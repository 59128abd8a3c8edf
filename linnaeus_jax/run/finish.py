"""The files that are written when a run ends: final metrics, plots, the report."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from linnaeus_jax.config.paths import program
from linnaeus_jax.files import DamagedFileError, RunDirectory
from linnaeus_jax.reporting.class_tables import class_tables
from linnaeus_jax.reporting.display import baseline_table, phase_tables
from linnaeus_jax.reporting.logs import console
from linnaeus_jax.reporting.metrics_log import MetricsLog, RunError
from linnaeus_jax.reporting.next_steps import next_steps, suggestion_lines
from linnaeus_jax.reporting.report import write_report
from linnaeus_jax.reporting.run_record import RunRecord, files_fit
from linnaeus_jax.reporting.sinks import Sinks
from linnaeus_jax.reporting.verdicts import baselines, verdicts
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.experiment import Experiment
from linnaeus_jax.run.frozen_trunk import say_what_is_kept
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.schedules.plot import plot_schedule

log = logging.getLogger("linnaeus_jax")


def finish(experiment: Experiment, host: HostState, checkpoints: Checkpoints, sinks: Sinks) -> dict[str, float]:
    """Final metrics, written once."""
    checkpoints.wait()
    final = host.tracker.final_metrics()
    if not experiment.is_coordinator:
        return final
    directory, progress = experiment.directory, host.progress
    log_file = MetricsLog(directory.metrics_log)
    applied = RunRecord(directory.root, tuple(log_file.rows())).applied_rates()
    plot_schedule(experiment.resolved, directory.assets / "schedule.png", applied=applied)
    with directory.writing(directory.metrics_log):
        log_file.supersede(progress.global_step, frozenset({"final"}))
        sinks.write("final", progress.global_step, progress.current_epoch, final)
    try:
        record = RunRecord(directory.root, ())
        with files_fit([record], "tables of classes"):
            sinks.tables(class_tables(record))
    except (RunError, DamagedFileError, OSError) as error:  # the run itself is done and saved
        log.warning("%s", error)
    sinks.close()
    title = "last results; of a rank, over the rows labelled there"
    for part in phase_tables(title, host.tracker.latest_by_phase(), experiment.inputs.dataset.tasks, console.width):
        console.print(part)
    say_what_is_kept(experiment, host)
    tried = _judge(directory, log_file, experiment.inputs.dataset.tasks)
    try:
        log.info("report: %s", write_report([directory.root], directory.root / "report.html"))
        for text in filter(None, (tried, next_steps(directory.root))):
            log.info("%s", text)
    except Exception as error:  # the run itself is done and saved
        log.warning("the report could not be written (%s); try: %s", error, program("report", directory.root))
    return final


def _judge(directory: RunDirectory, log_file: MetricsLog, tasks: Sequence[str]) -> str:
    """Says what simple means reach and what the numbers of the run say against it; returns what to try next."""
    try:
        record = RunRecord(directory.root, tuple(log_file.rows()))
        with files_fit([record], "warnings"):
            if found := baselines(record):
                console.print(baseline_table("simple baselines in validation, for comparison", found, tasks))
            for text in verdicts(record):
                log.warning("%s", text)
            return suggestion_lines(record)
    except (RunError, DamagedFileError, OSError) as error:  # the report meets it, too, and says it
        log.debug("%s", error)
        return ""
