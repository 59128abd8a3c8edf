"""Splits at build time: what belongs together stays on one side."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnaeus_jax.building.steps import finish
from linnaeus_jax.building.steps.options import BuildOptions
from linnaeus_jax.building.steps.splits import SplitRows, assign_splits, grid_cells, units_of
from linnaeus_jax.reading.schema import LINE, PICTURE


def plain_rows(taxon: np.ndarray, **known: np.ndarray) -> SplitRows:
    """Rows of which only the taxa and what is given are known."""
    count = len(taxon)
    unknown = {name: np.full(count, -1) for name in ("occurrence", "observer", "folder", "day", "given", "duplicates")}
    return SplitRows(
        taxon.reshape(count, 1).astype(np.uint32), **{"place": np.full((count, 2), np.nan), **unknown, **known}
    )


def random_rows(rng: np.random.Generator, count: int) -> SplitRows:
    species = rng.integers(0, 12, count)
    taxon = np.stack([np.where(rng.random(count) < 0.1, 0, species + 1), species // 3 + 1], axis=1).astype(np.uint32)
    place = np.where(rng.random((count, 1)) < 0.2, np.nan, rng.integers(-5, 5, (count, 2)) * 0.5)
    return SplitRows(
        taxon,
        occurrence=rng.integers(-1, count // 2 + 1, count),
        observer=rng.integers(-1, 15, count),
        place=place,
        folder=rng.integers(-1, 15, count),
        day=rng.integers(-1, 40, count),
        given=rng.integers(-1, 3, count),
        duplicates=rng.integers(-1, 3 * count, count),
    )


@given(
    st.integers(0, 10_000),
    st.integers(1, 200),
    st.sampled_from(["stratified", "random", "observer", "place", "folder:place", "date", "given"]),
    st.floats(0, 0.4),
    st.floats(0, 0.4),
)
def test_no_group_falls_on_two_sides(seed, count, split, val, test):
    rows = random_rows(np.random.default_rng(seed), count)
    options = BuildOptions(split=split, val=val, test=test)
    assigned = assign_splits(rows, options)
    assert assigned.shape == (count,)
    assert set(assigned.tolist()) <= {0, 1, 2}
    np.testing.assert_array_equal(assigned, assign_splits(rows, options))
    groups = [rows.occurrence, rows.duplicates]
    by = {
        "observer": rows.observer,
        "place": grid_cells(rows.place, 0.1),
        "folder:place": rows.folder,
        "date": rows.day,
    }
    groups += [by[split]] if split in by else []
    for codes in groups:
        for code in np.unique(codes[codes >= 0]):
            assert len(set(assigned[codes == code].tolist())) == 1
    if split != "given":
        assert val > 0 or 1 not in assigned
        assert test > 0 or 2 not in assigned


def test_shares_are_about_those_asked_for():
    rows = plain_rows(np.ones(1000))
    for split in ("random", "stratified", "observer", "place"):
        assigned = assign_splits(rows, BuildOptions(split=split, val=0.2, test=0.1))
        assert np.bincount(assigned).tolist() == [700, 200, 100]


def test_a_group_larger_than_the_share_falls_to_training():
    observer = np.repeat(np.arange(21), [500, *[25] * 20])
    assigned = assign_splits(plain_rows(np.ones(1000), observer=observer), BuildOptions(split="observer", val=0.1))
    assert np.bincount(assigned).tolist() == [900, 100]
    assert (assigned[:500] == 0).all()
    two = np.repeat([0, 1], [60, 40])
    assigned = assign_splits(plain_rows(np.ones(100), observer=two), BuildOptions(split="observer", val=0.1))
    assert np.bincount(assigned).tolist() == [60, 40]


def test_every_class_of_two_has_a_row_for_training_and_one_for_validation():
    label = np.repeat(np.arange(1, 60), np.arange(1, 60)).astype(np.uint32)
    rows = plain_rows(label)
    assigned = assign_splits(rows, BuildOptions(split="stratified", val=0.1))
    for one in range(1, 60):
        of_class = assigned[label == one]
        assert 0 in of_class
        assert one < 2 or 1 in of_class
        assert (of_class == 1).sum() <= max(1, round(0.1 * one + 0.5))
    assigned = assign_splits(rows, BuildOptions(split="stratified", val=0.1, test=0.4))
    assert len(set(label[assigned == 0].tolist())) == 59


def test_by_date_the_newest_are_measured_on():
    day = np.array([5, 1, 9, 3, 7, -1, 2, 8, 6, 4])
    rows = plain_rows(np.ones(10), day=day)
    assigned = assign_splits(rows, BuildOptions(split="date", val=0.2, test=0.1))
    assert assigned.tolist() == [0, 0, 2, 0, 1, 0, 0, 1, 0, 0]
    undated = plain_rows(np.ones(4), day=np.array([-1, -1, -1, 3]))
    assert assign_splits(undated, BuildOptions(split="date", val=0.25, test=0.5)).tolist() == [0, 0, 0, 2]
    undated = plain_rows(np.ones(4), day=np.array([-1, 0, -1, 1]))
    assert assign_splits(undated, BuildOptions(split="date", val=0.25, test=0.25)).tolist() == [0, 1, 0, 2]


def test_a_given_split_is_kept_but_for_occurrences_on_two_sides():
    rows = plain_rows(np.ones(5), occurrence=np.array([0, 0, 1, -1, -1]), given=np.array([0, 1, 0, 2, -1]))
    assert assign_splits(rows, BuildOptions(split="given")).tolist() == [1, 1, 0, 2, 0]


def test_units_join_over_other_rows():
    unit = units_of(np.array([0, 0, 1, -1, 2]), np.array([-1, 5, 5, -1, 6]))
    assert unit[0] == unit[1] == unit[2]
    assert len(set(unit.tolist())) == 3


def test_cells_are_of_one_size_on_both_sides_of_zero():
    place = [[0.05, 0.05], [-0.05, 0.05], [0.05, -0.05], [0.06, 0.09], [np.nan, 0.05]]
    cell = grid_cells(np.array(place), 0.1).tolist()
    assert len(set(cell[:3])) == 3
    assert (cell[3], cell[4]) == (cell[0], -1)


@pytest.mark.parametrize("split", ["observer", "date", "given"])
def test_an_empty_data_set_has_no_sides(split):
    rows = plain_rows(np.empty((0, 1)))
    assert len(assign_splits(rows, BuildOptions(split=split))) == 0


def test_only_what_falls_to_another_split_is_listed_as_moved():
    said = ["train", "val", None, "test", "elsewhere"]
    frame = pl.DataFrame({LINE: range(5), PICTURE: [f"{n}.jpg" for n in range(5)], "split": said})
    moved = finish._moved(frame, np.array([0, 0, 0, 2, 1], np.uint8))
    assert moved.rows(named=True) == [{LINE: 1, PICTURE: "1.jpg", "occurrence": None, "given": "val", "split": "train"}]
