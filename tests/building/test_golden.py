"""A table with the columns of the golden labels file, built and read again, gives the golden arrays."""

from __future__ import annotations

import csv
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from linnaeus_jax.building.sources import table
from linnaeus_jax.building.steps.build import build
from linnaeus_jax.building.steps.options import BuildOptions
from linnaeus_jax.building.steps.plan import plan_build
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.dataset import build_dataset
from linnaeus_jax.data.image_sources import open_images
from linnaeus_jax.data.images import ImageFiles
from linnaeus_jax.data.preprocessing import Preprocessing
from tests.conftest import FIXTURES
from tests.data.helpers import COMPONENTS, golden_config, golden_pixels
from tests.npz import load_npz

SETTINGS = tuple(f"S{i}" for i in range(9))
TASKS = ("taxa_L10", "taxa_L20", "taxa_L30", "taxa_L40")


def decoded(file: h5py.File) -> dict[str, np.ndarray]:
    """Degrees, months, hours and metres of the encoded columns, NaN where a pattern says null."""
    x, y, z = file["spatial"][:].astype(float).T
    known = (x != 0) | (y != 0) | (z != 0)
    columns = {
        "latitude": np.where(known, np.rad2deg(np.arcsin(z / np.sqrt(x * x + y * y + z * z + ~known))), np.nan),
        "longitude": np.where(known, np.rad2deg(np.arctan2(y, x)), np.nan),
    }
    temporal = file["temporal"][:].astype(float)
    for name, period, pair in (("month", 12, temporal[:, :2]), ("hour", 24, temporal[:, 2:])):
        turn = np.round(np.arctan2(pair[:, 0], pair[:, 1]) / (2 * np.pi) * period) % period
        columns[name] = np.where((pair != 0).any(axis=1), turn, np.nan)
    columns["month"] = np.where(columns["month"] == 0, 12, columns["month"])
    columns["raw_elevation"] = file["raw_elevation"][:]
    return columns


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, np.ndarray]:
    """The data set built from the table, and the row of the golden file of each of its rows."""
    directory = tmp_path_factory.mktemp("golden")
    pixels = golden_pixels()
    with h5py.File(FIXTURES / "data_labels.h5") as file:
        columns = {name: [f"{value!r}" for value in values.tolist()] for name, values in decoded(file).items()}
        columns |= {task: list(map(str, file[task][:].tolist())) for task in TASKS}
        columns["in_region"] = list(map(str, file["in_region"][:].tolist()))
        identifiers = [name.removesuffix(".png") for name in file["img_identifiers"].asstr()[:]]
        labelled = np.flatnonzero(np.any([file[task][:] != 0 for task in TASKS], axis=0))
    (directory / "photos").mkdir()
    for row, (name, image) in enumerate(zip(identifiers, pixels, strict=True)):
        data = cv2.imencode(".png", image[..., ::-1])[1].tobytes()
        (directory / "photos" / f"{name}.png").write_bytes(data + str(row).encode())  # some pictures repeat
    with open(directory / "table.csv", "w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["img_identifiers", *columns])
        writer.writerows(zip(identifiers, *columns.values(), strict=True))
    source = table.read(directory / "table.csv", pictures=directory / "photos")
    options = BuildOptions(size=32, temporal="month-hour", split="none")
    totals = build(plan_build(source, options, {}), directory / "data").totals
    assert totals["rejected"] == {"no usable label": 400 - len(labelled)}
    assert totals["blanked"] == {}
    return directory / "data", labelled


@pytest.mark.parametrize("name", SETTINGS)
def test_reading_gives_the_golden_arrays(built, name):
    directory, golden_row = built
    config = golden_config(FIXTURES, name)
    config.data.h5.labels_path = str(directory / "labels.h5")
    dataset, want = build_dataset(typed(config)), load_npz(FIXTURES / f"data_{name}.npz")
    kept = np.sort(np.concatenate([dataset.train.rows, dataset.val.rows]))
    np.testing.assert_array_equal(golden_row[kept], want["kept"])
    for task in dataset.tasks:
        np.testing.assert_array_equal(dataset.classes[task], want[f"classes_{task}"])
    for task in dataset.tasks[:-1]:
        child = np.flatnonzero(dataset.tree.parent[task] >= 0)
        pairs = np.stack([child, dataset.tree.parent[task][child]], axis=1)
        np.testing.assert_array_equal(pairs, want[f"parent_{task}"])
    used = [COMPONENTS.index(component.name) for component in dataset.components]
    for split in (dataset.train, dataset.val):
        part = split.name
        np.testing.assert_array_equal(golden_row[split.rows], want[f"rows_{part}"])
        np.testing.assert_array_equal(split.labels, want[f"class_{part}"])
        np.testing.assert_array_equal(split.rarity, want[f"rarity_{part}"])
        np.testing.assert_array_equal(split.taxa_subset_id, want[f"taxa_subset_{part}"])
        for task in dataset.tasks:
            np.testing.assert_array_equal(split.group(task), want[f"group_{part}_{task}"])
            np.testing.assert_array_equal(dataset.class_counts[part][task], want[f"count_{part}_{task}"])
        density = [dataset.meta_label_density[part].get(component, np.nan) for component in COMPONENTS]
        np.testing.assert_allclose(density, want[f"meta_density_{part}"], rtol=0, atol=1e-9)
        if "meta_valid" in want:
            np.testing.assert_array_equal(split.meta_valid, want["meta_valid"][golden_row[split.rows]][:, used])
        if "aux" in want:
            np.testing.assert_allclose(split.meta, want["aux"][golden_row[split.rows]], rtol=0, atol=1e-6)


def test_the_pixels_are_the_golden_ones(built):
    directory, golden_row = built
    source = open_images(ImageFiles(directory / "images.h5", Preprocessing((32, 32))))
    pixels = np.empty((len(golden_row), 32, 32, 3), np.uint8)
    assert source.read(np.arange(len(golden_row)), pixels).all()
    np.testing.assert_array_equal(pixels, golden_pixels()[golden_row])
