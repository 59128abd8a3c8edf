"""Probes: looking inside the step. An in-graph function returns a small pytree, a host function consumes it.

A probe is traced only in a run that uses it, and computed only at updates `step % every == 0` (`step` counted before
the update). Adding a measurement means writing one `Probe`; the step and the loop do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


class ProbeInputs(struct.PyTreeNode):
    """What a probe may look at, of one update; all arrays are global."""

    step: jax.Array  # int32 [], before the update
    params: Any  # before the update
    grads: Any  # of the weighted total, before clipping; like the parameters, None where frozen
    loss: jax.Array  # float32 []
    task_losses: jax.Array  # float32 [T]
    task_weights: jax.Array  # float32 [T]
    counts: jax.Array  # float32 [T], labels that count in the loss
    sums: dict[str, jax.Array]  # `metrics.phase` sums of the update
    batch: Mapping[str, jax.Array]  # leading [A, B]
    null: jax.Array  # bool [A, B, T], the (mixed) label is null
    loss_mask: jax.Array  # bool [A, B, T], the label counts in the loss
    partner_label: jax.Array  # int32 [A, B, T], label of the mixing partner
    lam: jax.Array  # float32 [A, B], weight of the row's own label
    probabilities: dict[str, jax.Array]  # scheduled, by name
    preview: jax.Array  # int32 [R, T], predicted classes of the first rows of the first micro-batch
    sample_losses: jax.Array  # float32 [B, T] of the first micro-batch, neither masked nor weighted
    #: what is added to the parameters, zero where the update is skipped, None where frozen; computed again on demand
    updates: Callable[[], Any] = struct.field(pytree_node=False)


@dataclass(frozen=True, eq=False)
class Probe:
    """One measurement.

    Attributes:
      every: updates between measurements, at least 1.
      measure: in-graph, pure; returns a pytree of small arrays.
      consume: host; gets the 0-based update, the epoch and the fetched pytree, one update late.
    """

    name: str
    every: int
    measure: Callable[[ProbeInputs], Any]
    consume: Callable[[int, int, Any], None]


def measure(probes: Sequence[Probe], inputs: ProbeInputs) -> dict[str, Any]:
    """Results by probe name; zeros at steps where a probe is not due."""
    results = {}
    for probe in probes:
        if probe.every == 1:
            results[probe.name] = probe.measure(inputs)
            continue
        shapes = jax.eval_shape(probe.measure, inputs)
        results[probe.name] = jax.lax.cond(
            inputs.step % probe.every == 0,
            probe.measure,
            lambda _, shapes=shapes: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes),
            inputs,
        )
    return results


def true_after(results: Mapping[str, Any]) -> jax.Array:
    """bool [], always True, computed from every array of `results`: what depends on it is scheduled after them."""
    values = [x.astype(jnp.float32).reshape(-1) for x in jax.tree.leaves(results)]
    if not values:
        return jnp.bool_(True)
    flat = jnp.concatenate(values)
    return ~(flat.max() < flat.min())  # true also with NaN; XLA does not simplify it to a constant


def due(probes: Sequence[Probe], step: int) -> list[Probe]:
    """The probes that measure at `step`; the results of all others are zeros."""
    return [probe for probe in probes if step % probe.every == 0]
