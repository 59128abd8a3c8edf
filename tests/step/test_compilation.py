"""Ahead-of-time compilation of a step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.step import compilation
from linnaeus_jax.step.compilation import CompiledStep, compile_step
from linnaeus_jax.step.placement import Placement


def step(state, batch):
    return state + batch["image"].sum(axis=(0, 1)), state.mean()


@pytest.fixture
def placed():
    placement = Placement(jax.devices()[:2])
    state = placement.replicate(jnp.zeros(8))
    batch = placement.to_device({"image": np.ones((1, 4, 8), np.float32)}, placement.update)
    return placement, state, batch


def test_compiled_step_says_what_it_needs_and_computes_what_the_function_does(placed, caplog):
    placement, state, batch = placed
    with caplog.at_level("INFO"):
        compiled = compile_step(step, state, batch, placement, "plain")
    assert "compiled plain step in" in caplog.text
    assert compiled.seconds > 0
    assert compiled.memory["arguments"] == 8 * 4 + 2 * 8 * 4  # the state, and half of the batch on each device
    assert compiled.memory["reused"] == 8 * 4
    assert compiled.memory_bytes == sum(compiled.memory.values()) - 2 * compiled.memory["reused"]
    found, mean = compiled(state, batch)
    np.testing.assert_array_equal(found, np.full(8, 4.0))
    assert float(mean) == 0
    assert state.is_deleted(), "the new state lies where the old one was"
    assert found.sharding.is_equivalent_to(placement.replicated, found.ndim)


def test_the_new_state_lies_where_the_old_one_did_whatever_it_is_made_of(placed):
    """Here of rows that lie on different devices."""
    placement, _, batch = placed
    rows = placement.replicate(jnp.zeros((4, 8)))

    def gathered(state, batch):
        return state + batch["image"][0], batch["image"][0]

    compiled = compile_step(gathered, rows, batch, placement, "plain")
    for found in compiled(rows, batch):
        assert found.sharding.is_equivalent_to(placement.replicated, 2)


def test_a_state_that_is_needed_again_is_not_donated(placed):
    placement, state, batch = placed
    compile_step(step, state, batch, placement, "check", donate=False)(state, batch)
    assert not state.is_deleted()


def test_other_shapes_are_an_error_and_never_compiled(placed):
    placement, state, batch = placed
    compiled = compile_step(step, state, batch, placement, "plain")
    other = placement.to_device({"image": np.ones((2, 4, 8), np.float32)}, placement.update)
    with pytest.raises(TypeError, match="compiled with float32"):
        compiled(state, other)


@pytest.mark.parametrize(("limit", "recomputing"), [(None, []), (10**9, []), (10, ["plain"])])
def test_activations_are_recomputed_where_the_memory_does_not_suffice(placed, monkeypatch, caplog, limit, recomputing):
    placement, state, batch = placed
    made = []

    class Steps:
        step_names = ("plain", "gradnorm")
        may_recompute = frozenset({"plain"})

        def train_step(self, name, *, recompute=False):
            made.extend([name] if recompute else [])
            return lambda state, batch: step(state, batch)

    monkeypatch.setattr(compilation, "device_memory", lambda: limit)
    with caplog.at_level("INFO"):
        steps = compilation.compile_steps(Steps(), state, batch, placement, donate=False)  # type: ignore[arg-type]
    assert list(steps) == ["plain", "gradnorm"]
    assert made == recomputing
    assert ("activations are recomputed" in caplog.text) == bool(recomputing)


def test_backend_without_analysis():
    silent = CompiledStep("plain", step, None, 0.1, {}, 0.0)  # type: ignore[arg-type]
    assert silent.memory_bytes == 0
