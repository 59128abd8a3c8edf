"""Running moments of a random start are the average of the batches, as if they had begun with none."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.models.batch_norm import MANY_BATCHES, MOMENT_COUNTS, stored_moment_counts, with_moment_counts
from linnaeus_jax.models.layers import BatchNorm2d
from linnaeus_jax.registry import MODELS
from tests.step import toy
from tests.step.programs import build, initial_state, run_updates
from tests.step.test_train_step import sgd_config

MOMENTUM = 0.01


class Normed(toy.Toy):
    """The toy with the batch norm of the families."""

    def setup(self) -> None:
        super().setup()
        self.norm = BatchNorm2d(momentum=MOMENTUM, name="norm")

    def encode_image(self, image: jax.Array, *, row_weight_B: Any = None, train: bool = False) -> jax.Array:
        x = self.norm(image, train=train, row_weight_B=row_weight_B)
        return x.mean(axis=(1, 2))


class Scanned(nn.Module):
    """Two layers that a scan stacks, computed again in the backward pass."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def one(layer: BatchNorm2d, x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return layer(x, train=True), None

        over = nn.scan(nn.remat(one), variable_axes={True: 0}, split_rngs={True: True}, length=2)
        return over(BatchNorm2d(momentum=MOMENTUM, name="norm"), x, None)[0]


def averaged(batches: list[np.ndarray], start: float = 0.0, corrected: bool = True) -> np.ndarray:
    """What becomes of `start` with the values of batches one after another."""
    value = np.full_like(batches[0], start)
    for number, batch in enumerate(batches, 1):
        share = max(MOMENTUM, 10 / (number + 9)) if corrected else MOMENTUM
        value = (1 - share) * value + share * batch
    return value


@pytest.mark.parametrize("begins", [True, False])
def test_moments_hold_nothing_of_their_start_and_keep_those_of_other_weights(begins):
    """Batches without a row that counts are none; weights that were trained follow torch's rule."""
    rng = np.random.default_rng(0)
    batches = [rng.normal(3.0, 2.0, (6, 2, 2, 3)).astype(np.float32) for _ in range(40)]
    layer = BatchNorm2d(momentum=MOMENTUM)
    variables = dict(layer.init(jax.random.key(0), batches[0], train=False))
    if not begins:
        variables["batch_stats"] = jax.tree.map(lambda x: x + 0.5, variables["batch_stats"])
    params = variables.pop("params")

    @jax.jit
    def moved(state, x, weight):
        options = {"train": True, "row_weight_B": weight, "mutable": list(state)}
        return layer.apply({"params": params, **state}, x, **options)[1]

    state = with_moment_counts(variables)
    for number, x in enumerate(batches):
        state = moved(state, x, np.full(6, number % 2, np.float32))
    counted = [x.reshape(-1, 3).astype(np.float64) for x in batches[1::2]]
    found = state["batch_stats"]
    expected = (
        averaged([x.mean(0) for x in counted], 0.5, begins),
        averaged([x.var(0, ddof=1) for x in counted], 1.5, begins),
    )
    np.testing.assert_allclose(found["running_mean"], expected[0], rtol=1e-5)
    np.testing.assert_allclose(found["running_var"], expected[1], rtol=1e-5)
    assert state["moment_counts"]["batches"] == len(counted) + (0 if begins else MANY_BATCHES)


def test_layers_that_a_scan_stacks_are_counted_apart():
    x = np.random.default_rng(1).normal(3.0, 2.0, (6, 2, 2, 3)).astype(np.float32)
    variables = Scanned().init(jax.random.key(0), x)
    stats = {"norm": {"running_mean": np.zeros((2, 3), np.float32), "running_var": np.ones((2, 3), np.float32)}}
    stats["norm"]["running_mean"][1, 0] = 0.5  # of published weights
    state = with_moment_counts({"batch_stats": stats})
    np.testing.assert_array_equal(state["moment_counts"]["norm"]["batches"], [0, MANY_BATCHES])
    _, after = jax.jit(lambda state: Scanned().apply({"params": variables["params"], **state}, x, mutable=list(state)))(
        state
    )
    mean = np.asarray(after["batch_stats"]["norm"]["running_mean"])
    np.testing.assert_allclose(mean[0], x.mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(mean[1], [0.5 * (1 - MOMENTUM), 0.0, 0.0], atol=1e-6)
    stored = stored_moment_counts(after[MOMENT_COUNTS])
    assert list(stored.values()) == [[1, MANY_BATCHES + 1]]
    again = with_moment_counts({"batch_stats": after["batch_stats"]}, stored)
    jax.tree.map(np.testing.assert_array_equal, again, after)
    earlier = with_moment_counts({"batch_stats": after["batch_stats"]})["moment_counts"]["norm"]["batches"]
    np.testing.assert_array_equal(earlier, MANY_BATCHES)  # a checkpoint that kept no counts


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_updates_of_several_micro_batches_are_averaged_and_skipped_ones_are_not(tmp_path, monkeypatch, devices):
    monkeypatch.setitem(MODELS.entries, "toy", Normed)
    accumulated = {"data__batch_size": 8, "train__accumulation_steps": 2, "train__ema__enabled": True}
    config = sgd_config(tmp_path, model__type="toy", aug__hflip_prob=0.0, **accumulated)
    program, inputs, placement = build(config, tmp_path, devices=devices)
    start = initial_state(program, placement.replicated)
    with inputs.train_loader(0, 2) as loader:
        updates = [np.asarray(batch["image"], np.float64) for _, batch in loader]
    mean, std = program.objective.preprocessing.mean, program.objective.preprocessing.std
    batches = [((x / 255 - mean) / std).reshape(-1, 3) for update in updates for x in update]
    after, outputs = run_updates(program, inputs, placement, 2, state=start)
    found = jax.device_get(after.model_state["batch_stats"]["norm"])
    np.testing.assert_allclose(found["running_mean"], averaged([x.mean(0) for x in batches]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["running_var"], averaged([x.var(0, ddof=1) for x in batches]), rtol=1e-4)
    assert stored_moment_counts(jax.device_get(after.model_state[MOMENT_COUNTS])) == {"['norm']['batches']": 4}
    assert "moment_counts" not in after.arrays.model_state

    start = initial_state(program, placement.replicated)
    bad = start.replace(params=start.params | {"aggregate": jax.tree.map(jnp.zeros_like, start.params["aggregate"])})
    bad.params["aggregate"]["bias"] = bad.params["aggregate"]["bias"] * np.nan
    skipped, outputs = run_updates(program, inputs, placement, 1, state=bad)
    assert not outputs[0].finite
    jax.tree.map(np.testing.assert_array_equal, *jax.device_get((skipped.model_state, start.model_state)))
