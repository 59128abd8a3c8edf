"""Weights of another program for the network of `model_example.py`: files whose names are its own.

With both files in `env.plugins`, `model.pretrained` takes such a file; it needs no other key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.models import ModelFamily
from linnaeus_jax.registry import WEIGHT_FORMATS
from linnaeus_jax.weights.files import StateFile
from linnaeus_jax.weights.formats.base import Mapped, WeightFormat
from linnaeus_jax.weights.targets import Target


@WEIGHT_FORMATS.register("garden")
class GardenFormat(WeightFormat):
    """`conv<i>.kernel` and `conv<i>.offset` are weight and bias of block i; there is nothing else."""

    signs: ClassVar = {"SmallNet": re.compile(r"conv0\.kernel")}
    family: ClassVar = "SmallNet"

    def settings(self, file: StateFile) -> dict[str, Any]:
        return {"type": "SmallNet", "variant": "narrow" if "conv2.kernel" not in file.arrays else "wide"}

    def preprocessing(self, file: StateFile) -> Preprocessing:
        return Preprocessing((32, 32), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))

    def map(
        self, files: Sequence[StateFile], model: ModelFamily, targets: dict[str, Target], given: Mapping[str, Any]
    ) -> Mapped:
        mapped = Mapped(stays=lambda name: "" if name.startswith("blocks.") else "a garden has none")
        for name, array in files[0].arrays.items():
            place, leaf = name.removeprefix("conv").split(".")
            mapped.put(f"blocks.{place}.{'weight' if leaf == 'kernel' else 'bias'}", array, name)
        return mapped
