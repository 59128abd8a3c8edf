"""Two metrics of every rank: the mean place of the label, which is a quotient of sums, and the median, which is none.

config.env.plugins = ("task_metric_example.py",)
config.metrics.median_place.most = 20
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from linnaeus_jax.metrics import MetricInputs, PhaseMetric, register


@register("mean_place", per_task=True, higher_is_better=False, formula="mean place of the label, 1 is best")
def mean_place(inputs: MetricInputs):
    """Returns two arrays with a number for each rank, finest first."""
    return jnp.where(inputs.counted, inputs.rank + 1, 0).sum(axis=0), inputs.counted.sum(axis=0)


@register("median_place", per_task=True, higher_is_better=False, formula="median place of the label, 1 is best")
@dataclass(frozen=True)
class MedianPlace(PhaseMetric):
    """Counts the labels at every place; those behind `most` count as there."""

    most: int = 100

    def empty(self, tasks):
        return {"places": jnp.zeros((len(tasks), self.most), jnp.int32)}

    def update(self, inputs):
        place = jnp.where(inputs.counted, jnp.minimum(inputs.rank, self.most - 1), -1)
        return {"places": (place[:, :, None] == jnp.arange(self.most)[None, None, :]).sum(axis=0, dtype=jnp.int32)}

    def compute(self, sums, tasks):
        values = {}
        for task, places in zip(tasks, sums["places"]):
            if places.sum():
                values[f"median_place_{task}"] = 1 + np.searchsorted(places.cumsum(), places.sum() / 2)
        return values
