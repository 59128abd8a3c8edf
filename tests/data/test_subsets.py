"""Subsets of a user's own: columns `subset_<kind>` of the labels file, and registered functions of a split."""

from __future__ import annotations

import threading

import h5py
import numpy as np
import pytest

from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.dataset import build_dataset, write_assets
from linnaeus_jax.data.subsets import MAX_SUBSETS, with_known_subsets
from linnaeus_jax.metrics import custom, register_subset
from linnaeus_jax.run.inputs import split_arrays
from tests.npz import load_npz
from tests.tiny import TASKS, tiny_config

ROWS = 120


def dataset_with(directory, **columns):
    config = tiny_config(directory)
    with h5py.File(directory / "labels.h5", "r+") as file:
        for kind, values in columns.items():
            file[f"subset_{kind}"] = values
    return build_dataset(typed(config))


def told(dataset, split, kind):
    """The name of every row's subset."""
    names = [*dataset.subset_names[kind], ""]  # -1 is the last
    return [names[position] for position in split.subsets[:, list(dataset.subset_names).index(kind)]]


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setattr(custom, "SUBSETS", {})
    register_subset("north", lambda split: split.meta[:, 4] > 0)
    register_subset("file", lambda split: [name.removesuffix(".jpg")[-1] for name in split.identifiers])
    return dataset_with(
        tmp_path,
        habitat=rng.choice(["wood", "lake", ""], ROWS).tolist(),
        zone=rng.choice([-1, 2, 10], ROWS),
        urban=rng.random(ROWS) < 0.5,
        state=rng.choice([b"AL", b"NY"], ROWS),
    )


def test_every_kind_of_column_and_function(dataset):
    assert dataset.subset_names == {
        "file": tuple("0123456789"),
        "habitat": ("lake", "wood"),
        "north": ("false", "true"),
        "state": ("AL", "NY"),
        "urban": ("false", "true"),
        "zone": ("2", "10"),
    }
    with h5py.File(dataset.sources.train_labels) as file:
        stored = {name: file[f"subset_{name}"][:] for name in ("habitat", "zone", "urban", "state")}
    for split in (dataset.train, dataset.val):
        assert split.subsets.dtype == np.int32
        assert told(dataset, split, "habitat") == [x.decode() for x in stored["habitat"][split.rows]]
        assert told(dataset, split, "zone") == [str(x) if x >= 0 else "" for x in stored["zone"][split.rows]]
        assert told(dataset, split, "urban") == [str(x).lower() for x in stored["urban"][split.rows]]
        assert told(dataset, split, "state") == [x.decode() for x in stored["state"][split.rows]]
        assert told(dataset, split, "north") == [str(x).lower() for x in split.meta[:, 4] > 0]
        assert told(dataset, split, "file") == [str(row % 10) for row in split.rows]
        np.testing.assert_array_equal(split_arrays(split)["subsets"], split.subsets)


def test_what_a_run_leaves_behind(dataset, tmp_path):
    write_assets(dataset, tmp_path / "assets", tmp_path / "metadata")
    assert dataset.subset_maps()["habitat"] == {"lake": 0, "wood": 1}
    ids = load_npz(tmp_path / "assets" / "subset_ids.npz")
    column = list(dataset.subset_names).index("zone")
    np.testing.assert_array_equal(ids["subset_zone_val"], dataset.val.subsets[:, column])


def test_other_data_are_placed_in_the_known_subsets(dataset, caplog):
    names = {"habitat": ("lake",), "soil": ("clay",)}
    other = with_known_subsets(dataset.val, names)
    lakes = [name == "lake" for name in told(dataset, dataset.val, "habitat")]
    assert (other.subsets[:, 0] == 0).tolist() == lakes
    assert (other.subsets[:, 1] == -1).all()
    woods = told(dataset, dataset.val, "habitat").count("wood")
    assert f"{woods} rows have a value of subset_habitat that was not known" in caplog.text
    assert "has no dataset 'subset_soil'" in caplog.text


def test_batches_ship_nothing_without_subsets(tmp_path):
    found = build_dataset(typed(tiny_config(tmp_path)))
    assert found.subset_names == {}
    assert "subsets" not in split_arrays(found.train)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"depth": np.arange(ROWS)}, rf"'depth' has {ROWS} different values"),
        ({"depth": np.ones(ROWS)}, "'subset_depth' has dtype float64, expected bool or int or"),
        ({"depth": ["a/b"] * ROWS}, "holds 'a/b'"),
        ({"taxa": np.zeros(ROWS, int)}, "'taxa' is built in or registered"),
        ({"mine": np.zeros(ROWS, int)}, "'mine' is built in or registered"),
        ({"depth": np.zeros(3, int)}, "has 3 rows"),
    ],
)
def test_columns_that_are_none(tmp_path, monkeypatch, column, message):
    monkeypatch.setattr("linnaeus_jax.data.subsets.MAX_SUBSETS", 100)
    monkeypatch.setitem(custom.SUBSETS, "mine", lambda split: split.rows)
    assert MAX_SUBSETS >= 100
    with pytest.raises(ValueError, match=message) as kept:
        dataset_with(tmp_path, **column)
    opened = []  # while the error and its frames are kept
    thread = threading.Thread(target=lambda: opened.append(h5py.File(tmp_path / "other.h5", "w").close()), daemon=True)
    thread.start()
    thread.join(30)
    assert opened == [None], kept


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda split: split.nothing, "function of subset 'mine' fails with AttributeError"),
        (lambda split: 1, r"shape \(\)"),
        (lambda split: split.labels, rf"shape \(.*, {len(TASKS)}\); give one value per row"),
        (lambda split: split.meta[:, 0], "dtype float32; give text, int or bool"),
    ],
)
def test_functions_that_fail_are_named(tmp_path, monkeypatch, function, message):
    monkeypatch.setitem(custom.SUBSETS, "mine", function)
    with pytest.raises(ValueError, match=message):
        dataset_with(tmp_path)
