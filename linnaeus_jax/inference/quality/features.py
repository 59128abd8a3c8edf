"""Feature vectors of the rows of a run: what heads are given, and where blocks of the trunk were trained, what enters
the first of these.

Training throws away what its own taxa do not differ in, so that a trained trunk may take a cup for a leaf. What its
untouched part says of a picture still tells them apart, see `FeatureStatistics.outside`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.splits import Split
from linnaeus_jax.inference.forward import BLOCK, layers_of
from linnaeus_jax.learning.growing import places_within
from linnaeus_jax.metrics.phases import MAIN, Phase
from linnaeus_jax.models.entering import can_enter
from linnaeus_jax.models.factory import split_block
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.run.evaluate import Loaded, evaluate
from linnaeus_jax.run.stored import stored_source
from linnaeus_jax.step.evaluation import ENTERING, VECTORS

#: training rows whose features are computed: of each class, and of all
OF_CLASS, TRAINED = 100, 5_000
#: place in a trunk that was trained, and the least one, as shares of its blocks: of EfficientNet-lite0, trained on
#: plants, groceries lay outside by what enters block 6, 9, 11, 12 or 13 of 16 in 88, 96, 97, 99 and 99 of 100 pictures
USUAL, LEAST = 0.75, 0.5

Progress = Callable[[int, int], None]


def outside_block(model: ModelFamily, tune: str) -> int | None:
    """The block before which it is told whether a picture is like no training row: the first one that was trained, or
    one within the second half where more were; 0: the map that `encode_image` gives. None: at the end of a trunk that
    was not trained, or of several joined.

    Args:
      tune: `train.tune` of the run.
    """
    if not model.trunk_blocks:
        return 0 if model.gives_map else None
    first, usual = split_block(model, tune) or 0, int(USUAL * model.trunk_blocks)
    block = first if first >= LEAST * model.trunk_blocks else usual
    return block if can_enter(model, block) else None


class Outputs(NamedTuple):
    """Of the n rows of N whose pictures could be read.

    Attributes:
      logits: phase -> task -> float32 [n, C].
      features: layer -> float32 [n, D] of the first phase, that of the heads first.
      read: bool [N].
    """

    logits: dict[str, dict[str, NDArray[np.float32]]]
    features: dict[str, NDArray[np.float32]]
    read: NDArray[np.bool_]


def outputs(
    loaded: Loaded,
    split: Split,
    phases: Sequence[Phase],
    progress: Progress | None,
    *,
    features: bool = True,
    stored: bool = False,
) -> Outputs:
    """What the model of a run says of rows.

    Args:
      features: whether these are wanted.
      stored: from what the run has stored of them where it has, which is a part of the work.
    """
    experiment = loaded.experiment
    model, tune = experiment.program.model, experiment.config.train.tune
    block = outside_block(model, tune) if features else None
    stored = stored and block in (None, split_block(model, tune))
    source = stored_source(experiment, split) if stored else None
    found = evaluate(
        loaded, phases, split, logits=True, vectors=features, entering=block, source=source, progress=progress
    )
    names = {VECTORS: layers_of(model)[0], ENTERING: f"{BLOCK}{block}"}
    logits, layers = dict[str, dict[str, NDArray[np.float32]]](), dict[str, NDArray[np.float32]]()
    for phase, of in found.predictions.items():
        logits[phase] = {task: z for task, z in of.logits.items() if task not in names}
        layers = layers or {layer: of.logits[name] for name, layer in names.items() if name in of.logits}
    return Outputs(logits, layers, np.isin(split.rows, found.predictions[phases[0].name].row))


def of_rows(loaded: Loaded, split: Split, progress: Progress | None) -> Outputs:
    """What the model says of rows with all metadata, from what the run has stored of them where it has."""
    return outputs(loaded, split, (MAIN,), progress, stored=True)


def of_trained(
    loaded: Loaded, most: int, seed: int, progress: Progress | None
) -> tuple[Mapping[str, NDArray[np.float32]], NDArray[np.int32]]:
    """Features, see `Outputs`, and labels of at most `OF_CLASS` training rows of each class, and of `TRAINED` if that
    leaves two; at most `most`."""
    split = loaded.dataset.train
    order = np.random.default_rng(seed).permutation(len(split))
    number = places_within(split.labels[order])
    least = max(int((number < 2).sum()), TRAINED)
    chosen = order[np.argsort(number, kind="stable")[: int(min(least, (number < OF_CLASS).sum(), most))]]
    split = split.take(np.sort(chosen))
    found = of_rows(loaded, split, progress)
    return found.features, split.labels[found.read]
