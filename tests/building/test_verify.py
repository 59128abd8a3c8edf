"""Every fault that a labels file or its pictures can have is found, and a file without fault is clean."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from linnaeus_jax.building.scan.checks import LEVELS, Found, note
from linnaeus_jax.building.scan.columns import Split
from linnaeus_jax.building.scan.pictures import PictureChecks, PictureFacts
from linnaeus_jax.building.scan.verify import Verification, verify_labels
from linnaeus_jax.config.errors import UserError
from tests.building.samples import (
    ROWS,
    TASKS,
    TEXT,
    encoded,
    identifiers,
    pixels,
    replace,
    write_clean,
    write_folder,
    write_packed,
)


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    return write_clean(tmp_path_factory.mktemp("clean") / "labels.h5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_folder(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    return write_packed(tmp_path_factory.mktemp("packed") / "images.h5", encoded())


def checks_of(found: Verification, level: str) -> set[str]:
    return {finding.check for finding in found.findings if finding.level == level}


def facts_of(found: Verification) -> PictureFacts:
    assert found.images is not None
    return found.images


def test_a_file_without_fault_is_clean(clean, folder):
    found = verify_labels(clean, pictures=PictureChecks(folder))
    assert found.is_clean(strict=True), found.findings
    assert found.rows == ROWS
    assert [(facts.rank, facts.classes, facts.labelled) for facts in found.ranks] == [
        ("species", 6, ROWS),
        ("genus", 3, ROWS),
        ("family", 2, ROWS),
    ]
    assert {facts.name: facts.known for facts in found.components} == dict.fromkeys(
        ("spatial", "temporal", "elevation_broadrange_2"), ROWS
    )
    assert found.split == {"train": 48, "val": 12, "test": 0}
    assert found.names == dict.fromkeys(TASKS, 1.0)
    assert facts_of(found).checked == ROWS
    assert facts_of(found).heights == (24.0, 24.0, 24.0)
    assert facts_of(found).widths == (32.0, 32.0, 32.0)
    assert {"roots", "layout"} <= checks_of(found, "note")


# ---- one planted fault each ------------------------------------------------------------------------------------------

Fault = Callable[[h5py.File], Any]


def change(name: str, rows: Any, value: Any) -> Fault:
    def apply(file: h5py.File) -> None:
        values = file[name][:]
        values[rows] = value
        is_text = h5py.check_string_dtype(file[name].dtype) is not None
        replace(file, name, values, **({"dtype": file[name].dtype} if is_text else {}))

    return apply


def set_attr(name: str, key: str, value: Any) -> Fault:
    return lambda file: file[name].attrs.__setitem__(key, value)


def as_type(name: str, dtype: Any) -> Fault:
    return lambda file: replace(file, name, file[name][:].astype(dtype))


def scaled(name: str, factor: float) -> Fault:
    return lambda file: replace(file, name, file[name][:] * np.float32(factor))


def text_column(name: str, texts: list[Any]) -> Fault:
    return lambda file: replace(file, name, np.array(texts, object), dtype=TEXT)


def without(name: str) -> Fault:
    return lambda file: file.__delitem__(name)


def with_nul(file: h5py.File) -> None:
    names = [name.encode() for name in identifiers()]
    names[4] = b"a\0b.png"
    replace(file, "img_identifiers", np.array(names))


ids = identifiers()
NAMES = "taxon_names/taxa_L10"
FAULTS: list[tuple[str, str, str, Fault, str]] = [
    # check, level, id of the test, what is planted, words of the message
    ("structure", "error", "no identifiers", without("img_identifiers"), "img_identifiers"),
    ("dtype", "error", "taxa as text", text_column("taxa_L10", ["x"] * ROWS), "taxa_L10: dtype object"),
    ("dtype", "error", "taxa as float", as_type("taxa_L20", "f4"), "float32, expected unsigned int or int"),
    ("dtype", "error", "coordinates as text", text_column("spatial", ["x"] * ROWS), "spatial"),
    ("shape", "error", "two columns of taxa", lambda f: replace(f, "taxa_L20", np.ones((ROWS, 2), "u4")), "(60, 2)"),
    ("length", "error", "short column", lambda f: replace(f, "in_region", np.ones(5, "u1")), "5 rows, expected 60"),
    ("length", "error", "long taxa", lambda f: replace(f, "taxa_L30", np.ones(61, "u4")), "taxa_L30: 61 rows"),
    ("unknown", "note", "unknown data set", lambda f: replace(f, "weight_grams", np.ones(ROWS)), "no meaning"),
    ("unknown", "note", "unknown group", lambda f: f.create_group("extra"), "no meaning"),
    ("origin", "warning", "no group metadata", without("metadata"), "origin"),
    ("origin", "warning", "no JSON", set_attr("metadata", "config_json", "{oops"), "not valid JSON"),
    ("duplicate_identifier", "warning", "twice", text_column("img_identifiers", [ids[1]] + ids[1:]), "1 rows"),
    ("empty_identifier", "error", "empty", text_column("img_identifiers", [*ids[:-1], ""]), "1 rows have an empty"),
    ("unsafe_identifier", "error", "upwards", text_column("img_identifiers", ["a/../../b.png", *ids[1:]]), "lead out"),
    ("unsafe_identifier", "error", "absolute", text_column("img_identifiers", ["/etc/passwd", *ids[1:]]), "lead out"),
    ("unsafe_identifier", "error", "newline", text_column("img_identifiers", ["a\nb.png", *ids[1:]]), "1 identifiers"),
    ("unsafe_identifier", "error", "NUL", with_nul, "1 identifiers"),
    ("undecodable_identifier", "error", "Latin-1", text_column("img_identifiers", [b"caf\xe9.png", *ids[1:]]), "UTF-8"),
    ("taxon_range", "error", "negative", lambda f: replace(f, "taxa_L30", np.r_[-3, np.full(59, 3)]), "e.g. -3"),
    ("taxon_range", "error", "too large", lambda f: replace(f, "taxa_L30", np.r_[2**40, np.full(59, 3)]), "1 rows"),
    ("empty_rank", "warning", "no label in a rank", change("taxa_L30", slice(None), 0), "taxa_L30: no row"),
    ("one_class", "note", "one class", change("taxa_L30", slice(None), 3), "family 0 [3]"),
    ("no_label", "warning", "no label", lambda f: [change(task, 5, 0)(f) for task in TASKS], "1 rows have no label"),
    ("gap", "warning", "gap", change("taxa_L20", 7, 0), "taxa_L20: 1 rows"),
    ("orphan", "warning", "no parent", change("taxa_L30", [0, 1], 0), "2 of 60 labelled rows (3.3%)"),
    ("parent_conflict", "warning", "a few contradict", change("taxa_L20", 0, 23), "1 classes have several parents"),
    ("parent_conflict", "error", "many contradict", change("taxa_L20", [0, 1, 12, 13], 23), "more than 0.2"),
    ("ranks", "note", "rank without a name", lambda f: f.move("taxa_L30", "taxa_L31"), "taxa_L31"),
    ("not_finite", "warning", "NaN", change("spatial", (3, 0), np.nan), "1 rows (1.7%)"),
    ("not_finite", "warning", "infinity", change("temporal", (3, 0), np.inf), "temporal: 1 rows"),
    ("encoding", "error", "degrees", scaled("spatial", 2.0), "60 rows are no points on the unit sphere"),
    ("encoding", "error", "no angle", scaled("temporal", 0.5), "sin² + cos²"),
    ("encoding", "error", "elevation pairs", scaled("elevation_broadrange_2", 0.9), "60 rows hold pairs"),
    ("all_unknown", "warning", "nothing known", scaled("temporal", 0.0), "temporal: no row"),
    ("width", "error", "two coordinates", lambda f: replace(f, "spatial", f["spatial"][:, :2]), "expected 3"),
    ("width", "error", "odd elevation", lambda f: replace(f, "elevation_x", np.ones((ROWS, 3), "f4")), "(sin, cos)"),
    ("column_names", "error", "names too few", set_attr("spatial", "column_names", ["x"]), "3 columns, but 1"),
    ("column_names", "note", "no names", lambda f: f["spatial"].attrs.__delitem__("column_names"), "spatial"),
    ("scales", "error", "scales too few", set_attr("elevation_broadrange_2", "scales", [5.0]), "1 scales need 2"),
    ("scales", "error", "scale 0", set_attr("elevation_broadrange_2", "scales", [0.0, 5.0]), "not all positive"),
    ("raw_values", "warning", "raw place", change("raw_lat", 2, 0.0), "spatial: 1 rows do not encode"),
    ("raw_values", "warning", "raw elevation", change("raw_elevation", 2, 3.0), "elevation_broadrange_2: 1 rows"),
    ("raw_range", "error", "latitude 91", change("raw_lat", 2, 91.0), "beyond 90"),
    ("in_region", "warning", "in_region 2", change("in_region", 0, 2), "[0, 1, 2]"),
    ("split_value", "error", "side 7", change("split", 0, 7), "1 rows hold another value"),
    ("split_empty", "error", "no validation", change("split", slice(None), 0), "no row is val"),
    ("split_leak", "error", "occurrence on two sides", change("split", 36, 0), "1 rows share their occurrence"),
    ("split_leak", "error", "picture on two sides", text_column("img_identifiers", [ids[36], *ids[1:]]), "identifier"),
    ("split_classes", "warning", "class only in val", change("taxa_L10", [36, 37], 999), "1 classes stand in val"),
    ("subset", "error", "too many subsets", text_column("subset_place", [f"p{i}" for i in range(ROWS)]), ""),
    ("subset", "error", "slash", text_column("subset_place", ["a/b"] * ROWS), "'/'"),
    ("names", "note", "no names at all", without("taxon_names"), "taxon ids"),
    ("names", "note", "no names of a rank", without("taxon_names/taxa_L20"), "nothing for taxa_L20"),
    ("names", "warning", "names of no rank", lambda f: f.create_group("taxon_names/taxa_L70"), "no such label column"),
    ("names", "error", "no ids", without(f"{NAMES}/taxon_id"), "'taxon_names/taxa_L10/taxon_id' is missing"),
    ("names", "error", "lengths differ", lambda f: replace(f, f"{NAMES}/taxon_id", np.arange(3)), "expected 3"),
    ("names", "error", "an id twice", change(f"{NAMES}/taxon_id", 1, 101), "every taxon once"),
    ("names", "warning", "class without name", change(f"{NAMES}/taxon_id", 0, 1), "1 of 6 classes have no name"),
    ("names", "note", "name of no row", change(f"{NAMES}/taxon_id", 0, 1), "1 names are of taxa that no row has"),
    ("names", "warning", "one name, two taxa", change(f"{NAMES}/name", 0, b"species 1"), "species 1: 101, 102"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "level", "plant", "words"), [f[:2] + f[3:] for f in FAULTS], ids=[f"{f[0]}-{f[2]}" for f in FAULTS]
)
def test_a_planted_fault_is_found(check, level, plant, words, clean, tmp_path, monkeypatch):
    if check == "subset":
        monkeypatch.setattr("linnaeus_jax.building.scan.columns.MAX_SUBSETS", 30)
    path = tmp_path / "labels.h5"
    shutil.copy(clean, path)
    with h5py.File(path, "r+") as file:
        plant(file)
    found = verify_labels(path)
    hits = [f for f in found.findings if (f.check, f.level) == (check, level)]
    assert hits, found.findings
    assert any(words in text for f in hits for text in (f.message, *f.examples)), hits
    assert found.is_clean() == (level != "error")
    assert all(len(f.rows) <= 5 and len(f.examples) <= 5 for f in found.findings)
    json.dumps(found.to_json())


def test_a_check_is_a_row_of_the_part_that_it_looks_at(clean, monkeypatch):
    row = note(
        "split_share", "{it.rows[train]} of {n} rows train: {more}", lambda it: [Found(it.side, (), {"more": 1})]
    )
    monkeypatch.setattr(Split, "CHECKS", (*Split.CHECKS, row))
    found = verify_labels(clean).findings
    assert [(f.level, f.message, len(f.rows)) for f in found if f.check == "split_share"] == [
        ("note", "48 of 60 rows train: 1", 5)
    ]


def test_conflicts_come_worst_first_with_names_and_counts(clean, tmp_path):
    shutil.copy(clean, tmp_path / "labels.h5")
    with h5py.File(tmp_path / "labels.h5", "r+") as file:
        change("taxa_L20", [0], 23)(file)  # species 0
        change("taxa_L20", [2, 3, 14], 23)(file)  # species 1
    found = verify_labels(tmp_path / "labels.h5", conflict_limit=1.0)
    (conflict,) = [f for f in found.findings if f.check == "parent_conflict" and "taxa_L10" in f.message]
    assert conflict.level == "warning"
    assert "4 rows against the majority" in conflict.message
    assert conflict.rows == (0, 2, 3, 14)
    assert conflict.examples == (
        "taxa_L10 species 1 [102]: parents genus 0 [21] (7 rows), genus 2 [23] (3 rows)",
        "taxa_L10 species 0 [101]: parents genus 0 [21] (9 rows), genus 2 [23] (1 rows)",
    )


def test_links_that_rest_on_few_rows(clean):
    found = verify_labels(clean, threshold=11)
    assert {f.message.split(":")[0] for f in found.findings if f.check == "weak_link"} == {"taxa_L10"}


def test_half_ranks_stand_between_their_neighbours(tmp_path, clean):
    shutil.copy(clean, tmp_path / "labels.h5")
    with h5py.File(tmp_path / "labels.h5", "r+") as file:
        file["taxa_L33_5"], file["taxa_L34"], file["taxa_L33"] = (file["taxa_L30"][:] for _ in range(3))
    found = verify_labels(tmp_path / "labels.h5")
    assert [facts.task for facts in found.ranks] == [*TASKS, "taxa_L33", "taxa_L33_5", "taxa_L34"]


def test_rows_of_no_occurrence_share_none(tmp_path, clean):
    shutil.copy(clean, tmp_path / "labels.h5")
    with h5py.File(tmp_path / "labels.h5", "r+") as file:
        text_column("occurrence_id", [""] * ROWS)(file)
    assert not [f for f in verify_labels(tmp_path / "labels.h5").findings if f.check == "split_leak"]


def test_tasks_that_are_asked_for(clean):
    found = verify_labels(clean, tasks=("taxa_L10", "taxa_L40"))
    assert "taxa_L40 is asked for" in next(f.message for f in found.findings if f.check == "ranks")
    assert [facts.task for facts in found.ranks] == ["taxa_L10"]
    with pytest.raises(UserError, match="finest first"):
        verify_labels(clean, tasks=("taxa_L20", "taxa_L10"))


def test_what_is_no_labels_file(tmp_path, packed):
    for name, content in (("none.h5", None), ("text.h5", b"hello"), ("cut.h5", packed.read_bytes()[:3000])):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=name):
            verify_labels(tmp_path / name)
    with pytest.raises(UserError, match="image_bytes, image_offsets"):
        verify_labels(packed)


@pytest.mark.parametrize("name", ["taxa_L20", "img_identifiers"])
def test_a_damaged_data_set_is_named_and_the_others_are_checked(clean, tmp_path, name):
    path = tmp_path / "labels.h5"
    shutil.copy(clean, path)
    with h5py.File(path, "r+") as file:
        replace(file, name, file[name][:], chunks=(60,), compression="gzip", dtype=file[name].dtype)
        info = file[name].id.get_chunk_info(0)
    with open(path, "r+b") as raw:
        raw.seek(info.byte_offset)
        raw.write(b"\xff" * info.size)
    found = verify_labels(path)
    message = next(f.message for f in found.findings if f.check == "unreadable")
    assert f"{name}' cannot be" in message
    assert [facts.task for facts in found.ranks] == [task for task in TASKS if task != name]


def test_an_empty_file_has_one_error(tmp_path):
    found = verify_labels(write_clean(tmp_path / "labels.h5", 0))
    assert checks_of(found, "error") == {"structure"}


def test_hostile_names_are_one_line_each(clean, tmp_path):
    shutil.copy(clean, tmp_path / "labels.h5")
    with h5py.File(tmp_path / "labels.h5", "r+") as file:
        bad = ["../a\n\x1b[2J.png", "../\u202egnp.exe", "../\U0001f98b.png", "../[red]x", "../" + "y" * 9000]
        text_column("img_identifiers", bad + ids[5:])(file)
        file.create_dataset("evil\nname\u202e", data=np.ones(3))
    found = verify_labels(tmp_path / "labels.h5")
    texts = [text for f in found.findings for text in (f.message, *f.examples)]
    assert all(text.isprintable() and len(text) < 2100 for text in texts)
    assert any(r"../a\n\x1b[2J.png" in text for text in texts)
    assert any(r"evil\nname\u202e" in text for text in texts)


# ---- pictures --------------------------------------------------------------------------------------------------------


def verify_pictures(labels: Path, path: Path, **options: Any) -> Verification:
    return verify_labels(labels, pictures=PictureChecks(path, **options))


def found_checks(found: Verification) -> dict[str, str]:
    return {f.check: f.message for f in found.findings if f.level != "note"}


def raw_file(path: Path, images: np.ndarray, **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=images, **options)
    return path


def test_every_form_of_storage_is_clean(clean, folder, packed, tmp_path):
    for path, storage in ((folder, "folder"), (packed, "packed"), (raw_file(tmp_path / "raw.h5", pixels()), "raw")):
        found = verify_pictures(clean, path)
        assert found.is_clean(strict=True), found.findings
        assert (facts_of(found).storage, facts_of(found).checked, facts_of(found).unreadable) == (storage, ROWS, 0)


def test_slow_layout_has_an_advice(clean, tmp_path):
    found = verify_pictures(clean, raw_file(tmp_path / "raw.h5", pixels(), chunks=(16, 24, 32, 3), compression="gzip"))
    assert "gzip" in found_checks(found)["layout"]
    assert "linnaeus pack" in found_checks(found)["layout"]
    assert facts_of(found).reader == "H5Images"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda file: file.create_dataset("images", data=np.zeros((60, 8, 8), "u1")), "uint8 (N, H, W, 3)"),
        (lambda file: file.create_dataset("images", data=np.zeros((60, 8, 8, 3), "f4")), "float32"),
        (lambda file: file.create_dataset("pictures", data=np.zeros(3)), "no dataset 'images'"),
        (lambda file: file.create_dataset("image_bytes", data=np.zeros(3, "u1")), "image_offsets"),
        (lambda f: (f.create_dataset("image_bytes", data=np.zeros(3, "u1")),
                    f.create_dataset("image_offsets", data=[0, 2, 1, 3])), "must ascend"),
    ],
)  # fmt: skip
def test_files_that_hold_no_pictures(clean, tmp_path, content, words):
    with h5py.File(tmp_path / "images.h5", "w") as file:
        content(file)
    assert words in found_checks(verify_pictures(clean, tmp_path / "images.h5"))["images"]


def test_missing_and_truncated_files_of_pictures(clean, packed, tmp_path):
    assert "no such" in found_checks(verify_pictures(clean, tmp_path / "none.h5"))["images"]
    (tmp_path / "cut.h5").write_bytes(packed.read_bytes()[:5000])
    assert "cut.h5" in found_checks(verify_pictures(clean, tmp_path / "cut.h5"))["images"]


def test_wrong_number_of_pictures(clean, tmp_path):
    found = verify_pictures(clean, write_packed(tmp_path / "images.h5", encoded()[:-1]))
    assert "59 pictures for 60 rows" in found_checks(found)["image_count"]


def test_pictures_that_are_damaged_empty_blank_or_copies(clean, tmp_path):
    pictures = encoded()
    blank = encoded_image(np.full((9, 9, 3), (7, 90, 7), np.uint8))
    pictures[3], pictures[5], pictures[7], pictures[9], pictures[11] = (
        pictures[3][:40], b"", b"GIF89a no", pictures[8], blank,
    )  # fmt: skip
    found = verify_pictures(clean, write_packed(tmp_path / "images.h5", pictures))
    by_check = {f.check: f for f in found.findings}
    assert by_check["unreadable_image"].rows == (3, 7)
    assert by_check["unreadable_image"].message == "2 of 60 pictures cannot be read"
    assert "row 7" in by_check["unreadable_image"].examples[1]
    assert by_check["missing_image"].rows == (5,)
    assert by_check["duplicate_image"].rows == (9,)
    assert by_check["blank_image"].rows == (11,)
    assert (facts_of(found).unreadable, facts_of(found).missing) == (2, 1)


def encoded_image(image: np.ndarray) -> bytes:
    import cv2

    return cv2.imencode(".png", image)[1].tobytes()


def test_a_copy_on_the_other_side_of_the_split(clean, tmp_path):
    pictures = encoded()
    pictures[36] = pictures[0]
    found = verify_pictures(clean, write_packed(tmp_path / "images.h5", pictures))
    assert "1 rows share their picture (by content)" in found_checks(found)["split_leak"]


def test_damaged_raw_pictures_are_named(clean, tmp_path):
    path = raw_file(tmp_path / "raw.h5", pixels(), chunks=(1, 24, 32, 3), compression="gzip")
    with h5py.File(path) as file:
        infos = [file["images"].id.get_chunk_info(row) for row in (4, 50)]
    with open(path, "r+b") as raw:
        for info in infos:
            raw.seek(info.byte_offset)
            raw.write(b"\xff" * info.size)
    found = verify_pictures(clean, path)
    assert next(f.rows for f in found.findings if f.check == "unreadable_image") == (4, 50)


def test_missing_files_and_the_extension(clean, folder, tmp_path):
    copied = tmp_path / "pictures"
    shutil.copytree(folder, copied)
    for row in (2, 30):
        (copied / ids[row]).unlink()
    (copied / ids[40]).write_bytes(b"")
    found = verify_pictures(clean, copied)
    missing = next(f for f in found.findings if f.check == "missing_image")
    assert missing.rows == (2, 30)
    assert missing.examples[0].endswith(ids[2])
    assert (facts_of(found).missing, facts_of(found).checked) == (2, 58)
    assert next(f.rows for f in found.findings if f.check == "unreadable_image") == (40,)
    found = verify_pictures(clean, copied, extension=".jpg", decode="none")
    assert "58 are found without '.jpg'" in found_checks(found)["missing_image"]


def test_a_sample_and_no_decoding(clean, folder):
    calls: list[tuple[int, int]] = []
    found = verify_pictures(
        clean, folder, decode="sample", sample=10, progress=lambda done, total: calls.append((done, total))
    )
    assert facts_of(found).checked == 10
    assert calls[-1] == (10, 10)
    assert facts_of(verify_pictures(clean, folder, decode="none")).checked == 0


def test_json_names_what_programs_need(clean, folder):
    report = verify_pictures(clean, folder).to_json()
    assert set(report) == {
        "linnaeus_jax", "labels", "rows", "errors", "warnings", "notes", "findings", "ranks", "components", "split",
        "names", "images",
    }  # fmt: skip
    assert all(set(f) == {"level", "check", "message", "rows", "examples"} for f in report["findings"])
    assert sum(report[f"{level}s"] for level in LEVELS) == len(report["findings"])
    assert {"rank", "classes", "labelled", "orphans", "gaps", "conflicts"} <= set(report["ranks"][0])
    json.dumps(report)
