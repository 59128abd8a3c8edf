"""A MetaFormer (Diao et al. 2022, "MetaFG") for mFormerV0."""

from __future__ import annotations

import re
from typing import ClassVar

import numpy as np

from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.registry import WEIGHT_FORMATS
from linnaeus_jax.weights.files import StateFile
from linnaeus_jax.weights.formats.base import Given, Mapped, Targets, WeightFormat
from linnaeus_jax.weights.formats.linnaeus import TABLE, buffer_reason, drop_unused_norm


@WEIGHT_FORMATS.register("metaformer")
class MetaFormerFormat(WeightFormat):
    """Names are equal, heads and metadata heads are not taken.

    There the pairs with an extra token share row 0 of a bias table with the corner of the grid, here they have the last
    row, which therefore becomes a copy of row 0.
    """

    family: ClassVar = "mFormerV0"
    by_name: ClassVar = True
    mark: ClassVar = re.compile(r"meta_\d+_head_\d\..*|head\.(?:weight|bias)")
    title: ClassVar = "MetaFormer (MetaFG)"

    def map_file(self, file: StateFile, model: ModelFamily, targets: Targets, given: Given) -> Mapped:
        """See `WeightFormat.map_file`."""

        def stays(name: str) -> str:
            return "a MetaFormer has none for these classes and columns" if re.match(r"head\.|meta_", name) else ""

        mapped = Mapped(stays=stays, original=not file.facts)
        for name, array in file.arrays.items():
            if reason := buffer_reason(name):
                mapped.skipped[name] = reason
            elif re.match(r"head\b|head_|meta_.*head_", name):
                mapped.skipped[name] = "heads and metadata heads of a MetaFormer are not taken"
            elif name.endswith(TABLE) and array.ndim:
                mapped.put(name, np.concatenate([array[:-1], array[:1]]), name)
            else:
                mapped.put(name, array, name)
        mapped.notes.append(
            "A MetaFormer differs from mFormerV0: it downsamples at the start of stage_2 instead of stage_1, pads "
            "depthwise convolutions by 1 on all sides, and normalises only the class token by norm_1. "
            "model.compat='metafg' and conv_stages.stride_seqs of [1,1],[2,1,...] compute as it does."
        )
        drop_unused_norm(mapped, model)
        return mapped
