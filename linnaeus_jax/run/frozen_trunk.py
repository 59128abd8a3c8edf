"""`train.tune = auto:N`: the untouched trunk, with heads that are fitted to its features, is one more candidate for the
best checkpoint, before the last blocks train.

They are measured as fitted to the training rows. The checkpoint of step 0 then holds those that are fitted to the rows
of validation too, where classes are small (`train.fit_rows`), and logits of every row by heads that were fitted to
other folds lie beside it. The blocks train from heads as they are drawn, as with `last:N` (docs/decisions/training.md).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.dataset import Dataset
from linnaeus_jax.data.splits import Split
from linnaeus_jax.files import RunDirectory, replaced_file
from linnaeus_jax.learning.regression import MOST_PRODUCTS, RankFit, fit_ranks, regression_products
from linnaeus_jax.metrics import table
from linnaeus_jax.metrics.names import split_result
from linnaeus_jax.metrics.phases import MAIN
from linnaeus_jax.run.baselines import feature_vectors
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.epoch_end import EpochEnd
from linnaeus_jax.run.experiment import Experiment
from linnaeus_jax.run.first_heads import MOST_FEATURES, fittable, with_heads
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.run.resume import Restored, save
from linnaeus_jax.step.placement import fetch
from linnaeus_jax.step.state import TrainState
from linnaeus_jax.taxonomy.ranks import task_name

log = logging.getLogger("linnaeus_jax")

#: training rows of a class below which the rows of validation are too dear to be left out; most numbers of features
FEW_ROWS, MOST_VALUES = 20, 1 << 28


class _Rows(NamedTuple):
    """Labels int64 [N, T] (-1: none) and rows [N] of a split, features [M, D] of their views, and of which of the rows
    each view is, the unaugmented ones first."""

    x: NDArray[np.float32]
    label: NDArray[np.int64]
    row: NDArray[np.int64]
    place: NDArray[np.int64]

    def joined(self, other: _Rows) -> _Rows:
        pairs = zip(self, other._replace(place=other.place + len(self.row)), strict=True)
        return _Rows(*(np.concatenate(pair) for pair in pairs))


def chooses(experiment: Experiment) -> bool:
    """Whether the run measures its frozen trunk."""
    return experiment.config.train.tune.startswith("auto:")


def after_frozen_trunk(
    experiment: Experiment, host: HostState, checkpoints: Checkpoints, epoch_end: EpochEnd, restored: Restored
) -> Restored:
    """Where training begins, after the frozen trunk was measured where it is to be."""
    if not chooses(experiment) or restored.step:
        return restored
    if restored.step is None:
        measure_frozen_trunk(experiment, host, checkpoints, epoch_end, restored.state)
        return restored
    return restored._replace(state=drawn_heads(experiment, restored.state))


def measure_frozen_trunk(
    experiment: Experiment, host: HostState, checkpoints: Checkpoints, epoch_end: EpochEnd, state: TrainState
) -> None:
    """Measures, ranks and saves step 0; says why where that is not possible."""
    started, dataset = time.perf_counter(), experiment.inputs.dataset
    if why := _obstacle(experiment, state):
        log.warning("train.tune = %s trains as last:N does: %s", experiment.config.train.tune, why)
        return
    train, val = _features(experiment, state)
    heads = fittable(experiment)
    fits = fit_ranks(train.x, train.label, heads, train.place)
    frozen, fitted = with_heads(experiment, state, {task: fit.affine for task, fit in fits.items()})
    if set(fitted) != set(heads):
        log.warning(
            "train.tune = %s trains as last:N does: the heads of %s cannot be fitted to these features",
            experiment.config.train.tune,
            ", ".join(task_name(task) for task in heads if task not in fitted),
        )
        return
    values = epoch_end.evaluate(frozen, (MAIN,))[MAIN.name]
    host.tracker.update(MAIN.name, values, 0, 0, samples=len(dataset.val))
    of_all = fits_all(experiment.config.train.fit_rows, dataset)
    if of_all:
        both = train.joined(val)
        fits = fit_ranks(both.x, both.label, heads, both.place)
        frozen, _ = with_heads(experiment, state, {task: fit.affine for task, fit in fits.items()})
        _write_out_of_fold(experiment.directory, both, len(train.row), fits)
    epoch_end.rank(0, 0)
    if of_all:
        _add_standard_error(host, len(dataset.val))
    save(experiment, checkpoints, host, frozen, at_end=False)
    epoch_end.write_start()
    row = host.tracker.get_wandb_metrics(0)
    log.info(
        "frozen trunk with fitted heads (%.1f s): %s",
        time.perf_counter() - started,
        "; ".join(
            f"{task_name(task)} {_labelled(row, task):.1f} % in validation ({fits[task].kind}, "
            f"{100 * fits[task].accuracy:.1f} % out of folds)"
            for task in heads
        ),
    )


def _add_standard_error(host: HostState, rows: int) -> None:
    """Ranks step 0 a standard error higher, where an accuracy ranks: blocks that are better by less than that on so few
    rows are not known to be, and do not gain what validation cannot show, heads that are fitted to its rows."""
    ranked, info = host.ranking.get(0), table.entry(split_result(host.ranking_metric)[1])
    whole = {"fraction": 1.0, "%": 100.0}.get(info.unit if info is not None else "")
    if ranked is not None and ranked["metric"] is not None and whole is not None:
        share = ranked["metric"] / whole
        ranked["metric"] += whole * math.sqrt(share * (1 - share) / rows)


def _labelled(row: Mapping[str, Any], task: str) -> float:
    """Accuracy of a rank in percent, over the rows that are labelled there."""
    return float(row.get(f"val/non_null/acc1_{task}", row.get(f"val/acc1_{task}", float("nan"))))


def drawn_heads(experiment: Experiment, state: TrainState) -> TrainState:
    """The state of the first update, from that of the checkpoint of step 0: heads as they are drawn."""
    params = jax.tree.map(np.asarray, fetch(experiment.placement.whole(state.params)))
    params["head"] = jax.tree.map(np.asarray, experiment.program.initial_variables()[0])["head"]
    placed = experiment.placement.of_state(experiment.abstract_state)
    statistics = jax.tree.map(np.asarray, fetch(state.model_state))
    begun: TrainState = jax.jit(experiment.program.state_from, out_shardings=placed)(params, statistics)
    return begun


def say_what_is_kept(experiment: Experiment, host: HostState) -> None:
    """At the end of a run, which of the candidates its best checkpoint is."""
    measured = {step: one["metric"] for step, one in host.ranking.items() if one["metric"] is not None}
    if chooses(experiment) and measured:
        best = max(measured, key=lambda step: (measured[step], -step))
        what = f"the blocks that were tuned, after {best:,} updates" if best else "the frozen trunk with fitted heads"
        log.info("train.tune = %s: best by %s: %s", experiment.config.train.tune, host.ranking_metric, what)


def fits_all(fit_rows: str, dataset: Dataset) -> bool:
    """Whether the heads of step 0 are fitted to the rows of validation too, see `train.fit_rows`."""
    first = 1 if dataset.null_possible else 0
    counts = dataset.class_counts["train"][dataset.tasks[0]][first:]
    return fit_rows == "all" or (fit_rows == "auto" and bool((counts < FEW_ROWS).any()))


def _obstacle(experiment: Experiment, state: TrainState) -> str:
    """Why heads cannot be fitted; "" where they can."""
    dataset, heads = experiment.inputs.dataset, fittable(experiment)
    if not len(dataset.val) or experiment.config.train.skip_validation:
        return "nothing is validated"
    if experiment.placement.process_count > 1:
        return "heads are fitted by one process alone"
    if len(heads) < len(dataset.tasks):
        return "a head is not linear, or comes with the weights"
    width = state.params["head"][dataset.tasks[0]]["fc"]["kernel"].shape[0]
    if width > MOST_FEATURES or (len(dataset.train) + len(dataset.val)) * width > MOST_VALUES:
        return "there are too many rows to hold their features in memory"
    return ""


def _features(experiment: Experiment, state: TrainState) -> tuple[_Rows, _Rows]:
    dataset, stored, vectors = experiment.inputs.dataset, experiment.inputs.stored, feature_vectors(experiment, state)
    assert vectors is not None
    found = []
    for split in (dataset.train, dataset.val):
        x, read = vectors(split, split.rows)
        rows, parts = split.rows[read], [x[read]]
        for view in range(1, _views(getattr(stored[split.name], "views", 1), x[read], fittable(experiment))):
            parts.append(vectors(split, rows, view)[0])
        label = split.labels[read].astype(np.int64)
        label = np.where(label == 0, -1, label) if dataset.null_possible else label
        place = np.tile(np.arange(len(rows)), len(parts))
        found.append(_Rows(np.concatenate(parts), label, rows.astype(np.int64), place))
    return found[0], found[1]


def _views(stored: int, x_ND: NDArray[np.float32], heads: Mapping[str, int]) -> int:
    """Stored views of every row that are fitted to: as many as time and memory allow."""
    allowed = (
        views
        for views in range(stored, 1, -1)
        if views * x_ND.size <= MOST_VALUES
        and regression_products(views * len(x_ND), x_ND.shape[1], heads) <= MOST_PRODUCTS
    )
    return next(allowed, 1)


def _write_out_of_fold(directory: RunDirectory, both: _Rows, training: int, fits: dict[str, RankFit]) -> None:
    logits = {f"logits/{task}": fit.logits for task, fit in fits.items()}
    validates = np.arange(len(both.row)) >= training
    with (
        directory.writing(directory.out_of_fold),
        replaced_file(directory.out_of_fold) as path,
        path.open("wb") as file,
    ):
        np.savez(file, row=both.row, validates=validates, **logits)


def out_of_fold(directory: RunDirectory, dataset: Dataset) -> tuple[Split, dict[str, NDArray[np.float32]]] | None:
    """Rows, and rank -> logits [n, C] of them by heads of step 0 that were fitted to other rows: of training and
    validation, of validation alone where they have a labels file each. None where none of these were fitted to.

    Raises:
      DamagedFileError: the file is not what was written.
    """
    path, split = directory.out_of_fold, dataset.val
    directory.check(path)
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as arrays:
        stored = {name: arrays[name] for name in arrays.files}
    validates = stored["validates"]
    if dataset.train.table is dataset.val.table:
        split, validates = dataset.val.with_rows_of(dataset.train), np.ones_like(validates)
    places = np.flatnonzero(validates)
    place = dict(zip(stored["row"][places].tolist(), places.tolist(), strict=True))
    found = [place.get(row, -1) for row in split.rows.tolist()]  # none of those that could not be read
    split, known = split.take(np.flatnonzero(np.array(found) >= 0)), np.array([at for at in found if at >= 0], np.int64)
    return split, {
        name.partition("/")[2]: logits[known] for name, logits in stored.items() if name.startswith("logits/")
    }
