"""What of the state of a checkpoint is completed, or replaced by what is configured now, when a run goes on from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from linnaeus_jax.learning.gradnorm import GradNormState
from linnaeus_jax.models.batch_norm import MOMENT_COUNTS, with_moment_counts
from linnaeus_jax.run.experiment import Experiment
from linnaeus_jax.step.placement import fetch
from linnaeus_jax.step.state import Statistics, TrainState

log = logging.getLogger("linnaeus_jax")


def completed(experiment: Experiment, state: TrainState, meta: Mapping[str, Any]) -> TrainState:
    """The state of a run from the arrays of a checkpoint and its host part."""
    return state.replace(  # type: ignore[no-any-return]
        interval=_interval(experiment, meta["interval"]),
        model_state=_statistics(experiment, state, meta.get("moment_counts")),
        gradnorm=_task_weights(experiment, state),
    )


def _task_weights(experiment: Experiment, state: TrainState) -> GradNormState:
    """Those of the configuration, unless GradNorm moves them."""
    program = experiment.program
    if program.settings.gradnorm is not None:
        return state.gradnorm
    weights = experiment.placement.replicate(np.asarray(program.initial_weights, np.float32))
    return state.gradnorm._replace(weights=weights)


def _statistics(experiment: Experiment, state: TrainState, counts: Mapping[str, Any] | None) -> Any:
    """The collections beside the parameters, with the counts of batches that a checkpoint kept; those of an earlier
    version follow from the moments."""
    if MOMENT_COUNTS not in experiment.abstract_state.model_state:
        return state.model_state
    complete = with_moment_counts(jax.tree.map(np.asarray, fetch(state.model_state)), counts)
    return experiment.placement.replicate(jax.tree.map(np.asarray, complete))


def compiled_interval(experiment: Experiment) -> Callable[[], Statistics]:
    """Compiled: sums of no update, on every device."""
    placement = experiment.placement
    return jax.jit(experiment.program.fresh_interval, out_shardings=placement.replicated).lower().compile()


def _interval(experiment: Experiment, stored: Any) -> Statistics:
    """The sums since the last log point that a checkpoint kept; zeros where other statistics are logged now."""
    sums = None
    if stored is not None:
        sums = experiment.abstract_state.interval.from_json(stored)
        if sums is None:
            log.warning("other training statistics are logged than before: the averages of this interval start anew")
    return compiled_interval(experiment)() if sums is None else experiment.placement.replicate(sums)
