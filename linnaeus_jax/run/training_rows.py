"""How well a run knows, at its end, the rows that it was trained on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from linnaeus_jax.data.splits import Split
from linnaeus_jax.files import write_json
from linnaeus_jax.metrics.phases import MAIN
from linnaeus_jax.reporting.verdicts import TRAINING_ROWS_FILE
from linnaeus_jax.run.experiment import Experiment
from linnaeus_jax.schedules.progress import TrainingProgress
from linnaeus_jax.step.evaluation import Evaluation

log = logging.getLogger("linnaeus_jax")

#: at most so many rows are evaluated, and at least, below which a share says little
MOST, FEWEST = 2000, 100


def measure_training_rows(
    experiment: Experiment,
    evaluate: Callable[[Split], Evaluation],
    validated: Mapping[str, float],
    progress: TrainingProgress,
) -> None:
    """Evaluates a sample of the training rows as the validation rows are, and writes `TRAINING_ROWS_FILE`.

    It costs at most as much as the validation, and as a twentieth of the forward passes of training. Nothing is
    measured where that would be few rows.

    Args:
      evaluate: by the model of now.
      validated: metrics of all validation rows after the same update.
    """
    dataset, started = experiment.inputs.dataset, time.perf_counter()
    count = min(MOST, len(dataset.val), len(dataset.train), progress.samples_seen // 20)
    if count < FEWEST:
        return
    trained = evaluate(dataset.train.sample(count, experiment.config.train.seed)).metrics[MAIN.name]
    percent = {
        name: {task: values.get(f"non_null/acc1_{task}", values[f"acc1_{task}"]) for task in dataset.tasks}
        for name, values in (("train", trained), ("val", validated))
    }
    log.info("%d training rows were evaluated as validation is, in %.1f s", count, time.perf_counter() - started)
    if experiment.is_coordinator:
        path = experiment.directory.root / TRAINING_ROWS_FILE
        with experiment.directory.writing(path):
            write_json(
                path, {"step": progress.global_step, "rows": count, "of": len(dataset.train), "percent": percent}
            )
