"""Accuracies of simple models on the data of a run, computed in seconds before its first update; see
`data/baselines.py`.

They are of a sample of the rows, evenly spaced, and of pictures of 64 pixels, so that neither time nor memory grows
with the data set. A start that finds their file leaves it as it is.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.baselines import (
    BASELINES_FILE,
    TITLES,
    commonest_share,
    histograms,
    kernel_accuracies,
    square_roots,
)
from linnaeus_jax.data.dataset import Dataset
from linnaeus_jax.data.image_checks import sampled_rows
from linnaeus_jax.data.image_sources import open_split
from linnaeus_jax.data.images import EncodedImages, ImageSource, input_dtype
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.data.splits import Split
from linnaeus_jax.files import write_json
from linnaeus_jax.run.experiment import Experiment
from linnaeus_jax.run.inputs import evaluation_batch
from linnaeus_jax.run.processes import fail_on_all
from linnaeus_jax.step.placement import fetch
from linnaeus_jax.step.state import TrainState
from linnaeus_jax.taxonomy.ranks import task_name

log = logging.getLogger("linnaeus_jax")

#: rows of training and of validation that are looked at, at most; side of the pictures; rows that are read at once
TRAIN_ROWS, VAL_ROWS, SIDE, CHUNK = 3000, 1000, 64, 64

Vectors = Callable[..., tuple[NDArray[np.float32], NDArray[np.bool_]]]


def write_baselines(experiment: Experiment, state: TrainState, step: int | None) -> None:
    """Writes `BASELINES_FILE` where it is not there, and says what is to be beaten; nothing without validation rows.

    What goes wrong is told and ends nothing. Process 0 computes, the others wait.

    Args:
      state: of the first update; `step` of a run that goes on: how many updates it has made, by which its features
        are no longer those that it began with.
    """
    config, path = experiment.config, experiment.directory.root / BASELINES_FILE
    skipped = config.train.skip_validation or not len(experiment.inputs.dataset.val)
    if skipped or not config.metrics.baselines:
        return
    with fail_on_all():
        if not experiment.is_coordinator or path.exists():
            return
        started = time.perf_counter()
        found = measured(experiment, state if step is None else None)
        try:
            with experiment.directory.writing(path):
                write_json(path, found)
        except OSError as error:
            log.warning("simple baselines are not kept: %s", error)
        ranks = experiment.inputs.dataset.tasks
        lines = [
            f"  {TITLES[kind]}: {', '.join(f'{task_name(t)} {of[t]:.1f} %' for t in ranks if t in of)}"
            for kind, of in found["percent"].items()
        ]
        seconds = time.perf_counter() - started
        log.info("simple baselines in validation, to be beaten (%.1f s):\n%s", seconds, "\n".join(lines))


def measured(experiment: Experiment, state: TrainState | None) -> dict[str, Any]:
    """`percent`: kind of baseline -> rank -> accuracy over labelled validation rows; `rows`: how many of how many rows.

    Args:
      state: whose features are taken where what enters a block of the trunk is stored; None: they are left out.
    """
    dataset = experiment.inputs.dataset
    rows = {
        split.name: sampled_rows(split.rows, most)
        for split, most in ((dataset.train, TRAIN_ROWS), (dataset.val, VAL_ROWS))
    }
    percent = {"commonest": commonest(dataset)}
    ways: dict[str, Callable[[Experiment], Vectors | None]] = {"colours": colour_vectors}
    if state is not None:
        ways["features"] = lambda experiment: feature_vectors(experiment, state)
    for kind, way in ways.items():
        try:
            vectors = way(experiment)
            accuracies = {} if vectors is None else _accuracies(dataset, rows, vectors)
        except Exception as error:  # whatever it is: training meets it again, or does without
            log.warning("simple baselines, %s: left out (%s)", TITLES[kind], error)
            continue
        if accuracies:
            percent[kind] = accuracies
    splits = {split.name: [len(rows[split.name]), len(split)] for split in (dataset.train, dataset.val)}
    return {
        "rows": splits,
        "percent": {kind: {task: round(share, 2) for task, share in of.items()} for kind, of in percent.items()},
    }


def commonest(dataset: Dataset) -> dict[str, float]:
    """Rank -> percent of the labelled validation rows, all of them, that are of the class with most training rows."""
    null = 0 if dataset.null_possible else None
    counts = dataset.class_counts
    shares = {t: commonest_share(counts["train"][t].tolist(), counts["val"][t].tolist(), null) for t in dataset.tasks}
    return {task: share for task, share in shares.items() if share is not None}


def _accuracies(dataset: Dataset, rows: dict[str, NDArray[np.int64]], vectors: Vectors) -> dict[str, float]:
    """Of the kernel classifier on `vectors`, without the rows that cannot be read."""
    found, labels = [], []
    for split in (dataset.train, dataset.val):
        x, read = vectors(split, rows[split.name])
        kept = rows[split.name][read]
        label = split.table.label[kept].astype(np.int64)
        labels.append(np.where(label == 0, -1, label) if dataset.null_possible else label)
        found.append(square_roots(x[read]))
    if min(map(len, found)) == 0:
        return {}
    pairs = {task: (labels[0][:, place], labels[1][:, place]) for place, task in enumerate(dataset.tasks)}
    return kernel_accuracies(found[0], found[1], pairs)


def _chunks(
    source: ImageSource, rows: NDArray[np.int64], threads: int, view: int = 0
) -> Iterator[tuple[NDArray[Any], NDArray[np.bool_]]]:
    """What a source holds of rows, `CHUNK` at a time, and which of them could be read; a few are read ahead."""
    views = getattr(source, "views", 1)

    def read(first: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        some = rows[first : first + CHUNK]
        out = np.empty((len(some), *source.image_shape), input_dtype(source))
        return out, source.read(some * views + view, out)

    starts, ahead = range(0, len(rows), CHUNK), 2 * max(1, threads)
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for first in range(0, len(starts), ahead):
            yield from pool.map(read, starts[first : first + ahead])


def colour_vectors(experiment: Experiment) -> Vectors | None:
    """Histograms of small pictures; None where the data are no pictures."""
    config, inputs = experiment.config, experiment.inputs
    if any(input_dtype(source) != np.uint8 for source in inputs.images.values()):
        return None
    how = dataclasses.replace(Preprocessing.from_config(config), size=(SIDE, SIDE), reduced_decode=True)

    def vectors(split: Split, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        source = inputs.images[split.name]
        if isinstance(source, EncodedImages):  # a small picture is decoded in a fraction of the time
            source = open_split(config, split, how=how)
        step = max(1, min(source.image_shape[:2]) // SIDE)
        read = _chunks(source, rows, inputs.reading.io_threads)
        parts = [(histograms(images[:, ::step, ::step]), ok) for images, ok in read]
        return np.concatenate([x for x, _ in parts]), np.concatenate([ok for _, ok in parts])

    return vectors


def feature_vectors(experiment: Experiment, state: TrainState) -> Vectors | None:
    """A function of a split, its rows and a stored view of them, 0 unaugmented, to features [n, D] and which rows could
    be read: what the trunk gives of what is stored. None where nothing is stored."""
    program, inputs, placement = experiment.program, experiment.inputs, experiment.placement
    if program.stored is None or len(inputs.stored) < 2:
        return None
    encode: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray
    if len(program.stored.shape) > 2:  # what enters a block
        params, statistics, block = placement.whole(state.params), state.model_state, program.objective.block
        size = evaluation_batch(CHUNK, placement.device_count)

        @jax.jit
        def features(params: Any, statistics: Any, x: jax.Array) -> Any:
            return program.model.apply({"params": params, **statistics}, x, block, method="forward_suffix")

        def encoded(x: NDArray[Any]) -> NDArray[Any]:
            padded = np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), x.dtype)])
            placed = placement.to_device({"image": padded}, placement.batch)["image"]
            return np.asarray(fetch(features(params, statistics, placed)))[: len(x)]

        encode = encoded

    def vectors(split: Split, rows: NDArray[np.int64], view: int = 0) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        parts = [(encode(x), read) for x, read in _chunks(inputs.stored[split.name], rows, 1, view)]
        x = np.concatenate([np.asarray(x, np.float32).reshape(len(x), -1) for x, _ in parts])
        return x, np.concatenate([read for _, read in parts])

    return vectors
