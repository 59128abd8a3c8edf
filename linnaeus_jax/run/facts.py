"""How batches reach the step, as the debug flag `dataloader` shows it at the start of a run."""

from __future__ import annotations

from typing import Any

from linnaeus_jax.run.inputs import Inputs


def pipeline_facts(inputs: Inputs) -> dict[str, Any]:
    """Name -> value."""
    reading = inputs.reading
    return {
        "train rows": len(inputs.dataset.train),
        "validation rows": len(inputs.dataset.val),
        "images": type(inputs.images["train"]).__name__,
        "sampler": inputs.sampler,
        "reading threads": 0 if reading.worker_processes else reading.num_threads,
        "worker processes": reading.worker_processes,
        "decoding threads": reading.io_threads,
        "updates in flight": reading.buffer,
    }
