"""Base sums, subsets and top-k against the golden phase; padding, splits and devices change nothing."""

from __future__ import annotations

import functools
import json
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from linnaeus_jax.data import splits
from linnaeus_jax.metrics.extras import NO_EXTRAS, PhaseExtras, SubsetMetricWrapper
from linnaeus_jax.metrics.metric import MetricInputs
from linnaeus_jax.metrics.phase import accuracy, add, batch_sums, empty_sums, summarise
from tests.npz import load_npz

SUBSETS = {"taxa": ("a", "b"), "rarity": ("r0", "r1", "r2", "r3")}
#: one object per choice, which is a static argument of one program
SUBSETS_ALONE, WITH_CONFIDENCE = PhaseExtras(subsets=SUBSETS), PhaseExtras(subsets=SUBSETS, confidence=True)


@jax.jit
def top_1_and_3(output, target):
    """Accuracies over all rows, and over those whose target is not 0."""
    return [accuracy(output, target, (1, 3), ignore) for ignore in (None, 0)]


@pytest.fixture(scope="module")
def golden(fixtures):
    expected = json.loads((fixtures / "observability_metrics.json").read_text())
    arrays = load_npz(fixtures / "observability_metrics.npz")
    tasks = expected["tasks_sorted"]
    batch = {
        "logits": {task: arrays[f"logits_{task}"] for task in tasks},
        "label": np.stack([arrays[f"targets_{task}"] for task in tasks], axis=1).astype(np.int32),
        "loss": np.stack([arrays[f"raw_loss_{task}"] for task in tasks], axis=1),
        "membership": {kind: arrays[f"subset_{kind}"].astype(np.int32) for kind in SUBSETS},
        "weight": np.ones(len(arrays["chain_ok"]), np.float32),
    }
    return expected, arrays, tasks, batch


def padded(batch, start, stop, size):
    """Rows start..stop, then rubbish of weight 0 up to `size`."""

    def cut(x):
        rest = np.full((size - (stop - start), *x.shape[1:]), 1, x.dtype)
        return np.concatenate([x[start:stop], rest])

    found = jax.tree.map(cut, batch)
    found["weight"][stop - start :] = 0
    return found


@functools.partial(jax.jit, static_argnames="extras")
def sums_of(batch, extras):
    return batch_sums(
        batch["logits"],
        batch["label"],
        batch["weight"],
        batch["loss"],
        batch["loss"].mean(axis=1),
        null_possible=True,
        extras=extras,
        membership=batch["membership"],
    )


def run_phase(golden, sizes, extras, size=8):
    _, _, tasks, batch = golden
    total, start = empty_sums(tasks, extras), 0
    for count in sizes:
        total = jax.jit(add)(total, sums_of(padded(batch, start, start + count, size), extras))
        start += count
    assert start == len(batch["weight"])
    return jax.device_get(total)


def test_golden_phase(golden):
    expected, arrays, tasks, _ = golden
    extras = SUBSETS_ALONE
    sums = run_phase(golden, arrays["batch_sizes"], extras)
    values, epoch = summarise(sums, tasks, extras), expected["epoch"]
    assert sums["count"] == epoch["num_samples"]
    assert sums["has_label"] == epoch["num_with_non_null"] == arrays["has_non_null"].sum()
    assert sums["chain"] == arrays["chain_ok"].sum()
    assert sums["partial_chain"] == arrays["partial_ok_intended"].sum()
    assert values["chain_accuracy"] == pytest.approx(epoch["chain_accuracy_correct"], rel=1e-12)
    assert values["partial_chain_accuracy"] == pytest.approx(epoch["partial_chain_accuracy_correct"], rel=1e-12)
    assert values["loss_unweighted"] == pytest.approx(epoch["val_loss_ref"], rel=1e-5)
    for t, task in enumerate(tasks):
        want = expected["tasks"][task]
        assert sums["non_null"][t] == want["non_null_count"]
        assert values[f"acc1_{task}"] == pytest.approx(want["acc1_np"], rel=1e-12)
        assert values[f"acc3_{task}"] == pytest.approx(want["acc3_np"], rel=1e-12)
        assert values[f"loss_{task}"] == pytest.approx(want["loss"], rel=1e-5)
        for group in ("null", "non_null"):
            assert values[f"{group}/acc1_{task}"] == pytest.approx(want[f"{group}_acc1_correct"], rel=1e-12)
            assert values[f"{group}/loss_{task}"] == pytest.approx(want[f"{group}_loss_correct"], rel=1e-5)


def check_subsets(values, expected):
    checked = 0
    for kind, names in SUBSETS.items():
        for key, want in expected["subset_correct"][kind].items():
            task, index = key.split("|")
            if int(index) < 0:
                continue
            name = names[int(index)]
            assert values[f"subset/{kind}/{name}/count"] == want["count"]
            assert values[f"subset/{kind}/{name}/acc1_{task}"] == pytest.approx(100 * want["acc"], rel=1e-12)
            checked += 1
    assert checked == 18


def test_golden_subsets(golden):
    expected, arrays, tasks, batch = golden
    extras = SUBSETS_ALONE
    check_subsets(summarise(run_phase(golden, arrays["batch_sizes"], extras), tasks, extras), expected)

    # a membership matrix says the same, and rows may then belong to several subsets
    matrix = batch["membership"]["taxa"][:, None] == np.arange(2)[None, :]
    columns = {**batch, "membership": {**batch["membership"], "taxa": matrix}}
    whole = jax.device_get(sums_of(columns, extras))
    check_subsets(summarise(whole, tasks, extras), expected)


def test_subset_wrapper_accumulates_over_batches(golden):
    expected, _, tasks, batch = golden
    values: dict[str, float] = {}
    for kind, names in SUBSETS.items():
        wrapper = SubsetMetricWrapper(kind, names)
        others: dict[str, Any] = dict.fromkeys(("row", "group", "meta", "meta_valid", "subsets"))
        update = jax.jit(lambda part: wrapper.update(MetricInputs(**part, **others)))  # noqa: B023
        sums = wrapper.empty(tasks)
        assert wrapper.compute(jax.device_get(sums), tasks) == {f"subset/{kind}/{name}/count": 0 for name in names}
        for start, stop in ((0, 11), (11, 22)):
            part = jax.tree.map(lambda x: x[start:stop], batch)  # noqa: B023
            sums = wrapper.merge(sums, update(part))
        values |= wrapper.compute(jax.device_get(sums), tasks)
    check_subsets(values, expected)


@pytest.mark.parametrize("sizes", [[22], [1] * 22, [7, 7, 7, 1]])
def test_any_split_of_the_rows_gives_the_same_counts(golden, sizes):
    extras = WITH_CONFIDENCE
    whole, split = run_phase(golden, [22], extras, size=24), run_phase(golden, sizes, extras, size=24)
    assert whole.keys() == split.keys()
    for name, value in whole.items():
        if np.issubdtype(value.dtype, np.integer):
            np.testing.assert_array_equal(split[name], value, err_msg=name)
        else:
            np.testing.assert_allclose(split[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


def test_two_devices_give_the_same_counts_as_one(golden):
    _, _, tasks, batch = golden
    ancestors = tuple(
        np.zeros((batch["logits"][task].shape[1], len(tasks) - t), np.int32) for t, task in enumerate(tasks)
    )
    extras = PhaseExtras(subsets=SUBSETS, confidence=True, ancestors=ancestors)
    alone = jax.device_get(sums_of(padded(batch, 0, 22, 24), extras))
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    rows = NamedSharding(mesh, PartitionSpec("data"))
    both = jax.device_get(sums_of(jax.device_put(padded(batch, 0, 22, 24), rows), extras))
    for name, value in alone.items():
        if np.issubdtype(value.dtype, np.integer):
            np.testing.assert_array_equal(both[name], value, err_msg=name)
        else:
            np.testing.assert_allclose(both[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


def test_sums_have_the_shapes_of_the_empty_ones(golden):
    _, _, tasks, batch = golden
    extras = PhaseExtras(subsets={**SUBSETS, "none": ()}, confidence=True)
    assert not any("none" in name for name in empty_sums(tasks, extras))
    empty, found = empty_sums(tasks, extras), jax.eval_shape(functools.partial(sums_of, extras=extras), batch)
    assert {k: (v.shape, v.dtype) for k, v in empty.items()} == {k: (v.shape, v.dtype) for k, v in found.items()}


def test_the_loss_of_null_rows_is_a_sum_of_its_own():
    """Not a difference: one infinite known row would make it NaN, and a million known rows would round it away."""
    batch: dict[str, Any] = {
        "logits": {"a": np.zeros((3, 3), np.float32)},
        "label": np.array([[1], [0], [2]], np.int32),
        "weight": np.ones(3, np.float32),
        "membership": {},
    }

    def null_loss(loss):
        batch["loss"] = np.array(loss, np.float32)[:, None]
        values = summarise(jax.device_get(sums_of(batch, NO_EXTRAS)), ("a",))
        return values["null/loss_a"], values["non_null/loss_a"], values["loss_a"]

    assert null_loss([np.inf, 0.5, 1.0]) == (0.5, np.inf, np.inf)
    assert null_loss([2.0**25, 0.5, 2.0**25]) == (0.5, 2.0**25, pytest.approx(2 / 3 * 2**25))


def test_an_empty_phase_measures_nothing(golden):
    tasks = golden[2]
    extras = WITH_CONFIDENCE
    values = summarise(jax.device_get(empty_sums(tasks, extras)), tasks, extras)
    assert set(values) == {f"subset/{kind}/{name}/count" for kind, names in SUBSETS.items() for name in names}
    assert set(values.values()) == {0}


def test_topk_function(golden):
    expected, arrays, tasks, batch = golden
    for t, task in enumerate(tasks):
        wanted = iter(expected["tasks"][task]["topk_fn"])
        start = 0
        for count in arrays["batch_sizes"]:
            rows = slice(start, start := start + count)
            output, target = batch["logits"][task][rows], batch["label"][rows, t]
            for got in top_1_and_3(output, target):
                assert [float(x) for x in got] == pytest.approx(next(wanted), rel=1e-6)
    every, ones = np.zeros(4, np.int32), np.ones((4, 2), np.float32)
    assert [float(x) for x in top_1_and_3(ones, every)[1]] == [0.0, 0.0]
    assert [float(x) for x in top_1_and_3(ones, every + 1)[0]] == [0.0, 100.0]


def test_rarity_bins_and_their_names(fixtures):
    for case in json.loads((fixtures / "observability_misc.json").read_text())["rarity"]:
        counts = np.asarray(case["class_counts_train"])
        thresholds = splits.rarity_thresholds({"t": counts}, case["percentiles"])["t"]
        bins = splits.rarity_bins(counts[np.asarray(case["sample_class"])], thresholds)
        assert thresholds.tolist() == case["thresholds_sorted_percentiles"]
        assert bins.tolist() == case["bin"]
        # every bin has a name, so that PhaseExtras counts every row exactly once
        names = splits.rarity_bin_names(case["percentiles"])
        extras = PhaseExtras(subsets={"rarity": names})
        ones = np.ones(len(bins), np.float32)
        batch = {
            "logits": {"t": np.zeros((len(bins), 2), np.float32)},
            "label": np.ones((len(bins), 1), np.int32),
            "weight": ones,
            "loss": ones[:, None],
            "membership": {"rarity": bins},
        }
        sums = sums_of(batch, extras)
        np.testing.assert_array_equal(sums["subset/rarity/count"], np.bincount(bins, minlength=len(names)))


def test_the_loss_of_padding_counts_nowhere():
    """Whatever the label of a row of weight 0 is, and whatever its loss."""
    batch = {
        "logits": {"a": np.zeros((4, 3), np.float32)},
        "label": np.array([[1], [0], [0], [1]], np.int32),
        "weight": np.array([1, 1, 0, 0], np.float32),
        "loss": np.array([[1], [2], [4], [8]], np.float32),
        "membership": {},
    }
    sums = sums_of(batch, NO_EXTRAS)
    found = {
        name: float(np.asarray(sums[name]).sum()) for name in ("loss", "loss_null", "loss_non_null", "loss_weighted")
    }
    assert found == {"loss": 3.0, "loss_null": 2.0, "loss_non_null": 1.0, "loss_weighted": 3.0}
