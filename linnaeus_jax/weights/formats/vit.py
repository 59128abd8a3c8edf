"""Vision transformers under the names of timm, Meta (DINOv2, DINOv3), OpenAI and OpenCLIP, transformers, and Birder.

A table for each source leads from its names to those of `models/vit.py`. Architecture follows from names and shapes;
what no array shows (heads, activation, epsilon, pooling) from what lies beside the file, else from the source.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.layers import ACTIVATIONS
from linnaeus_jax.models.vit import FORM, POOLS, TABLE, VARIANTS, ViT
from linnaeus_jax.registry import WEIGHT_FORMATS
from linnaeus_jax.weights.files import StateFile
from linnaeus_jax.weights.formats.base import Mapped, WeightFormat
from linnaeus_jax.weights.hub_settings import HubSettings, hub_settings
from linnaeus_jax.weights.targets import Target

FAMILY = "ViT"
#: (their name, ours); `#` is the number of a block, and a name that ends with a dot or a line stands for all that
#: begin so. Of ours, parts of one array come apart: q, k and v; gate and up; see `_joined`
Names = Sequence[tuple[str, str]]
Arrays = Mapping[str, np.ndarray]

_TOKENS: Names = (("cls_token", "patch_embed.cls_token"), ("pos_embed", TABLE), ("reg_token", "patch_embed.reg_token"))
_SAME = ("patch_embed.proj.", "norm_pre.", "norm.", "fc_norm.", "attn_pool.")
_BLOCK_SAME = ("norm1.", "norm2.", "attn.qkv.", "attn.proj.", "mlp.fc1.", "mlp.fc2.", "ls1.gamma", "ls2.gamma")
_TIMM: Names = (
    *_TOKENS,
    *((name, name) for name in _SAME),
    *((f"blocks.#.{name}", f"blocks.#.{name}") for name in _BLOCK_SAME),
    *((f"blocks.#.gamma_{i}", f"blocks.#.ls{i}.gamma") for i in (1, 2)),
    *((f"blocks.#.attn.{part}_bias", f"blocks.#.attn.{part}.bias") for part in "qv"),
    *((f"blocks.#.attn.{part}_proj.", f"blocks.#.attn.{part}.") for part in "qkv"),
    ("blocks.#.mlp.fc1_g.", "blocks.#.mlp.gate."),
    ("blocks.#.mlp.fc1_x.", "blocks.#.mlp.up."),
    ("head.", "classifier."),
)
_META: Names = (
    ("register_tokens", "patch_embed.reg_token"),
    ("storage_tokens", "patch_embed.reg_token"),
    ("blocks.#.mlp.w12.", "blocks.#.mlp.fc1."),
    ("blocks.#.mlp.w1.", "blocks.#.mlp.gate."),
    ("blocks.#.mlp.w2.", "blocks.#.mlp.up."),
    ("blocks.#.mlp.w3.", "blocks.#.mlp.fc2."),
    *_TIMM,
)
_CLIP: Names = (
    ("class_embedding", "patch_embed.cls_token"),
    ("positional_embedding", TABLE),
    ("conv1.", "patch_embed.proj."),
    ("ln_pre.", "norm_pre."),
    ("ln_post.", "norm."),
    ("proj", "proj.transposed"),
    *(
        (f"transformer.resblocks.#.{theirs}", f"blocks.#.{ours}")
        for theirs, ours in (
            ("ln_1.", "norm1."),
            ("ln_2.", "norm2."),
            ("ls_1.gamma", "ls1.gamma"),
            ("ls_2.gamma", "ls2.gamma"),
            ("attn.in_proj_", "attn.qkv."),
            ("attn.out_proj.", "attn.proj."),
            ("mlp.c_fc.", "mlp.fc1."),
            ("mlp.c_proj.", "mlp.fc2."),
        )
    ),
)
_TRANSFORMERS_BLOCK: Names = (
    *((f"attention.attention.{theirs}.", f"attn.{theirs[0]}.") for theirs in ("query", "key", "value")),
    *((f"{module}.{part}_proj.", f"attn.{part}.") for module in ("attention", "self_attn") for part in "qkv"),
    *((f"{module}.", "attn.proj.") for module in ("attention.output.dense", "attention.o_proj", "self_attn.out_proj")),
    *((f"{module}.", "norm1.") for module in ("norm1", "layer_norm1", "layernorm_before")),
    *((f"{module}.", "norm2.") for module in ("norm2", "layer_norm2", "layernorm_after")),
    *((f"{module}.", "mlp.fc1.") for module in ("mlp.fc1", "mlp.weights_in", "intermediate.dense")),
    *((f"{module}.", "mlp.fc2.") for module in ("mlp.fc2", "mlp.weights_out", "mlp.down_proj", "output.dense")),
    ("mlp.gate_proj.", "mlp.gate."),
    ("mlp.up_proj.", "mlp.up."),
    ("layer_scale1.lambda1", "ls1.gamma"),
    ("layer_scale2.lambda1", "ls2.gamma"),
)
_TRANSFORMERS: Names = (
    *((f"embeddings.{name}", "patch_embed.cls_token") for name in ("cls_token", "class_embedding")),
    *((f"embeddings.{name}", TABLE) for name in ("position_embeddings", "position_embedding.weight")),
    ("embeddings.register_tokens", "patch_embed.reg_token"),
    *(
        (f"embeddings.{name}.", "patch_embed.proj.")
        for name in ("patch_embeddings.projection", "patch_embedding", "patch_embeddings")
    ),
    ("pre_layrnorm.", "norm_pre."),
    *((f"{name}.", "norm.") for name in ("layernorm", "post_layernorm", "norm")),
    *(
        (f"{blocks}.#.{theirs}", f"blocks.#.{ours}")
        for blocks in ("encoder.layer", "encoder.layers", "layers", "layer", "model.layer")
        for theirs, ours in _TRANSFORMERS_BLOCK
    ),
    ("head.probe", "attn_pool.latent"),
    ("head.attention.in_proj_", "attn_pool.qkv."),
    ("head.attention.out_proj.", "attn_pool.proj."),
    ("head.layernorm.", "attn_pool.norm."),
    ("head.mlp.", "attn_pool.mlp."),
    ("visual_projection.", "proj."),
    ("classifier.", "classifier."),
)
_BIRDER: Names = (
    ("class_token", "patch_embed.cls_token"),
    ("reg_tokens", "patch_embed.reg_token"),
    ("pos_embedding", TABLE),
    ("conv_proj.", "patch_embed.proj."),
    ("encoder.pre_block.0.", "norm_pre."),
    ("encoder.pre_block.1.", "norm_pre."),
    *((f"encoder.block.#.{name}", f"blocks.#.{name}") for name in ("norm1.", "norm2.", "attn.qkv.", "attn.proj.")),
    *((f"encoder.block.#.layer_scale_{i}.gamma", f"blocks.#.ls{i}.gamma") for i in (1, 2)),
    ("encoder.block.#.mlp.0.", "blocks.#.mlp.fc1."),
    ("encoder.block.#.mlp.3.", "blocks.#.mlp.fc2."),
    ("encoder.block.#.mlp.fc1_g.", "blocks.#.mlp.gate."),
    ("encoder.block.#.mlp.fc1_x.", "blocks.#.mlp.up."),
    ("encoder.block.#.mlp.fc2.", "blocks.#.mlp.fc2."),
    ("norm.", "norm."),
    ("embedding_norm.", "fc_norm."),
    ("attn_pool.mlp.0.", "attn_pool.mlp.fc1."),
    ("attn_pool.mlp.3.", "attn_pool.mlp.fc2."),
    ("attn_pool.", "attn_pool."),
    ("classifier.", "classifier."),
)


def _never(arrays: Arrays) -> str:
    return ""


@dataclass(frozen=True)
class Source:
    """One way of naming.

    Attributes:
      sign: a name that only it has.
      names: see `Names`; the first that fits counts.
      prefix: what may stand before the names, a pattern.
      class_last: whether the class token comes behind the registers.
      left_out: names that are known to belong to something else -> what.
      eps, positions, pool, activation: what the source computes with, by our arrays, where nothing else says it; ""
        where it can not be told.
      whose: what to say of them.
    """

    sign: str
    names: Names
    whose: str
    prefix: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    class_last: bool = False
    eps: Callable[[Arrays], float] = lambda arrays: 1e-6
    positions: Callable[[Arrays], str] = lambda arrays: "antialias"
    pool: Callable[[Arrays], str] = _never
    activation: Callable[[Arrays], str] = lambda arrays: "gelu"


def _has(name: str) -> Callable[[Arrays], bool]:
    return lambda arrays: name in arrays


_scaled, _normed, _registered = _has("blocks.0.ls1.gamma"), _has("norm_pre.weight"), _has("patch_embed.reg_token")
_table, _pooled = _has(TABLE), _has("attn_pool.latent")
_TEXT = {
    r"(?:text|text_model)\..*|(?:transformer|token_embedding|ln_final)\..*": "of the text tower",
    r"positional_embedding|text_projection(?:\.\w+)?|attn_mask": "of the text tower",
    r"logit_scale|logit_bias": "compares pictures with texts",
    r"visual\.head\..*": "the projection to the space of texts",
}
_MASK = {r".*mask_token": "stands for patches that are hidden in pretraining"}


def _transformers_eps(arrays: Arrays) -> float:
    if _normed(arrays) or not _table(arrays):
        return 1e-5
    return 1e-6 if _scaled(arrays) or _pooled(arrays) or "patch_embed.cls_token" not in arrays else 1e-12


SOURCES: dict[str, Source] = {
    "open_clip": Source(r"(?:visual\.)?class_embedding", _CLIP, "OpenAI and OpenCLIP", r"(?:visual\.)?", _TEXT,
        eps=lambda arrays: 1e-5, activation=_never),
    "transformers": Source(
        r"(?:\w+\.)?embeddings\.(?:cls_token|class_embedding|patch_embedding\.weight)", _TRANSFORMERS, "transformers",
        r"(?:vit\.|deit\.|dinov2\.|dinov2_with_registers\.|dinov3_vit\.|vision_model\.|model\.)?",
        {**_TEXT, **_MASK, r"(?:\w+\.)?pooler\..*": "the pooler of another task",
         r".*position_ids": "counts positions"},
        eps=_transformers_eps,
        positions=lambda arrays: "antialias" if _registered(arrays) else "bicubic",
        activation=lambda arrays: "quick_gelu" if _normed(arrays) else "gelu_tanh" if _pooled(arrays) else "gelu",
    ),
    "birder": Source(r"encoder\.block\.0\.attn\.qkv\.weight", _BIRDER, "Birder", class_last=True),
    "meta": Source(
        r"mask_token|register_tokens|storage_tokens|rope_embed\.periods", _META, "Meta",
        left_out={**_MASK, r"rope_embed\.periods": "follows from the width of a head",
                  r"local_cls_norm\..*": "for the crops of pretraining"},
        eps=lambda arrays: 1e-6 if _table(arrays) else 1e-5,
        positions=lambda arrays: "antialias" if _registered(arrays) else "offset",
    ),
    "timm": Source(
        r"(?:visual\.trunk\.)?blocks\.0\.attn\.(?:qkv|q_proj)\.weight", _TIMM, "timm", r"(?:visual\.trunk\.)?",
        {**_TEXT},
        eps=lambda arrays: 1e-5 if _normed(arrays) or not _table(arrays) else 1e-6,
        pool=lambda arrays: "" if _table(arrays) else "avg",
    ),
}  # fmt: skip
#: attention heads of widths of which these are not width / 64, but for DINOv3
HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16, 1792: 16, 4096: 32}
#: how sources call activations -> what they are here
WORDS = {"gelu_pytorch_tanh": "gelu_tanh", "silu": "swiglu"} | {word: word for word in ACTIVATIONS}
#: fields that arrays do not show; of the others in `_PRESENT` whether there is one
_FREE = ("num_heads", "activation", "epsilon", "pool", "norm", "projection")
_PRESENT = ("layer_scale", "positions", "rope")


def source_of(names: Arrays) -> str:
    """Whose names they are; "" of none."""
    return next((key for key, source in SOURCES.items() if any(re.fullmatch(source.sign, n) for n in names)), "")


def ours_of(name: str, source: Source) -> str | None:
    """Our name of an array, "" of one that is left out, None of one that is unknown."""
    bare = re.sub(f"^{source.prefix}", "", name, count=1) if source.prefix else name
    for theirs, ours in source.names if re.fullmatch(f"{source.prefix}{re.escape(bare)}", name) else ():
        rest = r"(?P<rest>.*)" if theirs[-1] in "._" else "(?P<rest>)"
        if match := re.fullmatch(re.escape(theirs).replace(r"\#", r"(?P<block>\d+)") + rest, bare):
            return ours.replace("#", match["block"] if "#" in theirs else "") + match["rest"]
    return "" if any(re.fullmatch(pattern, name) for pattern in source.left_out) else None


def named(file: StateFile) -> Iterator[tuple[str, str | None]]:
    """(name in the file, see `ours_of`) of every array."""
    source = SOURCES[source_of(file.arrays)]
    text = f"{source.prefix}".startswith("(?:visual") and any(name.startswith("visual.") for name in file.arrays)
    for name in file.arrays:
        yield name, "" if text and not name.startswith("visual.") and _of_text(name) else ours_of(name, source)


def _of_text(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in _TEXT)


def arrays_of(file: StateFile) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays of the picture tower under our names, joined, and where each comes from; unknown ones are left out."""
    parts = {ours: file.arrays[name] for name, ours in named(file) if ours}
    origins = {ours: name for name, ours in named(file) if ours}
    return _joined(parts, origins), origins


def _joined(parts: dict[str, np.ndarray], origins: dict[str, str]) -> dict[str, np.ndarray]:
    """Parts of one array put together, and shapes as we have them; `origins` is changed with them."""
    joined = dict(parts)

    def take(into: str, names: Sequence[str], *, fill: bool = False) -> None:
        found = [name for name in names if name in joined]
        if not found or (len(found) < len(names) and not fill):
            return
        empty = np.zeros_like(joined[found[0]])
        joined[into] = np.concatenate([joined.get(name, empty) for name in names])
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        origins[into] = origins[found[0]] + more
        for name in found:
            joined.pop(name) if name != into else None

    for block in {match[0] for name in parts if (match := re.match(r"blocks\.\d+\.", name))}:
        take(f"{block}attn.qkv.weight", [f"{block}attn.{part}.weight" for part in "qkv"])
        if (mask := joined.pop(f"{block}attn.qkv.bias_mask", None)) is not None:
            joined[f"{block}attn.qkv.bias"] = joined[f"{block}attn.qkv.bias"] * mask
        take(f"{block}attn.qkv.bias", [f"{block}attn.{part}.bias" for part in "qkv"], fill=True)
        for leaf in ("weight", "bias"):
            gated = f"{block}mlp.gate.weight" in parts
            take(f"{block}mlp.fc1.{leaf}", [f"{block}mlp.{part}.{leaf}" for part in ("gate", "up")[not gated :]])
    for leaf in ("weight", "bias"):
        if (whole := joined.pop(f"attn_pool.qkv.{leaf}", None)) is not None:
            third = len(whole) // 3
            joined[f"attn_pool.q.{leaf}"], joined[f"attn_pool.kv.{leaf}"] = whole[:third], whole[third:]
            origins |= dict.fromkeys((f"attn_pool.q.{leaf}", f"attn_pool.kv.{leaf}"), origins[f"attn_pool.qkv.{leaf}"])
    if (matrix := joined.pop("proj.transposed", None)) is not None:
        joined["proj.weight"], origins["proj.weight"] = matrix.T, origins["proj.transposed"]
    for name in ("patch_embed.cls_token", TABLE):
        if name in joined:
            joined[name] = joined[name].reshape(*(1,) * (3 - joined[name].ndim), *joined[name].shape)
    return joined


def _parted(joined: Arrays) -> dict[str, np.ndarray]:
    """The way back: the arrays and all parts that a source may have of them."""
    parts = dict(joined)
    for name, array in joined.items():
        if match := re.fullmatch(r"(blocks\.\d+\.attn)\.qkv\.(weight|bias)", name):
            parts |= {f"{match[1]}.{p}.{match[2]}": x for p, x in zip("qkv", np.split(array, 3), strict=True)}
        elif match := re.fullmatch(r"(blocks\.\d+\.mlp)\.fc1\.(weight|bias)", name):
            gated = len(array) == 2 * joined[f"{match[1]}.fc2.weight"].shape[1]
            halves = np.split(array, 2) if gated else [array, array]
            parts |= {f"{match[1]}.{p}.{match[2]}": x for p, x in zip(("gate", "up"), halves, strict=True)}
        elif match := re.fullmatch(r"attn_pool\.q\.(weight|bias)", name):
            parts[f"attn_pool.qkv.{match[1]}"] = np.concatenate([array, joined[f"attn_pool.kv.{match[1]}"]])
    if "proj.weight" in joined:
        parts["proj.transposed"] = joined["proj.weight"].T
    return parts


def _turned(array: np.ndarray, heads: int, *, back: bool = False) -> np.ndarray:
    """Rows of `qkv` such that rotary pairs, which lie half a head apart in every source, lie side by side."""
    if array.shape[0] % (3 * heads * 2):
        return array  # another shape is found when it is fitted
    shape = (3, heads, -1, 2) if back else (3, heads, 2, -1)
    qkv = array.reshape(*shape, *array.shape[1:]).swapaxes(2, 3).reshape(3, -1, *array.shape[1:])
    return np.concatenate([qkv[0], qkv[1], np.split(array, 3)[2]])


def _class_first(table: np.ndarray, model: ViT, *, back: bool = False) -> np.ndarray:
    """A table whose entry of the class token comes behind those of the registers, with that entry first."""
    if not model.class_token or model.placed_tokens < 2 or table.ndim != 3:
        return table
    return np.concatenate(
        [np.roll(table[:, : model.placed_tokens], -1 if back else 1, axis=1), table[:, model.placed_tokens :]], axis=1
    )


@WEIGHT_FORMATS.register("vit")
class ViTFormat(WeightFormat):
    """See the module; text towers, classifiers and, unless the model has one, the projection are not taken."""

    signs: ClassVar = {FAMILY: re.compile("|".join(source.sign for key, source in SOURCES.items() if key != "meta"))}
    family: ClassVar = FAMILY
    described: ClassVar = True

    def settings(self, file: StateFile) -> dict[str, Any]:
        """See `WeightFormat.settings`."""
        fields = fields_of(file)
        shape = {key: fields.get(key) for key in ("dim", "depth", "patch_size")}
        same = (name for name, known in VARIANTS.items() if {key: known[key] for key in shape} == shape)
        variant = next(same, "tiny")
        usual = VARIANTS[variant]
        return {"type": FAMILY, "variant": variant} | {
            f"vit.{key}": fields[key] for key in FORM if key in fields and fields[key] != usual[key]
        }

    def problems(self, file: StateFile, settings: Mapping[str, Any]) -> list[str]:
        """See `WeightFormat.problems`; what arrays do not show may be anything."""
        mine, seen, problems = ViT.settings(settings), fields_of(file), []
        for name in FORM:
            free = name in _FREE and (name != "activation" or "swiglu" not in (mine[name], seen.get(name)))
            if name in seen and not free:
                alike = bool(mine[name]) == bool(seen[name]) if name in _PRESENT else mine[name] == seen[name]
                if not alike:
                    problems.append(
                        f"model.vit.{name} = {mine[name]!r} does not fit {file.path}: set model.vit.{name} = "
                        f"{seen[name]!r}"
                    )
        asked = {
            "num_heads": f"how many attention heads there are; set model.vit.num_heads (a divisor of {seen['dim']})",
            "activation": "whether GELU is plain or the quick approximation; set model.vit.activation='quick_gelu' "
            "(weights of OpenAI) or 'gelu' (of most others)",
        }
        for name, text in asked.items():
            if name not in seen and settings["vit"][name] is None:
                problems.append(f"{file.path} does not say {text}, or put the description of its source beside it")
        return problems

    def classifier(self, file: StateFile) -> tuple[np.ndarray, np.ndarray] | None:
        """See `WeightFormat.classifier`."""
        arrays, _ = arrays_of(file)
        weight = arrays.get("classifier.weight")
        if weight is None or weight.shape[1:] != (fields_of(file)["dim"],):
            return None
        return weight, arrays.get("classifier.bias", np.zeros(len(weight), np.float32))

    def map(
        self,
        files: Sequence[StateFile],
        model: ModelFamily,
        targets: dict[str, Target],
        given: Mapping[str, Any],
    ) -> Mapped:
        """See `WeightFormat.map`."""
        (file,) = files
        assert isinstance(model, ViT)
        source = SOURCES[source_of(file.arrays)]

        def stays(name: str) -> str:
            return "the file has none" if name.startswith(("head.", "fusion.", "meta_")) else ""

        mapped = Mapped(stays=stays)
        arrays, origins = arrays_of(file)
        for name, array in arrays.items():
            origin, leaf = origins[name], name.rpartition(".")[2]
            if name.startswith("classifier."):
                mapped.skipped[origin] = "the classifier of other classes"
            elif name == "proj.weight" and not model.projection:
                mapped.skipped[origin] = "the projection to the space of texts; model.vit.projection keeps it"
            elif name.startswith("attn_pool.") and model.pool != "map":
                mapped.skipped[origin] = f"model.vit.pool is {model.pool!r}"
            elif name.startswith(("norm.", "fc_norm.")) and model.norm != "none":
                mapped.put(f"{'norm' if model.norm == 'tokens' else 'fc_norm'}.{leaf}", array, origin)
            elif model.rope and ".attn.qkv." in name:
                mapped.put(name, _turned(array, model.num_heads), origin)
            elif name == TABLE:
                mapped.put(name, _class_first(array, model) if source.class_last else array, origin)
            else:
                mapped.put(name, array, origin)
        for name, ours in named(file):
            if ours is None:
                mapped.put(f"{name} (unknown)" if name in targets else name, file.arrays[name], name)
            elif not ours:
                reasons = {**source.left_out, **_TEXT}
                mapped.skipped[name] = next(why for known, why in reasons.items() if re.fullmatch(known, name))
        mapped.notes.append(f"The names are those of {source.whose}.")
        mapped.remarks += _remarks(file, model)
        return mapped

    def restored(self, file: StateFile, model: ModelFamily, arrays: Arrays) -> dict[str, np.ndarray]:
        """See `WeightFormat.restored`."""
        assert isinstance(model, ViT)
        if model.rope:
            turned = {
                name: _turned(arrays[name], model.num_heads, back=True) for name in arrays if ".attn.qkv." in name
            }
            arrays = {**arrays, **turned}
        for norm, other in (("norm", "fc_norm"), ("fc_norm", "norm")):
            arrays = {
                **{
                    name.replace(f"{other}.", f"{norm}.", 1): arrays[name]
                    for name in arrays
                    if name.startswith(f"{other}.")
                },
                **arrays,
            }
        parts, found = _parted(arrays), dict[str, np.ndarray]()
        if TABLE in parts and SOURCES[source_of(file.arrays)].class_last:
            parts[TABLE] = _class_first(parts[TABLE], model, back=True)
        for name, ours in named(file):
            if ours and ours in parts:
                like, array = file.arrays[name], parts[ours]
                found[name] = array.reshape(array.shape[array.ndim - like.ndim :])
        return found


def _remarks(file: StateFile, model: ViT) -> Iterator[str]:
    """What to know about these weights in this model."""
    said, (arrays, _) = hub_settings(file.path), arrays_of(file)
    if not _said_heads(said, model.dim) and model.num_heads == usual_heads(arrays, model.dim):
        yield f"The number of attention heads is not said; it is taken to be {model.num_heads} (model.vit.num_heads)."


def fields_of(file: StateFile) -> dict[str, Any]:
    """Fields of the model, as far as they are known: from the arrays, else from what lies beside the file, else from
    the source.

    Raises:
      UserError: arrays of a network that this one is not.
    """
    key, (arrays, _) = source_of(file.arrays), arrays_of(file)
    source, said = SOURCES[key], hub_settings(file.path)
    patch, first = arrays.get("patch_embed.proj.weight"), arrays.get("blocks.0.mlp.fc2.weight")
    if patch is None or first is None or patch.ndim != 4 or first.ndim != 2 or patch.shape[2] != patch.shape[3]:
        raise UserError(
            f"{file.path} has names of a vision transformer of {source.whose}, but no patches of squares and no first "
            "block as it has them; is the file whole?"
        )
    dim, hidden, table = patch.shape[0], first.shape[1], arrays.get(TABLE)
    _check_positions(file, key, arrays, said)
    token, registers = "patch_embed.cls_token" in arrays, arrays.get("patch_embed.reg_token")
    count = 0 if registers is None else registers.shape[1]
    rope = "" if table is not None else "bfloat16" if "rope_embed.periods" in file.arrays else "float32"
    fields: dict[str, Any] = {
        "patch_size": patch.shape[2],
        "dim": dim,
        "depth": 1 + max(int(match[1]) for name in arrays if (match := re.match(r"blocks\.(\d+)\.", name))),
        "hidden": hidden,
        "layer_scale": 1e-5 if _scaled(arrays) else 0.0,
        "epsilon": float(said.model.get("layer_norm_eps") or source.eps(arrays)),
        "qkv_bias": "blocks.0.attn.qkv.bias" in arrays,
        "patch_bias": "patch_embed.proj.bias" in arrays,
        "class_token": token,
        "registers": count,
        "positions": source.positions(arrays) if table is not None else "",
        "placed_tokens": _placed(table, token, count, said),
        "rope": rope,
        "pre_norm": _normed(arrays),
        "pool": _pool(source, arrays, said),
        "norm": "tokens" if "norm.weight" in arrays else "features" if "fc_norm.weight" in arrays else "none",
    }
    if said.model.get("final_ln_after_pool"):
        fields["norm"] = "features"
    if heads := _said_heads(said, dim) or usual_heads(arrays, dim):
        fields["num_heads"] = heads
    activation = _activation(source, arrays, said, hidden)
    return fields | ({"activation": activation} if activation else {})


def _check_positions(file: StateFile, key: str, arrays: Arrays, said: HubSettings) -> None:
    """Raises UserError of networks with positions that this one does not have, which no other array shows."""
    turned = any(
        re.fullmatch(r"(?:visual\.trunk\.)?blocks\.0\.attn\.(?:q_bias|q_proj\.weight)", n) for n in file.arrays
    )
    eva = key == "timm" and _table(arrays) and turned
    rope = key == "timm" and not _table(arrays) and not _registered(arrays)
    rope |= "rope" in said.architecture and "dinov3" not in said.architecture
    if eva or rope:
        raise UserError(
            f"{file.path} looks like {'an EVA or BEiT' if eva else 'a RoPE-ViT'}, whose positions this program has "
            f"{'not' if eva else 'in mFormerV1 alone'}; give weights of another kind"
        )


def _placed(table: np.ndarray | None, token: bool, registers: int, said: HubSettings) -> int:
    """Tokens before the patches that have an entry in the table: all, the class token alone, or none."""
    if table is None:
        return 0
    candidates = [int(token) + registers, int(token), 0]
    if said.model.get("no_embed_class"):
        candidates = [0]
    squares = [
        n for n in candidates if table.shape[1] > n and math.isqrt(table.shape[1] - n) ** 2 == table.shape[1] - n
    ]
    return squares[0] if squares else candidates[0]


def _pool(source: Source, arrays: Arrays, said: HubSettings) -> str:
    if _pooled(arrays):
        return "map"
    word = str(said.model.get("global_pool") or said.model.get("pool_type") or "")
    word = {"tok": "token"}.get(word, word)
    if word and word not in POOLS:
        raise UserError(f"{said.where}: features are pooled by {word!r}; this program has {', '.join(POOLS)}")
    by_norm = "avg" if "fc_norm.weight" in arrays or "patch_embed.cls_token" not in arrays else "token"
    return word or source.pool(arrays) or by_norm


def _activation(source: Source, arrays: Arrays, said: HubSettings, hidden: int) -> str:
    first = arrays.get("blocks.0.mlp.fc1.weight")
    word = said.model.get("hidden_act") or said.model.get("act_layer") or ""
    if first is not None and len(first) == 2 * hidden:
        if said.model.get("use_gated_mlp") and word not in ("", "silu", "swiglu"):
            raise UserError(f"{said.where}: the activation of gated MLPs is {word!r}; this program has silu alone")
        return "swiglu"
    if not word and said.files and source.activation is _never:
        word = "quick_gelu" if said.model.get("quick_gelu") else "gelu"
    if word and (WORDS.get(str(word), "swiglu") == "swiglu"):
        raise UserError(f"{said.where}: the activation is {word!r}; this program has {', '.join(ACTIVATIONS)}")
    return WORDS[word] if word else source.activation(arrays)


def _said_heads(said: HubSettings, dim: int) -> int:
    width = said.model.get("head_width", 64 if "layers" in said.model and "width" in said.model else None)
    heads = said.model.get("num_heads") or said.model.get("num_attention_heads") or (dim // width if width else 0)
    return heads if type(heads) is int and heads > 0 else 0


def usual_heads(arrays: Arrays, dim: int) -> int:
    """What published networks of that width have; 0 where there are none."""
    known = HEADS.get(dim, 0) if _table(arrays) or dim == 4096 else 0
    return known or (dim // 64 if dim % 64 == 0 else 0)
