"""Evaluating a checkpoint of a run without training it further, over its validation rows or over other data."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.saved import config_from_json, keep
from linnaeus_jax.data.dataset import Dataset
from linnaeus_jax.data.image_sources import open_split, other_resizing
from linnaeus_jax.data.images import ImageSource, input_dtype
from linnaeus_jax.data.loader import EvalLoader
from linnaeus_jax.data.other_labels import held_out_split, read_other_labels
from linnaeus_jax.data.preprocessing import KEYS as PREPROCESSING_KEYS
from linnaeus_jax.data.splits import Split
from linnaeus_jax.files import read_json
from linnaeus_jax.metrics import phases, table
from linnaeus_jax.metrics.phases import Phase
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.chosen_checkpoint import read_meta, restore_state
from linnaeus_jax.run.experiment import Experiment, evaluation_experiment
from linnaeus_jax.run.identity import training_rows
from linnaeus_jax.run.saved_weights import choose_checkpoint, run_directory
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.step.evaluation import Evaluation, Evaluator
from linnaeus_jax.step.state import TrainState

log = logging.getLogger("linnaeus_jax")


class EvaluateError(UserError):
    """A run, checkpoint, phase or data file that cannot be evaluated; the message says which and what to do."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A checkpoint read back for evaluation."""

    experiment: Experiment
    step: int
    state: TrainState
    training_rows: Mapping[str, Any]  # of the run, as `identity.training_rows` has them

    @property
    def dataset(self) -> Dataset:
        return self.experiment.inputs.dataset


def load(run: Path, checkpoint: str = "best") -> Loaded:
    """Reads config, data tables and state of a run.

    Args:
      run: the run directory.
      checkpoint: "best" by the run's own ranking, "newest", or a step.

    Raises:
      EvaluateError: no run, no such checkpoint, or data whose classes are no longer those of the run.
      UserError: data, plugins or arrays that cannot be read.
    """
    directory = run_directory(run)
    config = config_from_json(directory.read_json(directory.config_json))
    with contextlib.closing(Checkpoints(directory.checkpoints, read_only=True)) as checkpoints:
        step = choose_checkpoint(checkpoints, checkpoint)
        meta = read_meta(checkpoints, step)
        keep(config, config_from_json(meta["config"]), PREPROCESSING_KEYS, f"checkpoint {step}")
        schedule = ResolvedSchedule.from_dict(meta["schedule"])
        experiment = evaluation_experiment(config, directory, schedule)
        class_file = directory.assets / "class_to_idx.json"
        directory.check(class_file)
        if class_file.is_file() and read_json(class_file) != experiment.inputs.dataset.class_to_idx():
            raise EvaluateError(
                f"the labels files of {run} give other classes than {class_file}; restore the files that the run was "
                "trained on"
            )
        abstract = experiment.abstract_state.arrays
        state = restore_state(checkpoints, step, abstract, as_stored=("opt_state",))
        host = checkpoints.finished_boundary(step) or meta["host"]
    offered = table.keys("val", experiment.inputs.dataset.tasks)
    measured = [name.removeprefix("val/") for name in host["tracker"]["metrics"] if name.startswith("val/")]
    if lost := [name for name in measured if name not in offered and not name.startswith("subset/")]:
        log.warning("no plugin of env.plugins registers %s, which the run measured: left out", ", ".join(lost))
    return Loaded(experiment, step, state, meta["identity"]["training_rows"])


def parse_phases(names: str, components: Sequence[str]) -> tuple[Phase, ...]:
    """Phases of a model with these components, from comma-separated names or `all`.

    Raises:
      EvaluateError: a name that is no phase of these components.
    """
    if names == "all":
        return phases.every(components)
    found: dict[str, Phase] = {}
    for name in filter(None, (part.strip() for part in names.split(","))):
        phase = phases.named(name, components)
        if phase is None:
            raise EvaluateError(
                f"--phases: {name!r} is no phase; choose among {', '.join(_offered())}, all and val_mask_<COMPONENTS> "
                f"with components {', '.join(components) or '(none)'} joined by _"
            )
        found[name] = phase
    if not found:
        raise EvaluateError("--phases names no phase; leave it out for val and val_mask_meta")
    return tuple(found.values())


def _offered() -> list[str]:
    return [phases.MAIN.name, phases.WITHOUT_METADATA.name, *phases.REGISTERED]


def evaluate(
    loaded: Loaded,
    phases: Sequence[Phase],
    split: Split | None = None,
    *,
    batch_size: int = 0,
    predictions: bool = False,
    logits: bool = False,
    vectors: bool = False,
    entering: int | None = None,
    source: ImageSource | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """One pass over a split, by default the run's validation rows.

    Args:
      batch_size: 0: as the run validated; rounded up to a multiple of the devices here.
      predictions, logits, vectors: what to keep of single rows.
      entering: block, of which the vectors `ENTERING` are; there are none where `source` gives what enters another.
      source: of what the model is given; None: the pictures of the split.
      progress: is called with (batches read, batches).

    Raises:
      EvaluateError: no rows, or images that cannot be read.
    """
    inputs, state = loaded.experiment.inputs, loaded.state
    split = inputs.dataset.val if split is None else split
    if not len(split):
        raise EvaluateError("the run has no validation rows; give --labels and --images")
    try:
        source = source or open_split(inputs.config, split)
        if said := other_resizing(split.table.path, source, loaded.experiment.program.evaluation.preprocessing):
            log.warning("%s", said)
        loader = inputs.eval_loader(split, source, batch_size)
    except (OSError, InputError) as error:
        raise EvaluateError(f"the images cannot be read: {error}") from error
    program = dataclasses.replace(loaded.experiment.program.evaluation, entering=entering)
    if input_dtype(source) == np.uint8:  # pictures, not what a trunk gives
        program = dataclasses.replace(program, block=None)
    with contextlib.closing(loader):
        return Evaluator(program, loaded.experiment.placement).run(
            state.eval_params,
            state.model_state,
            state.gradnorm.weights,
            loader if progress is None else _watched(loader, progress),
            phases,
            predictions=predictions,
            logits=logits,
            vectors=vectors,
        )


def _watched(loader: EvalLoader, progress: Callable[[int, int], None]) -> Iterator[Mapping[str, object]]:
    for done, batch in enumerate(loader):
        progress(done, len(loader))
        yield batch


def other_split(loaded: Loaded, labels: str, images: str) -> Split:
    """Another labels file as a validation split under the classes of the run.

    Raises:
      EvaluateError: a file that cannot be read, or no row left.
    """
    try:
        return read_other_labels(loaded.experiment.config, loaded.dataset, labels, images)
    except (OSError, InputError) as error:
        raise EvaluateError(str(error)) from error


def test_split(loaded: Loaded) -> Split:
    """The test rows of the run's own labels file, set aside by its dataset `split`.

    Raises:
      EvaluateError: there are none, or the file was changed since, so that the run may have trained on them.
    """
    if training_rows(loaded.dataset.train) != loaded.training_rows:
        raise EvaluateError(
            f"{loaded.dataset.sources.train_labels} gives other training rows than those of the run, which may have "
            "trained on what are test rows now; restore the file, or give other data with --labels and --images"
        )
    try:
        return held_out_split(loaded.experiment.config, loaded.dataset)
    except InputError as error:
        raise EvaluateError(str(error)) from error


def save_predictions(path: Path, evaluation: Evaluation, dataset: Dataset) -> None:
    """Writes `row` [n], `label` [n, T], `tasks` [T], `taxon/<task>` [C] (taxon ids of the classes, 0 for null),
    `name/<task>` [C] (their scientific names, "" where none is known) and, for every phase, `<phase>/predicted`
    [n, T], `<phase>/probability` [n, T] and, where kept, `<phase>/logits/<task>` [n, C]."""
    one = next(iter(evaluation.predictions.values()))
    arrays: dict[str, Any] = {"row": one.row, "label": one.label, "tasks": np.asarray(dataset.tasks)}
    arrays |= {f"taxon/{task}": ids for task, ids in dataset.classes.items()}
    arrays |= {f"name/{task}": np.array(names.tolist(), np.str_) for task, names in dataset.names.name.items()}
    for phase, each in evaluation.predictions.items():
        arrays |= {f"{phase}/predicted": each.predicted, f"{phase}/probability": each.probability}
        arrays |= {f"{phase}/logits/{task}": z for task, z in each.logits.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:  # a path without the suffix .npz stays as it is
        np.savez_compressed(file, **arrays)
