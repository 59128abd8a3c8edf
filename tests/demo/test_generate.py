"""The demo data: a function of its seed, readable by the data subpackage, and its ceilings are what they say."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.dataset import build_dataset
from linnaeus_jax.data.h5_images import ContiguousImages
from linnaeus_jax.data.image_sources import open_images
from linnaeus_jax.data.images import ImageFiles
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.demo import generate
from tests.data.helpers import small_config

ROWS = 200


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("demo")
    return directory, generate.write_demo(directory, seed=3, image_size=32, rows=ROWS)


def test_files_of_the_data_room(made):
    directory, summary = made
    config = small_config(directory / "labels.h5", generate.RANKS, data__meta__active=True)
    config.data.meta.components.ELEVATION.enabled = True
    config.data.h5.train_val_split_ratio = 0.8
    dataset = build_dataset(typed(config))
    assert dataset.num_classes == {task: count + 1 for task, count in summary.classes.items()}
    assert summary.classes == {"taxa_L10": 36, "taxa_L20": 12, "taxa_L30": 6, "taxa_L40": 3}
    assert not dataset.conflicts
    np.testing.assert_array_equal(np.sort(dataset.val.rows), np.sort(generate.validation_rows(ROWS)))
    assert len(dataset.val) == summary.validation_rows
    assert dataset.class_name("taxa_L10", 1) == "Rutilala orientalis (eastern red round-winged butterfly) [481203]"
    assert all("(" in dataset.class_name(task, k) for task, ids in dataset.classes.items() for k in range(1, len(ids)))
    table = dataset.train.table
    missing = 1 - table.meta_valid.mean(axis=0)
    np.testing.assert_allclose(missing, [summary.missing[name] for name in generate.COMPONENTS], atol=1e-9)
    assert int((table.taxon[:, 0] > 0).sum()) == summary.rows_with_species
    images = open_images(ImageFiles(summary.images_path, Preprocessing((32, 32)), range(ROWS)))
    assert isinstance(images, ContiguousImages)
    out = np.empty((ROWS, 32, 32, 3), np.uint8)
    images.read(np.arange(ROWS), out)
    assert len(np.unique(out.reshape(ROWS, -1), axis=0)) == ROWS


def test_same_seed_same_bytes(made, tmp_path, monkeypatch):
    """However many rows are drawn at a time."""
    directory, summary = made
    monkeypatch.setattr(generate, "CHUNK", 80)
    again = generate.write_demo(tmp_path, seed=3, image_size=32, rows=ROWS)
    assert again.ceilings == summary.ceilings
    with h5py.File(directory / "images.h5") as one, h5py.File(tmp_path / "images.h5") as two:
        np.testing.assert_array_equal(one["images"][:], two["images"][:])
    with h5py.File(directory / "labels.h5") as one, h5py.File(tmp_path / "labels.h5") as two:
        for name in ("img_identifiers", "taxa_L10", "spatial", "raw_date_observed"):
            np.testing.assert_array_equal(one[name][:], two[name][:])
    assert not np.array_equal(generate.simulate(4, ROWS).species, generate.simulate(3, ROWS).species)


def test_a_complete_set_is_kept_and_a_damaged_one_made_again(made, tmp_path):
    calls: list[tuple[int, int]] = []

    def make(seed=3):
        calls.clear()
        generate.write_demo(
            tmp_path, seed=seed, image_size=32, rows=ROWS, progress=lambda done, total: calls.append((done, total))
        )

    make()
    assert calls[-1] == (ROWS, ROWS)
    before = (tmp_path / "images.h5").read_bytes()
    make()
    assert calls == []
    with h5py.File(tmp_path / "images.h5", "a") as file:
        file["images"][5] = 0
    make()
    assert (tmp_path / "images.h5").read_bytes() == before
    with h5py.File(tmp_path / "labels.h5", "a") as file:
        file["taxon_names/taxa_L20/name"][3] = "Something else"
    make()
    assert calls[-1] == (ROWS, ROWS)
    with pytest.raises(FileExistsError, match="holds other data"):
        make(seed=4)


def test_ceilings_are_of_the_best_classifier():
    observations = generate.simulate(0, 2000)
    guesses = generate.bayes_species(observations)
    accuracy = {kind: float((guess == observations.species).mean()) for kind, guess in guesses.items()}
    assert accuracy["image+metadata"] > max(accuracy["image"], accuracy["metadata"])
    assert accuracy["image+metadata"] < 1  # pictures of a genus look alike and metadata is missing in places
    joint = generate.log_joint(observations)
    hidden = ~observations.valid.any(axis=1)
    shares = np.log(generate.species_counts(2000) / 2000)
    np.testing.assert_allclose(joint[hidden], np.broadcast_to(shares, joint[hidden].shape), atol=1e-12)
    assert generate.species_counts(2000).sum() == 2000


def test_encoding_writes_the_null_patterns():
    observations = generate.simulate(1, ROWS)
    columns = generate.encode(observations)
    hidden = ~observations.valid
    assert not columns["temporal"][hidden[:, 0]].any()
    assert not columns["spatial"][hidden[:, 1]].any()
    assert (columns["elevation_broadrange_2"][hidden[:, 2]] == np.tile([0, 1], 5)).all()
    np.testing.assert_allclose(np.linalg.norm(columns["spatial"][~hidden[:, 1]], axis=1), 1, atol=1e-6)


def test_places_are_on_the_globe_where_they_are_encoded():
    drawn = generate.simulate(0, 6000)
    latitude, longitude = generate.places(drawn)
    assert (np.abs(drawn.latitude) > 90).any()
    assert np.abs(latitude).max() <= 90
    assert np.abs(longitude).max() <= 180
    phi, lam = np.deg2rad(latitude), np.deg2rad(longitude)
    point = np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], axis=1)
    known = drawn.valid[:, 1]
    np.testing.assert_allclose(generate.encode(drawn)["spatial"][known], point[known], atol=1e-6)


def test_names_cover_every_taxon():
    names = generate.taxon_names()
    taxa = generate.simulate(0, ROWS).taxa
    for column, rank in enumerate(generate.RANKS):
        assert set(np.unique(taxa[:, column]).tolist()) - {0} == set(names[rank])
        for texts in zip(*names[rank].values(), strict=True):
            assert "" not in texts
            assert len(set(texts)) == len(names[rank])


def test_unusable_sizes(tmp_path):
    with pytest.raises(ValueError, match="rows=10 is too few"):
        generate.write_demo(tmp_path, rows=10)
    with pytest.raises(ValueError, match="image_size=16 is too small"):
        generate.write_demo(tmp_path, image_size=16, rows=ROWS)
