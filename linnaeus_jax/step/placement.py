"""Placement: one mesh axis `data`, batches split along it, everything else replicated; the one counted fetch; how far
the host may run ahead of the devices.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


class Fetcher:
    """The only way from device to host in training code; counts its calls, so that a test can bound them."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, tree: Any) -> Any:
        """Returns `tree` with every array as numpy; blocks until it is computed."""
        self.calls += 1
        return jax.device_get(tree)


fetch = Fetcher()

#: batches that may be in flight before the host waits; more would only fill memory
RUN_AHEAD = 2


class RunAhead:
    """Lets the host dispatch at most `RUN_AHEAD` batches beyond the one that the devices have finished."""

    def __init__(self) -> None:
        self._in_flight: collections.deque[Any] = collections.deque()

    def add(self, results: Any) -> None:
        """Takes results of the batch just dispatched; waits for those of the batch `RUN_AHEAD` before it."""
        self._in_flight.append(results)
        if len(self._in_flight) > RUN_AHEAD:
            jax.block_until_ready(self._in_flight.popleft())


class Placement:
    """Where arrays live: `mesh` over all devices of all processes with the single axis `data`."""

    def __init__(self, devices: list[jax.Device] | None = None) -> None:
        devices = jax.devices() if devices is None else devices
        # Auto: under explicit axis types dropout and row gathers raise, and nothing here needs them.
        self.mesh: Mesh = jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)
        self.replicated = NamedSharding(self.mesh, PartitionSpec())
        #: [A, B, ...]: an update of A micro-batches
        self.update = NamedSharding(self.mesh, PartitionSpec(None, "data"))
        #: [B, ...]: an evaluation batch
        self.batch = NamedSharding(self.mesh, PartitionSpec("data"))

    @property
    def device_count(self) -> int:
        return self.mesh.size

    @property
    def process_count(self) -> int:
        return jax.process_count()

    def to_device(self, batch: Mapping[str, Any], sharding: NamedSharding) -> dict[str, jax.Array]:
        """Starts the transfer of this process's part of a batch; returns global arrays."""
        if self.process_count == 1:
            return jax.device_put(dict(batch), sharding)
        return {name: jax.make_array_from_process_local_data(sharding, value) for name, value in batch.items()}

    def replicate(self, tree: Any) -> Any:
        """Copies a host or device pytree to every device."""
        return jax.device_put(tree, self.replicated)
