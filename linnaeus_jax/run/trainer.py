"""A run, in the order it happens: build, restore, describe, compile, loop, finish.

Order of operations at an update: the batch is drawn, the step dispatched, then the log point of the update before is
read. At the end of an epoch everything is read first; see `run/epoch_end.py`. A checkpoint holds the state after
`step` updates, and `step` is the index of the next update that a resumed run makes.
"""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path

from ml_collections import ConfigDict

from linnaeus_jax.checks import checked
from linnaeus_jax.config.derived import default_workdir, stores_inputs
from linnaeus_jax.config.errors import TrainingError, UserError
from linnaeus_jax.debugging.nonfinite import explained, switched_on
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.reporting.logs import log_to_files
from linnaeus_jax.reporting.sinks import Sinks
from linnaeus_jax.run.baselines import write_baselines
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.epoch_end import EpochEnd
from linnaeus_jax.run.experiment import Experiment, build_experiment
from linnaeus_jax.run.failures import as_infrastructure_error, background_errors
from linnaeus_jax.run.finish import finish
from linnaeus_jax.run.first_heads import with_fitted_heads
from linnaeus_jax.run.frozen_trunk import after_frozen_trunk
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.run.interruption import Interruption
from linnaeus_jax.run.lock import RunLock
from linnaeus_jax.run.pretrained import read_initial_weights
from linnaeus_jax.run.processes import ended_elsewhere
from linnaeus_jax.run.read_errors import with_retry
from linnaeus_jax.run.remote_sync import RemoteSync
from linnaeus_jax.run.restored_state import compiled_interval
from linnaeus_jax.run.resume import Restored, restore, save
from linnaeus_jax.run.stalls import Stalls
from linnaeus_jax.run.start import start
from linnaeus_jax.run.stored import store_inputs
from linnaeus_jax.run.train_log import TrainLog
from linnaeus_jax.run.watchdog import Watchdog
from linnaeus_jax.step.compilation import compile_steps
from linnaeus_jax.step.placement import RunAhead

log = logging.getLogger("linnaeus_jax")


def run(config: ConfigDict, workdir: str | Path | None = None) -> dict[str, float]:
    """Trains as the config says, resuming where an earlier run in `workdir` stopped; returns the final metrics.

    Args:
      config: the complete tree, see `linnaeus_jax.config`.
      workdir: the run directory; by default derived from `experiment` and `env.output`.

    Raises:
      ConfigError: all wrong settings at once, before anything is computed or written.
      UserError: missing, corrupt or contradictory data or checkpoints.
      SystemExit: a signal ended the run after its state was saved; the code is 128 + its number.
    """
    given = checked(config, rules=False)
    directory = RunDirectory(Path(workdir) if workdir else default_workdir(given))
    lock = RunLock(directory.root)
    sinks = Sinks()
    watchdog = Stalls(directory, given.debug.stall_seconds, sinks).watchdog
    with (
        Interruption() as interruption,
        switched_on(nans=given.debug.nans, infs=given.debug.infs),
        contextlib.closing(Checkpoints(directory.checkpoints, logs=directory.logs)) as checkpoints,
        background_errors(),
        watchdog,
        contextlib.ExitStack() as closing,  # each of them is closed, whatever another one raises
    ):
        closing.callback(lock.release)
        experiment = build_experiment(config, directory, checkpoints, lock=lock, initial_weights=read_initial_weights)
        host = HostState.of(experiment)
        checkpoints.policy = host.retention_policy()
        sync = RemoteSync.from_config(given, directory) if experiment.is_coordinator else None
        if sync is not None:
            closing.callback(sync.close)
        closing.callback(sinks.close)
        closing.callback(experiment.debug.close)
        closing.callback(checkpoints.close)
        try:
            restored = restore(experiment, checkpoints, host)
            start(experiment, host, sinks, sync, restored.step)
            watchdog.finished("the start")
            if stores_inputs(given):
                with interruption.during("storing"):
                    store_inputs(experiment, restored.state, interruption, watchdog)
                    if restored.step is None:
                        restored = restored._replace(state=with_fitted_heads(experiment, restored.state))
            epoch_end = EpochEnd(experiment, host, checkpoints, sinks, sync, watchdog)
            with interruption.during("computing simple baselines"):
                write_baselines(experiment, restored.state, restored.step)
                restored = after_frozen_trunk(experiment, host, checkpoints, epoch_end, restored)
            watchdog.finished("simple baselines")
            train(experiment, host, restored, epoch_end, sinks, checkpoints, interruption, watchdog)
            return finish(experiment, host, checkpoints, sinks)
        except Exception as error:
            failure = _failure(error, host.progress.global_step)
            if failure is not None:
                raise _failed(failure, sinks) from error
            log.exception("the run failed")
            sinks.close(exit_code=1)
            raise


def _failure(error: Exception, updates: int) -> TrainingError | None:
    """What someone can do something about; None for a fault of the program."""
    if isinstance(error, FloatingPointError):
        return explained(error, f"after {updates} updates, outside of an update")
    if isinstance(error, UserError):
        return error if isinstance(error, TrainingError) else TrainingError(str(error))
    if ended_elsewhere(error):
        return TrainingError("another process of this run ended; see what it said, then give the same command again")
    return as_infrastructure_error(error)


def _failed(error: TrainingError, sinks: Sinks) -> UserError:
    """The error for whoever started the run, which shows it; files and sinks have it already."""
    log_to_files(str(error))
    if error.alert:
        sinks.alert(error.alert, str(error), logged=True)
    sinks.close(exit_code=1)
    return UserError(str(error))


def train(
    experiment: Experiment,
    host: HostState,
    restored: Restored,
    epoch_end: EpochEnd,
    sinks: Sinks,
    checkpoints: Checkpoints,
    interruption: Interruption,
    watchdog: Watchdog,
) -> None:
    """The loop.

    Raises:
      SystemExit: a signal ended it after the state was saved.
    """
    config, placement, debug = experiment.config, experiment.placement, experiment.debug
    plans, progress, state = experiment.inputs.plans, host.progress, restored.state

    # ---- finish what a kill cut off
    ended = progress.stop_reason is not None or progress.global_step >= experiment.resolved.total_steps
    if restored.rerun_epoch_end:
        ended = epoch_end.run(state, rerun=True, skip_validation=config.train.skip_validation)
    if ended:
        return

    # ---- compile
    train_log = TrainLog(experiment, host, sinks, checkpoints)
    loader = experiment.inputs.train_loader(progress.global_step)
    ahead = RunAhead()
    try:
        step, batch = with_retry(loader.__next__)
        placed = placement.to_device(batch, placement.update)
        with train_log.bar.compiling(), interruption.during("compiling"):
            steps = compile_steps(experiment.program, state, placed, placement, donate=debug.donates)
            debug.compile(experiment.program, state, placed, placement)
        fresh_interval = compiled_interval(experiment)
        fresh_interval()  # loaded before the clock starts
        debug.reports.say("compiled", steps)
        debug.first_batch(batch)
        if progress.enter_epoch(plans.locate(step)[0]):
            debug.epoch_start(step, progress.current_epoch)

        # ---- updates
        epoch_started = time.perf_counter()
        host.logger.start_clock(epoch_started)
        loader.interval()  # starts here: compilation does not count
        while True:
            epoch, within = plans.locate(step)
            name = "gradnorm" if host.schedule.should_update_gradnorm(step) else "plain"
            with debug.around_update(step, steps[name], state, placed, batch):
                state, outputs = steps[name](state, placed)
            debug.after_update(step, state, outputs, batch)
            completed = step + 1
            rows = int((batch["weight"] > 0).sum()) * placement.process_count  # processes have equal shares
            progress.advance(micro_batches=batch["label"].shape[0], samples=rows)
            train_log.write(loader)

            # ---- log points and the end of an epoch
            at_end = completed == plans.boundaries[epoch]
            if train_log.defer(completed, epoch, outputs, state.interval, at_end=at_end):
                state = state.replace(interval=fresh_interval())
            if at_end:
                train_log.throughput.pause()
                train_log.write(loader)
                seconds = time.perf_counter() - epoch_started
                with train_log.bar.doing(f"end of epoch {epoch}", completed):
                    if epoch_end.run(state, train_seconds=seconds):
                        return
                progress.start_training_epoch(epoch + 1)
                debug.epoch_start(completed, epoch + 1)
                epoch_started = time.perf_counter()
                loader.interval()  # nor does the validation

            # ---- a signal, or the debugging limit: save and leave
            limit = config.debug.early_exit_after_n_optimizer_steps
            if limit is not None and completed >= limit:
                train_log.write(loader)
                log.warning("stopped after %d updates: debug.early_exit_after_n_optimizer_steps", completed)
                return
            if interruption.requested():
                train_log.write(loader)
                if completed not in checkpoints.steps():
                    save(experiment, checkpoints, host, state, at_end=False)
                checkpoints.wait()
                log.warning(
                    "stopped by signal %s after %d updates; state saved; give the same command to go on",
                    interruption.signal_number,
                    completed,
                )
                raise SystemExit(interruption.exit_code)

            # ---- next batch, while the device works
            ahead.add(outputs.loss)
            watchdog.finished("an update")
            waited = time.perf_counter()
            with debug.profiler.input_wait():
                step, batch = with_retry(loader.__next__)
            waited = time.perf_counter() - waited
            placed = placement.to_device(batch, placement.update)
            images = batch["weight"].size * placement.process_count
            position = f"epoch {epoch} [{within + 1}/{plans.steps_per_epoch[epoch]}]"
            train_log.advance(completed, position, images, waited)
    finally:
        train_log.close()
        loader.close()
