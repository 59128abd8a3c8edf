"""`linnaeus_jax.load` and `Model.predict`: what people call."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import linnaeus_jax
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.bundle.files import write_bundle
from linnaeus_jax.inference.paths import NotFiniteError
from linnaeus_jax.inference.pictures import PictureError
from linnaeus_jax.reading.box_cuts import Box
from linnaeus_jax.reading.boxes import read_boxes


def summary(predictions) -> list[tuple]:
    return [(tuple(t.taxon_id for t in p.path), p.inputs, p.notes) for p in predictions]


def test_one_picture_or_many_in_any_form(model, pictures, tmp_path):
    pixels = pictures.pixels[:3]
    paths, raw = [], []
    for number, array in enumerate(pixels):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(array).save(paths[-1])
        raw.append(paths[-1].read_bytes())
    expected = model.predict(pixels)
    assert len(expected) == 3
    forms = [
        list(pixels),
        paths,
        [str(path) for path in paths],
        np.array([str(path) for path in paths]),
        raw,
        iter(raw),
    ]
    for images in [*forms, [Image.open(io.BytesIO(each)) for each in raw]]:
        for one, other in zip(model.predict(images), expected, strict=True):
            assert [t.taxon_id for t in one.path] == [t.taxon_id for t in other.path]
            assert one.path[-1].probability == pytest.approx(other.path[-1].probability, abs=1e-5)
    for single in (pixels[1], paths[1], raw[1], Image.fromarray(pixels[1])):
        assert summary(model.predict(single)) == summary(expected[1:2])
    assert model.predict([]) == []


def test_boxes_in_any_form(model, pictures, tmp_path):
    pixels, place = pictures.pixels[0], (0.2, 0.1, 0.4, 0.5)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    detections = [{"bbox": list(place), "conf": 0.9, "category": "1"}, {"bbox": [0.5, 0.5, 0.5, 0.5], "conf": 0.8}]
    (tmp_path / "b.json").write_text(json.dumps({"images": [{"file": "a.png", "detections": detections[:1]}]}))
    crops = [pixels[2:26, 8:32], pixels[18:40, 23:50]]  # with a tenth of the longer side around
    first, second = model.predict(crops)
    for images, boxes in (
        (pixels, np.array([place])),
        (tmp_path / "a.png", [place]),
        ((tmp_path / "a.png").read_bytes(), detections[:1]),
        ([Image.fromarray(pixels)], [read_boxes(tmp_path / "b.json").boxes["a.png"]]),
    ):
        [one] = model.predict(images, boxes=boxes)
        assert one.box.place == pytest.approx(place)
        assert one.path[-1].probability == pytest.approx(first.path[-1].probability, abs=1e-5)
    [one, whole] = model.predict([pixels] * 2, boxes=[detections, []], date=["2024-05", None])
    assert (one.box, whole.box) in (((box.box), None) for box in one.boxes)
    assert [box.inputs for box in (*one.boxes, whole)] == [("TEMPORAL",), ("TEMPORAL",), ()]
    [one] = model.predict(pixels, boxes=detections, together=1)
    assert one == model.predict(crops, together=1)[0]
    [one] = model.predict(pixels, boxes=detections, views=2)
    expected = model.predict(crops, views=2)
    assert [box.path for box in one.boxes] == [each.path for each in expected]
    assert second.path != first.path


def test_boxes_that_cannot_be_used_are_named(model, pictures, tmp_path, monkeypatch):
    pixels = pictures.pixels[:2]
    with pytest.raises(UserError, match=r"^picture 1: box 2 is \[0, 0, 0, 1\]; boxes are refused where their w"):
        model.predict(pixels, boxes=[[], [[0, 0, 1, 1], [0, 0, 0, 1]]])
    with pytest.raises(ValueError, match="boxes are of 1 pictures, and 2 are given; give a list for each"):
        model.predict(pixels, boxes=[[]])
    (tmp_path / "a.jpg").write_text("no picture")
    with pytest.raises(PictureError, match=r"a.jpg: .*no image decoder"):
        model.predict([tmp_path / "a.jpg"], boxes=[[[0, 0, 1, 1]]])
    outside = Box(7, (60.0, 0.0, 5.0, 5.0), scale=None)  # of pixels, which are looked at when the picture is
    [one] = model.predict(pixels[0], boxes=[outside])
    assert (one.answer, one.path, one.reason) == (None, (), "box_left_out")
    assert one.reason_text == "it lies outside of the picture of 50 x 40 pixels"
    with pytest.raises(UserError, match=r"^picture 1: it lies outside .*; leave its boxes out, or the picture"):
        model.predict(pixels, boxes=[[], [outside]], together=1)
    monkeypatch.setattr("linnaeus_jax.inference.model.finite_rows", lambda logits: np.zeros(1, bool))
    with pytest.raises(NotFiniteError, match=r"^picture 0, box 1: the outputs"):
        model.predict(pixels[0], boxes=[[0, 0, 1, 1]])


def test_metadata_for_all_or_for_each(model, pictures):
    for_all = model.predict(pictures.pixels[:9], latitude=10, longitude=np.float64(20), date="2024-05", elevation=None)
    each = model.predict(
        pictures.pixels[:9],
        latitude=[10] * 9,
        longitude=np.full(9, 20.0),
        date=np.full(9, "2024-05-15", "datetime64[D]"),
        elevation=[float("nan")] * 9,
    )
    assert summary(for_all) == summary(each)
    assert {p.inputs for p in each} == {("TEMPORAL", "SPATIAL")}
    scalar = model.predict(pictures.pixels[:1], elevation=np.array(34.0), components={"TEMPORAL": [0.0, 1.0]})
    assert scalar[0].inputs == ("TEMPORAL", "ELEVATION")
    with pytest.raises(ValueError, match="latitude holds 2 values for 9 pictures"):
        model.predict(pictures.pixels[:9], latitude=[1, 2])


def test_metadata_move_the_answer(model, pictures):
    without = model.predict(pictures.pixels[:1])[0]
    given = model.predict(pictures.pixels[:1], latitude=0, longitude=0, date="2024-02-29", elevation=0)[0]
    assert given.inputs == ("TEMPORAL", "SPATIAL", "ELEVATION")
    assert without.path[-1].probability != pytest.approx(given.path[-1].probability, abs=1e-4)
    wrong = model.predict(pictures.pixels[:1], latitude=91, longitude=0)[0]
    assert wrong.notes == ("latitude 91 is not between -90 and 90: the place is not used",)
    assert [t.probability for t in wrong.path] == pytest.approx([t.probability for t in without.path])


def test_a_picture_that_cannot_be_read_is_named(model, pictures, tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"no picture")
    with pytest.raises(PictureError, match=r"a\.jpg: 10 bytes that no image decoder understands"):
        model.predict([pictures.pixels[0], tmp_path / "a.jpg"])
    with pytest.raises(PictureError, match="picture 9: empty file"):
        model.predict([*pictures.pixels[:9], b""])


def test_loading(bundle, model, pictures, tmp_path):
    write_bundle(bundle, tmp_path / "bundle")
    loaded = linnaeus_jax.load(tmp_path / "bundle", buckets=(8,))
    assert isinstance(loaded, linnaeus_jax.Model)
    assert summary(loaded.predict(pictures.pixels[:2])) == summary(model.predict(pictures.pixels[:2]))
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(UserError, match=f"{path.name} is neither a bundle .* nor a run directory"):
            linnaeus_jax.load(path)


def test_importing_the_package_does_not_import_jax():
    code = "import sys, linnaeus_jax; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
