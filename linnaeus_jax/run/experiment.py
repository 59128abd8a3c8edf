"""From a configuration to everything that is decided before the first update."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from ml_collections import ConfigDict

from linnaeus_jax.checks import config_errors
from linnaeus_jax.config.errors import ConfigError, UserError
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.data.dataset import Dataset
from linnaeus_jax.debugging.session import DebugSession
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.models import ModelFamily
from linnaeus_jax.reporting.logs import setup_logging
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.identity import finished_epochs, run_identity
from linnaeus_jax.run.inputs import Inputs, build_inputs
from linnaeus_jax.run.lock import RunLock
from linnaeus_jax.schedules.resolve import resolve_all_schedule_params
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.step.placement import Placement, fetch
from linnaeus_jax.step.program import Program, build_program
from linnaeus_jax.step.state import TrainState
from linnaeus_jax.weights.importing import Import

#: reads the weights that a configuration names, for its model and data
InitialWeights = Callable[[ConfigDict, ModelFamily, Dataset], Import | None]


@dataclass(frozen=True, eq=False)
class Experiment:
    """What a run is made of before anything is restored or trained: a function of the configuration and its data."""

    config: ConfigDict
    directory: RunDirectory
    placement: Placement
    inputs: Inputs
    resolved: ResolvedSchedule
    program: Program
    debug: DebugSession
    weights: Import | None = None  # that a run without a checkpoint starts from

    @property
    def is_coordinator(self) -> bool:
        """Process 0 writes, the others only compute."""
        return jax.process_index() == 0

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must agree with, see `run/identity.py`."""
        return run_identity(self.inputs.dataset, self.program)

    @functools.cached_property
    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and placement of the state of step 0."""
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.placement.replicated),
            jax.eval_shape(self.program.initial_state),
        )

    def initial_state(self) -> TrainState:
        """The state of step 0 on every device: from the seed, with the weights that were read."""
        replicated = self.placement.replicated
        if self.weights is None:
            return jax.jit(self.program.initial_state, out_shardings=replicated)()
        variables = fetch(jax.jit(self.program.initial_variables, out_shardings=replicated)())
        return jax.jit(self.program.state_from, out_shardings=replicated)(*self.weights.merged(*variables))


def build_experiment(
    config: ConfigDict,
    directory: RunDirectory,
    checkpoints: Checkpoints | None = None,
    *,
    schedule: ResolvedSchedule | None = None,
    write: bool = True,
    lock: RunLock | None = None,
    initial_weights: InitialWeights | None = None,
) -> Experiment:
    """Builds what the configuration says; the first thing written is the run directory itself.

    Args:
      checkpoints: those of the directory; epochs that the newest one has finished are not planned anew. None: no
        earlier run counts.
      schedule: of a checkpoint that is only evaluated; no epoch is then planned, no training image opened,
        and logging is left to the caller.
      write: False for a dry run, which leaves nothing behind.
      lock: taken before anything of an earlier run is looked at.
      initial_weights: reads what a run without a checkpoint starts from; None: it starts from the seed.

    Raises:
      ConfigError: all wrong settings at once, before anything is computed or written.
      UserError: data, plugins or a run directory that cannot be used.
    """
    import_plugins(config)  # of a config that was made in Python; a loaded one has done so
    errors = config_errors(config)
    if errors:
        raise ConfigError(errors)
    set_up_jax(config)
    lock = lock if jax.process_index() == 0 else None
    if lock is not None:
        lock.acquire()
    if schedule is None:
        _set_up_logging(config, None)

    # ---- data and schedule
    placement = Placement()
    try:
        meta = checkpoints.newest_meta() if checkpoints is not None and config.train.auto_resume else None
        stored = None
        if meta is not None and config.train.preserve_checkpoint_schedule:
            stored = ResolvedSchedule.from_dict(meta["schedule"])
        past = () if meta is None else finished_epochs(meta)
        inputs = build_inputs(
            config,
            devices=placement.device_count,
            output_dir=directory.root if write else None,
            schedule=stored,
            past_epochs=past,
        )
        if schedule is None:
            inputs.open_for_training()
            resolved, block = stored or _resolve(inputs), inputs.sampler.block
        else:
            resolved, block = schedule, 1
        # ---- model, objective, optimizer
        debug = DebugSession(config, directory, inputs.dataset.tasks, is_coordinator=jax.process_index() == 0)
        program = build_program(
            config,
            inputs.dataset,
            resolved,
            block,
            probes=debug.probes(),
            make_recorder=debug.make_recorder,
        )
        weights = None
        if initial_weights is not None and not (checkpoints is not None and checkpoints.steps()):
            weights = initial_weights(config, program.model, inputs.dataset)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        raise UserError(str(text)) from error

    # ---- the run directory
    if write:
        try:
            directory.create()
        except OSError as error:
            raise UserError(f"cannot create the run directory: {error}; choose another --workdir") from error
        if lock is not None:
            lock.acquire()  # of a directory that was made just now
            directory.remove_unfinished()
        _set_up_logging(config, directory)
    return Experiment(config, directory, placement, inputs, resolved, program, debug, weights)


def _resolve(inputs: Inputs) -> ResolvedSchedule:
    return resolve_all_schedule_params(
        inputs.config,
        steps_per_epoch=inputs.plans.steps_per_epoch.tolist(),
        dataset_size=len(inputs.dataset.train),
        micro_batches_per_epoch=inputs.plans.micro_batches_per_epoch.tolist(),
        devices=inputs.devices,
    )


def set_up_jax(config: ConfigDict) -> None:
    """Process-wide settings, before the first use of a device."""
    if config.env.compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", config.env.compilation_cache_dir)
    flag = "--xla_gpu_deterministic_ops=true"
    if config.train.deterministic and flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()


def _set_up_logging(config: ConfigDict, directory: RunDirectory | None) -> None:
    names = config.experiment
    setup_logging(
        None if directory is None else directory.logs,
        process=jax.process_index(),
        level=names.log_level_main,
        data_level=names.log_level_h5data,
    )
