"""Index plans against the golden samplers, and their properties judged by the labels themselves."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

from linnaeus_jax.data.plans import PlanSequence, plan_epoch
from linnaeus_jax.data.samplers import SamplerSettings, TrainingRows
from tests.data.helpers import of_group
from tests.npz import load_npz


def cases(fixtures):
    arrays = load_npz(fixtures / "data_sampler.npz")
    for case in json.loads((fixtures / "data_sampler.json").read_text()):
        yield case, arrays[f"g{case['case']}"].astype(np.int32)


def pairs_are_of_one_group(plan, group):
    pairs = plan.index.reshape(-1, 2)
    return (group[pairs[:, 0]] == group[pairs[:, 1]]).all() and (group[pairs] >= 0).all()


def test_golden_counts_and_structure(fixtures):
    """Counts per process; the reference's short batches (drop_last False) have no counterpart, as shapes are fixed."""
    seen = 0
    for case, group in cases(fixtures):
        assert int((group >= 0).sum()) == case["n_eligible"]
        assert len(np.unique(group[group >= 0])) == case["n_groups"]
        if case["mode"] == "mixed-pairs" and case["batch_size"] % 2:
            with pytest.raises(ValueError, match=r"data\.batch_size is 7; mixed-pairs"):
                SamplerSettings(grouped_mode=case["mode"], batch_size=case["batch_size"])
            continue
        if not case["drop_last"]:
            continue
        world = case["world"]
        # batch_size counts one process in these cases
        settings = SamplerSettings(
            grouped_mode=case["mode"], leftovers="drop", batch_size=case["batch_size"] * world, mix_block=2
        )
        if case["mode"] == "mixed-pairs":
            batches = settings.micro_batches(of_group(group))
            assert batches == min(case["batches_per_rank"])
        elif world == 1:
            assert settings.micro_batches(of_group(group)) == case["total_batches"]
        else:
            continue  # a batch of one group, split over processes
        seen += 1
        plans = [plan_epoch(of_group(group), settings, seed=1, epoch=epoch) for epoch in (0, 0, 1)]
        index = plans[0].index
        np.testing.assert_array_equal(index, plans[1].index)
        assert len(np.unique(index)) == index.size
        if not index.size:
            continue
        assert not np.array_equal(index, plans[2].index)
        if world == 1:
            assert index.size == case["samples_per_epoch"]
        if case["mode"] == "mixed-pairs":
            assert pairs_are_of_one_group(plans[0], group)
            np.testing.assert_array_equal(plans[0].partner[0, 0], np.arange(index.shape[-1]) ^ 1)
        else:
            assert all(len(np.unique(group[batch])) == 1 for batch in index.reshape(-1, index.shape[-1]))
        np.testing.assert_array_equal(plans[0].group, group[index])
    assert seen == 5


#: sampler -> CRC-32 of what it draws
DRAWN = {
    "grouped mixed-pairs keep none": 295487381,
    "grouped mixed-pairs drop none": 1471064566,
    "grouped strict-group keep none": 159531091,
    "grouped strict-group drop none": 2066992160,
    "standard mixed-pairs keep none": 1072783084,
    "standard strict-group keep none": 1072783084,
    "grouped mixed-pairs keep sqrt": 308905134,
    "grouped strict-group keep sqrt": 3691311727,
    "grouped strict-group keep equal": 3519498644,
    "standard strict-group keep equal": 3102100504,
}


@pytest.mark.parametrize("case", DRAWN)
def test_draws_are_the_same_in_every_release(case):
    """A run that is resumed by a later one gets the rows that it would have had."""
    kind, mode, leftovers, balance = case.split()
    group = np.repeat(np.arange(-1, 12), np.arange(3, 16)).astype(np.int32)[np.random.RandomState(0).permutation(117)]
    settings = SamplerSettings(
        type=kind, grouped_mode=mode, leftovers=leftovers, class_balance=balance, batch_size=6, accumulation_steps=2
    )
    plan = plan_epoch(TrainingRows(np.maximum(group, 0)[:, None], group), settings, seed=11, epoch=5)
    drawn = [np.ascontiguousarray(x, "<i8").tobytes() for x in (plan.index, plan.group, plan.partner)]
    assert zlib.crc32(b"".join(drawn)) == DRAWN[case]


def test_golden_example_has_the_properties_we_test(fixtures):
    arrays = load_npz(fixtures / "data_sampler.npz")
    example, group = arrays["example_batches"], arrays["g0"]
    assert len(np.unique(example)) == example.size
    pairs = example.reshape(-1, 2)
    assert (group[pairs[:, 0]] == group[pairs[:, 1]]).all()


@pytest.mark.parametrize("mode", ["mixed-pairs", "strict-group"])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_kept_leftovers_and_labels(fixtures, mode, accumulation):
    """No row twice in an epoch; a mixed row's partner has its label; padding comes last, with weight 0."""
    group = load_npz(fixtures / "data_sampler.npz")["g0"].astype(np.int32)
    label = np.where(group < 0, 999, group)
    settings = SamplerSettings(grouped_mode=mode, batch_size=16, accumulation_steps=accumulation)
    plan = plan_epoch(of_group(group), settings, seed=3, epoch=0)
    assert plan.index.shape == (settings.steps_per_epoch(of_group(group)), accumulation, 16)
    real = plan.index >= 0
    np.testing.assert_array_equal(plan.weight, real)
    assert len(np.unique(plan.index[real])) == real.sum() == settings.micro_batches(of_group(group)) * 16
    partner_index = np.take_along_axis(plan.index, plan.partner, axis=-1)
    mixed = plan.partner != np.arange(16)
    assert mixed.any()
    np.testing.assert_array_equal(label[plan.index[mixed]], label[partner_index[mixed]])
    assert (plan.group[mixed] >= 0).all()
    available = np.bincount(label)
    drawn = np.bincount(label, weights=settings.expected_draws(of_group(group)))
    assert available.sum() == 300
    assert (drawn <= available).all()
    assert drawn.sum() == pytest.approx(real.sum())


def test_standard_is_a_permutation_without_partners(fixtures):
    group = load_npz(fixtures / "data_sampler.npz")["g0"].astype(np.int32)
    plan = plan_epoch(of_group(group), SamplerSettings(type="standard", batch_size=7), seed=0, epoch=0)
    assert plan.index.shape == (42, 1, 7)
    assert len(np.unique(plan.index)) == plan.index.size
    assert (plan.partner == np.arange(7)).all()


@pytest.mark.parametrize("mode", ["mixed-pairs", "strict-group"])
def test_processes_share_one_plan(fixtures, mode):
    group = load_npz(fixtures / "data_sampler.npz")["g0"].astype(np.int32)
    settings = SamplerSettings(grouped_mode=mode, batch_size=16, mix_block=2)
    whole = plan_epoch(of_group(group), settings, seed=0, epoch=2)
    sequences = [
        PlanSequence({"": of_group(group)}, [""] * 3, settings, seed=0, positions=positions)
        for positions in np.split(np.arange(16), 4)
    ]
    assert len({sequence.total for sequence in sequences}) == 1
    parts = [sequence.plan(2).index for sequence in sequences]
    np.testing.assert_array_equal(np.concatenate(parts, axis=-1), whole.index)
    for sequence, part in zip(sequences, parts):
        step = 2 * sequence.steps_per_epoch[0] + 1
        np.testing.assert_array_equal(sequence.plan_of_step(step).index, part[1])


def test_levels_change_the_epochs(fixtures):
    group = load_npz(fixtures / "data_sampler.npz")["g0"].astype(np.int32)
    coarse = np.where(group >= 0, 0, -1).astype(np.int32)
    settings = SamplerSettings(leftovers="drop", batch_size=16)
    plans = PlanSequence(
        {"fine": of_group(group), "coarse": of_group(coarse)}, ["fine", "coarse", "fine"], settings, seed=5
    )
    lengths = [settings.steps_per_epoch(of_group(g)) for g in (group, coarse, group)]
    assert plans.steps_per_epoch.tolist() == lengths
    assert plans.total == sum(lengths)
    assert plans.locate(lengths[0]) == (1, 0)
    assert plans.locate(plans.total - 1) == (2, lengths[2] - 1)
    for epoch in (0, 1, 0, 2):
        plans.plan(epoch)
    assert list(plans._plans) == [0, 2]  # those used last; more would fill the memory of a long run
    with pytest.raises(IndexError, match="outside the run"):
        plans.locate(plans.total)
    with pytest.raises(ValueError, match="fill no batch"):
        PlanSequence({"": of_group(group[:8])}, [""], settings, seed=0)
    assert PlanSequence({}, [], settings, seed=0).total == 0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"type": "random"}, r"data\.sampler\.type = 'random' is unknown; choose one of grouped, standard"),
        ({"mix_block": 3, "batch_size": 12}, "mix_block is 3; it must be even"),
        ({"mix_block": 5, "grouped_mode": "strict-group"}, "mix_block is 5; it must divide"),
    ],
)
def test_unusable_samplers(keys, message):
    with pytest.raises(ValueError, match=message):
        SamplerSettings(**keys)


def test_devices_get_whole_blocks():
    with pytest.raises(ValueError, match="multiple of 3 devices"):
        SamplerSettings(batch_size=16).check_devices(3)
    with pytest.raises(ValueError, match="mix_block is 16"):
        SamplerSettings(batch_size=16, mix_block=16).check_devices(2)
    with pytest.raises(ValueError, match="mix_block is 16"):
        SamplerSettings(grouped_mode="strict-group", batch_size=16, mix_block=16).check_devices(2)
    SamplerSettings(batch_size=16).check_devices(8)
    SamplerSettings(batch_size=16, mix_block=2).check_devices(8)
