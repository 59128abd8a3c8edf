"""From a configuration to everything that is decided before the first update."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from linnaeus_jax.checks import checked
from linnaeus_jax.config.errors import UserError, described
from linnaeus_jax.config.saved import plain
from linnaeus_jax.config.typed import Config, typed
from linnaeus_jax.data.dataset import Dataset
from linnaeus_jax.debugging.session import DebugSession
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models import ModelFamily
from linnaeus_jax.models.names import abstract_variables
from linnaeus_jax.reporting.logs import setup_logging
from linnaeus_jax.run import autobatch
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.failures import as_infrastructure_error
from linnaeus_jax.run.identity import finished_epochs, plan_identity, run_identity
from linnaeus_jax.run.inputs import Inputs, build_inputs, use_precomputed_features
from linnaeus_jax.run.lock import LOCK_FILE, RunLock
from linnaeus_jax.run.pretrained import apply_weight_requirements, loaded_names
from linnaeus_jax.run.processes import check_agreement, fail_on_all
from linnaeus_jax.schedules.resolve import resolve_all_schedule_params
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.step.compilation import compile_steps
from linnaeus_jax.step.placement import Placement
from linnaeus_jax.step.process import set_up_jax
from linnaeus_jax.step.program import Program, build_program, model_from_config
from linnaeus_jax.step.state import TrainState
from linnaeus_jax.weights.files import StateFile
from linnaeus_jax.weights.importing import Import

#: sections of the configuration that may differ between processes: where files lie, how they are read, what is said
OWN_SECTIONS = ("env", "experiment", "data", "debug")
log = logging.getLogger("linnaeus_jax")

#: reads the weights that a configuration names, for its model and data; the last argument: what is read of them already
InitialWeights = Callable[[Config, ModelFamily, Dataset, StateFile | None], Import | None]


@dataclass(frozen=True, eq=False)
class Experiment:
    """What a run is made of before anything is restored or trained: a function of the configuration and its data."""

    config: Config
    directory: RunDirectory
    placement: Placement
    inputs: Inputs
    resolved: ResolvedSchedule
    program: Program
    debug: DebugSession
    weights: Import | None = None  # that a run without a checkpoint starts from
    saved: dict[str, Any] = field(default_factory=dict)  # of a training run: its configuration as `config.json` has it

    @property
    def is_coordinator(self) -> bool:
        """Process 0 writes, the others only compute."""
        return jax.process_index() == 0

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must agree with, see `run/identity.py`."""
        return run_identity(self.inputs.dataset, self.program, self.inputs.images[self.inputs.dataset.train.name])

    @functools.cached_property
    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and placement of the state of step 0."""
        variables = abstract_variables(self.program.model)
        state = jax.eval_shape(self.program.state_from, variables.pop("params"), variables)
        shardings = jax.tree.broadcast(self.placement.of_state(state), state)
        return jax.tree.map(lambda x, to: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=to), state, shardings)

    def initial_state(self) -> TrainState:
        """The state of step 0 on the devices: from the seed, with the weights that were read."""
        variables = jax.tree.map(np.asarray, self.program.initial_variables())
        if self.weights is not None:
            variables = self.weights.merged(*variables)
        placed = self.placement.of_state(self.abstract_state)
        return jax.jit(self.program.state_from, out_shardings=placed)(*variables)


def build_experiment(
    config: ConfigDict,
    directory: RunDirectory,
    checkpoints: Checkpoints | None = None,
    *,
    lock: RunLock | None = None,
    initial_weights: InitialWeights | None = None,
) -> Experiment:
    """The experiment of a training run; the first thing written is the run directory itself.

    Args:
      checkpoints: those of the directory; epochs that the newest one has finished are not planned anew. None: no
        earlier run counts.
      lock: taken before anything of an earlier run is looked at.
      initial_weights: reads what a run without a checkpoint starts from; None: it starts from the seed.

    Raises:
      ConfigError: all wrong settings at once, before anything is computed or written.
      UserError: data, plugins or a run directory that cannot be used. Any other error is a fault of the program.
    """
    given = _checked(config, directory, checkpoints, initial_weights)
    lock = lock if jax.process_index() == 0 else None
    several = jax.process_count() > 1
    if several:
        check_agreement({"run directory": directory.checkpoints.is_dir()})
    with fail_on_all():
        if lock is not None:
            lock.acquire()
        experiment = _planned(config, directory, checkpoints, given, reports=directory.root)
    # ---- the run directory, which no process may make before all have looked for an earlier run's
    with fail_on_all():
        try:
            directory.create()
        except OSError as error:
            raise UserError(f"cannot create the run directory: {error}; choose another --workdir") from error
        if lock is not None:
            lock.acquire()  # of a directory that was made just now
            directory.remove_unfinished()
        _set_up_logging(experiment.config, directory)
    if several:
        check_agreement(agreement_payload(experiment) | {"run directory": (directory.root / LOCK_FILE).exists()})
    return experiment


def preview_experiment(
    config: ConfigDict,
    directory: RunDirectory,
    checkpoints: Checkpoints | None = None,
    *,
    initial_weights: InitialWeights | None = None,
) -> Experiment:
    """What `build_experiment` would return, with the same arguments and errors; writes nothing."""
    given = _checked(config, directory, checkpoints, initial_weights)
    with fail_on_all():
        return _planned(config, directory, checkpoints, given, reports=None)


def evaluation_experiment(tree: ConfigDict, directory: RunDirectory, schedule: ResolvedSchedule) -> Experiment:
    """The experiment that evaluates a checkpoint with this schedule: no epoch is planned, no training image opened,
    nothing is written, and logging is left to the caller. Errors as of `build_experiment`."""
    given = _checked(tree, directory, None, None)
    config = given.config
    with fail_on_all(), _as_user_errors():
        log.info("%s", given.notice)
        placement = Placement(fsdp=config.parallel.fsdp)
        inputs = build_inputs(config, devices=placement.device_count, output_dir=None, positions=placement.positions)
        return _assembled(directory, placement, inputs, schedule, block=1, loaded=loaded_names(directory))


class _Given(NamedTuple):
    """What is known once the configuration is checked and JAX is set up."""

    config: Config
    initial_weights: InitialWeights | None
    source: StateFile | None  # what is read of them already
    resumes: bool  # there is a checkpoint
    notice: str  # of the compilation cache
    lines: list[str]  # what was set for the initial weights


def _checked(
    tree: ConfigDict,
    directory: RunDirectory,
    checkpoints: Checkpoints | None,
    initial_weights: InitialWeights | None,
) -> _Given:
    resumes = checkpoints is not None and bool(checkpoints.steps())
    if initial_weights is None:
        config, source, lines = checked(tree), None, list[str]()
    else:
        config, source, lines = apply_weight_requirements(tree, directory if resumes else None)
    return _Given(config, initial_weights, source, resumes, set_up_jax(config), lines)


@contextlib.contextmanager
def _as_user_errors() -> Iterator[None]:
    """Mistakes of the user and infrastructure errors are raised as UserError, faults of the program as they
    are."""
    try:
        yield
    except InputError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(described(error)) from error
    except (MemoryError, RuntimeError) as error:
        if (failure := as_infrastructure_error(error)) is None:
            raise
        raise UserError(str(failure)) from error


def _planned(
    tree: ConfigDict,
    directory: RunDirectory,
    checkpoints: Checkpoints | None,
    given: _Given,
    *,
    reports: Path | None,
) -> Experiment:
    """The parts of a run: its batch, data, schedule, weights and program.

    Args:
      tree: the configuration; its batch is set where it is to be found.
      reports: directory of reports about missing images; None: no report.
    """
    config, weights_of, source, resumes, *_ = given
    _set_up_logging(config, None)
    for line in (given.notice, *given.lines):
        log.info("%s", line)
    with _as_user_errors():
        auto_resume = config.train.auto_resume
        if config.data.autobatch.enabled:
            goes_on = auto_resume and resumes
            memory = functools.partial(step_memory, config, directory, weights_of, source)
            rows = autobatch.choose_batch(config, autobatch.earlier_rows(directory) if goes_on else None, memory)
            tree.data.batch_size, tree.data.batch_size_per_device = None, rows
            config = typed(tree)
        placement = Placement(fsdp=config.parallel.fsdp)
        meta = checkpoints.newest_meta() if checkpoints is not None and auto_resume else None
        keeps = meta is not None and config.train.preserve_checkpoint_schedule
        schedule = ResolvedSchedule.from_dict(meta["schedule"]) if meta is not None and keeps else None
        inputs = build_inputs(
            config,
            devices=placement.device_count,
            output_dir=reports,
            schedule=schedule,
            past_epochs=() if meta is None else finished_epochs(meta),
            positions=placement.positions,
        )
        inputs.open_for_training()
        resolved, block = schedule or _resolve(inputs), inputs.sampler.block
        weights, loaded = _weights(config, directory, inputs.dataset, None if resumes else weights_of, source)
        experiment = _assembled(directory, placement, inputs, resolved, block, loaded)
        use_precomputed_features(inputs, experiment.program.stored)
        return dataclasses.replace(experiment, weights=weights, saved=plain(tree))


def _weights(
    config: Config,
    directory: RunDirectory,
    dataset: Dataset,
    initial_weights: InitialWeights | None,
    source: StateFile | None = None,
) -> tuple[Import | None, frozenset[str] | None]:
    """What a new run starts from, and the names of the parameters that it takes whole from there; of a run that has
    started, its own record of them. None: it starts from the seed."""
    if initial_weights is None:
        return None, loaded_names(directory)
    weights = initial_weights(config, model_from_config(config, dataset), dataset, source)
    return weights, None if weights is None else weights.coverage.whole()


def _assembled(
    directory: RunDirectory,
    placement: Placement,
    inputs: Inputs,
    resolved: ResolvedSchedule,
    block: int,
    loaded: frozenset[str] | None,
) -> Experiment:
    """The experiment over these inputs: model, objective, optimizer and what looks at them."""
    config = inputs.config
    debug = DebugSession(config, directory, inputs.dataset.tasks, is_coordinator=jax.process_index() == 0)
    program = build_program(
        config,
        inputs.dataset,
        resolved,
        block,
        probes=debug.probes(),
        gather=placement.gather if placement.fsdp else None,
        loaded=loaded,
    )
    return Experiment(config, directory, placement, inputs, resolved, program, debug)


def step_memory(
    config: Config,
    directory: RunDirectory,
    initial_weights: InitialWeights | None,
    source: StateFile | None = None,
) -> autobatch.StepMemory:
    """A function that compiles every step of a configuration, as `config` but for its batch, and says what the largest
    takes of each device; the labels are read now."""
    placement = Placement(fsdp=config.parallel.fsdp)
    read = build_inputs(config, devices=placement.device_count, output_dir=None, positions=placement.positions)
    _, loaded = _weights(config, directory, read.dataset, initial_weights, source)

    def memory(candidate: Config) -> int:
        inputs = dataclasses.replace(read, config=candidate)
        experiment = _assembled(directory, placement, inputs, _resolve(inputs), inputs.sampler.block, loaded)
        program, state, debug = experiment.program, experiment.abstract_state, experiment.debug
        update = inputs.abstract_update(program.stored)
        steps = compile_steps(program, state, update, placement, donate=debug.donates)
        detector = debug.compile(program, state, update, placement)
        return max(step.memory_bytes for step in (*steps.values(), *detector))

    return memory


def agreement_payload(experiment: Experiment) -> dict[str, Any]:
    """What all processes of a run must have alike, as JSON types by what people call it."""
    sections = {name: value for name, value in experiment.saved.items() if name not in OWN_SECTIONS}
    return {
        "version of jax": jax.__version__,
        "configuration": sections,
        "data, classes or model": experiment.identity,
        "sampler or batch size": plan_identity(experiment.inputs.plans, 0),
    }


def _resolve(inputs: Inputs) -> ResolvedSchedule:
    return resolve_all_schedule_params(
        inputs.config,
        steps_per_epoch=inputs.plans.steps_per_epoch.tolist(),
        dataset_size=len(inputs.dataset.train),
        micro_batches_per_epoch=inputs.plans.micro_batches_per_epoch.tolist(),
        past_epochs=len(inputs.past_epochs),
        devices=inputs.devices,
    )


def _set_up_logging(config: Config, directory: RunDirectory | None) -> None:
    names = config.experiment
    setup_logging(
        None if directory is None else directory.logs,
        process=jax.process_index(),
        level=names.log_level_main,
        data_level=names.log_level_h5data,
    )
