"""MobileNetV2 (Sandler et al. 2018) as a .tflite file, quantised or not, for the EfficientNet of that variant.

The norms are folded into the convolutions there, so here every norm becomes the addition of a bias.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.models.efficientnet import EPSILON, VARIANTS
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.registry import WEIGHT_FORMATS
from linnaeus_jax.weights.files import GRAPH, StateFile
from linnaeus_jax.weights.formats.base import Given, Known, Mapped, Targets, WeightFormat
from linnaeus_jax.weights.formats.efficientnet import FAMILY, beside_the_trunk, padding_errors
from linnaeus_jax.weights.tflite_files import AXES, Graph, Operation

VARIANT = "mobilenet_v2"
ADDRESS = "https://github.com/google-coral/test_data/raw/master"
CLASSIFIER = ("FULLY_CONNECTED", "CONV_2D")
#: operations without weights that such a network has
OTHERS = {"ADD", "AVERAGE_POOL_2D", "MEAN", "RESHAPE", "SQUEEZE", "SOFTMAX", "QUANTIZE", "DEQUANTIZE"}


def _pictures(size: int, scale: float, zero_point: float) -> Preprocessing:
    """Whole pictures, as the examples of the source resize them; mean and deviation of values in [0, 1]."""
    mean, std = (zero_point / 255,) * 3, (1 / (255 * scale),) * 3
    return Preprocessing((size, size), "squash", "lanczos", mean=mean, std=std)


def _known(name: str, about: str, megabytes: float, sha256: str, purpose: str) -> Known:
    file = f"mobilenet_v2_1.0_224_{name}quant.tflite"
    source = f"Google Coral, {about}"
    model = (FAMILY, VARIANT, purpose)
    pictures, address = _pictures(224, 2**-7, 128), f"{ADDRESS}/{file}"
    return Known(file, source, megabytes, "Apache-2.0", pictures, address, "", sha256, *model)


def layers() -> Iterator[tuple[str, str, Operation]]:
    """(convolution, norm, operation) of the network in order, as the canonical names have them."""
    yield "_conv_stem", "_bn0", Operation("CONV_2D", (2, 2), "same", "relu6")
    block = 0
    for repeats, _, stride, expansion, _ in VARIANTS[VARIANT]["stages"]:
        for step in (stride, *(1,) * (repeats - 1)):
            here = f"_blocks.{block}."
            if expansion != 1:
                yield f"{here}_expand_conv", f"{here}_bn0", Operation("CONV_2D", (1, 1), "same", "relu6")
            yield f"{here}_depthwise_conv", f"{here}_bn1", Operation("DEPTHWISE_CONV_2D", (step, step), "same", "relu6")
            yield f"{here}_project_conv", f"{here}_bn2", Operation("CONV_2D", (1, 1), "same", "none")
            block += 1
    yield "_conv_head", "_bn1", Operation("CONV_2D", (1, 1), "same", "relu6")


@WEIGHT_FORMATS.register("mobilenet_v2_tflite")
class MobileNetV2Format(WeightFormat):
    """Layers are matched in the order of the graph, and must be those of a MobileNetV2 of width 1."""

    signs: ClassVar = {FAMILY: re.compile(r"0/CONV_2D/weights")}
    family: ClassVar = FAMILY
    known: ClassVar = (
        _known(
            "inat_bird_",
            "on iNaturalist: 964 birds",
            3.6,
            "350fcd8cf1df1560060d464595dfed8b174b05792788052896004848d9ad04f9",
            "answers for birds without any training; a trunk for birds",
        ),
        _known(
            "inat_insect_",
            "on iNaturalist: 1,021 insects",
            3.7,
            "0ebaeb474dccf56b8b818b014f0d6a8e22b35a45b491a659f0b5405c9c838282",
            "answers for insects without any training; a trunk for insects",
        ),
        _known(
            "",
            "on ImageNet: 1,000 classes",
            3.6,
            "7aad0c74c5e3c06e5eb3c827e13304fdd68a83da6087d92ee169c24ff9fd4776",
            "the smallest download",
        ),
    )

    def settings(self, file: StateFile) -> dict[str, Any]:
        """See `WeightFormat.settings`."""
        size, usual = _graph(file).size[0], VARIANTS[VARIANT]["nominal_size"]
        padding = {} if size == usual else {"efficientnet.nominal_size": size}
        return {"type": FAMILY, "variant": VARIANT} | padding

    def problems(self, file: StateFile, settings: Mapping[str, Any]) -> list[str]:
        """See `WeightFormat.problems`."""
        usual = "efficientnet.nominal_size" not in self.settings(file)
        return super().problems(file, settings) + (padding_errors(file, VARIANT, settings) if usual else [])

    def preprocessing(self, file: StateFile) -> Preprocessing | None:
        """See `WeightFormat.preprocessing`."""
        graph = _graph(file)
        return _pictures(graph.size[0], graph.scale, graph.zero_point) if len(set(graph.size)) == 1 else None

    def classifier(self, file: StateFile) -> tuple[np.ndarray, np.ndarray] | None:
        """See `WeightFormat.classifier`."""
        found = _weighted(file)[-1]
        weight, bias = file.arrays[f"{found}/weights"], file.arrays.get(f"{found}/biases")
        weight = weight.reshape(len(weight), -1)
        return weight, np.zeros(len(weight), np.float32) if bias is None else bias

    def map_file(self, file: StateFile, model: ModelFamily, targets: Targets, given: Given) -> Mapped:
        """See `WeightFormat.map_file`."""
        _check(file)
        mapped, weighted = Mapped(stays=beside_the_trunk), _weighted(file)
        for (convolution, norm, _), found in zip(layers(), weighted):
            weight, bias = file.arrays[f"{found}/weights"], file.arrays[f"{found}/biases"]
            mapped.put(f"{convolution}.weight", weight, f"{found}/weights")
            mapped.put(f"{norm}.bias", bias, f"{found}/biases")
            same = np.ones_like(bias)
            for leaf, value in (
                ("weight", same),
                ("running_mean", 0 * same),
                ("running_var", np.float32(1 - EPSILON) * same),
            ):
                mapped.put(f"{norm}.{leaf}", value, f"{norm}.{leaf}")
        mapped.skipped = {
            name: "the classifier of other classes" for name in file.arrays if name.startswith(f"{weighted[-1]}/")
        }
        mapped.notes.append("In a .tflite file norms are folded into convolutions; here they begin as mere biases.")
        return mapped


def _graph(file: StateFile) -> Graph:
    found: Graph = file.metadata[GRAPH]
    return found


def _weighted(file: StateFile) -> list[str]:
    """`<place>/<kind>` of the operations with weights, in order."""
    return [f"{place}/{each.kind}" for place, each in enumerate(_graph(file).operations) if each.kind in AXES]


def _check(file: StateFile) -> None:
    """Raises UserError where the graph is not that of a MobileNetV2."""
    operations = _graph(file).operations
    wanted = [operation for *_, operation in layers()]
    weighted = [each for each in operations if each.kind in AXES]
    reason = next(
        (
            f"operation {operations.index(mine)} is {_shown(mine)}, where such a network has {_shown(theirs)}"
            for mine, theirs in zip(weighted, wanted)
            if mine != theirs
        ),
        "",
    )
    others = sorted({each.kind for each in operations if each.kind not in AXES} - OTHERS)
    if others:
        reason = f"it has the operation {others[0]}"
    elif not reason and len(weighted) != len(wanted) + 1:
        reason = f"it has {len(weighted)} layers with weights instead of {len(wanted) + 1}"
    elif not reason and weighted[-1].kind not in CLASSIFIER:
        reason = f"it ends with {_shown(weighted[-1])}"
    elif not reason and len(set(_graph(file).size)) != 1:
        reason = f"its pictures are {_graph(file).size[0]} x {_graph(file).size[1]}, not square"
    missing = [name for name in _weighted(file)[:-1] if f"{name}/biases" not in file.arrays]
    if not reason and missing:
        reason = f"operation {missing[0]} has no biases"
    if reason:
        raise UserError(f"{file.path} is no MobileNetV2 of width 1: {reason}; of .tflite files these alone are read")


def _shown(operation: Operation) -> str:
    rows, columns = operation.strides
    return f"{operation.kind} (stride {rows}x{columns}, padding {operation.padding}, activation {operation.activation})"
