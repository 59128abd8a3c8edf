"""The names of vision transformers at their sources, and what the sources compute with.

A table for each source leads from its names to those of `models/vit.py`, and back.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.models.vit import TABLE
from linnaeus_jax.weights.files import StateFile

#: (their name, ours); `#` is the number of a block, and a name that ends with a dot or a line stands for all that
#: begin so. Of ours, parts of one array come apart: q, k and v; gate and up; see `_joined`
Names = Sequence[tuple[str, str]]
Arrays = Mapping[str, np.ndarray]

_TOKENS: Names = (("cls_token", "patch_embed.cls_token"), ("pos_embed", TABLE), ("reg_token", "patch_embed.reg_token"))
_SAME = ("patch_embed.proj.", "norm_pre.", "norm.", "fc_norm.", "attn_pool.")
_BLOCK_SAME = (
    *("norm1.", "norm2.", "attn.qkv.", "attn.norm.", "attn.proj."),
    *("mlp.fc1.", "mlp.norm.", "mlp.fc2.", "ls1.gamma", "ls2.gamma"),
)
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
    *((f"embeddings.{name}", "patch_embed.reg_token") for name in ("register_tokens", "distillation_token")),
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


def unsaid(arrays: Arrays) -> str:
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
    pool: Callable[[Arrays], str] = unsaid
    activation: Callable[[Arrays], str] = lambda arrays: "gelu"


def _has(name: str) -> Callable[[Arrays], bool]:
    return lambda arrays: name in arrays


scaled, normed, registered = _has("blocks.0.ls1.gamma"), _has("norm_pre.weight"), _has("patch_embed.reg_token")
placed_by_table, pooled = _has(TABLE), _has("attn_pool.latent")
TEXT = {
    r"(?:text|text_model)\..*|(?:transformer|token_embedding|ln_final)\..*": "of the text tower",
    r"positional_embedding|text_projection(?:\.\w+)?|attn_mask": "of the text tower",
    r"logit_scale|logit_bias": "compares pictures with texts",
    r"visual\.head\..*|visual\.continual_proj": "the projection to the space of texts",
}
_MASK = {r".*mask_token": "stands for patches that are hidden in pretraining"}


def gated(arrays: Arrays) -> bool:
    """Whether the MLPs have two halves of which one multiplies the other."""
    first, last = (arrays.get(f"blocks.0.mlp.fc{number}.weight") for number in (1, 2))
    return first is not None and last is not None and first.shape[:1] == (2 * last.shape[-1],)


def _timm_eps(arrays: Arrays) -> float:
    beit3 = "blocks.0.attn.norm.weight" in arrays and not gated(arrays)
    dinov3 = not placed_by_table(arrays) and "patch_embed.cls_token" in arrays
    return 1e-5 if normed(arrays) or dinov3 or beit3 else 1e-6


def _transformers_eps(arrays: Arrays) -> float:
    if normed(arrays) or not placed_by_table(arrays):
        return 1e-5
    return 1e-6 if scaled(arrays) or pooled(arrays) or "patch_embed.cls_token" not in arrays else 1e-12


SOURCES: dict[str, Source] = {
    "open_clip": Source(r"(?:visual\.)?class_embedding", _CLIP, "OpenAI and OpenCLIP", r"(?:visual\.)?", TEXT,
        eps=lambda arrays: 1e-5, activation=unsaid),
    "transformers": Source(
        r"(?:\w+\.)?embeddings\.(?:cls_token|class_embedding|patch_embedding\.weight)", _TRANSFORMERS, "transformers",
        r"(?:vit\.|deit\.|dinov2\.|dinov2_with_registers\.|dinov3_vit\.|vision_model\.|model\.)?",
        {**TEXT, **_MASK, r"(?:\w+\.)?pooler\..*": "the pooler of another task",
         r".*position_ids": "counts positions"},
        eps=_transformers_eps,
        positions=lambda arrays: "antialias" if registered(arrays) and scaled(arrays) else "bicubic",
        activation=lambda arrays: "quick_gelu" if normed(arrays) else "gelu_tanh" if pooled(arrays) else "gelu",
    ),
    "birder": Source(r"encoder\.block\.0\.attn\.qkv\.weight", _BIRDER, "Birder", class_last=True),
    "meta": Source(
        r"mask_token|register_tokens|storage_tokens|rope_embed\.periods", _META, "Meta",
        left_out={**_MASK, r"rope_embed\.periods": "follows from the width of a head",
                  r"local_cls_norm\..*|(?:dino|ibot)_head\..*": "of pretraining"},
        eps=lambda arrays: 1e-6 if placed_by_table(arrays) else 1e-5,
        positions=lambda arrays: "antialias" if registered(arrays) else "offset",
    ),
    "timm": Source(
        r"(?:visual\.trunk\.)?blocks\.0\.attn\.(?:qkv|q_proj)\.weight", _TIMM, "timm", r"(?:visual\.trunk\.)?",
        {**TEXT},
        eps=_timm_eps,
        pool=lambda arrays: "" if placed_by_table(arrays) else "avg",
        activation=lambda arrays: "" if normed(arrays) or pooled(arrays) else "gelu",
    ),
}  # fmt: skip


def source_of(names: Arrays) -> str:
    """Whose names they are; "" of none."""
    return next((key for key, source in SOURCES.items() if any(re.fullmatch(source.sign, n) for n in names)), "")


@functools.cache
def _pattern(theirs: str) -> re.Pattern[str]:
    rest = r"(?P<rest>.*)" if theirs[-1] in "._" else "(?P<rest>)"
    return re.compile(re.escape(theirs).replace(r"\#", r"(?P<block>\d+)") + rest)


def ours_of(name: str, source: Source) -> str | None:
    """Our name of an array, "" of one that is left out, None of one that is unknown."""
    bare = re.sub(f"^{source.prefix}", "", name, count=1) if source.prefix else name
    for theirs, ours in source.names if re.fullmatch(f"{source.prefix}{re.escape(bare)}", name) else ():
        if match := _pattern(theirs).fullmatch(bare):
            return ours.replace("#", match["block"] if "#" in theirs else "") + match["rest"]
    return "" if any(re.fullmatch(pattern, name) for pattern in source.left_out) else None


def named(file: StateFile) -> Iterator[tuple[str, str | None]]:
    """(name in the file, see `ours_of`) of every array."""
    source = SOURCES[source_of(file.arrays)]
    text = f"{source.prefix}".startswith("(?:visual") and any(name.startswith("visual.") for name in file.arrays)
    for name in file.arrays:
        yield name, "" if text and not name.startswith("visual.") and _of_text(name) else ours_of(name, source)


def _of_text(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in TEXT)


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
        if len({joined[name].shape for name in found}) > 1 or not joined[found[0]].ndim:
            shapes = ", ".join(f"{origins[name]} {joined[name].shape}" for name in found)
            raise UserError(f"arrays that belong together have shapes that do not: {shapes}; is the file damaged?")
        empty = np.zeros_like(joined[found[0]])
        joined[into] = np.concatenate([joined.get(name, empty) for name in names])
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        origins[into] = origins[found[0]] + more
        for name in found:
            joined.pop(name) if name != into else None

    for block in {match[0] for name in parts if (match := re.match(r"blocks\.\d+\.", name))}:
        take(f"{block}attn.qkv.weight", [f"{block}attn.{part}.weight" for part in "qkv"])
        mask = joined.pop(f"{block}attn.qkv.bias_mask", None)
        if mask is not None and mask.shape == getattr(joined.get(f"{block}attn.qkv.bias"), "shape", None):
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
    for name in ("patch_embed.cls_token", "patch_embed.reg_token", TABLE):
        if name in joined:
            joined[name] = joined[name].reshape(*(1,) * (3 - joined[name].ndim), *joined[name].shape)
    return joined


def parted(joined: Arrays) -> dict[str, np.ndarray]:
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


def turned(array: np.ndarray, heads: int, *, back: bool = False) -> np.ndarray:
    """Rows of `qkv` such that rotary pairs, which lie half a head apart in every source, lie side by side."""
    if not array.ndim or array.shape[0] % (3 * heads * 2):
        return array  # another shape is found when it is fitted
    shape = (3, heads, -1, 2) if back else (3, heads, 2, -1)
    qkv = array.reshape(*shape, *array.shape[1:]).swapaxes(2, 3).reshape(3, -1, *array.shape[1:])
    return np.concatenate([qkv[0], qkv[1], np.split(array, 3)[2]])
