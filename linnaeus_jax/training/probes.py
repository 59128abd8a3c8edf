"""Probes: looking inside the step. An in-graph function returns a small pytree, a host function consumes it.

A probe is traced only in a run that uses it, and computed only at updates `step % every == 0` (`step` counted before
the update). Adding a measurement means writing one `Probe`; the step and the loop do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import struct

T = TypeVar("T")


class ProbeInputs(struct.PyTreeNode):
    """What a probe may look at, of one update; all arrays are global."""

    step: jax.Array  # int32 [], before the update
    params: Any  # before the update
    grads: Any  # of the weighted total, before clipping
    updates: Any  # what is added to the parameters; zero where the update is skipped
    loss: jax.Array  # float32 []
    task_losses: jax.Array  # float32 [T]
    task_weights: jax.Array  # float32 [T]
    counts: jax.Array  # float32 [T], labels that count in the loss
    sums: dict[str, jax.Array]  # `metrics.phase` sums of the update
    batch: Mapping[str, jax.Array]  # leading [A, B]
    null: jax.Array  # bool [A, B, T], the (mixed) label is null
    keep: jax.Array  # bool [A, B, T], the label counts in the loss
    probabilities: dict[str, jax.Array]  # scheduled, by name
    preview: jax.Array  # int32 [R, T], predicted classes of the first rows of the first micro-batch


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
    """Results by probe name; zeros at updates where a probe is not due."""
    found = {}
    for probe in probes:
        if probe.every == 1:
            found[probe.name] = probe.measure(inputs)
            continue
        shapes = jax.eval_shape(probe.measure, inputs)
        found[probe.name] = jax.lax.cond(
            inputs.step % probe.every == 0,
            probe.measure,
            lambda _, shapes=shapes: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes),
            inputs,
        )
    return found


def where_due(
    probes: Sequence[Probe],
    step: jax.Array,
    watched: Callable[[], tuple[T, dict[str, Any]]],
    alone: Callable[[], T],
) -> tuple[T, dict[str, Any]]:
    """What `watched` returns at updates where a probe is due; what `alone` returns, with zeros, at the others.

    Args:
      watched: traced only where there are probes; returns (result, `measure` of all probes).
      alone: the same result without measurements.
    """
    if not probes:
        return alone(), {}
    shapes = jax.eval_shape(watched)[1]

    def unmeasured() -> tuple[T, dict[str, Any]]:
        return alone(), jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    any_due = jnp.stack([step % probe.every == 0 for probe in probes]).any()
    return jax.lax.cond(any_due, watched, unmeasured)


def due(probes: Sequence[Probe], update: int) -> list[Probe]:
    """The probes whose result of 0-based update `update` is worth reading."""
    return [probe for probe in probes if update % probe.every == 0]
