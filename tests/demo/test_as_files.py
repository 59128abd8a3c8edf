"""The demo set as class folders, as a table and as an archive."""

from __future__ import annotations

import csv
import zipfile

import numpy as np
import pytest
from PIL import Image

from linnaeus_jax.demo.as_files import DOI, FORMS, write_demo_files
from linnaeus_jax.demo.drawing import draw
from linnaeus_jax.demo.generate import simulate
from linnaeus_jax.demo.species import SPECIES


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folders = {form: tmp_path_factory.mktemp(form) / "demo" for form in FORMS}
    return {form: write_demo_files(out, form, rows=160, image_size=32) for form, out in folders.items()}


def test_folders_are_classes(written):
    depths = {len(path.relative_to(written["folders"]).parts) for path in written["folders"].rglob("*.jpg")}
    assert depths == {2, 3, 4}, "pictures known to family, genus and species"
    assert len(list(written["folders"].rglob("*.jpg"))) == 160
    (first,) = written["folders"].rglob("4000000.jpg")
    look = SPECIES[simulate(0, 160).species[0]].look
    drawn, written_one = draw(np.random.default_rng([0, 1, 0]), look, 32), np.asarray(Image.open(first))
    np.testing.assert_allclose(written_one.mean(axis=(0, 1)), drawn.mean(axis=(0, 1)), atol=2)  # red, green, blue


def test_the_table_names_every_picture_and_one_more(written):
    with open(written["table"], newline="") as file:
        names = [row["picture"] for row in csv.DictReader(file)]
    there = {path.name for path in (written["table"].parent / "photos").iterdir()}
    assert set(names) - there == {"no_such_picture.jpg"}
    assert len(names) == 161


def test_the_archive_is_a_darwin_core_archive(written):
    with zipfile.ZipFile(written["dwca"]) as archive:
        assert DOI in archive.read("metadata.xml").decode()
        media = archive.read("multimedia.txt").decode().splitlines()
        core = archive.read("occurrence.txt").decode().splitlines()
    assert len(media) == 161
    assert len(core) < 162
    again = written["dwca"].parent.parent / "again"
    assert write_demo_files(again, "dwca", rows=160, image_size=32).read_bytes() == written["dwca"].read_bytes()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(FileExistsError, match="is not empty"):
        write_demo_files(tmp_path, "folders")
    with pytest.raises(ValueError, match="choose one of folders, table, dwca"):
        write_demo_files(tmp_path, "zip")
