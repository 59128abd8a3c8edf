"""What a data set holds: numbers against the labels, figures, one page without anything from elsewhere."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from linnaeus_jax.building.scan.describe import describe, observer_rows, rank_rows, split_tables
from linnaeus_jax.building.scan.describe_page import (
    FIGURES,
    example_pictures,
    short_names,
    text_rows,
    write_description,
)
from linnaeus_jax.config.errors import UserError
from tests.building.samples import ROWS, TEXT, identifiers, replace, write_clean, write_folder


@pytest.fixture(scope="module")
def labels(tmp_path_factory) -> Path:
    return write_clean(tmp_path_factory.mktemp("labels") / "labels.h5")


@pytest.fixture
def changed(labels, tmp_path) -> Path:
    return Path(shutil.copy(labels, tmp_path / "labels.h5"))


def test_numbers_of_a_clean_file(labels):
    found = describe(labels)
    assert found.rows == ROWS
    assert found.depth == {"taxa_L10": ROWS, "taxa_L20": 0, "taxa_L30": 0, "": 0}
    assert rank_rows(found)[0] == ["species", "6", "60", "100.0%", "10", "10", "10", "0%", "100%"]
    assert found.combinations == {("elevation_broadrange_2", "spatial", "temporal"): ROWS}
    with h5py.File(labels) as file:
        both = np.stack([file["raw_lat"], file["raw_lon"]], axis=1)
        angle = np.arctan2(file["temporal"][:, 0], file["temporal"][:, 1])
        metres = file["raw_elevation"][:]
    np.testing.assert_allclose(found.places, both, atol=1e-3)
    assert (
        found.months.tolist()
        == np.bincount(np.rint(angle / (2 * np.pi) * 12 - 1).astype(int) % 12, minlength=12).tolist()
    )
    assert found.months.sum() == ROWS
    assert not found.hours.any()
    np.testing.assert_array_equal(found.elevation, metres)
    assert found.observers.sum() == ROWS
    assert found.licenses == {"CC BY 4.0": 40, "CC0": 20}
    assert sum(found.holders.values()) == ROWS
    assert [(side.name, side.rows) for side in found.sides] == [("train", 48), ("val", 12)]
    ((other, rows),) = split_tables(found)
    assert other.name == "val"
    assert rows[0] == ["pictures", "0", "48", "12"]
    assert rows[1] == ["occurrences", "0", "24", "6"]
    assert rows[-1] == ["classes of family", "2", "0", "0"]
    assert found.faults == ()


def test_depth_counts_the_finest_label(changed):
    with h5py.File(changed, "r+") as file:
        for task, rows in (("taxa_L10", 9), ("taxa_L20", 4), ("taxa_L30", 1)):
            file[task][:rows] = 0
    assert describe(changed).depth == {"taxa_L10": 51, "taxa_L20": 5, "taxa_L30": 3, "": 1}


def test_combinations_of_known_metadata(changed):
    with h5py.File(changed, "r+") as file:
        file["spatial"][:10] = 0
        file["elevation_broadrange_2"][5:20] = [0, 1, 0, 1]
        file["temporal"][0] = np.nan
    found = describe(changed)
    assert found.components == {"elevation_broadrange_2": 45, "spatial": 50, "temporal": 59}
    assert found.combinations[("temporal",)] == 5
    assert found.combinations[("elevation_broadrange_2",)] == 1
    assert sum(found.combinations.values()) == ROWS


@pytest.mark.parametrize("day", [1, 31, 32, 59, 60, 200, 335, 365])
def test_months_from_the_day_of_the_year(changed, day):
    angle = 2 * np.pi * day / 365.25
    with h5py.File(changed, "r+") as file:
        replace(file, "temporal", np.tile(np.array([np.sin(angle), np.cos(angle)], np.float32), (ROWS, 1)))
        file["temporal"].attrs["column_names"] = ["jd_sin", "jd_cos"]
    month = np.datetime64("2023-01-01") + np.timedelta64(day - 1, "D")
    assert describe(changed).months.argmax() == month.astype("datetime64[M]").astype(int) % 12


def test_months_and_hours(changed):
    month, hour = np.arange(ROWS) % 12 + 1, np.arange(ROWS) % 24
    pair = [wave(2 * np.pi * turn) for turn in (month / 12, hour / 24) for wave in (np.sin, np.cos)]
    values = np.stack(pair, axis=1).astype(np.float32)
    values[:6, 2:] = 0
    with h5py.File(changed, "r+") as file:
        replace(file, "temporal", values)
        del file["temporal"].attrs["column_names"]
    found = describe(changed)
    assert found.months.tolist() == [5] * 12
    assert found.hours.tolist() == [2] * 6 + [3] * 6 + [2] * 12
    assert FIGURES["hours"](found) is not None


def test_without_raw_values_elevation_is_known_up_to_the_longest_scale(changed):
    with h5py.File(changed, "r+") as file:
        metres = file["raw_elevation"][:]
        del file["raw_elevation"], file["raw_lat"]
    found = describe(changed)
    assert found.elevation_period == 1000
    np.testing.assert_allclose(found.elevation, metres, atol=0.1)
    assert len(found.places) == ROWS


def test_raw_places_without_encoded_ones(changed):
    with h5py.File(changed, "r+") as file:
        del file["spatial"]
        file["raw_lat"][:3] = np.nan
    assert len(describe(changed).places) == ROWS - 3


def test_two_files_are_the_sides_of_a_split(labels, tmp_path):
    other = write_clean(tmp_path / "val.h5", 12)
    with h5py.File(other, "r+") as file:
        file["taxa_L10"][:2] = 999
        replace(file, "img_identifiers", np.array([*identifiers(10), "new1", "new2"], object), dtype=TEXT)
    found = describe(labels, other)
    ((side, rows),) = split_tables(found)
    assert (side.name, side.rows) == ("val", 12)
    assert rows[0] == ["pictures", "10", "50", "2"]
    assert next(row for row in rows if row[0] == "classes of species") == ["classes of species", "5", "1", "1"]


def test_observers(changed):
    with h5py.File(changed, "r+") as file:
        file["observer_id"][:] = [0] * 10 + [1] * 30 + list(range(2, 22))
    rows = {str(row[0]): row[1] for row in observer_rows(describe(changed))}
    assert rows["observers"] == "21"
    assert rows["rows without an observer"] == "10"
    assert rows["rows of the most active"] == "30"
    assert rows["observers who gave half of the rows"] == "1"
    assert rows["share of the 10 most active"] == "78.0%"


def test_unusable_columns_are_left_out_and_named(changed):
    with h5py.File(changed, "r+") as file:
        replace(file, "taxa_L20", np.ones(3, np.uint32))
        replace(file, "observer_id", np.ones(3, np.int32))
        replace(file, "license", np.ones(3, np.int32))
        replace(file, "spatial", file["spatial"][:], chunks=(60, 3), compression="gzip")
        info = file["spatial"].id.get_chunk_info(0)
    with open(changed, "r+b") as raw:
        raw.seek(info.byte_offset)
        raw.write(b"\xff" * info.size)
    found = describe(changed)
    assert "'spatial' cannot be read" in found.faults[-1]
    assert found.components == {"elevation_broadrange_2": ROWS, "spatial": 0, "temporal": ROWS}
    most, least = example_pictures(found, write_folder(changed.parent / "pictures"))
    assert {example.credit for one in (*most, *least) for example in one.examples} == {""}
    assert [line.split(":")[0] for line in found.faults][:3] == ["license", "observer_id", "taxa_L20"]
    assert found.taxa.tasks == ("taxa_L10", "taxa_L30")
    with pytest.raises(UserError, match="no such labels file"):
        describe(changed.with_name("none.h5"))


def test_texts_beyond_the_longest_table():
    rows = list(text_rows({f"t{i}": 100 - i for i in range(20)}, 2000))
    assert len(rows) == 16
    assert rows[-1][0] == "5 others"
    assert rows[-1][1] == f"{sum(100 - i for i in range(15, 20)):,}"


def test_short_names():
    assert short_names(["spatial", "elevation_a", "elevation_b", "soil_ph"]) == {
        "spatial": "spatial", "elevation_a": "elevation_a", "elevation_b": "elevation_b", "soil_ph": "soil",
    }  # fmt: skip


# ---- figures and page ------------------------------------------------------------------------------------------------


def test_page_and_figures(labels, tmp_path):
    found = describe(labels)
    folder = write_folder(tmp_path / "pictures")
    files = write_description(tmp_path / "out", found, example_pictures(found, folder, ""))
    assert {path.name for path in files} == {
        "dataset.html", "long_tail.png", "depth.png", "map.png", "months.png", "elevation.png", "coverage.png",
        "split.png", "observers.png",
    }  # fmt: skip
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files[1:])
    page = files[0].read_text()
    assert "<script" not in page
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", page)
    for words in ("Most common classes", "Least common classes", "species 0 [101], 10 rows", "© Person", "CC BY 4.0"):
        assert words in page
    assert page.count("data:image/jpeg") == 6 * 3
    again = write_description(tmp_path / "again", found, example_pictures(found, folder, ""))
    assert again[0].read_bytes() == files[0].read_bytes()


def test_counts_of_classes_within_a_decade_are_plain_numbers(changed):
    with h5py.File(changed, "r+") as file:
        file["taxa_L10"][:] = np.repeat([101, 102], ROWS // 2)
    figure = FIGURES["long_tail"](describe(changed))
    assert figure is not None
    figure.canvas.draw()
    texts = [label.get_text() for label in figure.axes[0].yaxis.get_ticklabels(which="both")]
    assert any(texts)
    assert all(text.replace(",", "").isdigit() for text in texts if text)
    (few,) = figure.axes[0].texts
    assert few.get_window_extent().x0 >= figure.axes[0].get_window_extent().x1  # beside the curves, not over them


def test_hostile_texts_on_the_page(changed, tmp_path):
    evil = "<script>alert(1)</script>\n\u202e[red]"
    with h5py.File(changed, "r+") as file:
        file["rights_holder"][:] = evil
        replace(file, "taxon_names/taxa_L10/name", np.array([evil] * 6, object), dtype=TEXT)
        file.create_dataset("elevation_<b>", data=np.zeros((ROWS, 2), "f4"))
    found = describe(changed)
    pictures = example_pictures(found, write_folder(tmp_path / "pictures"), "")
    page = write_description(tmp_path / "out", found, pictures)[0].read_text()
    assert "<script" not in page
    assert "<b>" not in page
    assert "\u202e" not in page


def test_pictures_that_cannot_be_read_are_said(labels, tmp_path):
    folder = write_folder(tmp_path / "pictures")
    for name in identifiers()[::2]:
        (folder / name).unlink()
    found = describe(labels)
    most, least = example_pictures(found, folder, "")
    examples = [example for one in (*most, *least) for example in one.examples]
    assert {bool(example.picture) for example in examples} == {True, False}
    assert all((example.row % 2 == 0) == (example.reason == "No such file or directory") for example in examples)
    with pytest.raises(UserError, match=r"none\.h5"):
        example_pictures(found, tmp_path / "none.h5", "")


def test_a_file_with_labels_alone_and_an_empty_one(tmp_path):
    for name, rows in (("one.h5", 1), ("empty.h5", 0)):
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("img_identifiers", data=np.array(["a.jpg"] * rows, object), dtype=TEXT)
            file["taxa_L10"] = np.ones(rows, np.uint32)
        files = write_description(tmp_path / f"{name}.out", describe(tmp_path / name), None)
        assert ("long_tail.png" in {path.name for path in files}) == bool(rows)
        assert "Where" not in files[0].read_text()


def test_one_place_has_a_map(changed, tmp_path):
    with h5py.File(changed, "r+") as file:
        file["spatial"][:] = [1, 0, 0]
    found = describe(changed)
    figure = FIGURES["map"](found)
    assert figure is not None
    figure.savefig(tmp_path / "map.png")
