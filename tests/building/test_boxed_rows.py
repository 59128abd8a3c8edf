"""Data sets of boxes: what is cut, stored, listed, kept together, and told to run and bundle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.building.scan.verify import verify_labels
from linnaeus_jax.building.steps.boxed_rows import box_of, with_boxes
from linnaeus_jax.building.steps.splits import units_of
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.decoding import read_image
from linnaeus_jax.data.labels_file import box_settings
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.reading.box_cuts import Box, Cut, from_training
from linnaeus_jax.reading.boxes import BoxFile, read_boxes
from linnaeus_jax.tools.build_dataset import main
from tests.building.helpers import rows_of, write_pictures

PLACES = [(0.1, 0.1, 0.5, 0.5), (0.4, 0.3, 0.5, 0.6), (0.0, 0.0, 0.9, 0.3)]


def detection(place: Any, conf: float = 0.9, category: str = "1") -> dict[str, Any]:
    return {"category": category, "conf": conf, "bbox": list(place)}


def write(path: Path, boxes: dict[str, list[dict[str, Any]]]) -> Path:
    content = {
        "info": {"format_version": "1.4"},
        "detection_categories": {"1": "animal", "2": "person"},
        "images": [{"file": name, "detections": each} for name, each in boxes.items()],
    }
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def source(tmp_path, monkeypatch) -> Path:
    """Folder `in` of two classes of twelve pictures; every third picture has no box, others one to three."""
    monkeypatch.chdir(tmp_path)
    boxes = {}
    for kind, name in enumerate(("Parus major", "Parus minor")):
        for i, picture in enumerate(write_pictures(tmp_path / "in" / name, 12, seed=kind)):
            boxes[f"{name}/{picture}"] = [detection(place) for place in PLACES[: (i % 3) * (1 + i % 2)][:3]]
    write(tmp_path / "b.json", boxes)
    return tmp_path


def build(out: str, *more: str) -> tuple[list[str], dict[str, Any]]:
    assert main(["--folders=in", f"--out={out}", "--size=32", "--val=0.25", *more]) == 0
    with h5py.File(Path(out) / "labels.h5") as file:
        names = [text.decode() for text in file["img_identifiers"][:]]
    return names, json.loads((Path(out) / "build.json").read_text())


@pytest.mark.parametrize("form", ["raw", "jpeg"])
def test_a_row_for_each_box(source, capsys, form):
    names, summary = build("out", "--boxes=b.json", "--without-box=skip", f"--images={form}", "--box-margin=0.2")
    found = read_boxes(Path("b.json"))
    expected = [f"{name}#{box.number}" for name in sorted(found.boxes) for box in found.boxes[name]]
    assert names == expected
    assert summary["totals"]["rejected"] == {"no box that is taken": 8}
    assert summary["options"]["boxes"] == json.loads(json.dumps(Cut(margin=0.2, without="skip").to_json()))
    assert f"{len(names)} boxes of 16 pictures; 8 without a box are left out" in " ".join(summary["warnings"])
    with h5py.File("out/labels.h5") as labels, h5py.File("out/images.h5") as images:
        split, texts = labels["split"][:], [text.decode() for text in labels["box"][:]]
        occurrence = [text.decode() for text in labels["occurrence_id"][:]]
        if form == "raw":
            for row, name in enumerate(names):
                picture = read_image((Path("in") / name.partition("#")[0]).read_bytes())
                box = box_of(texts[row])
                assert box == found.boxes[name.partition("#")[0]][int(name.partition("#")[2]) - 1]
                seen, _ = Cut(margin=0.2).pixels(picture, box)
                assert np.array_equal(images["images"][row], Preprocessing((32, 32)).resize(seen))
    sides = pl.DataFrame({"picture": [name.partition("#")[0] for name in names], "split": split})
    assert set(split) == {0, 1}
    assert (sides.group_by("picture").agg(pl.col("split").n_unique())["split"] == 1).all()
    assert {name for name, one in zip(names, occurrence) if not one} == {
        f"{name}#1" for name, boxes in found.boxes.items() if len(boxes) == 1
    }
    assert box_settings("out/labels.h5") == Cut(margin=0.2, without="skip").to_json()
    assert verify_labels(Path("out/labels.h5")).is_clean()


def test_whole_pictures_beside_boxes_and_small_boxes(source, capsys):
    names, _ = build("out", "--boxes=b.json", "--box-min-side=15")
    whole = [name for name in names if "#" not in name]
    assert len(whole) == 8
    rejected = pl.read_csv("out/rejected.csv")
    assert rejected["reason"].unique().to_list() == ["unreadable picture"]
    assert rejected["detail"][0] == "box 3: its shorter side is 12 pixels, less than 15"
    with h5py.File("out/labels.h5") as labels:
        assert [text.decode() for text in labels["box"][:]].count("") == 8
    plain, again = build("plain")
    assert "boxes" not in again["options"]
    assert len(plain) == 24
    assert box_settings("plain/labels.h5") is None


def test_copies_of_a_picture_stay_on_one_side_whatever_their_boxes(source, capsys):
    boxes: dict[str, list[dict[str, Any]]] = {}
    for name in ("Parus major", "Parus minor"):
        for i in range(12):
            first, copy = f"{name}/p{i:04d}.jpg", f"{name}/q{i:04d}.jpg"
            shutil.copy(Path("in") / first, Path("in") / copy)
            boxes |= {
                first: [detection(PLACES[0]), detection(PLACES[1])],
                copy: [detection(PLACES[0]), detection(PLACES[2])],
            }
    write(Path("b.json"), boxes)
    names, summary = build("out", "--boxes=b.json")
    assert summary["totals"]["rejected"] == {"duplicate picture": 24}
    with h5py.File("out/labels.h5") as labels:
        sides = dict(zip(names, labels["split"][:].tolist()))
    assert set(sides.values()) == {0, 1}
    for name in ("Parus major", "Parus minor"):
        for i in range(12):
            assert (
                len({side for each, side in sides.items() if each[:-6] in (f"{name}/p{i:04d}", f"{name}/q{i:04d}")})
                == 1
            )


def test_what_cannot_be(source, capsys):
    Path("e.json").write_bytes(b"")
    for arguments, said in (
        (["--boxes=b.json", "--images=folder"], "--boxes needs --images raw or jpeg: folder keeps whole pictures"),
        (["--boxes=b.json", "--images=original"], "--boxes needs --images raw or jpeg"),
        (["--boxes=e.json"], "e.json is empty"),
        (["--boxes=b.json", "--box-categories=fox"], "names no such category; it has animal, person"),
        (["--box-margin=0.2"], "options of boxes need the file that has them"),
    ):
        assert main(["--folders=in", "--out=out", *arguments]) == 2
        assert said in capsys.readouterr().err
        assert not Path("out").exists()
    assert main(["--folders=in", "--out=out", "--boxes=b.json", "--box-confidence=1", "--without-box=skip"]) == 2
    assert "no picture can be used: no box that is taken (24)" in capsys.readouterr().err


def test_another_cut_is_another_data_set(source, capsys):
    build("out", "--boxes=b.json")
    assert main(["--folders=in", "--out=out", "--size=32", "--val=0.25", "--boxes=b.json", "--box-square"]) == 2
    assert "out holds a data set of other rows, options or versions" in capsys.readouterr().err
    build("out", "--boxes=b.json")  # nothing is left to do


@settings(max_examples=30)
@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=8), given=st.booleans())
def test_rows_and_groups(counts, given):
    pictures = [f"p{i}.jpg" for i in range(len(counts))]
    occurrence = [f"o{i // 2}" if given else None for i in range(len(counts))]
    source = rows_of(picture=pictures, name_L10=["A b"] * len(counts), occurrence=occurrence)
    boxes = {name: [Box(k + 1, (0.1 * k, 0, 0.1, 1)) for k in range(count)] for name, count in zip(pictures, counts)}
    found = with_boxes(source, BoxFile(Path("b.json"), "", boxes), Cut())
    none: list[Any] = [None]
    expected = [(name, box) for name in pictures for box in (boxes[name] or none)]
    frame = found.frame
    assert list(zip(frame["picture"], map(box_of, frame["box"]))) == expected
    codes = frame["occurrence"].to_list()
    numbers = {text: number for number, text in enumerate(filter(None, dict.fromkeys(codes)))}
    unit = units_of(np.array([numbers.get(code, -1) for code in codes]))
    for name in pictures:
        assert len(set(unit[(frame["picture"] == name).to_numpy()].tolist())) == 1
    assert len(set(unit.tolist())) == (len(set(occurrence)) if given else len(counts))


def test_the_remark_of_a_model_that_was_trained_on_boxes():
    stored = Cut(margin=0.2, categories=("animal",))
    assert from_training(Cut(), None) == from_training(None, None) == ""
    assert from_training(Cut(margin=0.2, categories=("animal",), without="skip"), stored) == ""
    assert "give --boxes" in from_training(None, stored)
    assert from_training(Cut(categories=("animal",)), stored) == (
        "boxes are taken otherwise than for the training of the model: margin 0.1, not 0.2"
    )
    for fields in ({"margin": "x"}, {"colour": 1}, {"margin": -1}):
        with pytest.raises(UserError):
            Cut.from_json(fields)
