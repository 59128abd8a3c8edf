"""Saving the state of a run, and going on from the newest checkpoint that fits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from linnaeus_jax import versions
from linnaeus_jax.models.batch_norm import MOMENT_COUNTS, stored_moment_counts
from linnaeus_jax.reporting.metrics_log import MetricsLog
from linnaeus_jax.run.checkpoint_trees import leaf_shapes
from linnaeus_jax.run.checkpoints import CheckpointError, Checkpoints
from linnaeus_jax.run.damaged_files import note_damaged_log
from linnaeus_jax.run.experiment import Experiment
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.run.identity import identity_error, plan_error, plan_identity, resume_notes, unchecked
from linnaeus_jax.run.ranking import rank_restored
from linnaeus_jax.run.restored_state import completed
from linnaeus_jax.step.placement import fetch
from linnaeus_jax.step.state import TrainState

log = logging.getLogger("linnaeus_jax")

#: rows of the metrics log that the end of an epoch writes, and a rerun after a restart writes again
EPOCH_END_EVENTS = frozenset({"epoch", "final"})


class Restored(NamedTuple):
    """Where a run starts.

    Attributes:
      step: updates completed; None for a run that starts from the seed.
      rerun_epoch_end: the checkpoint was saved at the end of an epoch that was not finished.
    """

    state: TrainState
    step: int | None
    rerun_epoch_end: bool


def save(experiment: Experiment, checkpoints: Checkpoints, host: HostState, state: TrainState, *, at_end: bool) -> None:
    """Starts an asynchronous checkpoint of the state after `global_step` updates.

    Args:
      at_end: of an epoch.
    """
    step = host.progress.global_step
    experiment.debug.saved(step, state)
    checkpoints.save(step, state.arrays, checkpoint_meta(experiment, host, state, at_end=at_end))


def checkpoint_meta(experiment: Experiment, host: HostState, state: TrainState, *, at_end: bool) -> dict[str, Any]:
    """What a checkpoint holds beside the arrays, as JSON types."""
    counts = state.model_state.get(MOMENT_COUNTS)
    return {
        "host": host.to_json(),
        "at_boundary": at_end,
        "identity": experiment.identity,
        "plan": plan_identity(experiment.inputs.plans, host.progress.current_epoch),
        "interval": None if at_end else fetch(state.interval).to_json(),  # empty at the end of an epoch
        "moment_counts": stored_moment_counts(fetch(counts)) if counts else {},
        "loader": {"next_index": host.progress.global_step},
        "config": experiment.saved,
        "schedule": experiment.resolved.to_dict(),
        "versions": versions.versions(),
    }


def restore(experiment: Experiment, checkpoints: Checkpoints, host: HostState) -> Restored:
    """The state from the newest checkpoint or the seed; `host` takes over what was saved of it.

    Raises:
      CheckpointError: the checkpoints belong to another run, cannot be read, or must not be used.
    """
    config, directory = experiment.config, experiment.directory
    if not config.train.auto_resume:
        if checkpoints.steps():
            raise CheckpointError(
                f"{directory.root} holds checkpoints of an earlier run but train.auto_resume is False; "
                "choose another --workdir or remove them"
            )
        return _start(experiment)
    fresh_optimizer = config.train.resume_skip_optimizer
    abstract = experiment.abstract_state.arrays
    if experiment.debug.reports.debug.on("checkpoint") and (steps := checkpoints.steps()):
        source = f"{directory.checkpoints}, step {steps[-1]}"
        shapes = leaf_shapes(abstract)
        experiment.debug.reports.say("restoring", source, checkpoints.shapes(steps[-1]), shapes)
    newest = checkpoints.restore_newest(
        abstract,
        as_stored=("opt_state",) if fresh_optimizer else (),
        refusal=lambda step, meta: refusal(experiment, step, meta),
    )
    if newest is None:
        return _start(experiment)

    step, state, meta = newest
    state = completed(experiment, state, meta)
    if fresh_optimizer:
        log.warning("train.resume_skip_optimizer: the optimizer starts anew at step %d", step)
        state = state.replace(opt_state=experiment.initial_state().opt_state)
    checkpoints.unlink_boundaries()
    if missing := unchecked(meta["identity"]):
        log.warning("%s", missing)
    gradnorm = experiment.program.settings.gradnorm is not None
    for line in resume_notes(step, meta, experiment.saved, versions.versions(), gradnorm=gradnorm):
        log.info("%s", line)
    planned, asked = experiment.resolved.epochs, config.train.epochs
    if planned != asked:
        log.warning(
            "train.preserve_checkpoint_schedule: the stored %d epochs count, not train.epochs = %d", planned, asked
        )
    after = checkpoints.finished_boundary(step)
    for warning in host.load_json(meta["host"] if after is None else after, experiment.resolved):
        log.warning("%s", warning)
    progress = host.progress
    if progress.stop_reason is not None and not experiment.resolved.early_stop.active:
        log.warning("early stopping ended this run (%s); it is off now, so training goes on", progress.stop_reason)
        progress.stop_reason = None
    rerun = after is None and meta["at_boundary"]
    if experiment.is_coordinator:
        note_damaged_log(directory, step, expected=progress.current_epoch > 0)
        with directory.writing(directory.metrics_log):
            moved = MetricsLog(directory.metrics_log).supersede(step, EPOCH_END_EVENTS if rerun else frozenset())
        log.info("resumed after %d updates; %d log rows beyond it were set aside", step, moved)
    rank_restored(experiment, checkpoints, host, step, after)
    return Restored(state, step, rerun)


def refusal(experiment: Experiment, step: int, meta: Mapping[str, Any]) -> str | None:
    """Why the checkpoint of a step does not belong to what would be trained; None where it does."""
    optimizer = not experiment.config.train.resume_skip_optimizer
    return identity_error(meta["identity"], experiment.identity, optimizer=optimizer) or plan_error(
        step, meta, experiment.inputs.plans
    )


def _start(experiment: Experiment) -> Restored:
    if experiment.is_coordinator:
        directory = experiment.directory
        with directory.writing(directory.metrics_log):
            MetricsLog(directory.metrics_log).supersede(-1, frozenset())  # of a run without any checkpoint
    return Restored(experiment.initial_state(), None, rerun_epoch_end=False)
