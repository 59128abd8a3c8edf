"""The labels file: what is read, in which type and order, and how a damaged or odd file is refused."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from linnaeus_jax.data.labels import MAX_TAXON_ID, read_identifiers, read_label_tables
from linnaeus_jax.data.metadata import ComponentSettings
from tests.data.helpers import write_labels

TASKS = ("taxa_L10", "taxa_L20")
SPATIAL = ComponentSettings("SPATIAL", "spatial", (), 3)


def read(*paths, components=(), null_possible=True):
    return read_label_tables([str(path) for path in paths], TASKS, components, null_possible=null_possible)


def test_columns_of_the_golden_file(fixtures):
    path = fixtures / "data_labels.h5"
    (table,), classes = read(path, components=(SPATIAL,))
    with h5py.File(path) as file:
        for column, task in enumerate(TASKS):
            np.testing.assert_array_equal(table.taxon[:, column], file[task][:])
        np.testing.assert_array_equal(table.in_region, file["in_region"][:] != 0)
        names = [name.decode() for name in file["img_identifiers"][:]]
    assert (len(table), table.taxon.dtype, table.label.dtype) == (400, np.int64, np.int32)
    assert table.identifiers.tolist() == names == read_identifiers(str(path)).tolist()
    assert table.meta.shape == (400, 3)
    for column, task in enumerate(TASKS):
        np.testing.assert_array_equal(classes[task][table.label[:, column]], table.taxon[:, column])


def test_ids_are_sorted_as_integers_up_to_the_largest(tmp_path):
    path = write_labels(tmp_path / "l.h5", {"taxa_L10": [MAX_TAXON_ID, 9, 10, 0], "taxa_L20": [2, 2, 2, 2]})
    (table,), classes = read(path)
    assert classes["taxa_L10"].tolist() == [0, 9, 10, MAX_TAXON_ID]
    assert table.label[:, 0].tolist() == [3, 1, 2, 0]
    (table,), classes = read(path, null_possible=False)
    assert classes["taxa_L10"].tolist() == [9, 10, MAX_TAXON_ID]
    assert table.label[:, 0].tolist() == [2, 0, 1, -1]


def test_two_files_share_their_classes(tmp_path):
    first = write_labels(tmp_path / "a.h5", {"taxa_L10": [5, 7], "taxa_L20": [1, 1]})
    second = write_labels(tmp_path / "b.h5", {"taxa_L10": [6, 0], "taxa_L20": [1, 2]})
    (a, b), classes = read(first, second)
    assert classes["taxa_L10"].tolist() == [0, 5, 6, 7]
    assert (a.label[:, 0].tolist(), b.label[:, 0].tolist()) == ([1, 3], [2, 0])


def test_signed_ids_and_identifiers_that_are_no_text(tmp_path, caplog):
    path = write_labels(tmp_path / "l.h5", {"taxa_L10": [1, 2], "taxa_L20": [0, 0]}, identifiers=[b"\xffa", b"b"])
    with h5py.File(path, "a") as file:
        del file["taxa_L10"]
        file["taxa_L10"] = np.array([1, 2], np.int64)
    (table,), _ = read(path)
    assert table.identifiers.tolist() == ["\ufffda", "b"]
    assert table.taxon[:, 0].tolist() == [1, 2]
    assert "has a label in taxa_L20" in caplog.text
    assert "has no group 'metadata'" in caplog.text


def test_the_settings_of_an_export_are_logged(tmp_path, caplog):
    path = write_labels(tmp_path / "l.h5", {"taxa_L10": [1], "taxa_L20": [1]})
    with h5py.File(path, "a") as file:
        file.create_group("metadata").attrs["config_json"] = '{"cap": 2500}'
    with caplog.at_level("INFO"):
        read(path)
    assert "was exported with cap=2500" in caplog.text
    with h5py.File(path, "a") as file:
        file["metadata"].attrs["config_json"] = "{broken"
    read(path)
    assert "config_json is not valid JSON" in caplog.text


def replace(path, name, values):
    with h5py.File(path, "a") as file:
        del file[name]
        if values is not None:
            file[name] = values


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("taxa_L10", None, r"dataset 'taxa_L10' is missing; the file has .*; did you mean 'taxa_L20'"),
        ("taxa_L10", np.zeros(3, np.float32), "dtype float32, expected"),
        ("taxa_L10", np.zeros((3, 1), np.uint32), r"shape \(3, 1\), expected 1 dimension"),
        ("taxa_L10", np.zeros(2, np.uint32), "has 2 rows, expected 3 as in 'img_identifiers'"),
        ("taxa_L10", np.array([1, -4, 2]), "holds taxon id -4"),
        ("taxa_L10", np.array([1, 2**32, 2]), "holds taxon id 4294967296"),
        ("img_identifiers", None, "dataset 'img_identifiers' is missing"),
        ("img_identifiers", np.zeros(3, np.uint32), "'img_identifiers' has dtype uint32"),
        ("spatial", None, r"named by data\.meta\.components\.SPATIAL\.source is missing .the file offers temporal"),
        ("spatial", np.zeros((2, 3), np.float32), "has 2 rows, expected 3"),
        ("spatial", np.zeros((3, 3, 1), np.float32), "expected 1 or 2 dimension"),
    ],
)
def test_unusable_datasets(tmp_path, name, values, message):
    taxa = {"taxa_L10": [1, 2, 3], "taxa_L20": [1, 1, 1]}
    path = write_labels(
        tmp_path / "l.h5", taxa, spatial=np.ones((3, 3), np.float32), temporal=np.ones((3, 2), np.float32)
    )
    assert len(read(path, components=(SPATIAL,))[0][0]) == 3
    replace(path, name, values)
    with pytest.raises(ValueError, match=message):
        read(path, components=(SPATIAL,))


def test_unusable_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.h5.*data\.h5"):
        read(tmp_path / "nowhere.h5")
    text = tmp_path / "text.h5"
    text.write_text("no HDF5")
    with pytest.raises(ValueError, match="no HDF5 file, or truncated"):
        read(text)
    whole = write_labels(tmp_path / "l.h5", {"taxa_L10": range(1, 3000), "taxa_L20": range(1, 3000)})
    text.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(ValueError, match="truncated or damaged"):
        read(text)
