"""Builds the real program on tiny data, for tests of the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from linnaeus_jax.config.typed import typed
from linnaeus_jax.run.inputs import Inputs, build_inputs
from linnaeus_jax.schedules.resolve import resolve_all_schedule_params
from linnaeus_jax.step.placement import Placement
from linnaeus_jax.step.program import Program, build_program


def build(
    config: ConfigDict, directory: Path, devices: int = 1, *, fsdp: bool = False, **program: Any
) -> tuple[Program, Inputs, Placement]:
    """Program, inputs and placement on the first `devices` devices."""
    placement = Placement(jax.devices()[:devices], fsdp=fsdp)
    program |= {"gather": placement.gather} if fsdp else {}
    inputs = build_inputs(typed(config), devices=devices, output_dir=directory)
    resolved = resolve_all_schedule_params(
        typed(config),
        steps_per_epoch=inputs.plans.steps_per_epoch.tolist(),
        dataset_size=len(inputs.dataset.train),
        micro_batches_per_epoch=inputs.plans.micro_batches_per_epoch.tolist(),
        devices=devices,
    )
    return build_program(typed(config), inputs.dataset, resolved, inputs.sampler.block, **program), inputs, placement


def initial_state(program: Program, shardings: Any = None) -> Any:
    """State of step 0, made as a run makes it: in a compiled program it takes seconds more."""
    return jax.device_put(program.initial_state(), shardings)


def run_updates(
    program: Program, inputs: Inputs, placement: Placement, updates: int, variant: str = "plain", state: Any = None
) -> tuple[Any, list[Any]]:
    """State after some updates from the start, and the outputs of each."""
    placed = placement.of_state(jax.eval_shape(program.initial_state))
    step = jax.jit(
        program.train_step(variant),
        in_shardings=(placed, placement.update),
        out_shardings=(placed, placement.replicated),
    )
    if state is None:
        state = initial_state(program, placed)
    outputs = []
    with inputs.train_loader(0, updates) as loader:
        for _, batch in loader:
            state, out = step(state, placement.to_device(batch, placement.update))
            outputs.append(jax.device_get(out))
    return state, outputs


def relative_difference(a: Any, b: Any, start: Any) -> float:
    """norm of a - b over the norm of the way from start to b."""
    difference = jax.tree.map(lambda x, y: np.asarray(x, np.float64) - np.asarray(y, np.float64), a, b)
    way = jax.tree.map(lambda x, y: np.asarray(x, np.float64) - np.asarray(y, np.float64), b, start)

    def norm(tree: Any) -> float:
        return float(np.sqrt(sum(np.square(x).sum() for x in jax.tree.leaves(tree))))

    return norm(difference) / norm(way)


def largest_update(a: Any, start: Any) -> float:
    pairs = zip(jax.tree.leaves(jax.device_get(a)), jax.tree.leaves(jax.device_get(start)), strict=True)
    return max(float(np.abs(x - y).max()) for x, y in pairs)
