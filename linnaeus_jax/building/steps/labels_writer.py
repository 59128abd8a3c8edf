"""Writing labels.h5 as spec data §1.1 describes it, with what the builder knows beyond that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import polars as pl
from numpy.typing import NDArray

from linnaeus_jax.building.steps.observations import EncodedColumn
from linnaeus_jax.data.alignment import LABEL_CHECKSUMS
from linnaeus_jax.data.hdf5 import write_hdf5
from linnaeus_jax.data.labels import SPLITS
from linnaeus_jax.data.labels_file import IDENTIFIERS, RANK_PLACE, TEXT_DIGEST, TextDigest
from linnaeus_jax.data.taxon_names import write_taxon_names
from linnaeus_jax.files import json_text
from linnaeus_jax.taxonomy.ranks import task_level

#: rows of text handed to HDF5 at a time, and of numbers with one checksum
_CHUNK = 1 << 16


@dataclass(frozen=True)
class LabelsContent:
    """The N rows of a labels file.

    Attributes:
      taxon: {task: uint32 [N]}, 0 = null, finest first.
      names: {task: {taxon id: (scientific name, common name)}}.
      texts: other data sets of text by name, null = "".
      arrays: other data sets by name.
      provenance: becomes the attribute `config_json` of the group `metadata`.
      images: how the pictures were stored, attributes of `metadata/image_processing`.
    """

    identifiers: pl.Series
    taxon: Mapping[str, NDArray[np.uint32]]
    names: Mapping[str, Mapping[int, tuple[str, str]]]
    encoded: Mapping[str, EncodedColumn]
    texts: Mapping[str, pl.Series]
    arrays: Mapping[str, NDArray[Any]]
    split: NDArray[np.uint8] | None
    provenance: Mapping[str, Any]
    images: Mapping[str, Any]
    checksums: Mapping[str, NDArray[np.uint32]]
    notes: str = field(default="")


def write_labels(path: Path, content: LabelsContent) -> None:
    """Writes a labels file; the same content gives the same bytes.

    Damage is seen by whoever reads it: HDF5 checks its own headers (of files of version 1.8 on) and numbers, and texts
    bear a digest, see `labels_file.TEXT_DIGEST`.
    """
    with write_hdf5(path, libver=("v108", "latest")) as file:
        _write_text(file, IDENTIFIERS, content.identifiers)
        own_names = any(task_level(task) is None for task in content.taxon)
        for place, (task, taxon) in enumerate(content.taxon.items()):
            column = _write_numbers(file, task, taxon.astype(np.uint32))
            if own_names:  # no numbers say which rank is the finest
                column.attrs[RANK_PLACE] = place
        for name, encoded in content.encoded.items():
            _write_numbers(file, name, encoded.values).attrs.update(encoded.attributes)
        for name, values in content.arrays.items():
            if values.dtype == object:
                _write_text(file, name, pl.Series(name, values.tolist(), pl.String))
            else:
                _write_numbers(file, name, values)
        for name, text in content.texts.items():
            _write_text(file, name, text)
        if content.split is not None:
            _write_numbers(file, "split", content.split).attrs["names"] = list(SPLITS)
        for task, names in content.names.items():
            scientific, common = ([pair[k] for pair in names.values()] for k in range(2))
            write_taxon_names(file, task, list(names), scientific, common)
        group = file.create_group("metadata")
        group.attrs["config_json"] = json_text(content.provenance, ensure_ascii=False)
        group.create_group("notes").attrs["description"] = content.notes
        group.create_group("ibridaDB").attrs["release"] = ""
        group.create_group("image_processing").attrs.update(content.images)
        for kind, values in content.checksums.items():
            _write_numbers(file, f"{LABEL_CHECKSUMS}/{kind}", values)


def _write_numbers(file: h5py.File, name: str, values: NDArray[Any]) -> h5py.Dataset:
    """With checksums, which HDF5 keeps for chunks."""
    if not values.size:
        return file.create_dataset(name, data=values)
    chunks = (min(len(values), _CHUNK), *values.shape[1:])
    return file.create_dataset(name, data=values, chunks=chunks, fletcher32=True)


def _write_text(file: h5py.File, name: str, values: pl.Series) -> None:
    """Variable-length UTF-8, in pieces so that few Python strings live at a time."""
    dataset = file.create_dataset(name, (len(values),), h5py.string_dtype())
    digest = TextDigest()
    for start in range(0, len(values), _CHUNK):
        texts = [text.encode() for text in values[start : start + _CHUNK].fill_null("").to_list()]
        dataset[start : start + _CHUNK] = texts
        digest.add(texts)
    dataset.attrs[TEXT_DIGEST] = digest.hexdigest()
