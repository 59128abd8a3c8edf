"""The frames of an update are those of the values that the train step computes, however it is divided and placed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.debugging.update_frames import compile_update_frames
from tests.step import toy
from tests.step.programs import build, initial_state
from tests.tiny import tiny_config

#: everything that is drawn in an update
DRAWN = {
    "model__type": "toy",
    "model__variant": "dropout",
    "schedule__mixup__prob__enabled": True,
    "schedule__meta_masking__enabled": True,
}


@pytest.mark.parametrize(
    ("devices", "micro_batches"),
    [(1, 1), pytest.param(2, 1, marks=pytest.mark.slow), pytest.param(1, 2, marks=pytest.mark.slow)],
)
def test_they_show_the_gradient_of_the_update(tmp_path, monkeypatch, devices, micro_batches):
    """Which follows from its augmentation, mixing, masks and dropout; the extremes are over all micro-batches."""
    toy.register(monkeypatch)
    sizes = {"train__accumulation_steps": micro_batches, "data__batch_size": 16 // micro_batches}
    program, inputs, placement = build(tiny_config(tmp_path, **DRAWN, **sizes), tmp_path, devices=devices)
    state = initial_state(program, placement.replicated).replace(step=jnp.int32(5))
    with inputs.train_loader(0, 1) as loader:
        batch = placement.to_device(next(loader)[1], placement.update)
    compiled = compile_update_frames(program, state, batch, placement, gradients=True)
    frames = compiled(state, batch).listing()
    again = compiled(state, batch).listing()  # the state is still there
    assert frames == again

    @jax.jit
    def gradient(index: Any) -> Any:
        """Of one micro-batch."""
        targets, counts = program.objective.build_targets(batch, state.step)
        micro, target = jax.tree.map(lambda x: x[index], (batch, targets))

        def loss(params: Any) -> Any:
            each, _ = program.objective.task_losses(params, {}, micro, target, counts, state.step, index)
            return jnp.vdot(state.gradnorm.weights, each)

        return jax.grad(loss)(state.params)["aggregate"]["kernel"]

    parts = [np.abs(gradient(jnp.int32(index))) for index in range(micro_batches)]
    (frame,) = [frame for frame in frames if frame.name == "aggregate" and frame.backward]
    (row,) = [row for row in frame.rows if row.label == "grad weight"]
    expected = min(part.min() for part in parts), max(part.max() for part in parts)
    np.testing.assert_allclose((row.absmin, row.absmax), expected, atol=1e-6 * expected[1])
    assert len([frame for frame in frames if frame.name == "aggregate"]) == 2  # forward and backward
