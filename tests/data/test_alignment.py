"""Images of other contents than those that a labels file was built with are refused, whatever their names."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from linnaeus_jax.building.pack import PackOptions, pack
from linnaeus_jax.building.scan.pictures import PictureChecks
from linnaeus_jax.building.scan.verify import verify_labels
from linnaeus_jax.building.steps.build import build, build_shard, merge
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.image_checks import CHECKSUMS, picture_sample, sample_differences
from linnaeus_jax.data.image_sources import open_images
from linnaeus_jax.data.images import ImageFiles
from linnaeus_jax.demo.generate import MIN_ROWS, write_demo
from linnaeus_jax.reading.labelled_pictures import open_pictures
from linnaeus_jax.reading.paths import Shard
from tests.building.build_driver import plan
from tests.building.helpers import write_pictures
from tests.data.helpers import SIDE_32
from tests.data.test_image_checks import table_of

COUNT = 90
FORMS = ("raw", "jpeg", "original", "folder")
MESSAGE = r"90 of 90 images that were compared are not those that .*labels\.h5 was built with, the first in row 0"
SAMPLED = r"64 of 64 images that were compared are not those that .*labels\.h5 was built with, the first in row 0"


@pytest.fixture(scope="module")
def cameras(tmp_path_factory) -> Path:
    """Two folders of pictures with the same names, and a data set of each in every form."""
    root = tmp_path_factory.mktemp("cameras")
    for seed, name in enumerate(("one", "two")):
        write_pictures(root / name, COUNT, seed)
        for form in FORMS:
            build(plan(root / name, form), root / f"{name}_{form}")
    return root


def images_of(root: Path, name: str, form: str) -> Path:
    return root / name if form == "folder" else root / f"{name}_{form}" / "images.h5"


def opened(labels: Path, images: Path, rows: int = COUNT):
    kind = "folder" if images.is_dir() else "h5"
    return open_images(ImageFiles(images, SIDE_32, table_of(labels, rows)), kind)


@pytest.mark.parametrize("form", FORMS)
def test_images_of_another_camera_are_refused_at_every_door(cameras, tmp_path, form):
    labels, other = cameras / f"one_{form}/labels.h5", images_of(cameras, "two", form)
    own = images_of(cameras, "one", form)
    assert len(opened(labels, own)) == len(open_pictures(own, labels, None)) == COUNT
    assert verify_labels(labels, pictures=PictureChecks(own)).is_clean()
    message = SAMPLED if form == "folder" else MESSAGE
    with pytest.raises(ValueError, match=message):
        opened(labels, other)
    with pytest.raises(UserError, match=message):
        open_pictures(other, labels, None)
    with pytest.raises(UserError, match=MESSAGE):
        pack(labels, other, tmp_path / ("out.h5" if form in ("folder", "raw") else "out"), PackOptions())
    assert not list(tmp_path.iterdir())
    for decode in ("all", "none"):
        found = verify_labels(labels, pictures=PictureChecks(other, decode=decode))
        assert not found.is_clean()
        assert [finding.check for finding in found.findings].count("alignment") == 1


def test_images_that_were_stored_in_another_way_are_the_same(cameras, tmp_path):
    """Chunked, joined from parts, packed and unpacked; those of the files are known, too, where pixels are stored."""
    labels, images = cameras / "one_raw/labels.h5", cameras / "one_raw/images.h5"
    with h5py.File(images) as file, h5py.File(tmp_path / "chunked.h5", "w") as copy:
        copy.create_dataset("images", data=file["images"][:], chunks=(7, 48, 48, 3), compression="gzip")
        copy[CHECKSUMS] = file[CHECKSUMS][:]
    assert len(opened(labels, tmp_path / "chunked.h5")) == COUNT
    pack(labels, tmp_path / "chunked.h5", tmp_path / "again.h5", PackOptions())
    assert len(opened(labels, tmp_path / "again.h5")) == COUNT
    pack(labels, cameras / "one", tmp_path / "files.h5", PackOptions())
    assert len(opened(labels, tmp_path / "files.h5")) == COUNT
    pack(labels, tmp_path / "files.h5", tmp_path / "folder", PackOptions())
    assert len(opened(labels, tmp_path / "folder")) == COUNT
    with pytest.raises(UserError, match=MESSAGE):
        pack(labels, cameras / "two", tmp_path / "other.h5", PackOptions())


@pytest.mark.parametrize("form", ["raw", "original"])
def test_joined_parts(cameras, tmp_path, form):
    for name in ("one", "two"):
        for index in (1, 2):
            build_shard(plan(cameras / name, form), tmp_path / name, Shard(index, 2))
        merge(plan(cameras / name, form), tmp_path / name, 2)
    labels = tmp_path / "one/labels.h5"
    assert len(opened(labels, tmp_path / "one/images.h5")) == COUNT
    with pytest.raises(ValueError, match=MESSAGE):
        opened(labels, tmp_path / "two/images.h5")
    if form == "raw":  # a joined file of another program: its parts have checksums
        for name in ("one", "two"):
            with h5py.File(tmp_path / name / "images.h5", "r+") as file:
                del file[CHECKSUMS]
        assert len(opened(labels, tmp_path / "one/images.h5")) == COUNT
        with pytest.raises(ValueError, match=MESSAGE):
            opened(labels, tmp_path / "two/images.h5")


def test_files_of_earlier_versions(cameras, tmp_path):
    """Labels without checksums are not compared; images without are, by a sample."""
    for form in ("raw", "original"):
        labels, images = tmp_path / f"{form}.h5", tmp_path / f"{form}_images.h5"
        shutil.copy(cameras / f"one_{form}/labels.h5", labels)
        shutil.copy(images_of(cameras, "two", form), images)
        with h5py.File(images, "r+") as file:
            del file[CHECKSUMS]
        with pytest.raises(ValueError, match="64 of 64 images that were compared are not those"):
            opened(labels, images)
        with h5py.File(labels, "r+") as file:
            del file["metadata/image_crc32"]
        for path in (images, images_of(cameras, "two", form)):
            assert len(opened(labels, path)) == COUNT


def test_one_other_image_among_many(cameras, tmp_path):
    """It is found by the checksums, and the sample that a run keeps of its pictures says so, too."""
    labels, images = cameras / "one_raw/labels.h5", tmp_path / "images.h5"
    shutil.copy(cameras / "one_raw/images.h5", images)
    rows, kept = np.arange(0, COUNT, 2), open_pictures(images, labels, None)
    before = picture_sample(kept, rows)
    with h5py.File(images, "r+") as file:
        file[CHECKSUMS][4] = 1
    with pytest.raises(ValueError, match=r"1 of 90 images that were compared are not .* the first in row 4"):
        opened(labels, images)
    changed = open_pictures(images, labels, None, aligned=False)
    assert not list(sample_differences(before, picture_sample(kept, rows)))
    before |= {"rows": [0], "digests": before["digests"][:1]}
    now = picture_sample(changed, rows[[0]]) | {"checksums": picture_sample(kept, rows[1:])["checksums"]}
    assert "other checksums" in next(iter(sample_differences(before, now)))
    assert not list(sample_differences(before | {"checksums": ""}, now))  # of a file without, or of an earlier version


def test_generated_sets_of_two_seeds(tmp_path):
    for seed in (1, 2):
        write_demo(tmp_path / str(seed), seed=seed, rows=MIN_ROWS, image_size=32)
    assert len(opened(tmp_path / "1/labels.h5", tmp_path / "1/images.h5", MIN_ROWS)) == MIN_ROWS
    with pytest.raises(ValueError, match=f"{MIN_ROWS} of {MIN_ROWS} images"):
        opened(tmp_path / "1/labels.h5", tmp_path / "2/images.h5", MIN_ROWS)
