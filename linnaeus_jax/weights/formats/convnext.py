"""ConvNeXts under the names of their authors, timm, transformers, torchvision and OpenCLIP.

The model's names are those of the authors (Liu et al. 2022, Woo et al. 2023); one table for each other source leads to
them. Architecture and options follow from names and shapes; epsilons, which cannot be seen, from the source's table and
what lies beside the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.keys import value_of
from linnaeus_jax.models.convnext import CONVNEXT_EPS, tiered
from linnaeus_jax.models.convnext_family import VARIANTS, ConvNeXt, fields_of
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.registry import WEIGHT_FORMATS
from linnaeus_jax.weights.files import StateFile
from linnaeus_jax.weights.formats.base import Given, Mapped, Targets, WeightFormat
from linnaeus_jax.weights.hub_settings import HubSettings, hub_settings

FAMILY = "ConvNeXt"
#: of the final norm in transformers, which no array shows
TRANSFORMERS_EPS = 1e-12
#: of timm's and OpenCLIP's largest one, in which all norms have it
XXLARGE, XXLARGE_EPS = (384, 768, 1536, 3072), 1e-5

#: activations as sources call them -> as they are called here
ACTS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
ACTS |= {"silu": "silu", "swish": "silu"}
#: those of timm's networks for trials, whose norms have the epsilon of the largest
TRIAL_ACTS = {"test_convnext": "gelu_tanh", "test_convnext2": "gelu_tanh", "test_convnext3": "silu"}
#: settings of timm that no array shows -> the only value that is computed here
ONLY = {"output_stride": 32, "global_pool": "avg"}
#: fields that say how large the network is
SHAPE = ("dims", "depths")
Rules = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Source:
    """One way of naming.

    Attributes:
      sign: names that only it has.
      rules: patterns of names -> the authors' names; the first that fits counts. "" leaves an array out, and
        `classifier.` begins those of the classifier.
      head_eps: epsilon of the final norm.
    """

    sign: re.Pattern[str]
    rules: Rules
    head_eps: float = CONVNEXT_EPS


_OWN: Rules = (
    (r"(downsample_layers\.\d+\.\d+\.(?:weight|bias))", r"\1"),
    (r"(stages\.\d+\.\d+\.(?:dwconv|norm|pwconv[12])\.(?:weight|bias))", r"\1"),
    (r"(stages\.\d+\.\d+\.(?:gamma|grn\.gamma|grn\.beta))", r"\1"),
    (r"(norm\.(?:weight|bias))", r"\1"),
    (r"head\.(weight|bias)", r"classifier.\1"),
    (r"(?:norms|projectors)\..*", ""),
)
_TIMM: Rules = (
    (r"stem\.(\d+)\.(.*)", r"downsample_layers.0.\1.\2"),
    (r"stages\.(\d+)\.downsample\.(\d+)\.(.*)", r"downsample_layers.\1.\2.\3"),
    (r"stages\.(\d+)\.blocks\.(\d+)\.conv_dw\.(.*)", r"stages.\1.\2.dwconv.\3"),
    (r"stages\.(\d+)\.blocks\.(\d+)\.mlp\.fc([12])\.(.*)", r"stages.\1.\2.pwconv\3.\4"),
    (r"stages\.(\d+)\.blocks\.(\d+)\.mlp\.grn\.weight", r"stages.\1.\2.grn.gamma"),
    (r"stages\.(\d+)\.blocks\.(\d+)\.mlp\.grn\.bias", r"stages.\1.\2.grn.beta"),
    (r"stages\.(\d+)\.blocks\.(\d+)\.(norm\..*|gamma)", r"stages.\1.\2.\3"),
    (r"(?:norm_pre|head\.norm)\.(.*)", r"norm.\1"),
    (r"head\.pre_logits\.fc\.(.*)", r"pre_logits.\1"),
    (r"head\.fc\.(.*)", r"classifier.\1"),
)
_TRANSFORMERS: Rules = tuple(
    (rf"(?:convnext(?:v2)?\.)?{pattern}", ours)
    for pattern, ours in (
        (r"embeddings\.patch_embeddings\.(.*)", r"downsample_layers.0.0.\1"),
        (r"embeddings\.layernorm\.(.*)", r"downsample_layers.0.1.\1"),
        (r"encoder\.stages\.(\d+)\.downsampling_layer\.(\d+)\.(.*)", r"downsample_layers.\1.\2.\3"),
        (r"encoder\.stages\.(\d+)\.layers\.(\d+)\.(dwconv|pwconv[12])\.(.*)", r"stages.\1.\2.\3.\4"),
        (r"encoder\.stages\.(\d+)\.layers\.(\d+)\.layernorm\.(.*)", r"stages.\1.\2.norm.\3"),
        (r"encoder\.stages\.(\d+)\.layers\.(\d+)\.layer_scale_parameter", r"stages.\1.\2.gamma"),
        (r"encoder\.stages\.(\d+)\.layers\.(\d+)\.grn\.weight", r"stages.\1.\2.grn.gamma"),
        (r"encoder\.stages\.(\d+)\.layers\.(\d+)\.grn\.bias", r"stages.\1.\2.grn.beta"),
        (r"layernorm\.(.*)", r"norm.\1"),
        (r"classifier\.(.*)", r"classifier.\1"),
    )
)
_DINOV3: Rules = (
    (r"stages\.(\d+)\.downsample_layers\.(\d+)\.(.*)", r"downsample_layers.\1.\2.\3"),
    (r"stages\.(\d+)\.layers\.(\d+)\.depthwise_conv\.(.*)", r"stages.\1.\2.dwconv.\3"),
    (r"stages\.(\d+)\.layers\.(\d+)\.layer_norm\.(.*)", r"stages.\1.\2.norm.\3"),
    (r"stages\.(\d+)\.layers\.(\d+)\.pointwise_conv([12])\.(.*)", r"stages.\1.\2.pwconv\3.\4"),
    (r"stages\.(\d+)\.layers\.(\d+)\.gamma", r"stages.\1.\2.gamma"),
    (r"layer_norm\.(.*)", r"norm.\1"),
)
#: stages and what stands before them take turns among torchvision's `features`: 0, 2, ... and 1, 3, ...
_TORCHVISION: Rules = (
    (r"features\.(\d*[13579])\.(\d+)\.block\.0\.(.*)", r"stages.<\1>.\2.dwconv.\3"),
    (r"features\.(\d*[13579])\.(\d+)\.block\.2\.(.*)", r"stages.<\1>.\2.norm.\3"),
    (r"features\.(\d*[13579])\.(\d+)\.block\.3\.(.*)", r"stages.<\1>.\2.pwconv1.\3"),
    (r"features\.(\d*[13579])\.(\d+)\.block\.5\.(.*)", r"stages.<\1>.\2.pwconv2.\3"),
    (r"features\.(\d*[13579])\.(\d+)\.layer_scale", r"stages.<\1>.\2.gamma"),
    (r"features\.(\d*[02468])\.(\d+)\.(.*)", r"downsample_layers.<\1>.\2.\3"),
    (r"classifier\.0\.(.*)", r"norm.\1"),
    (r"classifier\.2\.(.*)", r"classifier.\1"),
)
#: its text tower and what follows both towers are left out
_OPEN_CLIP: Rules = (
    *((rf"visual\.trunk\.{pattern}", ours) for pattern, ours in _TIMM),
    (r"visual\.head\..*", ""),
    (r"(?:text\.)?(?:transformer|token_embedding|ln_final)\..*", ""),
    (r"(?:text\.)?(?:positional_embedding|text_projection|attn_mask|cls_emb)(?:\..*)?", ""),
    (r"text\..*|logit_scale|logit_bias", ""),
)

SOURCES: dict[str, Source] = {
    "OpenCLIP": Source(re.compile(r"visual\.trunk\.stages\.\d+\.blocks\.\d+\.conv_dw\.weight"), _OPEN_CLIP),
    "timm": Source(re.compile(r"stages\.\d+\.blocks\.\d+\.conv_dw\.weight"), _TIMM),
    "the authors": Source(re.compile(r"stages\.\d+\.\d+\.dwconv\.weight"), _OWN),
    "transformers": Source(
        re.compile(r"(?:convnext(?:v2)?\.)?encoder\.stages\.\d+\.layers\.\d+\.dwconv\.weight"),
        _TRANSFORMERS,
        TRANSFORMERS_EPS,
    ),
    "transformers (DINOv3)": Source(re.compile(r"stages\.\d+\.layers\.\d+\.depthwise_conv\.weight"), _DINOV3),
    "torchvision": Source(re.compile(r"features\.\d+\.\d+\.layer_scale"), _TORCHVISION),
}
#: an mFormerV1 has the authors' names, too, but for its stem
SIGN = re.compile(
    r"downsample_layers\.0\.0\.weight|"
    + "|".join(source.sign.pattern for name, source in SOURCES.items() if name != "the authors")
)


def source_of(names: Mapping[str, Any]) -> str:
    """Whose names they are; "" of none."""
    return next((key for key, source in SOURCES.items() if any(map(source.sign.fullmatch, names))), "")


def of_authors(name: str, source: str) -> str | None:
    """The authors' name of an array, "" of one that is left out, None of one that is unknown."""
    for pattern, ours in SOURCES[source].rules:
        if match := re.fullmatch(pattern, name):
            return re.sub(r"<(\d+)>", lambda number: str(int(number[1]) // 2), match.expand(ours))
    return None


def by_authors_names(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str | None, np.ndarray]]:
    """(name in the file, see `of_authors`, array in the authors' shape) of every array of a ConvNeXt."""
    source = source_of(arrays)
    for name, array in arrays.items():
        ours = of_authors(name, source) if source else None
        if ours and array.ndim == 4 and array.shape[2:] == (1, 1) and ".pwconv" in ours:
            array = array[:, :, 0, 0]  # timm also has these layers as convolutions of one pixel
        elif ours and re.search(r"\.(?:gamma|beta)$", ours) and array.size in array.shape:
            array = array.reshape(-1)
        yield name, ours, array


@WEIGHT_FORMATS.register("convnext")
class ConvNeXtFormat(WeightFormat):
    """See the module; the classifier of the file, text towers and projections are not taken."""

    signs: ClassVar = {FAMILY: SIGN}
    family: ClassVar = FAMILY
    described: ClassVar = True

    def settings(self, file: StateFile) -> dict[str, Any]:
        """See `WeightFormat.settings`."""
        seen, variant = infer_from_shapes(file) | read_hub_config(file), variant_of(file)
        usual = {"layer_scale_init_value": None, "norm_eps": CONVNEXT_EPS, "head_norm_eps": seen["norm_eps"]}
        usual |= {"use_grn": False, "stem": "patch", "act": "gelu", "kernel_sizes": (7,)}
        usual |= {"head_norm_first": False, "head_hidden_size": 0}
        usual |= {field: VARIANTS[variant][field] for field in SHAPE} if variant else {}
        given = {field: value for field, value in seen.items() if value != usual.get(field)}
        # what is of no published size has its sizes from the keys above alone
        needs = {"type": FAMILY, "variant": variant or "tiny"}
        return needs | {ConvNeXt.keys[field]: value for field, value in given.items()}

    def problems(self, file: StateFile, settings: Mapping[str, Any]) -> list[str]:
        """See `WeightFormat.problems`; epsilons may be any."""
        mine, seen, variant = fields_of(settings), infer_from_shapes(file), variant_of(file)
        if seen["layer_scale_init_value"] is None and mine["layer_scale_init_value"] == 0:
            seen["layer_scale_init_value"] = CONVNEXT_EPS
        wrong = {
            ConvNeXt.keys[field]: (mine.get(field), value)
            for field, value in seen.items()
            if value is not None and not field.endswith("_eps") and mine.get(field) != value
        }
        keys = [ConvNeXt.keys[field] for field in SHAPE]
        if variant and {*keys} & {*wrong} and not any(value_of(settings, key) for key in keys):
            wrong = {key: pair for key, pair in wrong.items() if key not in keys}
            wrong["variant"] = (settings["variant"], variant)
        return [
            f"model.{key} = {mine!r} does not fit {file.path}: set model.{key} = {value!r}"
            for key, (mine, value) in wrong.items()
        ]

    def classifier(self, file: StateFile) -> tuple[np.ndarray, np.ndarray] | None:
        """See `WeightFormat.classifier`."""
        found = {ours: array for _, ours, array in by_authors_names(file.arrays)}
        weight, bias = (found.get(f"classifier.{leaf}") for leaf in ("weight", "bias"))
        if weight is None or weight.ndim < 2:
            return None
        return weight.reshape(len(weight), -1), np.zeros(len(weight), np.float32) if bias is None else bias

    def names(self, file: StateFile) -> dict[str, str]:
        """See `WeightFormat.names`."""
        return {name: ours for name, ours, _ in by_authors_names(file.arrays) if ours}

    def map_file(self, file: StateFile, model: ModelFamily, targets: Targets, given: Given) -> Mapped:
        """See `WeightFormat.map_file`."""
        norm = any(ours == "norm.weight" for _, ours, _ in by_authors_names(file.arrays))

        def stays(name: str) -> str:
            if name.startswith(("head.", "fusion.")):
                return "the file has none"
            return "" if norm or not name.startswith("norm.") else "the file has no norm after the last stage"

        mapped = Mapped(stays=stays)
        for name, ours, array in by_authors_names(file.arrays):
            if ours is None:
                mapped.put(f"{name} (unknown)" if name in targets else name, array, name)
            elif not ours:
                mapped.skipped[name] = "of the text tower, a projection or another network beside it"
            elif ours.startswith("classifier."):
                mapped.skipped[name] = "the classifier of other classes"
            else:
                mapped.put(ours, array, name)
        mapped.notes.append(f"The names are those of {source_of(file.arrays)}.")
        return mapped


def infer_from_shapes(file: StateFile) -> dict[str, Any]:
    """The network's settings, as `ConvNeXt` calls them, that names and shapes show; a layer scale of None is any."""
    arrays = {ours: array for _, ours, array in by_authors_names(file.arrays) if ours}
    blocks = [(int(match[1]), int(match[2])) for name in arrays if (match := re.match(r"stages\.(\d+)\.(\d+)\.", name))]
    stages = range(1 + max((stage for stage, _ in blocks), default=-1))
    first = [arrays.get(f"stages.{stage}.0.dwconv.weight") for stage in stages]
    fields: dict[str, Any] = {}
    if all(array is not None and array.ndim for array in first):
        fields["dims"] = tuple(len(array) for array in first if array is not None)
        sides = tuple(array.shape[-1] for array in first if array is not None)
        fields["kernel_sizes"] = sides if len({*sides}) > 1 else sides[:1]
        fields["depths"] = tuple(1 + max((b for s, b in blocks if s == stage), default=0) for stage in stages)
    hidden = arrays.get("pre_logits.weight")
    scaled = any(re.fullmatch(r"stages\.\d+\.\d+\.gamma", name) for name in arrays)
    return fields | {
        "layer_scale_init_value": None if scaled else 0.0,
        "use_grn": any(".grn." in name for name in arrays),
        "stem": _stem(arrays),
        "norm_eps": XXLARGE_EPS if fields.get("dims") == XXLARGE else CONVNEXT_EPS,
        "head_norm_first": any(re.fullmatch(r"(?:visual\.trunk\.)?norm_pre\.\w+", name) for name in file.arrays),
        "head_hidden_size": 0 if hidden is None or not hidden.ndim else len(hidden),
    }


def variant_of(file: StateFile) -> str:
    """The variant of these sizes; "" where there is none."""
    seen = infer_from_shapes(file)
    shape = {field: seen.get(field) for field in SHAPE}
    return next((name for name, fields in VARIANTS.items() if {key: fields[key] for key in SHAPE} == shape), "")


def _stem(arrays: Mapping[str, np.ndarray]) -> str:
    last = max(
        (int(match[1]) for name in arrays if (match := re.match(r"downsample_layers\.0\.(\d+)\.", name))), default=1
    )
    if last == 1:
        return "patch"
    first, norm = (arrays.get(f"downsample_layers.0.{place}.weight") for place in (0, last))
    if last == 3:
        return "overlap_act"
    same = first is not None and norm is not None and first.ndim and norm.ndim and len(first) == len(norm)
    return "overlap" if same or norm is None or first is None or len(first) != tiered(len(norm)) else "overlap_tiered"


# ---- what lies beside the file


def read_hub_config(file: StateFile) -> dict[str, Any]:
    """Epsilons and activation, which no array shows, from what lies beside the file, else from whose names they are.

    Raises:
      UserError: what lies beside it is of another network, or of a form that is not computed here.
    """
    source, said = source_of(file.arrays), hub_settings(file.path)
    _check_described(file, said)
    trial = said.architecture.startswith("test_convnext")
    eps = XXLARGE_EPS if trial or "xxlarge" in said.architecture else infer_from_shapes(file)["norm_eps"]
    eps = _epsilon(said, "norm_eps", eps)
    fields = {"act": _activation(said), "norm_eps": eps, "head_norm_eps": eps}
    if source == "transformers":
        fields["head_norm_eps"] = _epsilon(said, "layer_norm_eps", TRANSFORMERS_EPS)
    elif source == "transformers (DINOv3)":
        fields["norm_eps"] = fields["head_norm_eps"] = _epsilon(said, "layer_norm_eps", eps)
    return fields


def _activation(said: HubSettings) -> str:
    given = next((said.model[key] for key in ("act_layer", "hidden_act") if said.model.get(key)), None)
    given = TRIAL_ACTS.get(said.architecture, "gelu") if given is None else given
    if given not in ACTS:
        raise UserError(f"{said.where}: the activation {given!r:.80} is none of {', '.join(ACTS)}")
    return ACTS[given]


def _epsilon(said: HubSettings, key: str, default: float) -> float:
    value = said.model.get(key)
    if value is None:
        return default
    if type(value) not in (int, float) or not 0 < value <= 1:
        raise UserError(f"{said.where}: {key} = {value!r:.80} is not a number above 0 and at most 1; fetch it anew")
    return float(value)


def _check_described(file: StateFile, said: HubSettings) -> None:
    """Raises UserError where a description is of another network than the arrays."""
    seen = infer_from_shapes(file)
    if said.architecture and "convnext" not in said.architecture:
        raise UserError(
            f"{said.where} describes {said.architecture!r:.80}, but {file.path} holds a ConvNeXt; keep each file "
            "with its own description"
        )
    for key, value in ONLY.items():
        if said.model.get(key, value) != value:
            raise UserError(f"{said.where}: {key} = {said.model[key]!r:.80} is not computed here, {value!r} alone is")
    found = ConvNeXtFormat().classifier(file)
    if said.classes and found is not None and len(found[0]) != said.classes:
        raise UserError(
            f"{said.where} speaks of {said.classes} classes, but the classifier of {file.path} has {len(found[0])}; "
            "keep each file with its own description"
        )
    names = {"dims": ("dims", "hidden_sizes"), "depths": ("depths",), "use_grn": ("use_grn",)}
    for field, keys in names.items():
        for key in keys:
            value = said.model.get(key)
            value = tuple(value) if isinstance(value, list) else value
            if value is not None and field in seen and value != seen[field]:
                raise UserError(
                    f"{said.where}: {key} = {value!r:.80}, but the arrays of {file.path} have {seen[field]!r}; keep "
                    "each file with its own description"
                )
