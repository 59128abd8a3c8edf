"""Sampling with a cap: of a common class only some rows come in an epoch, other ones every time; an epoch gets shorter.

Set `data.sampler.type = "capped"` and `data.sampler.capped.most`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.samplers import Sampler, SamplerSettings, TrainingRows
from linnaeus_jax.registry import SAMPLERS


@SAMPLERS.register("capped")
@dataclass(frozen=True)
class Capped(Sampler):
    """At most `most` rows of each class of the finest rank in an epoch, in random order."""

    most: int = 500

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"data.sampler.capped.most = {self.most} must be at least 1")

    def micro_batches(self, rows: TrainingRows, settings: SamplerSettings) -> int:
        return int(np.minimum(np.bincount(rows.label[:, 0]), self.most).sum()) // settings.batch_size

    def draw(self, rows: TrainingRows, settings: SamplerSettings, rng: np.random.Generator) -> NDArray[np.integer]:
        label, order = rows.label[:, 0], rng.permutation(len(rows))
        by_class = order[np.argsort(label[order], kind="stable")]
        first = np.cumsum(np.bincount(label)) - np.bincount(label)
        place = np.empty(len(rows), np.int64)  # of each row within its class, in this epoch's order
        place[by_class] = np.arange(len(rows)) - first[label[by_class]]
        return order[place[order] < self.most][: self.micro_batches(rows, settings) * settings.batch_size]
