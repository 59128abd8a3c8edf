"""Names of taxa: what is read and written, which files are refused, and what people read."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest

from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.dataset import build_dataset, write_assets
from linnaeus_jax.data.labels_file import LONGEST, sanitize_line
from linnaeus_jax.data.taxon_names import TaxonNames, describe_taxon, read_taxon_names, write_taxon_names
from tests.data.helpers import small_config, write_labels

TAXA = {"taxa_L10": [9, 0, 4, 7], "taxa_L20": [2, 2, 2, 2]}
CLASSES = {"taxa_L10": np.array([0, 4, 7, 9]), "taxa_L20": np.array([0, 2])}


def named(path, names, **datasets):
    """A labels file; `names` is {task: {taxon id: (name, common name)}}."""
    write_labels(path, TAXA, **datasets)
    with h5py.File(path, "a") as file:
        for task, of in names.items():
            write_taxon_names(file, task, list(of), [one for one, _ in of.values()], [two for _, two in of.values()])
    return str(path)


BIRDS = {
    "taxa_L10": {
        9: ("Passer domesticus", "house sparrow"),
        4: ("Parus major", ""),
        7: ("", "wren"),
        1: ("Not used", ""),
    }
}


def test_what_people_read(tmp_path):
    names = read_taxon_names([named(tmp_path / "a.h5", BIRDS)], CLASSES)
    assert [names.label("taxa_L10", i) for i in range(4)] == [
        "null",
        "Parus major [4]",
        "wren [7]",
        "Passer domesticus (house sparrow) [9]",
    ]
    assert names.label("taxa_L20", 1) == "2"
    assert names.to_json() == {
        "taxa_L10": {
            "4": {"name": "Parus major", "common_name": ""},
            "7": {"name": "", "common_name": "wren"},
            "9": {"name": "Passer domesticus", "common_name": "house sparrow"},
        },
        "taxa_L20": {},
    }


def test_ids_as_text():
    assert [describe_taxon("12", "A"), describe_taxon("12"), describe_taxon(0, "A")] == ["A [12]", "12", "null"]


def test_a_file_without_names(tmp_path):
    names = read_taxon_names([str(write_labels(tmp_path / "a.h5", TAXA))], CLASSES)
    assert [names.label("taxa_L10", i) for i in range(4)] == ["null", "4", "7", "9"]


def test_the_first_file_wins_with_one_warning(tmp_path, caplog):
    other = {
        "taxa_L10": {9: ("Passer", "house sparrow"), 7: ("Troglodytes troglodytes", "wren"), 4: ("Parus", "tit")},
        "taxa_L20": {2: ("Aves", "")},
    }
    names = read_taxon_names([named(tmp_path / "a.h5", BIRDS), named(tmp_path / "b.h5", other)], CLASSES)
    assert [names.label("taxa_L10", i) for i in (1, 2, 3)] == [
        "Parus major (tit) [4]",
        "Troglodytes troglodytes (wren) [7]",
        "Passer domesticus (house sparrow) [9]",
    ]
    assert names.label("taxa_L20", 1) == "Aves [2]"
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "give 2 taxa different names" in record.message
    assert "taxa_L10 9: 'Passer domesticus' and 'Passer'" in record.message


def test_many_taxa_of_which_few_are_used(tmp_path):
    ids = np.arange(1, 300_001)
    with h5py.File(write_labels(tmp_path / "a.h5", TAXA), "a") as file:
        write_taxon_names(file, "taxa_L10", ids, [f"taxon {i}" for i in ids])
    used = np.array([0, 1, 131_071, 131_072, 131_073, 299_999, 300_000, 4_000_000])
    names = read_taxon_names([str(tmp_path / "a.h5")], {"taxa_L10": used})
    assert names.name["taxa_L10"].tolist() == ["", *(f"taxon {i}" for i in used[1:-1]), ""]


def replace(file, name, values):
    del file[name]
    if values is not None:
        file[name] = values


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: replace(f, "taxon_names", [1]), "'taxon_names' is a dataset, expected a group"),
        (lambda f: replace(f, "taxon_names/taxa_L10", [1]), "'taxon_names/taxa_L10' is a dataset, expected a group"),
        (lambda f: replace(f, "taxon_names/taxa_L10/taxon_id", None), "'taxon_names/taxa_L10/taxon_id' is missing"),
        (lambda f: replace(f, "taxon_names/taxa_L10/name", None), "'taxon_names/taxa_L10/name' is missing"),
        (lambda f: replace(f, "taxon_names/taxa_L10/name", [1, 2, 3, 4]), "dtype int64, expected variable-length"),
        (lambda f: replace(f, "taxon_names/taxa_L10/name", ["a"]), "1 rows, expected 4 as in 'taxon_names/.*taxon_id'"),
        (
            lambda f: replace(f, "taxon_names/taxa_L10/taxon_id", [4, 1, 7, 9]),
            "must ascend, every taxon once",
        ),
        (
            lambda f: replace(f, "taxon_names/taxa_L10/taxon_id", [1, 4, 4, 9]),
            "must ascend, every taxon once",
        ),
        (lambda f: replace(f, "taxon_names/taxa_L10/taxon_id", [1.5, 2, 3, 4]), "dtype float64"),
    ],
)
def test_malformed_groups(tmp_path, change, message):
    path = named(tmp_path / "a.h5", BIRDS)
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(ValueError, match=rf"a\.h5: .*{message}"):
        read_taxon_names([path], CLASSES)


def test_common_names_may_be_absent_and_a_rank_empty(tmp_path):
    path = named(tmp_path / "a.h5", BIRDS | {"taxa_L20": {}})
    with h5py.File(path, "a") as file:
        del file["taxon_names/taxa_L10/common_name"]
    names = read_taxon_names([path], CLASSES)
    assert [names.label("taxa_L10", 3), names.label("taxa_L20", 1)] == ["Passer domesticus [9]", "2"]


@pytest.mark.parametrize(
    ("ids", "names", "message"),
    [
        ([1, 1], ["a", "b"], "distinct and within 1..4294967295"),
        ([0], ["a"], "distinct and within"),
        ([2**32], ["a"], "distinct and within"),
        ([1, 2], ["a"], "1 texts of name for 2 taxa"),
    ],
)
def test_unwritable_names(tmp_path, ids, names, message):
    with h5py.File(tmp_path / "a.h5", "w") as file, pytest.raises(ValueError, match=f"names of taxa_L10: .*{message}"):
        write_taxon_names(file, "taxa_L10", ids, names)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Parus  major\n\tL.", "Parus major L."),
        ("nul\0 bell\a", "nul\ufffd bell\ufffd"),
        ("\u202etxet\u202c \u200f", "\ufffdtxet\ufffd \ufffd"),
        ("línea\u2028dos", "línea dos"),
        ("🐦 حمام ذو مطوق", "🐦 حمام ذو مطوق"),
        ("\x1b[31mred", "\ufffd[31mred"),
        ("a" * 500, "a" * (LONGEST - 1) + "…"),
    ],
)
def test_texts_on_one_line(tmp_path, text, line):
    assert sanitize_line(text) == line
    path = named(tmp_path / "a.h5", {"taxa_L10": {9: (text, "")}})
    assert read_taxon_names([path], CLASSES).label("taxa_L10", 3) == f"{line} [9]"


def test_names_of_a_data_set(tmp_path):
    path = named(tmp_path / "a.h5", BIRDS)
    dataset = build_dataset(typed(small_config(path, tuple(TAXA), data__h5__train_val_split_ratio=1.0)))
    assert dataset.class_name("taxa_L10", 1) == "Parus major [4]"
    write_assets(dataset, tmp_path / "assets", tmp_path / "metadata")
    assert json.loads((tmp_path / "assets" / "taxon_names.json").read_text()) == dataset.names.to_json()


def test_conflicts_are_told_by_name(tmp_path):
    taxa = {"taxa_L10": [9] * 10, "taxa_L20": [2] * 9 + [3]}
    with h5py.File(write_labels(tmp_path / "a.h5", taxa), "a") as file:
        write_taxon_names(file, "taxa_L10", [9], ["Passer domesticus"])
        write_taxon_names(file, "taxa_L20", [3, 2], ["Parus", "Passer"])
    config = small_config(tmp_path / "a.h5", tuple(taxa), data__h5__train_val_split_ratio=1.0)
    line = "taxa_L10 Passer domesticus [9]: parents Passer [2] (9 rows), Parus [3] (1 rows)"
    assert f"conflict: {line}" in build_dataset(typed(config)).report()
    config.data.parent_conflict_limit = 0.01
    with pytest.raises(ValueError, match="contradict their majority parent") as error:
        build_dataset(typed(config))
    assert line in str(error.value)


def test_names_of_a_bundle_are_made_fit_for_one_line():
    """The file may come from anywhere."""
    saved = {"taxa_L10": {"7": {"name": "Parus\n\x1b[2Jmajor", "common_name": "\r5"}}}
    names = TaxonNames.from_json({"taxa_L10": np.array([0, 7])}, saved)
    assert names.label("taxa_L10", 1) == "Parus \ufffd[2Jmajor (5) [7]"
