"""Damaged pixels are named where they are read first, and pictures of other identifiers are refused."""

from __future__ import annotations

import pickle
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from linnaeus_jax.building.pack import PackOptions, pack
from linnaeus_jax.building.scan.pictures import PictureChecks
from linnaeus_jax.building.scan.verify import verify_labels
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data import image_checks
from linnaeus_jax.data.image_sources import open_images
from linnaeus_jax.data.images import ImageFiles
from linnaeus_jax.data.labels import LabelTable, read_identifiers_digest
from linnaeus_jax.reading.labelled_pictures import open_pictures
from tests.building.samples import ROWS, pixels, replace, write_clean, write_folder
from tests.data.helpers import SIDE_32

LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "one a chunk": {"chunks": (1, 24, 32, 3)},
    "gzip": {"chunks": (7, 24, 32, 3), "compression": "gzip"},
    "lzf": {"chunks": (7, 24, 32, 3), "compression": "lzf"},
}


def table_of(labels: Path, rows: int = ROWS) -> LabelTable:
    nothing = np.zeros((rows, 0))
    return LabelTable(
        str(labels), (), nothing.astype(np.int64), nothing.astype(np.int32), nothing.astype(np.float32),
        nothing.astype(bool), None, (),
    )  # fmt: skip


@pytest.fixture
def labels(tmp_path) -> Path:
    return write_clean(tmp_path / "labels.h5")


@pytest.fixture
def raw(tmp_path, labels) -> Path:
    with h5py.File(tmp_path / "source.h5", "w") as file:
        file["images"] = pixels()
    pack(labels, tmp_path / "source.h5", tmp_path / "images.h5", PackOptions())
    return tmp_path / "images.h5"


def damaged(path: Path, row: int, **options: Any) -> Path:
    """The file with one bit of a row changed, stored in another way."""
    with h5py.File(path, "r+") as file:
        images = file["images"][:]
        images[row, 3, 4, 1] ^= 1
        replace(file, "images", images, **options)
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_changed_pixel_is_named_where_it_is_read(raw, labels, layout):
    source = open_images(ImageFiles(damaged(raw, 9, **LAYOUTS[layout]), SIDE_32, range(ROWS)))
    raw_source = open_pictures(raw, labels, None)
    out = np.empty((3, 24, 32, 3), np.uint8)
    assert raw_source.read(np.array([8, 10, 8]), out).all()
    message = r"images\.h5: the pixels of row 9 are not those that were written.* copy or build it again .*image_crc32"
    for one in (raw_source, pickle.loads(pickle.dumps(raw_source))):
        with pytest.raises(OSError, match=message):
            one.read(np.array([8, 9, 10]), out)
    with pytest.raises(OSError, match=message):
        source.read(np.array([9]), np.empty((1, 32, 32, 3), np.uint8))
    found = verify_labels(labels, pictures=PictureChecks(raw))
    assert [finding.rows for finding in found.findings if finding.check == "unreadable_image"] == [(9,)]


def test_checksums_are_those_of_the_pictures_alone(raw):
    with h5py.File(raw, "r+") as file:
        file["others"] = file["images"][:]
        assert image_checks.RowChecks.of(raw, file["images"]) is not None
        assert image_checks.RowChecks.of(raw, file["others"]) is None


def test_each_row_is_compared_once(raw, labels, monkeypatch):
    source = open_pictures(raw, labels, None)
    compared = []

    def counted(image):
        compared.append(1)
        return zlib.crc32(image)

    monkeypatch.setattr(image_checks, "checksum", counted)
    out = np.empty((ROWS, 24, 32, 3), np.uint8)
    for rows in (np.arange(5), np.arange(ROWS), np.arange(ROWS)[::-1]):
        source.read(rows, out[: len(rows)])
    assert len(compared) == ROWS


def test_checksums_that_do_not_fit(raw, labels):
    with h5py.File(raw, "r+") as file:
        replace(file, "image_crc32", np.zeros(3, np.uint32))
    with pytest.raises(UserError, match=r"images\.h5: dataset 'image_crc32' has 3 rows, expected 60 as in 'images'"):
        open_pictures(raw, labels, None)


@pytest.mark.parametrize("form", ["raw", "packed"])
def test_pictures_of_other_labels_are_refused(raw, labels, tmp_path, form):
    if form == "packed":
        pack(labels, write_folder(tmp_path / "folder"), raw, PackOptions(force=True))
    assert len(open_images(ImageFiles(raw, SIDE_32, table_of(labels)))) == ROWS
    other = write_clean(tmp_path / "other.h5")
    with h5py.File(other, "r+") as file:
        replace(file, "img_identifiers", file["img_identifiers"][:][::-1])
    message = r"images\.h5 belongs to other identifiers, or another order of them, than those of .*other\.h5"
    with pytest.raises(ValueError, match=message):
        open_images(ImageFiles(raw, SIDE_32, table_of(other)))
    with pytest.raises(UserError, match=message):
        open_pictures(raw, other, None)
    with pytest.raises(UserError, match=message):
        pack(other, raw, tmp_path / "out", PackOptions(png=form == "raw"))
    found = verify_labels(other, pictures=PictureChecks(raw, decode="none"))
    assert not found.is_clean()
    assert "alignment" in {finding.check for finding in found.findings}


def test_files_that_say_nothing_are_accepted_and_named(labels, tmp_path, caplog):
    with h5py.File(tmp_path / "images.h5", "w") as file:
        file["images"] = pixels()
    with caplog.at_level("INFO"):
        open_images(ImageFiles(tmp_path / "images.h5", SIDE_32, table_of(labels)))
    assert "no digest of identifiers: that its rows are those of" in caplog.text
    assert "no checksums, so that damaged pixels are not seen" in caplog.text
    found = verify_labels(labels, pictures=PictureChecks(tmp_path / "images.h5"))
    assert found.is_clean(strict=True)
    assert {"alignment", "checksums"} <= {finding.check for finding in found.findings}


def test_the_digest_of_some_rows(labels, tmp_path):
    rows = np.array([2, 5, 59])
    whole = read_identifiers_digest(str(labels))
    with h5py.File(labels, "r+") as file:
        names = file["img_identifiers"][:]
        replace(file, "img_identifiers", names[rows])
    some = read_identifiers_digest(str(labels))
    with h5py.File(labels, "r+") as file:
        replace(file, "img_identifiers", names)
    assert read_identifiers_digest(str(labels), rows) == some
    assert read_identifiers_digest(str(labels), np.arange(ROWS)) == whole
