"""The settings of the golden files as configs, the images they belong to in every layout, and labels files by hand."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import complete_open_nodes, get_config
from linnaeus_jax.data.images import FolderImages, ImageFiles
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.data.samplers import TrainingRows

COMPONENTS = ("TEMPORAL", "SPATIAL", "ELEVATION")  # in the order of the golden arrays
SIDE_32 = Preprocessing((32, 32))
MISSING_FILES = [3, 17, 40, 41, 123, 250, 399]


def golden_settings(fixtures: Path) -> dict[str, Any]:
    return json.loads((fixtures / "data_settings.json").read_text())


def golden_config(fixtures: Path, name: str) -> ConfigDict:
    """The config of one setting S0 ... S8 or of "twofile", which has the settings of S0."""
    everything = golden_settings(fixtures)
    wanted = everything["settings"]["S0" if name == "twofile" else name]
    config = get_config()
    data = config.data
    data.task_keys_h5 = tuple(wanted["levels"])
    data.partial.levels, data.out_of_region.include = wanted["partial"], wanted["oor"]
    data.upward_major_check = wanted["upward"]
    data.h5.train_val_split_ratio, data.h5.train_val_split_seed = wanted["ratio"], wanted["seed"]
    for component, node in wanted["comps"].items():
        for key, value in node.items():
            data.meta.components[component][key.lower()] = tuple(value) if isinstance(value, list) else value
    mixup = config.schedule.mixup
    mixup.min_group_size, mixup.group_levels = wanted["mgs"], (wanted["levels"][0],)
    mixup.exclude_null_samples = False  # the golden group ids count null rows as an ordinary group
    config.metrics.rarity_percentiles = tuple(wanted["rar"])
    config.metrics.taxa_subsets = tuple(map(tuple, everything["taxa_subsets"]))
    if name == "twofile":
        for part in ("train", "val"):
            data.h5[f"{part}_labels_path"] = str(fixtures / f"data_{part}_labels.h5")
            data.h5[f"{part}_images_path"] = f"{part}_images.h5"
    else:
        data.h5.labels_path, data.h5.images_path = str(fixtures / "data_labels.h5"), str(fixtures / "data_images.h5")
    return complete_open_nodes(config)


class Identifiers(list):
    """Stands for a labels file of which only the identifiers are read."""

    @property
    def identifiers(self) -> np.ndarray:
        return np.array(list(self), np.dtypes.StringDType())


def folder_images(
    directory: Path, identifiers: Iterable[str], extension: str, how: Preprocessing = SIDE_32, **options: Any
) -> FolderImages:
    """The files of a directory."""
    return FolderImages(ImageFiles(directory, how, Identifiers(identifiers), extension, **options))


def of_group(group: np.ndarray) -> TrainingRows:
    """Training rows whose only label is their group."""
    group = group.astype(np.int32)
    return TrainingRows(group[:, None], group)


def golden_pixels(count: int = 400) -> np.ndarray:
    """uint8 [count, 32, 32, 3]: the pixels of data_images.h5, from their formula."""
    i, y, x, c = np.ogrid[:count, :32, :32, :3]
    return ((i * (37 + 11 * c) + 16 * (4 * (y // 8) + x // 8) * (c + 1) + (y % 8 == 0) * i) % 256).astype(np.uint8)


def unpack_folder(fixtures: Path, directory: Path) -> Path:
    """The folder `images` of data_hybrid.tar.xz."""
    with tarfile.open(fixtures / "data_hybrid.tar.xz") as archive:
        given = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4 and later
        archive.extractall(directory, **given)  # type: ignore[arg-type]
    return directory / "images"


def write_packed(path: Path, images: np.ndarray, extension: str = ".png") -> Path:
    """Encoded images in one file, in the layout of `PackedImages`."""
    encoded = [cv2.imencode(extension, image[..., ::-1])[1].ravel() for image in images]
    with h5py.File(path, "w") as file:
        file["image_bytes"] = np.concatenate(encoded)
        file["image_offsets"] = np.cumsum([0] + [len(data) for data in encoded])
    return path


def write_labels(
    path: Path,
    taxa: Mapping[str, Sequence[int]],
    *,
    identifiers: Sequence[str | bytes] | None = None,
    **datasets: Any,
) -> Path:
    """A labels file; identifiers are made up where none are given."""
    rows = len(next(iter(taxa.values())))
    with h5py.File(path, "w") as file:
        file["img_identifiers"] = [f"{path.stem}_{i}.jpg" for i in range(rows)] if identifiers is None else identifiers
        for task, ids in taxa.items():
            file[task] = np.asarray(ids, np.uint32)
        for name, values in datasets.items():
            file[name] = values
    return path


def small_config(labels: Path, tasks: Sequence[str], **keys: Any) -> ConfigDict:
    """One labels file without metadata and subsets; `keys` are set by their dotted names with __ for dots."""
    config = get_config()
    config.data.task_keys_h5 = tuple(tasks)
    config.data.h5.labels_path, config.data.h5.images_path = str(labels), "images.h5"
    config.data.partial.levels = True
    config.data.meta.active = False
    config.schedule.mixup.group_levels = (tasks[0],)
    for key, value in keys.items():
        *path, leaf = key.split("__")
        node = config
        for part in path:
            node = node[part]
        node[leaf] = value
    return complete_open_nodes(config)
