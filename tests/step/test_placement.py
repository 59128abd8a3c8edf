"""Where arrays live: batches split along the rows, everything else on every device; fetches are counted."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.step.placement import Fetcher, Placement


def rows_by_device(array: jax.Array) -> list[list[int]]:
    return [np.asarray(shard.data).ravel().tolist() for shard in array.addressable_shards]


def test_all_devices_by_default():
    placement = Placement()
    assert placement.device_count == len(jax.devices()) == 2
    assert placement.mesh.axis_names == ("data",)
    assert Placement(jax.devices()[1:]).device_count == 1


def test_batches_are_split_by_rows():
    placement = Placement()
    update = placement.to_device({"row": np.arange(8, dtype=np.int32).reshape(2, 4)}, placement.update)
    assert rows_by_device(update["row"]) == [[0, 1, 4, 5], [2, 3, 6, 7]]  # of both micro-batches
    batch = placement.to_device({"row": np.arange(4, dtype=np.int32)}, placement.batch)
    assert rows_by_device(batch["row"]) == [[0, 1], [2, 3]]
    assert batch["row"].sharding == placement.batch
    assert batch["row"].dtype == jnp.int32


def test_rows_that_do_not_divide_are_an_error():
    placement = Placement()
    with pytest.raises(ValueError, match="evenly divide"):
        placement.to_device({"row": np.arange(3)}, placement.batch)


def test_one_device_of_several():
    placement = Placement(jax.devices()[1:])
    batch = placement.to_device({"row": np.arange(3)}, placement.batch)
    assert batch["row"].devices() == {jax.devices()[1]}


def test_state_is_on_every_device():
    placement = Placement()
    tree = placement.replicate({"a": np.arange(3.0, dtype=np.float32), "b": {"c": jnp.int32(7)}})
    assert rows_by_device(tree["a"]) == [[0, 1, 2]] * 2
    assert tree["b"]["c"].sharding.is_fully_replicated


def test_sums_over_the_mesh_are_global():
    placement = Placement()
    total = jax.jit(jnp.sum, in_shardings=placement.batch, out_shardings=placement.replicated)(jnp.arange(8.0))
    assert rows_by_device(total) == [[28.0]] * 2


def test_fetches_are_counted():
    fetch = Fetcher()
    found = fetch({"a": jnp.arange(3), "b": None})
    assert isinstance(found["a"], np.ndarray)
    assert fetch((jnp.ones(2), 3))[1] == 3
    assert fetch.calls == 2
