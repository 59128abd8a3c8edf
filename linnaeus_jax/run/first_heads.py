"""Initial values of heads that train alone: linear discriminants of the stored features (`train.fit_heads`).

From random values gradient descent ends with a higher loss than this closed form has. For heads that are trained with
blocks of the trunk it is of no use: it relies on directions of small variance, which change as soon as these train.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from numpy.typing import NDArray

from linnaeus_jax.data.images import input_dtype
from linnaeus_jax.learning.discriminant import Affine, FeatureSums, fitted
from linnaeus_jax.run.experiment import Experiment
from linnaeus_jax.step.placement import fetch
from linnaeus_jax.step.state import TrainState

log = logging.getLogger("linnaeus_jax")

#: heads that begin so; widest features; rows that are read at once, views of each; rows that say the scale
HEAD_TYPE, MOST_FEATURES, CHUNK, VIEWS, SAMPLE_ROWS = "Linear", 8192, 1024, 8, 2048


def with_fitted_heads(experiment: Experiment, state: TrainState) -> TrainState:
    """The state of the first update with heads that are linear discriminants of the features of the training rows.

    Heads of other types, and those that begin as in pretrained weights, stay as they are.
    """
    program = experiment.program
    if not experiment.config.train.fit_heads or experiment.config.train.tune != "head" or program.stored is None:
        return state
    if not (heads := fittable(experiment)):
        return state
    started = time.perf_counter()
    affine = _discriminants(experiment, heads)
    begun, fits = with_heads(experiment, state, affine)
    if fits:
        log.info(
            "train.fit_heads: heads of %s begin at the linear discriminants of the features (%.1f s)",
            ", ".join(fits),
            time.perf_counter() - started,
        )
    return begun


def fittable(experiment: Experiment) -> dict[str, int]:
    """Rank -> classes of the heads that are linear and do not begin as in pretrained weights."""
    loaded = frozenset() if experiment.weights is None else experiment.weights.coverage.whole()
    return {
        spec.task: spec.num_classes
        for spec in experiment.program.model.head_specs
        if spec.type == HEAD_TYPE and f"head.{spec.task}.fc.weight" not in loaded
    }


def with_heads(
    experiment: Experiment, state: TrainState, affine: Mapping[str, Affine]
) -> tuple[TrainState, tuple[str, ...]]:
    """The state of the first update with these maps as heads, and of which ranks they are: those of the same shape."""
    if not affine:
        return state, ()
    params = jax.tree.map(np.asarray, fetch(experiment.placement.whole(state.params)))
    fits = {}
    for task, (kernel, bias) in affine.items():
        fc = params["head"][task]["fc"]
        if fc["kernel"].shape == kernel.shape:
            fits[task] = {"kernel": kernel, "bias": bias} if "bias" in fc else {"kernel": kernel}
    if not fits:
        return state, ()
    fits = multihost_utils.broadcast_one_to_all(fits)
    params["head"] = params["head"] | {task: {**params["head"][task], "fc": fc} for task, fc in fits.items()}
    placed = experiment.placement.of_state(experiment.abstract_state)
    statistics = jax.tree.map(np.asarray, fetch(state.model_state))
    begun: TrainState = jax.jit(experiment.program.state_from, out_shardings=placed)(params, statistics)
    return begun, tuple(fits)


def _discriminants(experiment: Experiment, heads: dict[str, int]) -> dict[str, Affine]:
    dataset = experiment.inputs.dataset
    split, source = dataset.train, experiment.inputs.stored[dataset.train.name]
    width, views = int(np.prod(source.image_shape)), getattr(source, "views", 1)
    if width > MOST_FEATURES:
        log.info("train.fit_heads: heads begin as drawn, since %d features are more than %d", width, MOST_FEATURES)
        return {}
    places = [dataset.tasks.index(task) for task in heads]
    halves = [FeatureSums(heads, width) for _ in range(2)]
    sample: list[tuple[NDArray[np.float32], NDArray[np.integer[Any]]]] = []
    for first in range(0, len(split), CHUNK):
        rows = split.rows[first : first + CHUNK]
        label = split.table.label[rows][:, places].astype(np.int64)
        if dataset.null_possible:
            label = np.where(label == 0, -1, label)
        for view in range(min(views, VIEWS)):
            stored = np.empty((len(rows), *source.image_shape), input_dtype(source))
            read = source.read(rows * views + view, stored)
            x = stored.reshape(len(rows), -1).astype(np.float32)
            for half, sums in enumerate(halves):
                chosen = read & (np.arange(len(rows)) % 2 == half)
                sums.add(x[chosen], label[chosen])
                if half and not view and sum(len(some) for some, _ in sample) < SAMPLE_ROWS:
                    sample.append((x[chosen], label[chosen]))
    return fitted(halves, (np.concatenate([x for x, _ in sample]), np.concatenate([label for _, label in sample])))
