"""Top-k accuracy at one rank, over the rows with a label there: logged, reported, and fit to stop a run early.

config.env.plugins = ("metric_example.py",)
config.metrics.top_k.k = 3
config.train.early_stop.metric = "val/top_k"
"""

import jax.numpy as jnp

from linnaeus_jax.metrics import MetricInputs, accuracy, register


@register("top_k", unit="%", formula="rows whose label is among the k best classes / rows with a label")
def top_k(inputs: MetricInputs, *, k: int = 5, task: str = "taxa_L10"):
    """Returns the sum over the rows of the batch, and their number; the metric is sum / number over a phase."""
    if k < 1:
        raise ValueError(f"metrics.top_k.k = {k} must be 1 or more")
    label = inputs.label[:, list(inputs.logits).index(task)]
    label = jnp.where(inputs.weight > 0, label, 0)  # neither padding nor a null label counts
    rows = (label != 0).sum()
    [percent] = accuracy(inputs.logits[task], label, topk=(k,), ignore_index=0)
    return percent * rows, rows
