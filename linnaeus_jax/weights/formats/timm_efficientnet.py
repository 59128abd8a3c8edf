"""EfficientNets and MobileNetV2 under the names of timm (Wightman 2019).

Those that begin with tf_ were made with TensorFlow's padding and epsilon, the others with PyTorch's. No array shows
which, so what lies beside the file says it, or `model.efficientnet.padding`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.keys import value_of
from linnaeus_jax.models.efficientnet import VARIANTS
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.registry import WEIGHT_FORMATS
from linnaeus_jax.weights.files import StateFile
from linnaeus_jax.weights.formats.base import Given, Mapped, Targets, WeightFormat
from linnaeus_jax.weights.formats.efficientnet import FAMILY, mapped_trunk, variant_of
from linnaeus_jax.weights.hub_settings import DESCRIPTIONS, hub_settings

BLOCK = re.compile(r"blocks\.(\d+)\.(\d+)\.(.+)\.(\w+)")
OUTER = {"conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1", "classifier": "_fc"}
SQUEEZE = {"se.conv_reduce": "_se_reduce", "se.conv_expand": "_se_expand"}
#: layers of a block that expands, and of one that does not
EXPANDING = {"conv_pw": "_expand_conv", "bn1": "_bn0", "conv_dw": "_depthwise_conv", "bn2": "_bn1"}
EXPANDING |= {"conv_pwl": "_project_conv", "bn3": "_bn2", **SQUEEZE}
PLAIN = {"conv_dw": "_depthwise_conv", "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2", **SQUEEZE}


def renamed(names: Sequence[str]) -> dict[str, str]:
    """Name in the file -> the model's name, of all that an EfficientNet has."""
    matches = {name: match for name in names if (match := BLOCK.fullmatch(name))}
    order = sorted({(int(match[1]), int(match[2])) for match in matches.values()})
    place = {block: index for index, block in enumerate(order)}
    expanding = {(match[1], match[2]) for match in matches.values() if match[3] == "conv_pwl"}
    found: dict[str, str] = {}
    for name in names:
        match, (module, _, leaf) = matches.get(name), name.rpartition(".")
        layers = EXPANDING if match and (match[1], match[2]) in expanding else PLAIN
        if match and match[3] in layers:
            found[name] = f"_blocks.{place[int(match[1]), int(match[2])]}.{layers[match[3]]}.{match[4]}"
        elif module in OUTER:
            found[name] = f"{OUTER[module]}.{leaf}"
    return found


@WEIGHT_FORMATS.register("timm_efficientnet")
class TimmEfficientNetFormat(WeightFormat):
    """See the module; the classifier of the file is not taken."""

    signs: ClassVar = {FAMILY: re.compile(r"conv_stem\.weight")}
    family: ClassVar = FAMILY
    described: ClassVar = True

    def settings(self, file: StateFile) -> dict[str, Any]:
        """See `WeightFormat.settings`."""
        variant = self._variant(file)
        return {"type": FAMILY} | ({"variant": variant} if variant else {}) | _padding(file)

    def problems(self, file: StateFile, settings: Mapping[str, Any]) -> list[str]:
        """See `WeightFormat.problems`."""
        if not self._variant(file):
            return [f"{file.path} is no EfficientNet of a size that is known here: {', '.join(VARIANTS)}"]
        problems = super().problems(file, settings)
        if not _padding(file) and value_of(settings, "efficientnet.padding") is None:
            problems.append(
                f"how the convolutions of {file.path} were padded is not known, since no {DESCRIPTIONS[0]} of timm "
                "lies beside it: put it there, or set model.efficientnet.padding, to 'same' where its name begins with "
                "tf_ (then also model.efficientnet.nominal_size=0), else to 'symmetric'"
            )
        return problems

    def classifier(self, file: StateFile) -> tuple[np.ndarray, np.ndarray] | None:
        """See `WeightFormat.classifier`."""
        weight, bias = (file.arrays.get(f"classifier.{leaf}") for leaf in ("weight", "bias"))
        return None if weight is None or bias is None or weight.ndim != 2 else (weight, bias)

    def names(self, file: StateFile) -> dict[str, str]:
        """See `WeightFormat.names`."""
        return renamed(list(file.arrays))

    def map_file(self, file: StateFile, model: ModelFamily, targets: Targets, given: Given) -> Mapped:
        """See `WeightFormat.map_file`."""
        return mapped_trunk(file, self.names(file))

    def _variant(self, file: StateFile) -> str:
        names = renamed(list(file.arrays))
        return variant_of({ours: file.arrays[name] for name, ours in names.items()})


def _padding(file: StateFile) -> dict[str, Any]:
    """Keys of padding and epsilon, as far as what lies beside the file says them.

    Raises:
      UserError: it is of another network.
    """
    said = hub_settings(file.path)
    if not said.architecture:
        return {}
    if not re.match(r"(?:tf_)?(?:efficientnet|mobilenetv2)", said.architecture):
        raise UserError(
            f"{said.where} describes {said.architecture!r:.80}, but {file.path} holds an EfficientNet; keep each file "
            "with its own description"
        )
    same = said.model.get("pad_type", "same" if said.architecture.startswith("tf_") else "") == "same"
    keys: dict[str, Any] = {"efficientnet.padding": "same" if same else "symmetric"}
    eps = said.model.get("bn_eps")
    keys |= {"efficientnet.norm_eps": float(eps)} if type(eps) is float and 0 < eps <= 1 else {}
    return keys | ({"efficientnet.nominal_size": 0} if same else {})
