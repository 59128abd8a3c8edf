"""A run, in the order it happens: check, data, schedule, program, directory, state, compile, loop, finish.

Order of operations at an update: the batch is drawn, the step dispatched, then the log point of the update before is
read. At an epoch boundary everything is read first; see `run/epoch_end.py`. A checkpoint holds the state after
`step` updates, and update `step` is the next that a resumed run makes.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from linnaeus_jax import versions
from linnaeus_jax.checks.config import config_errors
from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.config.saved import plain
from linnaeus_jax.data.dataset import write_assets
from linnaeus_jax.data.loader import TrainLoader
from linnaeus_jax.debugging.nonfinite import InvalidOperation, explained, switched_on
from linnaeus_jax.debugging.overflow import BatchLimitReached, OverflowDetected
from linnaeus_jax.debugging.session import DebugSession
from linnaeus_jax.files import RunDirectory, write_json
from linnaeus_jax.learning.optimizers import FROZEN
from linnaeus_jax.metrics.names import phase_label, split_result
from linnaeus_jax.metrics.step_logger import StepMetricsLogger, due_part, pipeline_lines, schedule_line
from linnaeus_jax.metrics.tracker import MetricsTracker
from linnaeus_jax.reporting.display import Throughput, TrainingProgressBar, phase_tables
from linnaeus_jax.reporting.logs import console, console_level, log_to_files, setup_logging
from linnaeus_jax.reporting.metrics_log import MetricsLog, MetricsLogError
from linnaeus_jax.reporting.mistakes import MISTAKES_FILE, write_mistakes
from linnaeus_jax.reporting.report import CURVES_FILE, write_report
from linnaeus_jax.reporting.sinks import Sinks, open_sinks
from linnaeus_jax.reporting.wandb_sink import new_run_id
from linnaeus_jax.run.checkpoints import CheckpointError, Checkpoints, leaf_shapes
from linnaeus_jax.run.epoch_end import Boundary, BoundaryActions, Results
from linnaeus_jax.run.facts import run_facts
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.run.identity import (
    finished_epochs,
    identity_error,
    plan_error,
    plan_identity,
    resume_notes,
    run_identity,
)
from linnaeus_jax.run.inputs import Inputs, build_inputs
from linnaeus_jax.run.interruption import Interruption
from linnaeus_jax.run.recorder import LogPoint, NonFiniteError, TrainRecorder, host_floats
from linnaeus_jax.run.remote_sync import RemoteSync, RemoteSyncError, remote_directory
from linnaeus_jax.run.retention import retention_policy
from linnaeus_jax.schedules import early_stop
from linnaeus_jax.schedules.plot import plot_schedule
from linnaeus_jax.schedules.progress import TrainingProgress
from linnaeus_jax.schedules.resolve import resolve_all_schedule_params
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.schedules.summary import schedule_summary, write_summary
from linnaeus_jax.schedules.triggers import Due, gradnorm_due
from linnaeus_jax.step import probes
from linnaeus_jax.step.compilation import CompiledStep, compile_step
from linnaeus_jax.step.evaluation import Evaluator, update_curves
from linnaeus_jax.step.placement import Placement, RunAhead, fetch
from linnaeus_jax.step.program import Program, build_program
from linnaeus_jax.step.state import IntervalSums, TrainState

log = logging.getLogger("linnaeus_jax")

#: rows of the metrics log that a boundary writes, and a restart writes again with it
BOUNDARY_EVENTS = frozenset({"epoch", "final"})

#: what ends a run with a message of its own
EXPECTED = (
    CheckpointError,
    MetricsLogError,
    RemoteSyncError,
    NonFiniteError,
    OverflowDetected,
    BatchLimitReached,
)


class UserError(Exception):
    """Something outside the program is wrong; the message says what, where and how to mend it."""


@dataclass(eq=False)
class Run:
    """The built parts of one run."""

    config: ConfigDict
    directory: RunDirectory
    placement: Placement
    inputs: Inputs
    resolved: ResolvedSchedule
    program: Program
    evaluator: Evaluator
    host: HostState
    checkpoints: Checkpoints
    sinks: Sinks
    state: TrainState
    steps: dict[str, CompiledStep]
    throughput: Throughput
    lead: bool  # process 0 writes, the others only compute
    sync: RemoteSync | None
    debug: DebugSession

    @functools.cached_property
    def fresh_interval(self) -> Callable[[], IntervalSums]:
        """Compiled: zero sums on every device."""
        return jax.jit(self.program.fresh_interval, out_shardings=self.placement.replicated).lower().compile()

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must agree with, see `run/identity.py`."""
        return run_identity(self.inputs.dataset, self.program)

    def variant(self, update: int) -> str:
        """Which compiled step makes `update`: a pure function of config and step."""
        trigger = self.resolved.gradnorm
        due = trigger.enabled and gradnorm_due(update, trigger.warmup_steps, trigger.interval)
        return "gradnorm" if due else "plain"


def run(config: ConfigDict, workdir: str | Path | None = None, *, skip_validation: bool = False) -> dict[str, float]:
    """Trains as the config says, resuming where an earlier run in `workdir` stopped; returns the final metrics.

    Args:
      config: the complete tree, see `linnaeus_jax.config`.
      workdir: the run directory; by default derived from `experiment` and `env.output`.
      skip_validation: on resume, drop validations that were still pending.

    Raises:
      ConfigError: all wrong settings at once, before anything is computed or written.
      UserError: missing, corrupt or contradictory data or checkpoints.
      SystemExit: a signal ended the run after its state was saved; the code is 128 + its number.
    """
    with Interruption() as interruption, switched_on(nans=config.debug.nans, infs=config.debug.infs):
        this = build(config, RunDirectory.of(config, workdir))
        with contextlib.ExitStack() as closing:  # each of them is closed, whatever another one raises
            if this.sync is not None:
                closing.callback(this.sync.close)
            closing.callback(lambda: this.sinks.close())  # another object once they are open
            closing.callback(this.debug.close)
            closing.callback(this.checkpoints.close)
            try:
                again = restore(this)
                skip_validation |= config.train.skip_validation
                return train(this, interruption, again=again, skip_validation=skip_validation)
            except FloatingPointError as error:
                found = explained(error, f"after {this.host.progress.global_step} updates, outside of an update")
                raise _failed(this, found) from error
            except EXPECTED as error:
                raise _failed(this, error) from error
            except Exception:
                log.exception("the run failed")
                this.sinks.close(exit_code=1)
                raise


def _failed(this: Run, error: Exception) -> UserError:
    """The error for whoever started the run, which shows it; files and sinks have it already."""
    log_to_files(str(error))
    if isinstance(error, (NonFiniteError, OverflowDetected, InvalidOperation)):
        this.sinks.alert("Non-finite values", str(error), logged=True)
    this.sinks.close(exit_code=1)
    return UserError(str(error))


def build(config: ConfigDict, directory: RunDirectory, *, write: bool = True) -> Run:
    """Everything up to the compiled step; the first thing written is the run directory itself.

    Args:
      write: False for a dry run, which leaves nothing behind.

    Raises:
      ConfigError, UserError: as `run`.
    """
    import_plugins(config)  # of a config that was made in Python; a loaded one has done so
    errors = config_errors(config)
    if errors:
        raise ConfigError(errors)
    set_up_jax(config)
    lead = jax.process_index() == 0
    names = config.experiment
    setup_logging(None, process=jax.process_index(), level=names.log_level_main, data_level=names.log_level_h5data)

    # ---- data and schedule
    placement = Placement()
    try:
        meta = newest_meta(config, directory)
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
        resolved = stored or resolve_all_schedule_params(
            config,
            steps_per_epoch=inputs.plans.updates_per_epoch.tolist(),
            dataset_size=len(inputs.dataset.train),
            micro_batches_per_epoch=inputs.micro_batches_per_epoch,
            devices=placement.device_count,
            past_epochs=len(past),
        )
        # ---- model, objective, optimizer
        debug = DebugSession(config, directory, inputs.dataset.tasks, lead=lead)
        program = build_program(
            config,
            inputs.dataset,
            resolved,
            inputs.sampler.block,
            probes=debug.probes(),
            make_recorder=debug.make_recorder,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        raise UserError(str(text)) from error

    # ---- the run directory
    if write:
        try:
            directory.create()
        except OSError as error:
            raise UserError(f"cannot create the run directory: {error}; choose another --workdir") from error
        setup_logging(
            directory.logs, process=jax.process_index(), level=names.log_level_main, data_level=names.log_level_h5data
        )
    components = program.evaluation.component_names
    logger = StepMetricsLogger(
        inputs.dataset.tasks, resolved.logging, components=components, extras=program.objective.extras
    )
    recorder = TrainRecorder(logger, config.train.nonfinite_limit)
    null_tasks = config.metrics.null_vs_non_null_tasks if config.metrics.track_null_vs_non_null else ()
    host = HostState(
        TrainingProgress(expected_total_steps=resolved.total_steps, expected_epochs=resolved.epochs),
        MetricsTracker(null_tasks),
        recorder,
        early_stop.initial_state(resolved.early_stop),
    )
    return Run(
        config=config,
        directory=directory,
        placement=placement,
        inputs=inputs,
        resolved=resolved,
        program=program,
        evaluator=Evaluator(program.evaluation, placement),
        host=host,
        checkpoints=Checkpoints(
            directory.checkpoints,
            retention_policy(lambda: host.ranking, resolved.checkpoint.keep_top_n, resolved.checkpoint.keep_last_n),
        ),
        sinks=Sinks(MetricsLog(directory.metrics_log) if lead else None),
        state=jax.eval_shape(program.initial_state),
        steps={},
        throughput=Throughput(),
        lead=lead,
        sync=remote_sync(config, directory) if lead and write else None,
        debug=debug,
    )


def set_up_jax(config: ConfigDict) -> None:
    """Process-wide settings, before the first use of a device."""
    if config.env.compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", config.env.compilation_cache_dir)
    flag = "--xla_gpu_deterministic_ops=true"
    if config.train.deterministic and flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()


def remote_sync(config: ConfigDict, directory: RunDirectory) -> RemoteSync | None:
    """The background copy to `env.output.bucket`, where it is enabled."""
    bucket = config.env.output.bucket
    if not bucket.enabled:
        return None
    names = config.experiment
    remote = remote_directory(bucket.remote, names.project, names.group, names.name)
    return RemoteSync(directory.root, remote, directory.run_id_file.name, bucket.executable, bucket.timeout_seconds)


def newest_meta(config: ConfigDict, directory: RunDirectory) -> dict[str, Any] | None:
    """What the newest checkpoint says beside its arrays; None where the run does not go on from one."""
    if not (config.train.auto_resume and directory.checkpoints.is_dir()):
        return None
    checkpoints = Checkpoints(directory.checkpoints)
    try:
        return checkpoints.newest_meta()
    finally:
        checkpoints.close()


def restore(this: Run) -> bool:
    """Sets the state, from the newest checkpoint or the seed; returns whether its boundary must be served again."""
    fresh_optimizer = this.config.train.resume_skip_optimizer
    found = None
    if this.config.train.auto_resume:
        if this.debug.reports.debug.on("checkpoint") and (steps := this.checkpoints.steps()):
            source = f"{this.directory.checkpoints}, step {steps[-1]}"
            this.debug.reports.restoring(source, this.checkpoints.shapes(steps[-1]), leaf_shapes(this.state))
        found = this.checkpoints.restore_newest(
            stored_state(this),
            as_stored=("opt_state",) if fresh_optimizer else (),
            refusal=lambda step, meta: (
                identity_error(meta["identity"], this.identity, optimizer=not fresh_optimizer)
                or plan_error(step, meta, this.inputs.plans)
            ),
        )
    if found is None:
        if this.checkpoints.steps():
            raise CheckpointError(
                f"{this.directory.root} holds checkpoints of an earlier run but train.auto_resume is False; "
                "choose another --workdir or remove them"
            )
        this.state = fresh_state(this)
        if this.lead:
            MetricsLog(this.directory.metrics_log).supersede(-1, frozenset())  # of a run without any checkpoint
        describe(this, resumed_step=None)
        return False

    step, restored, meta = found
    this.state = restored.replace(interval=restored_interval(this, meta["interval"]))
    if fresh_optimizer:
        log.warning("train.resume_skip_optimizer: the optimizer starts anew at step %d", step)
        this.state = this.state.replace(opt_state=fresh_state(this).opt_state)
    this.checkpoints.forget_after(step)
    for line in resume_notes(step, meta, plain(this.config), versions.versions()):
        log.info("%s", line)
    planned, asked = this.resolved.epochs, this.config.train.epochs
    if planned != asked:
        log.warning(
            "train.preserve_checkpoint_schedule: the stored %d epochs count, not train.epochs = %d", planned, asked
        )
    after = this.checkpoints.finished_boundary(step)
    for warning in this.host.load_json(meta["host"] if after is None else after, this.resolved):
        log.warning("%s", warning)
    progress = this.host.progress
    if progress.stop_reason is not None and not this.resolved.early_stop.active:
        log.warning("early stopping ended this run (%s); it is off now, so training goes on", progress.stop_reason)
        progress.stop_reason = None
    again = after is None and meta["at_boundary"]
    if this.lead:
        log_file = MetricsLog(this.directory.metrics_log)
        moved = log_file.supersede(step, BOUNDARY_EVENTS if again else frozenset())
        log.info("resumed after %d updates; %d log rows beyond it were set aside", step, moved)
    describe(this, resumed_step=step)
    return again


def stored_state(this: Run) -> TrainState:
    """What of the state a checkpoint holds: shapes, dtypes and where the arrays are wanted."""
    state = jax.eval_shape(this.program.initial_state).replace(interval=None)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=this.placement.replicated), state)


def restored_interval(this: Run, stored: Mapping[str, Any] | None) -> IntervalSums:
    """The sums since the last log point that a checkpoint kept; zeros where other statistics are logged now."""
    found = None
    if stored is not None:
        found = this.state.interval.from_json(stored)
        if found is None:
            log.warning("other training statistics are logged than before: the averages of this interval start anew")
    return this.fresh_interval() if found is None else this.placement.replicate(found)


def fresh_state(this: Run) -> TrainState:
    """The state of step 0 on every device."""
    return jax.jit(this.program.initial_state, out_shardings=this.placement.replicated)()


def describe(this: Run, *, resumed_step: int | None) -> None:
    """Writes what was decided: config, versions, assets, schedule; opens the sinks and the debugging."""
    known = run_facts(this.config, this.inputs, this.resolved, this.program)
    if not this.lead:
        this.debug.open(this.program, known, start=resumed_step or 0, plans=this.inputs.plans)
        return
    dataset = this.inputs.dataset
    write_json(this.directory.config_json, plain(this.config))
    write_json(this.directory.assets / "versions.json", versions.versions())
    write_assets(dataset, this.directory.assets, this.directory.metadata)
    write_json(this.directory.metadata / "epoch_coverage.json", this.inputs.coverage.to_json())
    write_summary(this.resolved, this.directory.assets)
    log.info("%s", dataset.report())
    log.info("%s", schedule_summary(this.resolved))
    log.info("%s", "\n".join(this.inputs.coverage.lines))
    for warning in (*this.resolved.warnings, *this.inputs.coverage.warnings):
        log.warning("schedule: %s", warning)
    if all(row.optimizer == FROZEN for row in this.program.settings.optimizer.rows):
        log.warning("optimizer.parameter_groups freezes every parameter: this run trains nothing and only evaluates")
    wanted = this.config.experiment.wandb.run_id
    this.host.run_id = this.directory.keep_run_id(this.host.run_id or wanted or new_run_id())
    if wanted not in ("", this.host.run_id):
        log.warning(
            "experiment.wandb.run_id = %s is not used: this run directory is of run %s; choose another --workdir",
            wanted,
            this.host.run_id,
        )
    if this.sync is not None:
        this.sync.claim()
    facts = {
        "dataset_metadata": {
            "num_classes": dataset.num_classes,
            "task_label_density": dataset.task_label_density,
            "task_nulls_density": dataset.task_nulls_density,
            "meta_label_density": dataset.meta_label_density,
            "additional_stats": dataset.additional_statistics(),
            "rarity_thresholds": {task: found.tolist() for task, found in dataset.rarity_thresholds.items()},
            "subset_info": dataset.subset_maps(),
        },
        "model_info": {
            "parameters": sum(int(np.prod(row.shape)) for row in this.program.parameters),
            "architecture": f"{this.config.model.type}_{this.config.model.variant}",
        },
        "system_info": versions.versions(),
    }
    this.debug.open(this.program, known, start=resumed_step or 0, plans=this.inputs.plans)
    this.sinks = open_sinks(
        this.sinks.metrics_log,
        this.config.experiment,
        config=plain(this.config),
        facts=facts,
        run_id=this.host.run_id,
        debug=this.config.debug.wandb_metrics,
    )


def train(this: Run, interruption: Interruption, *, again: bool, skip_validation: bool) -> dict[str, float]:
    """The loop."""
    host, plans, resolved = this.host, this.inputs.plans, this.resolved
    progress = host.progress
    boundary = make_boundary(this)

    # ---- finish what a kill cut off
    done = progress.stop_reason is not None or progress.global_step >= resolved.total_steps
    if again:
        done = boundary.serve(again=True, skip_validation=skip_validation)
    if done:
        return finish(this)

    # ---- compile
    loader = this.inputs.train_loader(progress.global_step)
    bar = TrainingProgressBar(resolved.total_steps, progress.global_step, shown=this.lead)
    ahead = RunAhead()
    try:
        update, batch = next(loader)
        placed = this.placement.to_device(batch, this.placement.update)
        this.steps = {
            name: compile_step(
                this.program.train_step(name), this.state, placed, this.placement, name, donate=this.debug.donates
            )
            for name in needed_variants(this)
        }
        this.fresh_interval()  # compiled before the clock starts
        this.debug.reports.compiled(this.steps)
        this.debug.first_batch(this.program, batch, this.inputs.dataset)
        if progress.enter_epoch(plans.locate(update)[0]):
            this.debug.epoch_start(this.program, update, progress.current_epoch)

        # ---- updates
        epoch_started = time.perf_counter()
        host.recorder.logger.start_clock(epoch_started)
        loader.interval()  # starts here: compilation does not count
        while True:
            epoch, within = plans.locate(update)
            variant = this.variant(update)
            with this.debug.around_update(update, variant):
                this.state, outputs = this.debug.dispatch(update, this.steps[variant], this.state, placed, batch)
            this.debug.after_update(update, this.state, outputs, batch)
            step = update + 1
            rows = int(np.count_nonzero(batch["weight"])) * jax.process_count()  # processes have equal shares
            progress.advance(micro_batches=batch["label"].shape[0], samples=rows)
            write_log_point(this, loader)

            # ---- log points and boundaries
            at_boundary = step == plans.boundaries[epoch]
            streams = host.recorder.logger.due(step)
            if outputs.gradnorm:
                streams |= {"gradnorm"}
            looked_at = tuple(probes.due(this.program.settings.probes, update))
            if streams or looked_at or at_boundary:
                host.recorder.hold(LogPoint(step, epoch, streams, looked_at, outputs, this.state.interval))
                this.state = this.state.replace(interval=this.fresh_interval())
            if at_boundary:
                this.throughput.pause()
                write_log_point(this, loader)
                if boundary.serve(train_seconds=time.perf_counter() - epoch_started):
                    return finish(this)
                progress.start_training_epoch(epoch + 1)
                this.debug.epoch_start(this.program, step, epoch + 1)
                epoch_started = time.perf_counter()
                loader.interval()  # nor does the validation

            # ---- a signal, or the debugging limit: save and leave
            limit = this.config.debug.early_exit_after_n_optimizer_steps
            if limit and step >= limit:
                write_log_point(this, loader)
                log.warning("stopped after %d updates: debug.early_exit_after_n_optimizer_steps", step)
                return finish(this)
            if interruption.requested():
                write_log_point(this, loader)
                if step not in this.checkpoints.steps():
                    save(this, at_boundary=False)
                this.checkpoints.wait()
                log.warning("stopped by signal %s after %d updates; state saved", interruption.signal_number, step)
                raise SystemExit(interruption.exit_code)

            # ---- next batch, while the device works
            ahead.add(outputs.loss)
            waited = time.perf_counter()
            with this.debug.profiler.input_wait():
                update, batch = next(loader)
            waited = time.perf_counter() - waited
            placed = this.placement.to_device(batch, this.placement.update)
            this.throughput.update(batch["weight"].size * jax.process_count(), waited)
            bar.update(step, f"epoch {epoch} [{within + 1}/{plans.updates_per_epoch[epoch]}]", this.throughput)
    finally:
        bar.close()
        loader.close()


def needed_variants(this: Run) -> list[str]:
    """Every variant of the step that the rest of the run can need."""
    return ["plain", "gradnorm"] if this.resolved.gradnorm.enabled else ["plain"]


def write_log_point(this: Run, loader: TrainLoader) -> None:
    """Reads and writes what the last log point held, if anything."""
    point = this.host.recorder.release()
    if point is not None and point.probe_row:
        this.sinks.write("probe", point.step, point.epoch, point.probe_row)
    if point is None or not this.lead or not point.streams:
        return
    plans, logger = this.inputs.plans, this.host.recorder.logger
    total = int(plans.updates_per_epoch[point.epoch])
    done = point.step - int(plans.boundaries[point.epoch]) + total
    seconds_left = (total - done) * this.throughput.seconds_per_update
    group = this.inputs.levels[point.epoch]
    row = this.host.recorder.row(point, mixup_group=group, seconds_left=seconds_left, now=time.perf_counter())
    row["train/images_per_sec"] = this.throughput.images_per_second
    row["pipeline/wait_share"] = this.throughput.wait_share
    if "pipeline" in point.streams:
        row |= loader.interval().row()
    this.host.tracker.update_latest({name: value for name, value in row.items() if name.startswith("gradnorm/")})
    sent = due_part(row, point.streams - {"step"})
    local = due_part({name: value for name, value in row.items() if name not in sent}, point.streams & {"step"})
    for event, values in (("train", sent), ("step", local)):
        if values:
            this.sinks.write(event, point.step, point.epoch, values)
    this.debug.reports.log_point(row, point.step)
    this.checkpoints.check()
    line = logger.line(
        point.streams,
        row,
        epoch=point.epoch,
        index=done - 1,
        total=total,
        seconds_left=seconds_left,
        accumulation_steps=this.inputs.sampler.accumulation_steps,
        gradnorm="gradnorm" in point.streams,
    )
    if line is not None:
        log.info("%s", line)
    if "console" in point.streams:
        log.debug("%s", schedule_line(point.step, host_floats(point.outputs.probabilities), group))
    if "pipeline" in point.streams:
        capacity = dict.fromkeys(("batch_index_q", "preprocess_q", "processed_batch_q"), this.inputs.buffer)
        for text in pipeline_lines(row, capacity):
            log.debug("%s", text)


def make_boundary(this: Run) -> Boundary:
    """The boundary of this run, with the trainer's actions."""
    reports = this.debug.reports

    def evaluate(phases: Mapping[str, np.ndarray]) -> Results:
        with console_level(this.config.experiment.log_level_validation):
            loader = this.inputs.val_loader()
            try:
                found = this.evaluator.run(
                    this.state.eval_params,
                    this.state.model_state,
                    this.state.gradnorm.weights,
                    loader,
                    phases,
                    after_first=reports.first_validation_batch if reports.debug.on("dump_metrics") else None,
                )
            finally:
                loader.close()
        for name, values in found.metrics.items():
            reports.phase(name, found.sums[name], values)
        if this.lead:
            update_curves(this.directory.root / CURVES_FILE, found.curves)
            if found.mistakes:
                write_mistakes(this.directory.root / MISTAKES_FILE, found.mistakes, this.inputs.images["val"])
        return found.metrics

    def write_row(row: dict[str, Any], due: Due) -> None:
        progress = this.host.progress
        tracked = this.host.tracker.state_dict()
        reports.boundary(progress.global_step, progress.current_epoch, due, row, tracked, this.state.params)
        if this.lead:
            if progress.global_step >= this.resolved.total_steps or progress.stop_reason is not None:
                row |= this.host.recorder.logger.flush()
            this.sinks.write("epoch", progress.global_step, progress.current_epoch, row)
            log.info("%s", _epoch_line(progress.current_epoch, row))

    def retain() -> list[int]:
        dropped = this.checkpoints.retain()
        reports.retained(this.checkpoints.steps(), dropped)
        return dropped

    def finish_boundary() -> None:
        this.debug.boundary_served()
        if this.lead:
            this.checkpoints.finish_boundary(this.host.progress.global_step, this.host.to_json())
        if this.sync is not None:
            this.sync.request()

    rates = this.resolved.learning_rates
    return Boundary(
        this.resolved,
        this.host,
        BoundaryActions(
            save=lambda: save(this, at_boundary=True),
            evaluate=evaluate,
            write_row=write_row,
            write_progress=lambda: this.host.progress.save(this.directory.progress_json) if this.lead else None,
            retain=retain,
            finish=finish_boundary,
        ),
        components=this.program.evaluation.component_names,
        best_metric=early_stop.ranking_key(this.config, this.program.evaluation.component_names),
        validation_rows=len(this.inputs.dataset.val),
        warmup_steps=max(rate.warmup_steps for rate in rates),
    )


def save(this: Run, *, at_boundary: bool) -> None:
    """Starts an asynchronous checkpoint of the state after `global_step` updates."""
    step = this.host.progress.global_step
    this.debug.saved(step, this.state)
    this.checkpoints.save(step, this.state.replace(interval=None), checkpoint_meta(this, at_boundary=at_boundary))


def checkpoint_meta(this: Run, *, at_boundary: bool) -> dict[str, Any]:
    """What a checkpoint holds beside the arrays, as JSON types."""
    return {
        "host": this.host.to_json(),
        "at_boundary": at_boundary,
        "identity": this.identity,
        "plan": plan_identity(this.inputs.plans, this.host.progress.current_epoch),
        "interval": None if at_boundary else fetch(this.state.interval).to_json(),  # empty at a boundary
        "loader": {"next_index": this.host.progress.global_step},
        "config": plain(this.config),
        "schedule": this.resolved.to_dict(),
        "versions": versions.versions(),
    }


def finish(this: Run) -> dict[str, float]:
    """Final metrics, written once."""
    this.checkpoints.wait()
    if this.lead:
        plot_schedule(
            this.resolved,
            this.directory.assets / "schedule.png",
            applied=MetricsLog(this.directory.metrics_log).applied_rates(),
        )
    final = this.host.tracker.final_metrics()
    if this.lead:
        progress = this.host.progress
        log_file = MetricsLog(this.directory.metrics_log)
        log_file.supersede(progress.global_step, frozenset({"final"}))
        this.sinks.write("final", progress.global_step, progress.current_epoch, final)
        this.sinks.close(final)
        results = this.host.tracker.latest_by_phase()
        title = "last results; of a rank, over the rows labelled there"
        for part in phase_tables(title, results, this.inputs.dataset.tasks, console.width):
            console.print(part)
        try:
            log.info("report: %s", write_report([this.directory.root], this.directory.root / "report.html"))
        except Exception as error:  # the run itself is done and saved
            log.warning("the report could not be written (%s); try: python -m linnaeus_jax.tools.report", error)
    return final


def _epoch_line(epoch: int, row: dict[str, Any]) -> str:
    """Losses are those that can be compared: means over rows and ranks."""
    results: dict[str, dict[str, Any]] = {}
    for name, value in row.items():
        phase, metric = split_result(name)
        results.setdefault(phase, {})[metric] = value
    parts = [
        f"{phase_label(phase)} loss {found['loss_unweighted']:.4f}, chain {100 * found['chain_accuracy']:.1f} %"
        for phase, found in results.items()
        if {"loss_unweighted", "chain_accuracy"} <= found.keys() and phase != "val_mask"
    ]
    return f"epoch {epoch}: {'; '.join(parts)}"
