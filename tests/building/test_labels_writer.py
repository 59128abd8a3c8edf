"""Damage to a labels file of our own is refused, never read as other numbers or texts."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import polars as pl
import pytest

from linnaeus_jax.building.scan.checks import DamagedError
from linnaeus_jax.building.scan.label_file import LabelFile
from linnaeus_jax.building.steps.labels_writer import LabelsContent, write_labels
from linnaeus_jax.building.steps.observations import EncodedColumn
from linnaeus_jax.data.labels_file import TEXT_DIGEST, open_labels, texts_of, values_of

ROWS = 500


def content() -> LabelsContent:
    rng = np.random.default_rng(0)
    texts = pl.Series([f"picture_{row}.jpg" for row in range(ROWS)])
    return LabelsContent(
        identifiers=texts,
        taxon={"taxa_L10": rng.integers(0, 9, ROWS).astype(np.uint32)},
        names={},
        encoded={"spatial": EncodedColumn(rng.random((ROWS, 3)).astype(np.float32), {"column_names": ["x", "y", "z"]})},
        texts={"license": pl.Series(["CC0", None] * (ROWS // 2))},
        arrays={"raw_lat": rng.random(ROWS)},
        split=np.zeros(ROWS, np.uint8),
        provenance={},
        images={},
        checksums={"pixels": rng.integers(1, 1 << 32, ROWS, np.uint32)},
    )


def everything(path: Path) -> dict[str, Any]:
    with open_labels(str(path)) as file:
        found: dict[str, Any] = {"spatial's columns": list(file["spatial"].attrs["column_names"])}
        for name in ("img_identifiers", "taxa_L10", "spatial", "license", "raw_lat", "split"):
            item = file[name]
            values = texts_of(item, str(path)) if item.dtype.kind == "O" else values_of(item, str(path))
            found[name] = values.tolist()
    return found


def test_an_array_without_rows_keeps_its_form(tmp_path):
    path = tmp_path / "labels.h5"
    write_labels(path, dataclasses.replace(content(), arrays={"of_nothing": np.empty((0, 3), np.float32)}))
    with open_labels(str(path)) as file:
        assert (file["of_nothing"].shape, file["of_nothing"].dtype) == ((0, 3), np.float32)


def test_no_flipped_bit_is_read_as_data(tmp_path):
    path = tmp_path / "labels.h5"
    write_labels(path, content())
    sound, bytes_ = everything(path), path.read_bytes()
    rng, refused = random.Random(0), 0
    for _ in range(100):
        damaged = bytearray(bytes_)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            found = everything(path)
        except (ValueError, KeyError, OSError, RuntimeError):  # HDF5's names for it
            refused += 1
        else:
            assert found == sound
    assert refused > 30  # the others hit what nobody reads


def test_a_changed_text_is_named(tmp_path):
    path = tmp_path / "labels.h5"
    write_labels(path, content())
    with h5py.File(path, "a") as file:
        file["img_identifiers"][3] = "another.jpg"
    with pytest.raises(
        ValueError, match=rf"labels\.h5: dataset '/img_identifiers' .*remove the attribute {TEXT_DIGEST}"
    ):
        everything(path)
    with LabelFile(path) as file, pytest.raises(DamagedError, match="other texts than were written"):
        file.hashes("img_identifiers")
    with h5py.File(path, "a") as file:
        del file["img_identifiers"].attrs[TEXT_DIGEST]
    assert everything(path)["img_identifiers"][3] == "another.jpg"
