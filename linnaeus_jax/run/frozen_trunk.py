"""`train.tune = auto:N`, or `head` with `train.fit_heads`: the untouched trunk, with heads that are fitted to its
features, is one more candidate for the best checkpoint, before anything trains.

They are measured as fitted to the training rows. The checkpoint of step 0 then holds those that are fitted to the rows
of validation too, where classes are small (`train.fit_rows`), and logits of every row by heads that were fitted to
other folds lie beside it. Training begins as without: `first_heads.py` and docs/decisions/training.md say where.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.dataset import Dataset
from linnaeus_jax.data.labels import occurrence_numbers
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
from linnaeus_jax.run.first_heads import MOST_FEATURES, fittable, with_fitted_heads, with_heads
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.run.resume import Restored, save
from linnaeus_jax.step.placement import fetch
from linnaeus_jax.step.state import TrainState
from linnaeus_jax.taxonomy.ranks import task_name

log = logging.getLogger("linnaeus_jax")

#: training rows of a class below which the rows of validation are too dear to be left out; most numbers of features
FEW_ROWS, MOST_VALUES = 20, 1 << 28


class _Rows(NamedTuple):
    """Rows that heads are fitted to.

    Attributes:
      x: features of their views, [M, D].
      place: of which of the rows each view is, [M], the unaugmented ones first.
      label: int64 [N, T], -1 where there is none.
      row: of the labels file, [N].
      trains: which are for training, bool [N]; the others are for validation.
    """

    x: NDArray[np.float32]
    place: NDArray[np.int64]
    label: NDArray[np.int64]
    row: NDArray[np.int64]
    trains: NDArray[np.bool_]


def chooses(experiment: Experiment) -> bool:
    """Whether the run measures its frozen trunk."""
    train = experiment.config.train
    return train.tune.startswith("auto:") or (train.tune == "head" and train.fit_heads)


def after_frozen_trunk(
    experiment: Experiment, host: HostState, checkpoints: Checkpoints, epoch_end: EpochEnd, restored: Restored
) -> Restored:
    """Where training begins, after the frozen trunk was measured where it is to be."""
    if not chooses(experiment) or restored.step:
        return restored
    if restored.step is None:
        measure_frozen_trunk(experiment, host, checkpoints, epoch_end, restored.state)
        return restored
    begun = with_fitted_heads(experiment, drawn_heads(experiment, restored.state))
    return restored._replace(state=begun)


def measure_frozen_trunk(
    experiment: Experiment, host: HostState, checkpoints: Checkpoints, epoch_end: EpochEnd, state: TrainState
) -> None:
    """Measures, ranks and saves step 0; says why where that is not possible."""
    started, dataset = time.perf_counter(), experiment.inputs.dataset
    if why := _obstacle(experiment, state):
        level = logging.INFO if experiment.config.train.tune == "head" else logging.WARNING
        log.log(level, "the frozen trunk with fitted heads is no candidate: %s", why)
        return
    rows, heads = _features(experiment, state), fittable(experiment)
    sides = ((dataset.train, rows.trains), (dataset.val, ~rows.trains))
    occurrence = occurrence_numbers([(split.table, rows.row[of]) for split, of in sides])
    sets = [np.ones_like(rows.trains), *[rows.trains] * (not rows.trains.all())]
    fits = fit_ranks(rows.x, rows.label, heads, rows.place, sets, group_N=occurrence)
    frozen, fitted = with_heads(experiment, state, {task: fit.fits[-1] for task, fit in fits.items()})
    if set(fitted) != set(heads):
        log.warning(
            "the frozen trunk with fitted heads is no candidate: the heads of %s cannot be fitted to these features",
            ", ".join(task_name(task) for task in heads if task not in fitted),
        )
        return
    values = epoch_end.evaluate(frozen, (MAIN,))[MAIN.name]
    host.tracker.update(MAIN.name, values, 0, 0, samples=len(dataset.val))
    if not rows.trains.all():
        frozen, _ = with_heads(experiment, state, {task: fit.fits[0] for task, fit in fits.items()})
        _write_out_of_fold(experiment.directory, rows, fits)
    epoch_end.rank(0, 0)
    if not rows.trains.all():
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
        what = f"what was trained, after {best:,} updates" if best else "the frozen trunk with fitted heads"
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


def _features(experiment: Experiment, state: TrainState) -> _Rows:
    """Of the training rows, and of those for validation where these are fitted to, too."""
    dataset, stored, vectors = experiment.inputs.dataset, experiment.inputs.stored, feature_vectors(experiment, state)
    assert vectors is not None
    found, before = [], 0
    of_all = fits_all(experiment.config.train.fit_rows, dataset)
    for split in (dataset.train, dataset.val) if of_all else (dataset.train,):
        x, read = vectors(split, split.rows)
        rows, parts = split.rows[read], [x[read]]
        for view in range(1, _views(getattr(stored[split.name], "views", 1), x[read], fittable(experiment))):
            parts.append(vectors(split, rows, view)[0])
        label = split.labels[read].astype(np.int64)
        label = np.where(label == 0, -1, label) if dataset.null_possible else label
        place = before + np.tile(np.arange(len(rows)), len(parts))
        found.append(_Rows(np.concatenate(parts), place, label, rows, np.full(len(rows), split is dataset.train)))
        before += len(rows)
    return _Rows(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _views(stored: int, x_ND: NDArray[np.float32], heads: Mapping[str, int]) -> int:
    """Stored views of every row that are fitted to: as many as time and memory allow."""
    allowed = (
        views
        for views in range(stored, 1, -1)
        if views * x_ND.size <= MOST_VALUES
        and regression_products(views * len(x_ND), x_ND.shape[1], heads) <= MOST_PRODUCTS
    )
    return next(allowed, 1)


def _write_out_of_fold(directory: RunDirectory, rows: _Rows, fits: Mapping[str, RankFit]) -> None:
    logits: dict[str, Any] = {f"logits/{task}": fit.logits for task, fit in fits.items()}
    with (
        directory.writing(directory.out_of_fold),
        replaced_file(directory.out_of_fold) as path,
        path.open("wb") as file,
    ):
        np.savez(file, row=rows.row, validates=~rows.trains, by_occurrence=True, **logits)


def _read_out_of_fold(directory: RunDirectory) -> dict[str, NDArray[Any]]:
    directory.check(directory.out_of_fold)
    if not directory.out_of_fold.is_file():
        return {}
    with np.load(directory.out_of_fold, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def folds_by_occurrence(directory: RunDirectory) -> bool:
    """Whether the folds of `out_of_fold` hold whole occurrences, as they did not in earlier versions."""
    return "by_occurrence" in _read_out_of_fold(directory)


def out_of_fold_logits(
    directory: RunDirectory, rows: Sequence[NDArray[np.int64]]
) -> dict[str, NDArray[np.float32]] | None:
    """Rank -> logits [n, C] as of `out_of_fold`, of all these rows for training and then of those for validation; None
    where one of them has none.

    Raises:
      DamagedFileError: the file is not what was written.
    """
    if not (stored := _read_out_of_fold(directory)):
        return None
    place = {key: at for at, key in enumerate(zip(stored["validates"].tolist(), stored["row"].tolist(), strict=True))}
    found = [place.get((bool(validates), row), -1) for validates, of in enumerate(rows) for row in of.tolist()]
    if -1 in found:
        return None
    return {name.partition("/")[2]: logits[found] for name, logits in stored.items() if name.startswith("logits/")}


def out_of_fold(directory: RunDirectory, dataset: Dataset) -> tuple[Split, dict[str, NDArray[np.float32]]] | None:
    """Rows, and rank -> logits [n, C] of them by heads of step 0 that were fitted to other rows: of training and
    validation, of validation alone where they have a labels file each. None where none of these were fitted to.

    Raises:
      DamagedFileError: the file is not what was written.
    """
    split, stored = dataset.val, _read_out_of_fold(directory)
    if not stored:
        return None
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
