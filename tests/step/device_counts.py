"""Three SGD updates on 1 and 8 devices, and on 8 with a split state (mFormerV1); writes how far they differ.

python -m tests.step.device_counts DIRECTORY FAMILY    with 8 virtual devices
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import numpy as np

from linnaeus_jax.metrics.phase import batch_sums
from linnaeus_jax.step import placement as step_placement
from linnaeus_jax.step.placement import Placement
from tests.step.programs import build, initial_state, largest_update, relative_difference, run_updates
from tests.step.test_train_step import SGD
from tests.step.test_train_step import V0 as SMALL_V0
from tests.tiny import tiny_config


def metric_sums(devices: int) -> dict[str, list]:
    """Sums of one padded batch of given logits, spread over some devices."""
    rng = np.random.default_rng(0)
    logits = {"taxa_L10": rng.normal(size=(64, 7)), "taxa_L20": rng.normal(size=(64, 3))}
    label = np.stack([rng.integers(0, 7, 64), rng.integers(0, 3, 64)], axis=1).astype(np.int32)
    weight = (np.arange(64) < 59).astype(np.float32)
    placed = Placement(jax.devices()[:devices]).to_device(
        {"logits": logits, "label": label, "weight": weight, "loss": np.ones((64, 2), np.float32)},
        Placement(jax.devices()[:devices]).batch,
    )
    found = jax.jit(
        lambda x: batch_sums(x["logits"], x["label"], x["weight"], x["loss"], x["weight"], null_possible=True)
    )(placed)
    return {name: np.asarray(value).tolist() for name, value in found.items()}


def main(directory: Path, family: str) -> None:
    jax.config.update("jax_default_matmul_precision", "highest")
    params, states = {}, {}
    settings = SGD | (SMALL_V0 if family == "mFormerV0" else {})
    for devices in (1, 8):
        program, inputs, placement = build(tiny_config(directory, **settings), directory, devices)
        start = jax.device_get(initial_state(program).params)
        state = jax.device_get(run_updates(program, inputs, placement, 3)[0])
        params[devices], states[devices] = state.params, jax.tree.leaves(state.model_state)
    assert bool(states[1]) == (family == "mFormerV0")
    found: dict[str, float | bool] = {"8": relative_difference(params[8], params[1], start)}
    found["same_counts"] = metric_sums(1) == metric_sums(2) == metric_sums(8)
    found["state"] = max(
        (float(np.max(np.abs(a - b) / (1 + np.abs(b)))) for a, b in zip(states[8], states[1])), default=0
    )
    if family == "mFormerV1":
        step_placement.SPLIT_FROM = 64  # in a model so small
        program, inputs, placement = build(tiny_config(directory, **settings), directory, 8, fsdp=True)
        state = run_updates(program, inputs, placement, 3)[0]
        found["split"] = relative_difference(jax.device_get(state.params), params[1], start)
        leaves = jax.tree.leaves((state.params, state.opt_state))
        of_device = sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)
        found["share"] = of_device / sum(leaf.nbytes for leaf in leaves)
    found["largest"] = largest_update(params[1], start)
    (directory / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
