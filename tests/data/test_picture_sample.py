"""By which pictures a run is compared with its data, and how they are stored does not matter."""

from __future__ import annotations

import hashlib

import h5py
import numpy as np
import pytest

from linnaeus_jax.data.image_checks import ROWS, picture_sample, sample_differences, sampled_rows
from linnaeus_jax.data.image_sources import open_images
from linnaeus_jax.data.images import ImageFiles, ResizedImages
from linnaeus_jax.data.preprocessing import Preprocessing
from tests.building.samples import ROWS as PICTURES
from tests.building.samples import encoded, identifiers, pixels, write_folder, write_packed
from tests.data.helpers import folder_images

TRAINED = np.random.default_rng(3).permutation(PICTURES)[:40]


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 10**6])
def test_sampled_rows(count):
    rows = sampled_rows(np.random.default_rng(0).permutation(count) * 3)
    assert len(rows) == min(count, ROWS)
    assert (rows[0], rows[-1]) == (0, 3 * (count - 1))
    assert (np.diff(rows) > 0).all()
    assert np.diff(rows).max(initial=0) <= 3 * -(-(count - 1) // max(1, min(count, ROWS) - 1))


def test_encoded_pictures_are_the_same_in_a_folder_and_packed(tmp_path):
    folder = write_folder(tmp_path / "folder")
    packed = open_images(ImageFiles(write_packed(tmp_path / "packed.h5", encoded()), Preprocessing((32, 32))))
    sample = picture_sample(packed, TRAINED)
    in_folder = picture_sample(folder_images(folder, identifiers(), "", Preprocessing((32, 32), "pad")), TRAINED)
    assert sample == in_folder
    assert sample["rows"] == np.sort(TRAINED).tolist()
    assert len(set(sample["digests"])) == 40
    first = encoded()[int(np.sort(TRAINED)[0])]
    assert sample["digests"][0] == hashlib.blake2b(first, digest_size=8).hexdigest()  # as earlier runs have it
    missing = int(np.sort(TRAINED)[7])
    (folder / identifiers()[missing]).unlink()
    without = picture_sample(folder_images(folder, identifiers(), ""), TRAINED)
    assert without["digests"][7] == ""
    assert not list(sample_differences(sample, without))
    other = picture_sample(folder_images(folder, identifiers()[::-1], ""), TRAINED)
    assert "39 of 39 pictures that were compared are others" in next(sample_differences(sample, other))


def test_raw_pictures_are_the_same_in_every_layout_and_at_every_size(tmp_path):
    samples = []
    for name, options in (("a", {}), ("b", {"chunks": (7, 24, 32, 3), "compression": "gzip"}), ("c", {"chunks": True})):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("images", data=pixels(), **options)
        source = open_images(
            ImageFiles(tmp_path / f"{name}.h5", Preprocessing((16, 16), "pad" if options else "squash"))
        )
        assert isinstance(source, ResizedImages)
        samples.append(picture_sample(source, TRAINED))
    assert samples[0] == samples[1] == samples[2]
    assert samples[0]["shape"] == [24, 32, 3]
