"""Probes: measurements inside the step. `Probe.measure` is traced into it, `Probe.consume` gets its result on the host.

A probe is traced only in a run that uses it, and computed only at steps `step % every == 0`. Adding a measurement means
writing and registering one subclass of `Probe`; the step and the loop do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from linnaeus_jax.mistakes import InputError
from linnaeus_jax.registry import PROBES


class ProbeInputs(struct.PyTreeNode):
    """What a probe may look at, of one update; all arrays are global."""

    step: jax.Array  # int32 [], before the update
    params: Any  # before the update
    grads: Any  # of the weighted total, before clipping; like the parameters, None where frozen
    grad_norm: jax.Array  # float32 [], of `grads`, which metrics log and early stop see too
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


@dataclass_transform(kw_only_default=True, eq_default=False, frozen_default=True)
@dataclass(frozen=True, eq=False, kw_only=True)
class Probe:
    """One measurement; a subclass becomes a dataclass whose fields are its options.

    Registered by a plugin with `@PROBES.register("my_probe")`, it has the keys `debug.probes.my_probe.<option>`.

    Attributes:
      name: key of its result; of a registered one also the prefix of what it logs, `probe/<registered name>`.
      every: steps between measurements; 0: off.
    """

    name: str
    every: int = 10

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False, kw_only=True)(cls)

    def measure(self, inputs: ProbeInputs) -> Any:
        """In-graph and pure: a pytree of small arrays."""
        raise NotImplementedError

    def consume(self, step: int, epoch: int, values: Any) -> Mapping[str, Any]:
        """On the host, one update late: what is logged of the fetched result of `step`, by name below the probe's own.

        By default every number of `values`, named by its path in the pytree and its index in the array.
        """
        return {
            "/".join([*(jax.tree_util.keystr((key,), simple=True) for key in path), *map(str, index)]): number.tolist()
            for path, array in jax.tree_util.tree_leaves_with_path(values)
            for index, number in np.ndenumerate(array)
        }


def registered_probes(options: Mapping[str, Mapping[str, Any]]) -> list[Probe]:
    """The probes of the plugins that are on.

    Args:
      options: registered name -> options, the config section `debug.probes`.

    Raises:
      ValueError: what is registered is no probe, or does not accept its options.
    """
    probes = []
    for name in PROBES:
        if not (isinstance(PROBES[name], type) and issubclass(PROBES[name], Probe)):
            raise InputError(
                f"{PROBES.section}.{name} is no probe: register a subclass of linnaeus_jax.step.probes.Probe"
            )
        with PROBES.wrap_errors(name):
            probe = PROBES[name](name=f"probe/{name}", **options.get(name, {}))
        if probe.every < 0:
            raise InputError(f"{PROBES.section}.{name}.every = {probe.every} is out of range; it must be 0 or more")
        if probe.every:
            probes.append(probe)
    return probes


def measure(probes: Sequence[Probe], inputs: ProbeInputs) -> dict[str, Any]:
    """Results by probe name; zeros at steps where a probe is not due."""
    results = {}
    for probe in probes:
        if probe.every == 1:
            results[probe.name] = probe.measure(inputs)
            continue
        shapes = jax.eval_shape(probe.measure, inputs)
        # a conditional on every backend: what is seldom due shall not be computed in every update
        results[probe.name] = jax.lax.cond(
            inputs.step % probe.every == 0,
            probe.measure,
            lambda _, shapes=shapes: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes),
            inputs,
        )
    return results


def ordering_token(results: Mapping[str, Any]) -> jax.Array:
    """bool [], always True, computed from every value of `results`: what depends on it runs after the measurements."""
    values = [x.astype(jnp.float32).reshape(-1) for x in jax.tree.leaves(results)]
    if not values:
        return jnp.bool_(True)
    flat = jnp.concatenate(values)
    return ~(flat.max() < flat.min())  # max < min holds for no values, NaN included; XLA does not simplify it


def due(probes: Sequence[Probe], step: int) -> list[Probe]:
    """The probes that measure at `step`."""
    return [probe for probe in probes if step % probe.every == 0]


def consume(probes: Sequence[Probe], step: int, epoch: int, results: Mapping[str, Any]) -> dict[str, Any]:
    """Hands the fetched results of the probes that were due to them; returns what they log."""
    row = {}
    for probe in probes:
        for name, value in probe.consume(step, epoch, results[probe.name]).items():
            row["/".join(filter(None, (probe.name, name)))] = value
    return row
