"""What a run writes before its first update: configuration, versions, data assets, schedule, where it goes on."""

from __future__ import annotations

import dataclasses
import logging

import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax import versions
from linnaeus_jax.config.derived import architecture
from linnaeus_jax.data.dataset import BOXES, PATH_COUNTS, write_assets
from linnaeus_jax.debugging.flag_reports import RunFacts
from linnaeus_jax.files import FILES_ONLY, write_json
from linnaeus_jax.learning.transforms import FROZEN
from linnaeus_jax.metrics import table
from linnaeus_jax.reporting.metrics_log import MetricsLog
from linnaeus_jax.reporting.run_record import PLUGIN_METRICS_FILE
from linnaeus_jax.reporting.sinks import Sinks, new_run_id, open_sinks
from linnaeus_jax.run.experiment import Experiment
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.run.pretrained import RECORD, record
from linnaeus_jax.run.remote_sync import RemoteSync
from linnaeus_jax.run.train_log import ESTIMATED_AFTER
from linnaeus_jax.schedules.summary import headline, schedule_summary, write_summary

# ---- What the debug flags and the event log say of a run at its start


def run_facts(experiment: Experiment, start: int) -> RunFacts:
    """Facts of a run whose next update is that of step `start`."""
    inputs, reading = experiment.inputs, experiment.inputs.reading
    pipeline = {
        "train rows": len(inputs.dataset.train),
        "validation rows": len(inputs.dataset.val),
        "images": type(inputs.images["train"]).__name__,
        "sampler": inputs.sampler,
        "reading threads": 0 if reading.worker_processes else reading.num_threads,
        "worker processes": reading.worker_processes,
        "decoding threads": reading.io_threads,
        "updates in flight": reading.buffer,
    }
    parts = experiment.program, inputs.dataset, experiment.resolved, inputs.plans
    return RunFacts(*parts, pipeline, start, experiment.saved)


# ----------------------------------------------------------------------------------------------------------------------


log = logging.getLogger("linnaeus_jax")

#: files of what is written here that reports and evaluations read, besides config.json
READ_AGAIN = (
    PLUGIN_METRICS_FILE,
    "assets/class_to_idx.json",
    "assets/num_classes.json",
    f"assets/{BOXES}",
    f"assets/{PATH_COUNTS}",
    "assets/schedule_summary.json",
    "assets/taxon_names.json",
    "assets/taxonomy_tree.json",
    "assets/versions.json",
    "metadata/class_label_counts.json",
    "metadata/task_label_density.json",
)


def start(
    experiment: Experiment, host: HostState, sinks: Sinks, sync: RemoteSync | None, resumed_step: int | None
) -> None:
    """Describes the run in its directory and opens its sinks and its debugging.

    Raises:
      RemoteSyncError: the remote directory belongs to another run.
      ConfigError: a sink that is asked for needs a package that is not installed.
    """
    config, directory, inputs = experiment.config, experiment.directory, experiment.inputs
    facts = run_facts(experiment, start=resumed_step or 0)
    if experiment.placement.device_count > 1:
        log.info("%s", _devices(experiment))
    if not experiment.is_coordinator:
        experiment.debug.open(facts)
        return
    with directory.writing(directory.config_json, *(directory.root / name for name in READ_AGAIN)):
        write_json(directory.config_json, experiment.saved)
        write_json(directory.assets / "versions.json", versions.versions())
        if plugin_metrics := table.of_plugins():
            fields = {name: dataclasses.asdict(info) for name, info in plugin_metrics.items()}
            write_json(directory.root / PLUGIN_METRICS_FILE, fields)
        write_assets(inputs.dataset, directory.assets, directory.metadata)
        write_summary(experiment.resolved, directory.assets)
    if resumed_step is None:
        with directory.writing(directory.metadata / RECORD):
            record(experiment.weights, directory.metadata, details=config.debug.checkpoint)
    write_json(directory.metadata / "epoch_coverage.json", inputs.coverage.to_json())
    log.info(
        "%d device(s) of kind %s; model in %s, float32 products: train.matmul_precision = %s, train.deterministic = %s",
        experiment.placement.device_count,
        jax.devices()[0].device_kind,
        jnp.dtype(experiment.program.model.dtype).name,
        config.train.matmul_precision,
        config.train.deterministic,
    )
    log.info("%s", inputs.dataset.headline())
    log.info("%s; all of it: %s", headline(experiment.resolved), directory.assets / "schedule_summary.txt")
    for text in (inputs.dataset.report(), schedule_summary(experiment.resolved), "\n".join(inputs.coverage.lines)):
        log.info("%s", text, extra=FILES_ONLY)
    for warning in (*experiment.resolved.warnings, *inputs.coverage.warnings):
        log.warning("schedule: %s", warning)
    if all(row.optimizer == FROZEN for row in experiment.program.settings.optimizer.rows):
        log.warning("optimizer.parameter_groups freezes every parameter: this run trains nothing and only evaluates")
    log.info("%s", _work(experiment, resumed_step or 0))
    _keep_run_id(experiment, host)
    if sync is not None:
        sync.claim()
    experiment.debug.open(facts)
    open_sinks(
        sinks,
        MetricsLog(directory.metrics_log),
        config.experiment,
        config=experiment.saved,
        facts=_tracker_facts(experiment),
        run_id=host.run_id,
        debug=config.debug.wandb_metrics,
    )


def _devices(experiment: Experiment) -> str:
    """What takes part, and how much of the state each device holds."""
    placement = experiment.placement
    arrays = jax.tree.leaves(experiment.abstract_state)
    whole, held = (
        sum(int(np.prod(shape)) * x.dtype.itemsize for x, shape in zip(arrays, shapes, strict=True)) / 1e6
        for shapes in ([x.shape for x in arrays], [x.sharding.shard_shape(x.shape) for x in arrays])
    )
    state = f"{held:.1f} of {whole:.1f} MB of the state (split)" if placement.fsdp else f"the state of {whole:.1f} MB"
    processes = f"process {jax.process_index()} of {placement.process_count}, " if placement.process_count > 1 else ""
    return f"{processes}{placement.device_count} devices, on each {state}"


def _work(experiment: Experiment, done: int) -> str:
    """How much there is to do, in updates and pictures; how long it takes is known after the first updates."""
    resolved, sampler = experiment.resolved, experiment.inputs.sampler
    left = resolved.total_steps - done
    pictures = left * sampler.accumulation_steps * sampler.batch_size
    begun = f" of {resolved.total_steps:,}" if done else ""
    return (
        f"to do: {left:,}{begun} updates in {resolved.epochs} epochs, about {pictures:,} pictures; how long that takes "
        f"is said after the first {ESTIMATED_AFTER} updates (linnaeus check measures it beforehand)"
    )


def _keep_run_id(experiment: Experiment, host: HostState) -> None:
    """The identity of the run in external trackers, kept from its first start on."""
    configured = experiment.config.experiment.wandb.run_id
    host.run_id = experiment.directory.keep_run_id(configured or new_run_id(), saved=host.run_id)
    if configured not in ("", host.run_id):
        log.warning(
            "experiment.wandb.run_id = %s is not used: this run directory is of run %s; choose another --workdir",
            configured,
            host.run_id,
        )


def _tracker_facts(experiment: Experiment) -> dict[str, object]:
    """What describes the run in W&B besides its configuration."""
    dataset = experiment.inputs.dataset
    return {
        "dataset_metadata": {
            "num_classes": dataset.num_classes,
            "task_label_density": dataset.task_label_density,
            "task_nulls_density": dataset.task_nulls_density,
            "meta_label_density": dataset.meta_label_density,
            "additional_stats": dataset.additional_statistics(),
            "rarity_thresholds": {task: rows.tolist() for task, rows in dataset.rarity_thresholds.items()},
            "subset_info": dataset.subset_maps(),
        },
        "model_info": {
            "parameters": sum(int(np.prod(row.shape)) for row in experiment.program.parameters),
            "architecture": architecture(experiment.config),
        },
        "system_info": versions.versions(),
    }
