"""Random streams: every bit of the seed counts, and small seeds give the keys that they always gave."""

from __future__ import annotations

import zlib

import jax
import numpy as np
import pytest

from linnaeus_jax.data.samplers import random_keys
from linnaeus_jax.step.rng import stream


def bits(seed: int, name: str = "init") -> tuple[int, ...]:
    return tuple(np.asarray(jax.random.key_data(stream(seed, name))).tolist())


@pytest.mark.parametrize("seed", [0, 1, 42, 2**31 - 1, 2**31, 2**32 - 1])
def test_seeds_of_32_bits_are_those_of_jax(seed):
    key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(b"init"))
    assert bits(seed) == tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_recorded_keys():
    assert {seed: bits(seed) for seed in (0, 7)} == {0: (3020537540, 2946840664), 7: (84463273, 254242907)}


def test_every_bit_counts_for_the_model_and_for_the_plan():
    seeds = [0, 1, 2**31, 2**32, 2**33, 2**33 + 1, 2**63, 2**64, 2**64 + 2**33, 2**100]
    assert len({bits(seed) for seed in seeds}) == len(seeds)
    assert len({tuple(random_keys(seed, 0, "order", 2).tolist()) for seed in seeds}) == len(seeds)


def test_streams_differ():
    assert bits(3, "init") != bits(3, "dropout")
