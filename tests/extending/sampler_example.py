"""Class-balanced sampling: rows of rare classes come more often than their share of the data.

A class of n rows is drawn in proportion to n ** power: 1 draws rows as they are, 0 all classes equally often. Set
`data.sampler.type = "class_balanced"`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.samplers import Sampler, SamplerSettings, TrainingRows
from linnaeus_jax.registry import SAMPLERS


@SAMPLERS.register("class_balanced")
@dataclass(frozen=True)
class ClassBalanced(Sampler):
    """Draws with replacement; an epoch has as many rows as the data."""

    power: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.power <= 1:
            raise ValueError(f"data.sampler.class_balanced.power = {self.power} must lie between 0 and 1")

    def draw(self, rows: TrainingRows, settings: SamplerSettings, rng: np.random.Generator) -> NDArray[np.integer]:
        return rng.choice(len(rows), self.micro_batches(rows, settings) * settings.batch_size, p=self.share(rows))

    def expected_draws(self, rows: TrainingRows, settings: SamplerSettings) -> NDArray[np.float64]:
        return self.micro_batches(rows, settings) * settings.batch_size * self.share(rows)

    def share(self, rows: TrainingRows) -> NDArray[np.float64]:
        """float64 [n]: probability of each row in one draw; classes are those of the finest rank."""
        label = rows.label[:, 0]
        weight = np.bincount(label)[label] ** (self.power - 1.0)
        return weight / weight.sum()
