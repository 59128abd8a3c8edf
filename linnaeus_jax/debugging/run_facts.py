"""What the debug flags and the event log say of a run at its start."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_collections import ConfigDict

from linnaeus_jax.debugging.flags import taxonomy_lines
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.schedules.summary import schedule_summary
from linnaeus_jax.training.inputs import Inputs
from linnaeus_jax.training.program import Program


def run_facts(config: ConfigDict, inputs: Inputs, resolved: ResolvedSchedule, program: Program) -> dict[str, Any]:
    """Facts by topic; `taxonomy` is a function, because its matrices take a moment."""
    dataset, totals, objective = inputs.dataset, resolved.totals, program.objective
    remat = config.train.gradient_checkpointing
    training = {
        "epochs": totals.epochs,
        "steps_per_epoch": totals.steps_per_epoch[0],
        "total_steps": totals.total_steps,
        "batch_size": totals.batch_size,
        "accumulation": totals.accumulation_steps,
    }

    def taxonomy() -> dict[str, list[str]]:
        found = {}
        roots = [f"{task} {dataset.classes[task][index]}" for task, index in dataset.tree.top_roots()]
        for task, criterion in objective.criteria.items():
            if criterion.smoothing is not None:
                names = [str(taxon) for taxon in dataset.classes[task]]
                distance, matrix = criterion.smoothing.distance_matrix(), criterion.smoothing.dense_matrix()
                found[task] = taxonomy_lines(task, distance, matrix, roots, names)
        return found

    return {
        "architecture": f"{config.model.type}_{config.model.variant}",
        "total_examples": len(dataset.train),
        "training": training,
        "loop": {
            **training,
            "gradient checkpointing": f"normal steps {remat.enabled_normal_steps}, "
            f"GradNorm steps {remat.enabled_gradnorm_steps}",
            "GradNorm": resolved.gradnorm,
            "compute dtype": np.dtype(program.model.dtype).name,
        },
        "pipeline": {
            "train rows": len(dataset.train),
            "validation rows": len(dataset.val),
            "images": type(inputs.images["train"]).__name__,
            "sampler": inputs.sampler,
            "reading threads": 0 if inputs.worker_processes else inputs.num_threads,
            "worker processes": inputs.worker_processes,
            "decoding threads": inputs.io_threads,
            "updates in flight": inputs.buffer,
        },
        "losses": {
            task: {"criterion": criterion.name, "class weights": objective.class_weights is not None}
            for task, criterion in objective.criteria.items()
        },
        "schedule_text": schedule_summary(resolved),
        "taxonomy": taxonomy,
    }


__all__ = ["run_facts"]
