"""Balanced classes: how often classes and rows come, who is paired with whom, and that plans can be resumed."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.checks.config import config_errors
from linnaeus_jax.config.tree import assign
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.coverage import coverage_report
from linnaeus_jax.data.plans import PlanSequence, plan_epoch
from linnaeus_jax.data.samplers import Sampler, SamplerSettings, TrainingRows, class_shares, draw_rows, spread_chunks
from linnaeus_jax.registry import SAMPLERS
from linnaeus_jax.run.identity import plan_identity
from linnaeus_jax.run.inputs import build_inputs
from tests.tiny import tiny_config

EPOCHS = 150
MODES: dict[str, dict[str, Any]] = {
    "pairs": {"type": "grouped", "grouped_mode": "mixed-pairs"},
    "strict": {"type": "grouped", "grouped_mode": "strict-group"},
    "standard": {"type": "standard"},
}


@st.composite
def cases(draw):
    """Rows of a few classes of very different size in a few groups, and a sampler that balances them."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 7, 20, 60]), min_size=1, max_size=6))
    label = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    label = np.random.default_rng(draw(st.integers(0, 99))).permutation(label)
    kind = draw(st.sampled_from(["class", "coarser", "some"]))
    group = {"class": label, "coarser": label // 2, "some": np.where(label % 2, -1, label)}[kind].astype(np.int32)
    rows = TrainingRows(np.stack([label // 3, label], axis=1), group, draw(st.booleans()))
    sampler = SamplerSettings(
        **MODES[draw(st.sampled_from(sorted(MODES)))],
        batch_size=draw(st.sampled_from([2, 4, 6, 8])),
        accumulation_steps=draw(st.integers(1, 3)),
        class_balance=draw(st.sampled_from(["sqrt", "equal"])),
        balanced_rank=draw(st.integers(0, 1)),
    )
    return rows, sampler


def shares_by_hand(rows: TrainingRows, sampler: SamplerSettings) -> dict[int, float]:
    """Draws of each class: the rule in words."""
    label = rows.label[:, sampler.balanced_rank].tolist()
    total = sampler.micro_batches(rows) * sampler.batch_size
    count = Counter(label)
    null = count.pop(0, 0) if rows.has_null and len(count) > 1 else 0
    weight = {c: math.sqrt(n) if sampler.class_balance == "sqrt" else 1.0 for c, n in count.items()}
    of_labelled = total * (len(label) - null) / len(label)
    found = {c: of_labelled * w / sum(weight.values()) for c, w in weight.items()}
    return {**found, 0: total * null / len(label)} if null else found


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(cases(), st.integers(0, 2**31), st.integers(0, 1000))
def test_classes_and_rows_come_as_often_as_said(case, seed, epoch):
    rows, sampler = case
    plain = dataclasses.replace(sampler, class_balance="none")
    assert sampler.micro_batches(rows) == plain.micro_batches(rows)
    assert sampler.steps_per_epoch(rows) == plain.steps_per_epoch(rows)
    plan = plan_epoch(rows, sampler, seed=seed, epoch=epoch)
    drawn = plan.index[plan.index >= 0]
    assert len(drawn) == sampler.micro_batches(rows) * sampler.batch_size
    label, times = rows.label[:, sampler.balanced_rank], np.bincount(drawn, minlength=len(rows))
    for c, share in shares_by_hand(rows, sampler).items():
        of_class = times[label == c]
        assert abs(of_class.sum() - share) < 1 + 1e-6
        assert np.ptp(of_class) <= 1
    expected = sampler.expected_draws(rows)
    assert expected.sum() == pytest.approx(len(drawn))
    for c, share in shares_by_hand(rows, sampler).items():
        np.testing.assert_allclose(expected[label == c], share / np.count_nonzero(label == c))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(cases(), st.integers(0, 2**31))
def test_partners_are_other_rows_of_the_group(case, seed):
    rows, sampler = case
    plan = plan_epoch(rows, sampler, seed=seed, epoch=0)
    index, group, partner = (array.reshape(-1, sampler.batch_size) for array in (plan.index, plan.group, plan.partner))
    position = np.arange(sampler.batch_size)
    mixed = partner != position
    other = np.take_along_axis(index, partner, axis=1)
    assert (rows.group[index[mixed]] == rows.group[other[mixed]]).all()
    assert (index[mixed] != other[mixed]).all()
    np.testing.assert_array_equal(mixed, group >= 0)
    np.testing.assert_array_equal(rows.group[index[mixed]], group[mixed])
    assert (partner // sampler.block == position // sampler.block).all()
    if sampler.pairs:  # a drawn row stays alone only where its group has not enough draws of other rows
        for g in np.unique(rows.group[rows.group >= 0]).tolist():
            draws = np.bincount(index[(index >= 0) & (rows.group[index] == g)])
            if draws.size:
                others = int(draws.sum() - draws.max())
                alone = int(draws.sum()) - np.count_nonzero(mixed & (group == g))
                assert alone == max(draws.sum() % 2, draws.max() - others)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(cases(), st.integers(0, 2**31), st.integers(0, 1000))
def test_a_plan_follows_from_seed_and_epoch_alone(case, seed, epoch):
    rows, sampler = case
    first, second = (plan_epoch(rows, sampler, seed=seed, epoch=epoch) for _ in range(2))
    for name in ("index", "group", "partner", "weight"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(cases(), st.integers(0, 2**31))
def test_the_mean_over_epochs_is_as_expected(case, seed):
    rows, sampler = case
    total = np.zeros(len(rows), np.int64)
    for epoch in range(EPOCHS):
        index = plan_epoch(rows, sampler, seed=seed, epoch=epoch).index
        total += np.bincount(index[index >= 0], minlength=len(rows))
    expected = sampler.expected_draws(rows)
    part = expected - np.floor(expected)
    # A row comes floor or ceil of its expectation, but for a class whose own draws are at the border.
    error = np.abs(total / EPOCHS - expected)
    assert np.all(error <= 6 * np.sqrt((part * (1 - part) + 0.01) / EPOCHS))


def test_which_rows_come_more_often_changes():
    rows = TrainingRows(np.repeat([0, 1], [100, 10])[:, None].astype(np.int32), np.full(110, -1, np.int32))
    sampler = SamplerSettings(type="standard", batch_size=10, class_balance="equal")
    drawn = [np.unique(plan_epoch(rows, sampler, seed=0, epoch=epoch).index) for epoch in range(12)]
    assert all(np.count_nonzero(one < 100) == 55 for one in drawn)
    assert len(np.unique(np.concatenate(drawn))) == 110
    assert not np.array_equal(drawn[0], drawn[1])


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(cases(), st.integers(0, 2**31), st.data())
def test_hosts_and_resuming(case, seed, data):
    """Two hosts share every batch without overlap and agree on the number; a step is the same however it is reached."""
    rows, sampler = case
    if not sampler.micro_batches(rows):
        return
    sequences = [
        PlanSequence({"": rows}, [""] * 3, sampler, seed=seed, positions=positions)
        for positions in np.split(np.arange(sampler.batch_size), [sampler.batch_size // 2])
    ]
    assert sequences[0].total == sequences[1].total == 3 * sampler.steps_per_epoch(rows)
    step = data.draw(st.integers(0, sequences[0].total - 1))
    parts = [sequence.plan_of_step(step) for sequence in sequences]
    assert parts[0].index.shape == parts[1].index.shape
    epoch, within = sequences[0].locate(step)
    whole = plan_epoch(rows, sampler, seed=seed, epoch=epoch)[within]
    np.testing.assert_array_equal(np.concatenate([part.index for part in parts], axis=-1), whole.index)
    np.testing.assert_array_equal(np.concatenate([part.partner for part in parts], axis=-1), whole.partner)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.sampled_from([(2, 2), (6, 2), (6, 3), (8, 4), (5, 5)]),
    st.integers(0, 99),
)
def test_chunks_spread_the_draws_of_a_row(times, sizes, seed):
    size, block = sizes
    row = np.repeat(np.arange(len(times)), times)
    group = row % 3 - 1
    keys = np.random.default_rng(seed).integers(0, 2**63, len(times)).astype(np.uint64)
    whole, rest = spread_chunks(group, row, size, block, keys)
    assert sorted([*whole.ravel().tolist(), *rest.tolist()]) == list(range(len(row)))
    assert all(len(set(group[chunk].tolist())) == 1 and group[chunk[0]] >= 0 for chunk in whole)
    for g in (0, 1):
        blocks = [one for chunk in whole if group[chunk[0]] == g for one in row[chunk].reshape(-1, block).tolist()]
        count = Counter(r for one in blocks for r in one)
        if count and max(count.values()) <= len(blocks):
            assert all(len(set(one)) == block for one in blocks)
        left = Counter(row[rest[group[rest] == g]].tolist())  # of the row with the most draws, as far as it has them
        of_row = {r: n for r, n in enumerate(times) if r % 3 - 1 == g}
        most = max(of_row.values(), default=0)
        assert max((left[r] for r in of_row if of_row[r] == most), default=0) == min(left.total(), most)


def test_shares_at_scale():
    """A million rows, ten thousand classes: rounding loses no draw."""
    rng = np.random.default_rng(0)
    label = np.minimum(rng.zipf(1.3, 10**6), 10_000).astype(np.int32)
    for balance in ("none", "sqrt", "equal"):
        shares = class_shares(label, balance, 999_936, has_null=False)
        keys = rng.integers(0, 2**63, 10**6 + 1).astype(np.uint64)
        drawn = draw_rows(label, shares, 999_936, keys)
        assert len(drawn) == 999_936
        count = np.bincount(label)
        assert np.abs(np.bincount(label[drawn], minlength=len(count)) - shares).max() < 1 + 1e-3
        power = {"none": 1.0, "sqrt": 0.5, "equal": 0.0}[balance]
        want = np.where(count > 0, np.maximum(count, 1) ** power, 0.0)
        np.testing.assert_allclose(shares, want / want.sum() * 999_936)


def test_a_fraction_of_a_draw_comes_in_that_fraction_of_the_epochs():
    """Systematic sampling is unbiased: each epoch has an offset of its own, uniform in [0, 1)."""
    label, rng = np.repeat(np.arange(4), 5), np.random.default_rng(0)
    shares, total = np.array([2.25, 3.5, 0.9, 3.35]), np.zeros(4)
    for _ in range(2000):
        keys = rng.integers(0, 2**64, len(label) + 1, dtype=np.uint64)
        total += np.bincount(label[draw_rows(label, shares, 10, keys)], minlength=4)
    np.testing.assert_allclose(total / 2000, shares, atol=0.05)  # four standard deviations


def test_rows_without_a_label_keep_their_share():
    label = np.repeat([0, 1, 2], [50, 40, 10]).astype(np.int32)
    for balance in ("sqrt", "equal"):
        shares = class_shares(label, balance, 80, has_null=True)
        assert shares[0] == pytest.approx(40)
    np.testing.assert_allclose(shares, [40, 20, 20])
    np.testing.assert_allclose(class_shares(label, "equal", 90, has_null=False), [30, 30, 30])
    np.testing.assert_allclose(class_shares(np.zeros(7, np.int32), "equal", 6, has_null=True), [6])


# ---- settings --------------------------------------------------------------------------------------------------------


def test_what_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"data\.sampler\.class_balance = 'root' is none of none, sqrt, equal"):
        SamplerSettings(class_balance="root")
    with pytest.raises(ValueError, match=r"leftovers = 'drop' leaves out .*; set leftovers to 'keep'"):
        SamplerSettings(class_balance="sqrt", leftovers="drop")
    SamplerSettings(class_balance="sqrt", leftovers="drop", type="standard")
    monkeypatch.setattr(SAMPLERS, "entries", dict(SAMPLERS.entries))
    SAMPLERS.register("other")(type("Other", (Sampler,), {}))
    with pytest.raises(ValueError, match=r"has no effect on data\.sampler\.type = 'other'; choose grouped or standard"):
        SamplerSettings(type="other", class_balance="equal")
    config = tiny_config(tmp_path)
    for key, value, message in (
        ("class_balance", "root", "data.sampler.class_balance = 'root'"),
        ("class_balance_task", "taxa_L40", "data.sampler.class_balance_task = 'taxa_L40' is none of data.task_keys_h5"),
    ):
        changed = config.copy_and_resolve_references()
        assign(changed, ("data", "sampler", key), value)
        assert any(message in error for error in config_errors(changed))


def test_identity_of_a_plan():
    """Checkpoints from before classes could be balanced still fit; one choice does not fit another."""
    rows = TrainingRows(np.zeros((8, 1), np.int32), np.zeros(8, np.int32))

    def identity(**keys):
        return plan_identity(PlanSequence({"": rows}, [""], SamplerSettings(batch_size=4, **keys), seed=0), 0)[
            "sampler"
        ]

    plain = {"type", "grouped_mode", "leftovers", "batch_size", "accumulation_steps"}
    assert set(identity()) == set(identity(balanced_rank=1)) == plain
    assert identity(class_balance="sqrt", balanced_rank=1) == {
        **identity(),
        "class_balance": "sqrt",
        "balanced_rank": 1,
    }


def test_coverage_of_balanced_classes(tmp_path):
    keys = {"data__sampler__class_balance": "equal", "data__sampler__class_balance_task": "taxa_L20"}
    inputs = build_inputs(typed(tiny_config(tmp_path, **keys)), devices=1, output_dir=tmp_path)
    report, dataset = coverage_report(inputs.dataset, inputs.sampler, inputs.levels.rows), inputs.dataset
    assert "make 96 draws with data.sampler.class_balance = 'equal' of taxa_L20:" in report.lines[0]
    assert "of 96 training rows, a row 0." in report.lines[0]
    np.testing.assert_allclose(report.drawn["taxa_L10"]["taxa_L20"], [0, 24, 24, 24, 24])
    share = 24 / dataset.class_counts["train"]["taxa_L20"][1:]
    assert share.max() > 1
    (line,) = (line for line in report.lines if line.startswith("  taxa_L20"))
    assert line.startswith(f"  taxa_L20: {share.min():.1%} to {share.max():.1%} of a class; least ")
    assert not report.warnings
    draws = np.zeros(5)
    for epoch in range(3):
        index = inputs.plans.plan(epoch).index
        draws += np.bincount(dataset.train.labels[index[index >= 0], 1], minlength=5) / 3
    np.testing.assert_allclose(draws, [0, 24, 24, 24, 24])


def test_the_finest_rank_is_balanced_where_none_is_named(tmp_path):
    for task, place in (("", 0), ("taxa_L10", 0), ("taxa_L30", 2)):
        config = tiny_config(tmp_path, data__sampler__class_balance="sqrt", data__sampler__class_balance_task=task)
        assert SamplerSettings.from_config(typed(config)).balanced_rank == place
