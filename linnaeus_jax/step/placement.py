"""Placement: one mesh axis `data`; batches split along it, the state on every device or, with `parallel.fsdp`, split as
well; the one counted fetch; how far the host may run ahead of the devices.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from linnaeus_jax.learning.buckets import GATHERED_BELOW
from linnaeus_jax.step.state import TrainState


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
#: fields of the state that `parallel.fsdp` splits
SPLIT_FIELDS = ("params", "opt_state", "ema")
#: arrays with fewer numbers stay whole: an update gathers them, and a message costs more than what they take
SPLIT_FROM = GATHERED_BELOW


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
    """Where arrays live: `mesh` over all devices of all processes with the single axis `data`.

    Args:
      devices: those of the mesh, by default all.
      fsdp: parameters, their moving average and the optimizer's state are split over the devices (ZeRO, Rajbhandari et
        al. 2020), not only the rows of a batch. The step gathers the parameters it needs and scatters their gradients.
    """

    def __init__(self, devices: list[jax.Device] | None = None, *, fsdp: bool = False) -> None:
        devices = jax.devices() if devices is None else devices
        self.fsdp = fsdp and len(devices) > 1
        # Auto: under explicit axis types dropout and row gathers raise, and nothing here needs them.
        self.mesh: Mesh = jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)
        self.replicated = NamedSharding(self.mesh, PartitionSpec())
        #: [A, B, ...]: an update of A micro-batches
        self.update = NamedSharding(self.mesh, PartitionSpec(None, "data"))
        #: [B, ...]: an evaluation batch
        self.batch = NamedSharding(self.mesh, PartitionSpec("data"))
        self._positions: dict[int, np.ndarray] = {}

    @property
    def device_count(self) -> int:
        return self.mesh.size

    @property
    def process_count(self) -> int:
        return jax.process_count()

    def positions(self, batch_size: int) -> np.ndarray:
        """int [B_local], ascending: the rows of a batch of `batch_size` that devices of this process hold.

        Raises:
          ValueError: the rows do not divide evenly among the devices.
        """
        if batch_size not in self._positions:
            indices = self.batch.addressable_devices_indices_map((batch_size,)).values()
            rows = np.arange(batch_size)
            self._positions[batch_size] = np.sort(np.concatenate([rows[index] for index in indices if index]))
        return self._positions[batch_size]

    def to_device(self, batch: Mapping[str, Any], sharding: NamedSharding) -> dict[str, jax.Array]:
        """Starts the transfer of this process's part of a batch, its rows as `positions` has them; global arrays."""
        if self.process_count == 1:
            return jax.device_put(dict(batch), sharding)
        axis = sharding.spec.index("data")
        return {name: self._global(np.asarray(value), sharding, axis) for name, value in batch.items()}

    def _global(self, local: np.ndarray, sharding: NamedSharding, axis: int) -> jax.Array:
        """The array whose rows along `axis` this process has in `local`, in the order of `positions`."""
        count = local.shape[axis] * self.device_count // len(self.mesh.local_devices)
        positions = self.positions(count)

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None  # only of an array of no axis
            first, last, _ = index[axis].indices(count)
            start = int(np.searchsorted(positions, first))
            return local[(slice(None),) * axis + (slice(start, start + last - first),)]

        shape = (*local.shape[:axis], count, *local.shape[axis + 1 :])
        return jax.make_array_from_callback(shape, sharding, part)

    def replicate(self, tree: Any) -> Any:
        """Copies a host or device pytree to every device."""
        return jax.device_put(tree, self.replicated)

    def of_array(self, shape: tuple[int, ...]) -> NamedSharding:
        """Where an array of the split fields lives: its longest axis that divides is split, a small array is whole."""
        axes = [axis for axis, length in enumerate(shape) if length % self.device_count == 0]
        if not (self.fsdp and axes) or np.prod(shape) < SPLIT_FROM:
            return self.replicated
        longest = max(axes, key=lambda axis: shape[axis])
        return NamedSharding(self.mesh, PartitionSpec(*(None,) * longest, "data"))

    def of_state(self, state: TrainState) -> Any:
        """The shardings of a state, as a tree (prefix) for `jit`."""
        if not self.fsdp:
            return self.replicated
        whole = jax.tree.map(lambda _: self.replicated, state)
        split = {name: jax.tree.map(lambda x: self.of_array(x.shape), getattr(state, name)) for name in SPLIT_FIELDS}
        return whole.replace(**split)

    def whole(self, tree: Any) -> Any:
        """A device pytree with every array whole on every device; the same one where it is so already."""
        return tree if all(x.is_fully_replicated for x in jax.tree.leaves(tree)) else self._copy_whole(tree)

    @functools.cached_property
    def _copy_whole(self) -> Callable[[Any], Any]:
        return jax.jit(lambda tree: tree, out_shardings=self.replicated)

    def gather(self, params: Any) -> Any:
        """Inside a jitted step: the split parameters whole, with gradients that are split as they were."""
        return jax.tree.map(self._gather, params) if self.fsdp else params

    def _gather(self, array: jax.Array) -> jax.Array:
        sharding = self.of_array(array.shape)
        if sharding == self.replicated:
            return array

        # By itself the gradient would be summed whole on every device and sliced afterwards.
        @jax.custom_vjp
        def whole(x: jax.Array) -> jax.Array:
            return jax.lax.with_sharding_constraint(x, self.replicated)

        def forward(x: jax.Array) -> tuple[jax.Array, None]:
            return whole(x), None

        def backward(_: None, cotangent: jax.Array) -> tuple[jax.Array]:
            return (jax.lax.with_sharding_constraint(cotangent, sharding),)

        whole.defvjp(forward, backward)
        return whole(array)
