"""Row filter, split, groups, rarity and taxa subsets where the golden files do not reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.typed import DataConfig, typed
from linnaeus_jax.data import splits
from linnaeus_jax.data.labels import read_label_tables
from linnaeus_jax.data.metadata import ComponentSettings
from tests.data.helpers import small_config, write_labels

TASKS = ("taxa_L10", "taxa_L20")


@pytest.fixture
def table(tmp_path):
    """Rows: full, no species, no genus, nothing, full."""
    taxa = {"taxa_L10": [1, 0, 2, 0, 1], "taxa_L20": [5, 5, 0, 0, 5]}
    spatial = np.array([[1, 0, 0]] * 4 + [[0, 0, 0]], np.float32)
    path = write_labels(tmp_path / "l.h5", taxa, spatial=spatial, in_region=np.array([1, 0, 1, 1, 1], np.uint8))
    return read_label_tables([str(path)], TASKS, [SPATIAL], null_possible=True)[0][0]


SPATIAL = ComponentSettings("SPATIAL", "spatial", (), 3, allow_missing=True)


def data_section(changes: dict[str, Any]) -> DataConfig:
    config = get_config()
    config.data.update_from_flattened_dict({"partial.levels": True, **changes})
    return typed(config).data


@pytest.mark.parametrize(
    ("conditions", "allow_missing", "missing", "kept"),
    [
        ({}, True, [], [0, 1, 2, 4]),
        ({"partial.levels": False}, True, [], [0, 4]),
        ({"out_of_region.include": False}, True, [], [0, 2, 4]),
        ({"upward_major_check": True, "upward_major_mode": "all-finer"}, True, [], [0, 2, 4]),
        ({"upward_major_check": True, "upward_major_mode": "no-gaps"}, True, [], [0, 1, 4]),
        ({}, False, [], [0, 1, 2]),
        ({}, True, [0, 2], [1, 4]),
        ({"partial.levels": False}, False, [], [0]),
    ],
)
def test_filter(table, conditions, allow_missing, missing, kept):
    component = ComponentSettings("SPATIAL", "spatial", (), 3, allow_missing=allow_missing)
    rows, report = splits.filter_rows(table, data_section(conditions), [component], np.array(missing, np.int64))
    assert rows.dtype == np.int64
    assert rows.tolist() == kept
    assert (report.total, report.kept) == (5, len(kept))
    assert report.removed["null at every rank"] == 1


def test_filter_refuses(table):
    with pytest.raises(ValueError, match="no row is left; the rule that removed most is 'image missing'"):
        splits.filter_rows(table, data_section({}), [], np.arange(5))


def test_filter_warns_without_in_region(tmp_path, caplog):
    path = write_labels(tmp_path / "l.h5", {"taxa_L10": [1], "taxa_L20": [5]})
    table = read_label_tables([str(path)], TASKS, (), null_possible=True)[0][0]
    rows, _ = splits.filter_rows(table, data_section({"out_of_region.include": False}), [])
    assert rows.tolist() == [0]
    assert "has no dataset in_region" in caplog.text


# ---- splits ----------------------------------------------------------------------------------------------------------


def split(path, keep=None, **keys):
    table = read_label_tables([str(path)], TASKS, (), null_possible=True)[0][0]
    kept = np.arange(len(table)) if keep is None else np.asarray(keep)
    return splits.split_file(table, kept, typed(small_config(path, TASKS, **keys)).data.h5)


def labels(path, rows, **datasets):
    return write_labels(path, {"taxa_L10": [1] * rows, "taxa_L20": [5] * rows}, **datasets)


def test_the_file_says_the_split(tmp_path):
    column = np.array([1, 0, 2, 0, 1, 0, 2, 0], np.uint8)
    path = labels(tmp_path / "l.h5", 8, split=column, occurrence_id=["a"] * 8)
    rows = split(path, keep=[0, 1, 2, 3, 4, 5, 6])
    assert (rows.train.tolist(), rows.val.tolist(), rows.test.tolist()) == ([1, 3, 5], [0, 4], [2, 6])
    assert "3 train, 2 val, 2 test rows" in rows.rule
    assert "train_val_split_ratio and train_val_split_seed are not used" in rows.rule


def test_validation_rows_of_a_split_without_any_are_drawn_from_the_training_rows(tmp_path):
    column = np.array([0] * 20 + [2] * 5, np.uint8)
    rows = split(labels(tmp_path / "l.h5", 25, split=column))
    train, val = splits.split_rows(np.arange(20), 0.9, 42)
    assert (rows.train.tolist(), rows.val.tolist()) == (train.tolist(), val.tolist())
    assert rows.test.tolist() == [20, 21, 22, 23, 24]
    assert "5 test rows and none for validation: these are drawn from its 20 training rows" in rows.rule


def test_the_column_is_left_alone_on_request(tmp_path):
    path = labels(tmp_path / "l.h5", 8, split=np.full(8, 9, np.uint8))
    rows = split(path, data__h5__use_split_column=False)
    train, val = splits.split_rows(np.arange(8), 0.9, 42)
    assert (rows.train.tolist(), rows.val.tolist(), len(rows.test)) == (train.tolist(), val.tolist(), 0)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            np.array([1, 1, 2], np.uint8),
            r"leaves no usable row in 'train', of 0 rows.*use_split_column",
        ),
        (np.array([0, 0, 2], np.uint8), r"no usable row in 'val'.*data\.h5\.train_labels_path"),
        (np.array([0, 3, 1], np.uint8), r"'split' holds 3 in row 1, expected 0 \(train\), 1 \(val\), 2 \(test\)"),
        (np.array([0, -1, 1], np.int8), "holds -1 in row 1"),
        (np.array([0.0, 1.0, 1.0]), "dtype float64"),
        (np.array([0, 1], np.uint8), "has 2 rows, expected 3"),
    ],
)
def test_unusable_split_columns(tmp_path, column, message):
    with pytest.raises(ValueError, match=rf"l\.h5: .*{message}"):
        split(labels(tmp_path / "l.h5", 3, split=column))


def test_occurrences_stay_whole(tmp_path):
    names = ["a", "b", "a", "", "c", "", "b", "a", "d", "e"]
    rows = split(labels(tmp_path / "l.h5", 10, occurrence_id=names), data__h5__train_val_split_ratio=0.5)
    assert sorted([*rows.train, *rows.val]) == list(range(10))
    sides = [{names[row] for row in side} - {""} for side in (rows.train, rows.val)]
    assert not sides[0] & sides[1]
    assert len(rows.train) >= 5
    assert "by whole occurrences" in rows.rule


OCCURRENCES = st.lists(st.integers(0, 6), min_size=1, max_size=40)


@settings(max_examples=200, deadline=None)
@given(OCCURRENCES, st.floats(0.05, 1.0), st.integers(0, 5))
def test_occurrences_are_drawn_in_order_of_their_first_rows(occurrence, ratio, seed):
    """Against the rule, written out."""
    kept, codes = np.arange(len(occurrence)) * 3, np.array(occurrence, np.int64)
    count = int(len(kept) * ratio)
    if not count:
        with pytest.raises(ValueError, match="leaves no training row"):
            splits.split_occurrences(kept, codes, ratio, seed)
        return
    members: dict[Any, list[int]] = {}
    for i, code in enumerate(occurrence):
        members.setdefault(("alone", i) if code == 0 else code, []).append(3 * i)
    groups = list(members.values())
    train: list[int] = []
    val: list[int] = []
    for g in np.random.RandomState(seed).permutation(len(groups)):
        (train if len(train) < count else val).extend(groups[g])
    got = splits.split_occurrences(kept, codes, ratio, seed)
    assert [part.tolist() for part in got] == [train, val]


def test_single_pictures_are_split_as_rows():
    kept = np.arange(50, 100)
    for codes in (np.zeros(50, np.int64), np.random.RandomState(0).permutation(50) + 1):
        for ours, theirs in zip(splits.split_occurrences(kept, codes, 0.7, 5), splits.split_rows(kept, 0.7, 5)):
            np.testing.assert_array_equal(ours, theirs)


def test_split_truncates():
    kept = np.arange(100, 200)
    train, val = splits.split_rows(kept, 0.29, 3)  # 0.29 * 100 is 28.999...
    assert (len(train), len(val)) == (28, 72)
    np.testing.assert_array_equal(np.concatenate([train, val]), kept[np.random.RandomState(3).permutation(100)])
    assert len(splits.split_rows(kept, 1.0, 3)[1]) == 0
    for ratio, message in ((0.0, "leaves no training row"), (0.001, "leaves no training row")):
        with pytest.raises(ValueError, match=message):
            splits.split_rows(kept, ratio, 3)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_groups_have_their_size(labels, min_size, seed):
    label = np.array(labels, np.int32)
    excluded = np.random.default_rng(seed).random(len(label)) < 0.3
    group = splits.group_ids(label, min_size, excluded)
    for value in np.unique(label):
        usable = (label == value) & ~excluded
        expected = value if usable.sum() >= min_size else -1
        assert (group[usable] == expected).all()
    assert (group[excluded] == -1).all()


def test_rarity_rounds_half_to_even_and_names_every_bin():
    counts = {"a": np.array([0, 4, 1, 9]), "b": np.array([5]), "c": np.array([8, 6])}
    thresholds = splits.rarity_thresholds(counts, (50, 99))  # positions 1.5 -> 2 and 2.97 -> 3; 0.5 -> 0, 0.99 -> 1
    assert {task: values.tolist() for task, values in thresholds.items()} == {"a": [4, 9], "c": [6, 8]}
    assert splits.rarity_bins(np.array([0, 3, 4, 8, 9, 10]), thresholds["a"]).tolist() == [0, 0, 1, 1, 2, 2]
    assert splits.rarity_bin_names((1, 5, 99.5)) == ("lt_p1", "p1_p5", "p5_p99.5", "ge_p99.5")
    assert splits.rarity_bin_names(()) == ()
    for wrong in ((5, 5), (5, 1)):
        with pytest.raises(ValueError, match="must rise strictly"):
            splits.check_percentiles(wrong)


def test_taxa_subsets(caplog):
    classes = {"taxa_L10": np.array([0, 1, 2]), "taxa_L20": np.array([0, 5])}
    subsets = splits.parse_taxa_subsets(
        [("one", "taxa_L10", 1), ("five", "taxa_L20", 5), ("gone", "taxa_L10", 7)], classes
    )
    assert "subset 'gone' is empty" in caplog.text
    with pytest.raises(ValueError, match=r"metrics\.taxa_subsets: 'odd' names the task 'taxa_L99'"):
        splits.parse_taxa_subsets([("odd", "taxa_L99", 1)], classes)
    taxon = np.array([[1, 5], [2, 5], [0, 0]])
    matrix = splits.taxa_subset_matrix(subsets, TASKS, taxon)
    assert matrix.tolist() == [[True, True, False], [False, True, False], [False] * 3]
    assert splits.last_subset(matrix).tolist() == [1, 1, -1]
    assert splits.last_subset(np.zeros((2, 0), bool)).tolist() == [-1, -1]


def test_percent():
    flags = np.array([[True, False], [True, True]])
    assert splits.percent(flags, ("a", "b")) == {"a": 100.0, "b": 50.0}
    assert splits.percent(flags[:0], ("a", "b")) == {"a": 0.0, "b": 0.0}
