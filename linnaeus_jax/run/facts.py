"""What the debug flags and the event log say of a run at its start."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_collections import ConfigDict

from linnaeus_jax.config.derived import architecture
from linnaeus_jax.debugging.flags import taxonomy_lines
from linnaeus_jax.run.inputs import Inputs
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.schedules.summary import schedule_summary
from linnaeus_jax.step.program import Program


def run_facts(config: ConfigDict, inputs: Inputs, resolved: ResolvedSchedule, program: Program) -> dict[str, Any]:
    """Facts by topic. Functions: `taxonomy`, whose matrices take a moment; `schedule_values` of a 0-based update."""
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
        top = dataset.tasks[-1]
        roots = [f"{top} {dataset.classes[top][index]}" for index in dataset.tree.top_classes()]
        for task, criterion in objective.criteria.items():
            if criterion.smoothing is not None:
                names = [str(taxon) for taxon in dataset.classes[task]]
                distance, matrix = criterion.smoothing.distance_matrix(), criterion.smoothing.dense_matrix()
                found[task] = taxonomy_lines(task, distance, matrix, roots, names)
        return found

    def schedule_values(update: int) -> dict[str, Any]:
        rates, chances = program.settings.learning_rates, objective.probabilities
        return {
            **{f"learning rate of {group}": float(rate(update)) for group, rate in rates.items()},
            "meta_mask_prob": float(chances.meta_mask(update)),
            "partial_mask_prob": float(chances.partial_mask(update)) * bool(chances.partial_active(update)),
            "mixup_prob": float(chances.mix(update)),
            "null_mask_prob": float(chances.null_mask(update)),
            "mixing groups": resolved.mixing.level_of_epoch[min(int(totals.epoch_at(update)), totals.epochs - 1)],
        }

    return {
        "architecture": architecture(config),
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
            "reading threads": 0 if inputs.reading.worker_processes else inputs.reading.num_threads,
            "worker processes": inputs.reading.worker_processes,
            "decoding threads": inputs.reading.io_threads,
            "updates in flight": inputs.reading.buffer,
        },
        "losses": {
            task: {"criterion": criterion.name, "class weights": objective.class_weights is not None}
            for task, criterion in objective.criteria.items()
        },
        "schedule_text": schedule_summary(resolved),
        "schedule": resolved,
        "schedule_values": schedule_values,
        "validation_rows": len(dataset.val),
        "null_shares": {task: percent / 100 for task, percent in dataset.task_nulls_density["train"].items()},
        "taxonomy": taxonomy,
    }
