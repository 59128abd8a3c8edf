"""`linnaeus_jax.load` and `Model.predict`: what people call."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import linnaeus_jax
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.bundle.files import write_bundle
from linnaeus_jax.inference.pictures import PictureError


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
