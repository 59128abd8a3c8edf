"""Every row comes as often as the others, and what a sampler leaves out is said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.data import coverage
from linnaeus_jax.data.plans import PlanSequence, plan_epoch
from linnaeus_jax.data.samplers import SamplerSettings
from tests.data.helpers import of_group

EPOCHS = 400


def draws(group: np.ndarray, sampler: SamplerSettings, seed: int, epochs: int = EPOCHS) -> np.ndarray:
    """float64[n]: how often each row came in an epoch, on average over `epochs`; checks each plan by the way."""
    total = np.zeros(len(group), np.int64)
    for epoch in range(epochs):
        plan = plan_epoch(of_group(group), sampler, seed=seed, epoch=epoch)
        shape = (sampler.steps_per_epoch(of_group(group)), sampler.accumulation_steps, sampler.batch_size)
        assert plan.index.shape == plan.group.shape == plan.partner.shape == plan.weight.shape == shape
        taken = plan.index[plan.index >= 0]
        assert len(taken) == sampler.micro_batches(of_group(group)) * sampler.batch_size
        count = np.bincount(taken, minlength=len(group))
        assert count.max(initial=0) <= 1, "a row comes at most once in an epoch"
        total += count
    return total / epochs


@st.composite
def splits(draw):
    """Groups of any size, rows without a group, and a sampler that fits them."""
    sizes = draw(st.lists(st.integers(1, 19), min_size=0, max_size=6))
    alone = draw(st.integers(0 if sizes else 1, 11))
    group = np.repeat(np.arange(-1, len(sizes)), [alone, *sizes]).astype(np.int32)
    mode = draw(st.sampled_from(["strict-group", "mixed-pairs", "standard"]))
    return group, SamplerSettings(
        type="standard" if mode == "standard" else "grouped",
        grouped_mode="mixed-pairs" if mode == "standard" else mode,
        leftovers=draw(st.sampled_from(["keep", "drop"])),
        batch_size=draw(st.sampled_from([2, 4, 6, 8])),
        accumulation_steps=draw(st.integers(1, 3)),
    )


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(splits(), st.integers(0, 2**31))
def test_rows_come_as_often_as_expected(split, seed):
    group, sampler = split
    expected = sampler.expected_draws(of_group(group))
    assert expected.sum() == pytest.approx(sampler.micro_batches(of_group(group)) * sampler.batch_size)
    if not sampler.drops_leftovers:
        assert np.ptp(expected) == 0
    error = np.abs(draws(group, sampler, seed) - expected)
    assert np.all(error <= 6 * np.sqrt(expected * (1 - expected) / EPOCHS) + 1e-12)


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(splits(), st.integers(0, 2**31), st.integers(0, 1000))
def test_a_plan_follows_from_seed_and_epoch_alone(split, seed, epoch):
    group, sampler = split
    first, second = (plan_epoch(of_group(group), sampler, seed=seed, epoch=epoch) for _ in range(2))
    for name in ("index", "group", "partner", "weight"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize("mode", ["strict-group", "mixed-pairs"])
def test_rare_rows_are_trained(mode):
    """60 rows of a rare class beside whole batches of another: fewer than a batch, and still in every epoch's lot."""
    group = np.repeat(np.array([0, -1], np.int32), [640, 60])
    sampler = SamplerSettings(grouped_mode=mode, batch_size=64)
    share = draws(group, sampler, seed=0, epochs=100)
    assert share[640:].mean() == pytest.approx(640 / 700, abs=0.03)
    assert share.min() > 0.7


def test_a_single_odd_row_is_trained():
    """With pairs, one row without partner was the one left out of every epoch."""
    group = np.array([0] * 8 + [-1], np.int32)
    share = draws(group, SamplerSettings(batch_size=4), seed=3)
    assert share[-1] == pytest.approx(8 / 9, abs=0.1)


def test_dropped_classes_are_counted():
    label = np.repeat([0, 1, 2], [9, 3, 1])
    sampler = SamplerSettings(grouped_mode="strict-group", leftovers="drop", batch_size=4)
    drawn = np.bincount(label, weights=sampler.expected_draws(of_group(label)), minlength=4)
    np.testing.assert_allclose(drawn, [8, 0, 0, 0])


def test_what_one_level_leaves_out_another_may_draw():
    dataset: Any = SimpleNamespace(
        tasks=("t",), class_counts={"train": {"t": np.array([5, 5, 5])}}, class_name=lambda task, k: f"class {k}"
    )
    drawn = {level: {"t": np.array(rows)} for level, rows in (("one", [5, 0, 0]), ("two", [0, 5, 0]))}
    (text,) = coverage._never_drawn(dataset, SamplerSettings(), drawn)
    assert text.startswith("1 of 3 classes of t are never drawn: class 2 (5 rows)")


@pytest.mark.parametrize("batch_size", [1, 7, 9, 12, 64])
def test_partners_do_not_depend_on_the_devices(batch_size):
    """Every process computes the same partners, and each finds its own rows' partners at home."""
    group = np.repeat(np.arange(3, dtype=np.int32), [70, 80, 90])
    sampler = SamplerSettings(grouped_mode="strict-group", batch_size=batch_size)
    whole = PlanSequence({"": of_group(group)}, [""], sampler, seed=5).plan(0)
    for devices in (1, 2, 4):
        per_device = batch_size // devices
        if batch_size % devices or per_device % sampler.block:
            continue
        sampler.check_devices(devices)
        parts = [
            PlanSequence({"": of_group(group)}, [""], sampler, seed=5, positions=positions).plan(0)
            for positions in np.split(np.arange(batch_size), devices)
        ]
        np.testing.assert_array_equal(np.concatenate([part.partner for part in parts], axis=-1), whole.partner)
        position = np.arange(batch_size)
        assert np.all(whole.partner // per_device == position // per_device)
    if batch_size > 1:
        mixable = whole.group >= 0
        assert np.all((whole.partner != np.arange(batch_size))[mixable])
    else:
        assert np.all(whole.partner == 0)
