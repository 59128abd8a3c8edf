"""Probes see one update as it is, only when they are due, and change nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.step.probes import Probe, consume, due, measure, ordering_token
from tests.step import toy
from tests.step.programs import build, initial_state
from tests.tiny import tiny_config


class Look(Probe):
    """Measures what `function` returns."""

    function: Callable[[Any], Any]

    def measure(self, inputs: Any) -> Any:
        return self.function(inputs)


def probe(name: str, every: int, function: Callable[[Any], Any] = lambda inputs: {"step": inputs.step}) -> Probe:
    return Look(name=name, every=every, function=function)


def test_due_updates():
    probes = [probe("always", 1), probe("third", 3)]
    names = {update: [one.name for one in due(probes, update)] for update in range(4)}
    assert names == {0: ["always", "third"], 1: ["always"], 2: ["always"], 3: ["always", "third"]}
    assert due([], 0) == []


class Inputs:
    """Stands in for `ProbeInputs`."""

    def __init__(self, step):
        self.step = step


jax.tree_util.register_pytree_node(Inputs, lambda x: ((x.step,), None), lambda _, children: Inputs(*children))


def test_what_is_not_due_is_zero_and_of_the_same_kind():
    def look(inputs):
        return {"step": inputs.step + 1, "wide": jnp.full((2,), 0.5, jnp.bfloat16), "yes": inputs.step >= 0}

    probes = [probe("always", 1, look), probe("second", 2, look), probe("third", 3, look)]
    step = jax.jit(lambda step: measure(probes, Inputs(step)))  # type: ignore[arg-type]
    for update in range(5):
        found = step(jnp.int32(update))
        assert found["always"]["step"] == update + 1
        assert found["second"]["step"] == (update + 1) * (update % 2 == 0)
        shown = update % 3 == 0
        assert found["third"]["step"] == (update + 1) * shown
        np.testing.assert_array_equal(found["third"]["wide"], np.float32(0.5 * shown))
        assert bool(found["third"]["yes"]) == shown
        assert jax.tree.map(lambda x: x.dtype, found["third"]) == jax.tree.map(lambda x: x.dtype, found["always"])


def test_no_probe_is_traced_where_there_is_none():
    assert measure([], Inputs(jnp.int32(0))) == {}  # type: ignore[arg-type]
    jaxpr = jax.make_jaxpr(lambda step: measure([], Inputs(step)))(jnp.int32(0))  # type: ignore[arg-type]
    assert "cond" not in str(jaxpr)


@pytest.mark.parametrize(
    "results",
    [{}, {"a": jnp.arange(3)}, {"a": jnp.array([1.0, jnp.nan])}, {"a": jnp.array(jnp.inf), "b": jnp.array([True])}],
)
def test_ordering_token_any_results(results):
    assert bool(jax.jit(ordering_token)(results))


def test_every_number_is_logged_by_its_path():
    values = {"norm": np.float32(0.5), "task": {"loss": np.array([1.0, np.nan])}, "count": np.int32(3)}
    results = {"probe/look": values, "probe/other": np.float32(2.0)}
    row = consume([probe("probe/look", 1), probe("probe/other", 1)], 0, 0, results)
    nan = row.pop("probe/look/task/loss/1")
    assert np.isnan(nan)
    assert row == {"probe/look/count": 3, "probe/look/norm": 0.5, "probe/look/task/loss/0": 1.0, "probe/other": 2.0}
    assert isinstance(row["probe/look/count"], int)


def test_a_host_function_chooses_what_is_logged():
    class Host(Probe):
        def consume(self, step, epoch, values):
            return {"at": step, "sum": float(values.sum())} if epoch else {}

    results = {"probe/host": np.arange(3.0)}
    assert consume([Host(name="probe/host")], 20, 0, results) == {}
    assert consume([Host(name="probe/host")], 20, 1, results) == {"probe/host/at": 20, "probe/host/sum": 3.0}


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """(state, outputs) of two updates `with` probes and `without`, and the `start`."""
    tmp_path = tmp_path_factory.mktemp("probes")

    def look(inputs):
        shown = {"params": inputs.params, "grads": inputs.grads, "updates": inputs.updates(), "loss": inputs.loss}
        return shown | {
            "null": inputs.null,
            "loss_mask": inputs.loss_mask,
            "counts": inputs.counts,
            "preview": inputs.preview,
        }

    settings = {"model__type": "toy", "train__clip_grad": 0.01, "data__batch_size": 8, "train__accumulation_steps": 2}
    settings["aug__hflip_prob"] = 0.0
    with pytest.MonkeyPatch.context() as patch:
        toy.register(patch)
        found = {}
        for name, probes in (("with", [probe("look", 1, look)]), ("without", [])):
            program, inputs, placement = build(tiny_config(tmp_path, **settings), tmp_path, probes=probes)
            found["start"] = state = initial_state(program, placement.replicated)
            step, found[name] = jax.jit(program.train_step("plain")), []
            with inputs.train_loader(0, 2) as loader:
                for _, batch in loader:
                    state, out = step(state, placement.to_device(batch, placement.update))
                    found[name].append((state, out))
    return jax.device_get(found)


def test_a_probe_sees_the_update(watched):
    before = watched["start"]
    for after, out in watched["with"]:
        seen = out.probes["look"]
        jax.tree.map(np.testing.assert_array_equal, seen["params"], before.params)
        moved = jax.tree.map(lambda p, u: p + u, before.params, seen["updates"])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), moved, after.params)
        norm = np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(seen["grads"])))
        np.testing.assert_allclose(norm, out.grad_norm, rtol=1e-5)  # of the whole update, before clipping
        assert norm > 0.01
        assert seen["loss"] == out.loss
        assert seen["null"].shape == seen["loss_mask"].shape == (2, 8, 3)
        np.testing.assert_array_equal(seen["counts"], seen["loss_mask"].sum(axis=(0, 1)))
        assert seen["preview"].shape == (8, 3)
        before = after


def test_a_run_that_is_watched_learns_the_same(watched):
    (_, (state, _)), (_, (alone, out)) = watched["with"], watched["without"]
    jax.tree.map(np.testing.assert_array_equal, state, alone)
    assert out.probes == {}
