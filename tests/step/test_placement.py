"""Where arrays live: batches split along the rows, everything else on every device; fetches are counted."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from linnaeus_jax.step import placement as step_placement
from linnaeus_jax.step.placement import Fetcher, Placement, RunAhead
from linnaeus_jax.step.state import TrainState


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


class OfProcess:
    """A sharding as one of two processes sees it: the devices with these numbers are its own."""

    def __init__(self, sharding: jax.sharding.NamedSharding, mine: tuple[int, ...]) -> None:
        self.sharding, self.mine = sharding, mine

    def addressable_devices_indices_map(self, shape: tuple[int, ...]) -> dict:
        indices = self.sharding.devices_indices_map(shape)
        return {device: indices[device] for device in jax.devices() if device.id in self.mine}


def test_a_process_reads_the_rows_of_its_devices_wherever_they_stand_in_the_mesh():
    placement = Placement(jax.devices()[::-1])
    np.testing.assert_array_equal(placement.positions(6), np.arange(6))
    for device, rows in ((0, [4, 5, 6, 7]), (1, [0, 1, 2, 3])):
        placement.batch = OfProcess(placement.batch, (device,))  # type: ignore[assignment]
        np.testing.assert_array_equal(placement.positions(8), rows)
        placement = Placement(jax.devices()[::-1])
    with pytest.raises(ValueError, match="evenly divide"):
        placement.positions(7)


def test_rows_of_a_process_make_the_global_array(monkeypatch):
    """With the code of several processes, of which this one has all devices."""
    placement = Placement(jax.devices()[::-1])
    monkeypatch.setattr(Placement, "process_count", 2)
    given = {"image": np.arange(24).reshape(2, 4, 3), "weight": np.arange(8.0).reshape(2, 4)}
    for name, array in placement.to_device(given, placement.update).items():
        np.testing.assert_array_equal(array, given[name])
        assert array.sharding == placement.update
    (row,) = placement.to_device({"row": np.arange(4)}, placement.batch).values()
    assert rows_by_device(row) == [[0, 1], [2, 3]]


# ---- the split state -------------------------------------------------------------------------------------------------


def test_large_arrays_are_split_along_their_longest_axis_that_divides(monkeypatch):
    monkeypatch.setattr(step_placement, "SPLIT_FROM", 12)
    placement = Placement(fsdp=True)
    specs = {
        (3, 4): (None, "data"),
        (2, 8): (None, "data"),
        (4, 4): ("data",),
        (3, 5): (),
        (2, 2): (),
        (): (),
        (8, 2, 3): ("data",),
    }
    for shape, spec in specs.items():
        assert placement.of_array(shape).spec == P(*spec), shape
    assert Placement().of_array((4, 4)).spec == P()
    assert not Placement(jax.devices()[:1], fsdp=True).fsdp


def test_of_a_state_what_grows_with_the_model_is_split(monkeypatch):
    monkeypatch.setattr(step_placement, "SPLIT_FROM", 12)
    tree = {"w": jax.ShapeDtypeStruct((4, 4), jnp.float32), "b": jax.ShapeDtypeStruct((4,), jnp.float32)}
    rest: dict[str, Any] = dict.fromkeys(
        ("step", "model_state", "gradnorm", "skipped", "skipped_in_a_row", "interval"), tree
    )
    state = TrainState(params=tree, opt_state={"mu": tree}, ema=tree, **rest)
    placement = Placement(fsdp=True)
    specs = jax.tree.map(lambda sharding: sharding.spec, placement.of_state(state))
    split, whole = {"w": P("data"), "b": P()}, {"w": P(), "b": P()}
    assert specs.params == specs.ema == specs.opt_state["mu"] == split
    assert all(getattr(specs, name) == whole for name in rest)
    assert Placement().of_state(state) == Placement().replicated


def test_gathered_parameters_have_split_gradients(monkeypatch):
    monkeypatch.setattr(step_placement, "SPLIT_FROM", 8)
    placement = Placement(fsdp=True)
    params = {"w": np.arange(12.0, dtype=np.float32).reshape(3, 4), "b": np.ones(4, np.float32)}
    split = {name: placement.of_array(value.shape) for name, value in params.items()}
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)

    def loss(params, x):
        return ((x @ params["w"] + params["b"][None]) ** 2).sum()

    step = jax.jit(
        lambda params, x: jax.grad(lambda p: loss(placement.gather(p), x))(params),
        in_shardings=(split, placement.batch),
    )
    placed = jax.device_put(params, split)
    assert rows_by_device(placed["w"]) == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]
    found, expected = step(placed, x), jax.grad(loss)(params, x)
    assert found["w"].sharding.spec == split["w"].spec
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6)
    whole = placement.whole(placed)
    assert whole["w"].sharding.is_fully_replicated
    np.testing.assert_array_equal(whole["w"], params["w"])


# ---- the whole state, and fetches ------------------------------------------------------------------------------------


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


def test_the_host_runs_two_batches_ahead(monkeypatch):
    waited: list[int] = []
    monkeypatch.setattr(jax, "block_until_ready", waited.append)
    ahead = RunAhead()
    for batch, expected in enumerate(([], [], [0], [0, 1])):
        ahead.add(batch)
        assert waited == expected
