"""What the debug flags and the event log say of a run at its start."""

from __future__ import annotations

from linnaeus_jax.debugging.flag_reports import RunFacts
from linnaeus_jax.run.experiment import Experiment


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
