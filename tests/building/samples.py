"""A small labels file without a fault, and pictures for it in every form of storage."""

from __future__ import annotations

from pathlib import Path

import cv2
import h5py
import numpy as np

ROWS = 60
TASKS = ("taxa_L10", "taxa_L20", "taxa_L30")
SCALES = (100.0, 1000.0)
TEXT = h5py.string_dtype()


def identifiers(rows: int = ROWS) -> list[str]:
    return [f"birds/{row:04d}.png" for row in range(rows)]


def write_clean(path: Path, rows: int = ROWS) -> Path:
    """6 species in 3 genera in 2 families, all metadata, names, licences, and a split by occurrence."""
    rng = np.random.default_rng(0)
    row = np.arange(rows)
    species = (row // 2) % 6
    latitude, longitude = rng.uniform(-60, 60, rows), rng.uniform(-170, 170, rows)
    metres, month = rng.uniform(1, 900, rows), rng.integers(1, 13, rows)
    phi, lam, angle = np.deg2rad(latitude), np.deg2rad(longitude), 2 * np.pi * month / 12
    turns = 2 * np.pi * metres[:, None] / np.array(SCALES)
    with h5py.File(path, "w") as file:
        file.create_dataset("img_identifiers", data=np.array(identifiers(rows), object), dtype=TEXT)
        for task, values in zip(TASKS, (101 + species, 21 + species // 2, 3 + species // 4), strict=True):
            file[task] = values.astype(np.uint32)
        file["spatial"] = np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], 1, dtype="f4")
        file["spatial"].attrs["column_names"] = ["spatial_x", "spatial_y", "spatial_z"]
        file["temporal"] = np.stack([np.sin(angle), np.cos(angle)], 1, dtype="f4")
        file["temporal"].attrs["column_names"] = ["month_sin", "month_cos"]
        encoded = np.stack([np.sin(turns), np.cos(turns)], axis=2).reshape(rows, 4)
        file["elevation_broadrange_2"] = encoded.astype("f4")
        names = [f"elev_{scale:g}_{part}" for scale in SCALES for part in ("sin", "cos")]
        file["elevation_broadrange_2"].attrs.update({"column_names": names, "scales": np.array(SCALES, "f4")})
        file["raw_lat"], file["raw_lon"] = latitude.astype("f4"), longitude.astype("f4")
        file["raw_elevation"] = metres.astype("f4")
        file["in_region"] = (row % 2).astype("u1")
        file["observer_id"] = (row % 7 + 1).astype("i4")
        file["split"] = np.where(row // 12 % 4 == 3, 1, 0).astype("u1")
        for name, texts in (
            ("occurrence_id", [f"o{r // 2}" for r in row]),
            ("license", ["CC BY 4.0" if r % 3 else "CC0" for r in row]),
            ("rights_holder", [f"Person {r % 5}" for r in row]),
        ):
            file.create_dataset(name, data=np.array(texts, object), dtype=TEXT)
        for task, first, count, rank in zip(
            TASKS, (101, 21, 3), (6, 3, 2), ("species", "genus", "family"), strict=True
        ):
            group = file.create_group(f"taxon_names/{task}")
            group["taxon_id"] = np.arange(first, first + count, dtype=np.uint32)
            group.create_dataset("name", data=np.array([f"{rank} {i}" for i in range(count)], object), dtype=TEXT)
            group.create_dataset("common_name", data=np.array([""] * count, object), dtype=TEXT)
        file.create_group("metadata").attrs["config_json"] = "{}"
    return path


def pixels(rows: int = ROWS) -> np.ndarray:
    """uint8 [rows, 24, 32, 3]."""
    return np.random.default_rng(1).integers(0, 256, (rows, 24, 32, 3), np.uint8)


def encoded(rows: int = ROWS) -> list[bytes]:
    """The pictures as PNG."""
    return [cv2.imencode(".png", image[..., ::-1])[1].tobytes() for image in pixels(rows)]


def write_folder(folder: Path, rows: int = ROWS) -> Path:
    for name, data in zip(identifiers(rows), encoded(rows), strict=True):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return folder


def write_packed(path: Path, pictures: list[bytes]) -> Path:
    with h5py.File(path, "w") as file:
        file["image_bytes"] = np.frombuffer(b"".join(pictures), np.uint8)
        file["image_offsets"] = np.cumsum([0] + [len(data) for data in pictures])
    return path


def replace(file: h5py.File, name: str, values: object, **options: object) -> None:
    """Another data set under the same name and attributes."""
    attributes = dict(file[name].attrs) if name in file else {}
    if name in file:
        del file[name]
    file.create_dataset(name, data=values, **options).attrs.update(attributes)
