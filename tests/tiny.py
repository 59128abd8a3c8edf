"""A data set and a configuration so small that a run of a few epochs takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import complete_open_nodes, get_config

TASKS = ("taxa_L10", "taxa_L20", "taxa_L30")


def write_tiny_data(directory: Path, rows: int = 120, size: int = 32, seed: int = 0) -> tuple[Path, Path]:
    """labels.h5 and images.h5: 8 species in 4 genera in 2 families, told apart by colour; some values are missing."""
    rng = np.random.default_rng(seed)
    species = rng.integers(0, 8, rows)
    known = rng.random(rows) > 0.1
    taxa = {
        "taxa_L10": np.where(known, 1000 + species, 0),
        "taxa_L20": 200 + species // 2,
        "taxa_L30": 30 + species // 4,
    }
    month = rng.random((rows, 1))
    temporal = np.concatenate([np.sin(2 * np.pi * month), np.cos(2 * np.pi * month)], 1)
    spatial = rng.normal(size=(rows, 3))
    spatial /= np.linalg.norm(spatial, axis=1, keepdims=True)
    temporal[rng.random(rows) < 0.1] = 0
    spatial[rng.random(rows) < 0.1] = 0
    colour = np.array([[s & 1, s >> 1 & 1, s >> 2 & 1] for s in range(8)]) * 150 + 50
    noise = rng.integers(-40, 40, (rows, size, size, 3))
    images = np.clip(colour[species][:, None, None] + noise, 0, 255).astype(np.uint8)
    directory.mkdir(parents=True, exist_ok=True)
    labels_path, images_path = directory / "labels.h5", directory / "images.h5"
    with h5py.File(labels_path, "w") as file:
        file["img_identifiers"] = [f"image_{i}.jpg" for i in range(rows)]
        for task, ids in taxa.items():
            file[task] = ids.astype(np.uint32)
        for name, values, columns in (
            ("temporal", temporal, ["month_sin", "month_cos"]),
            ("spatial", spatial, ["spatial_x", "spatial_y", "spatial_z"]),
        ):
            dataset = file.create_dataset(name, data=values.astype(np.float32))
            dataset.attrs["column_names"] = columns
        file["in_region"] = np.ones(rows, np.uint8)
        file.create_group("metadata").attrs["config_json"] = "{}"
    with h5py.File(images_path, "w") as file:
        file["images"] = images
    return labels_path, images_path


def tiny_config(directory: Path, **overrides: Any) -> ConfigDict:
    """A 32-pixel model on the tiny data in `directory` (written if absent); overrides are keys with __ for dots."""
    labels, images = directory / "labels.h5", directory / "images.h5"
    if not labels.exists():
        write_tiny_data(directory)
    config = get_config()
    data = config.data
    data.h5.labels_path, data.h5.images_path = str(labels), str(images)
    data.h5.train_val_split_ratio = 0.8
    data.task_keys_h5 = TASKS
    data.img_size, data.batch_size, data.batch_size_val = 32, 16, 16
    data.partial.levels = True
    model = config.model
    model.variant = "tiny"
    model.convnext_stages.dims, model.convnext_stages.depths = (8, 8, 16, 16), (1, 1)
    model.rope_stages.depths, model.rope_stages.num_heads = (1, 1), (1, 1)
    config.train.epochs = 3
    config.train.gradient_checkpointing.enabled_normal_steps = False
    config.train.gradient_checkpointing.enabled_gradnorm_steps = False
    config.lr_scheduler.base_lr, config.lr_scheduler.reference_bs = 3e-3, 16
    config.lr_scheduler.warmup_steps = 2
    config.loss.grad_weighting.task.type = "static"
    config.schedule.mixup.min_group_size = 2
    config.schedule.mixup.prob.enabled = False  # augmentation and mixing cost compile time: tests that need them say so
    config.aug.random_resized_crop.enabled = False
    config.aug.color_jitter = config.aug.random_erase.prob = 0.0
    for kind in ("step", "console", "wandb", "lr", "pipeline"):
        config.schedule.metrics[f"{kind}_interval"] = 2
    for key, value in overrides.items():
        *path, leaf = key.split("__")
        node = config
        for part in path:
            node = node[part]
        node[leaf] = value
    return complete_open_nodes(config)
