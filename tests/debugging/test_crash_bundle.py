"""What a crash bundle holds, and that damage to it is seen."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.saved import plain
from linnaeus_jax.debugging import crash_bundle


@struct.dataclass
class State:
    params: dict[str, jax.Array]
    step: jax.Array
    skipped: jax.Array


BATCH = {"label": np.zeros((2, 3), np.int64)}


@pytest.fixture
def bundle(tmp_path):
    state = crash_bundle.before_skipped(State({"w": jnp.arange(100.0)}, jnp.asarray(8), jnp.asarray(1)))
    return crash_bundle.write(tmp_path, plain(get_config()), 7, state, {"label": np.arange(6).reshape(2, 3)})


def test_reading_gives_what_was_written(bundle):
    config, step = crash_bundle.read_config(bundle)
    assert (config, step) == (plain(get_config()), 7)
    state = crash_bundle.read_state(bundle, State({"w": jnp.zeros(100)}, jnp.asarray(0), jnp.asarray(0)))
    assert (int(state.step), int(state.skipped)) == (7, 0)
    np.testing.assert_array_equal(crash_bundle.read_batch(bundle, BATCH)["label"], [[0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"label": np.zeros((2, 3), np.int64), "more": np.zeros(1)},
        {"label": np.zeros((3, 2), np.int64)},
        {"label": np.zeros((2, 3), np.int32)},
        {"label": np.full((2, 3), None)},
    ],
)
def test_a_batch_of_another_kind_is_refused(bundle, arrays):
    np.savez(bundle / "batch_0.npz", **arrays)
    with pytest.raises(crash_bundle.BundleError, match=r"batch_0\.npz"):
        crash_bundle.read_batch(bundle, BATCH)


def test_a_state_of_another_model_is_refused(bundle):
    with pytest.raises(crash_bundle.BundleError, match="holds no state of the model"):
        crash_bundle.read_state(bundle, State({"other": jnp.zeros(3)}, jnp.asarray(0), jnp.asarray(0)))


def test_damage_to_any_file_is_one_message(bundle):
    for file in sorted(path for path in bundle.rglob("*") if path.is_file()):
        content = file.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        for damaged in (bytes(flipped), content[: len(content) // 2], None):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            if not (file.name == "digests.json" and damaged is None):  # as those of earlier versions
                with pytest.raises(crash_bundle.BundleError, match="holds no complete crash bundle"):
                    crash_bundle.read_config(bundle)
            file.write_bytes(content)
    assert crash_bundle.read_config(bundle)[1] == 7
