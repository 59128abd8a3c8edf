"""From the names of a file to the canonical names of a model, one function for each kind of file.

Kinds: a full model of this program or of the original (`full`), and a MetaFormer (Diao et al. 2022, "MetaFG") for
mFormerV0 (`metaformer`); a ConvNeXt with a RoPE-ViT has its own file, `stitch.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.weights.files import StateFile

#: buffers of the original that follow from the model or only count: name pattern -> why they are not needed
BUFFERS = {
    re.compile(r"\.num_batches_tracked$"): "counts batches, which decides nothing here",
    re.compile(r"\.relative_position_index$"): "follows from the grid",
    re.compile(r"^head\.[^.]+\.hmatrix_\w+$"): "follows from the taxonomy",
}
#: parameters that all ranks' hierarchical heads of the original hold in a copy each
COPIED_HEAD = re.compile(
    r"head\.(?P<owner>[^.]+)\.(?:level_classifiers|task_classifiers)\.(?P<task>[^.]+)\.(?P<leaf>weight|bias)"
)
#: architecture -> a name that only its files have; the first match counts
ARCHITECTURES = {
    "mFormerV0": re.compile(r"stage_3\.0\.attn\.relative_position_bias_table"),
    "mFormerV1": re.compile(r"stages\.2\.0\.attn\.qkv\.weight"),
    "ConvNeXt": re.compile(r"downsample_layers\.0\.0\.weight|stages\.0\.blocks\.0\.conv_dw\.weight"),
    "ViT": re.compile(r"blocks\.0\.attn\.qkv\.weight"),
    "Swin Transformer": re.compile(r"layers\.0\.blocks\.0\.attn\.qkv\.weight"),
    "ResNet": re.compile(r"layer1\.0\.conv1\.weight"),
}


def _never(name: str) -> str:
    return ""


@dataclass
class Mapped:
    """The arrays of one or more files under canonical names.

    Attributes:
      arrays: canonical name -> array in PyTorch's layout.
      origin: canonical name -> name in the file, where it is another.
      skipped: name in the file -> why it is not used, of arrays that the kind of file is known to have.
      stays: canonical name -> why it may stay at its initial value; "" where it must be in the file.
      needed: canonical names that the rest is of no use without, whatever `model.pretrained_strict` says.
      notes: remarks for people.
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    stays: Callable[[str], str] = _never
    needed: re.Pattern[str] | None = None
    notes: list[str] = field(default_factory=list)

    def put(self, name: str, array: np.ndarray, origin: str) -> None:
        """One array under its canonical name."""
        self.arrays[name] = array
        if origin != name:
            self.origin[name] = origin

    def drop(self, name: str, reason: str) -> None:
        """Takes back an array that this model has no place for."""
        del self.arrays[name]
        self.skipped[self.origin.pop(name, name)] = reason


def architecture_of(names: Mapping[str, np.ndarray]) -> str:
    """What the names of a file look like; "" for none of `ARCHITECTURES`."""
    for architecture, pattern in ARCHITECTURES.items():
        if any(pattern.fullmatch(name) for name in names):
            return architecture
    return ""


def full(file: StateFile) -> Mapped:
    """A full model: an export or a run of this program, or a checkpoint of the original.

    Raises:
      UserError: copies of one parameter of hierarchical heads differ.
    """
    left = dict.fromkeys(file.facts.get("left_at_initial", ()), "so the file says of itself")
    mapped = Mapped(stays=lambda name: left.get(name, ""), notes=list(file.facts.get("notes", ())))
    first: dict[str, str] = {}
    for name, array in file.arrays.items():
        if reason := buffer_reason(name):
            mapped.skipped[name] = reason
        elif copy := COPIED_HEAD.fullmatch(name):
            target = f"head.{copy['task']}.fc.{copy['leaf']}"
            if target in file.arrays:
                mapped.skipped[name] = f"the rank's own {target} counts"
            elif target in first:
                if not np.array_equal(array, file.arrays[first[target]]):
                    raise UserError(
                        f"{file.path}: {name} and {first[target]} should be copies of one parameter, but differ; the "
                        "file does not come from a model whose hierarchical heads share their levels"
                    )
                mapped.skipped[name] = f"a copy of {first[target]}"
            else:
                first[target] = name
                mapped.put(target, array, name)
        else:
            mapped.put(name, array, name)
    return mapped


def buffer_reason(name: str) -> str:
    """Why a known buffer of the original is not needed; "" for everything else."""
    return next((reason for pattern, reason in BUFFERS.items() if pattern.search(name)), "")


def metaformer(file: StateFile) -> Mapped:
    """A MetaFormer for mFormerV0: names are equal, heads and metadata heads are not taken.

    There the pairs with an extra token share row 0 of a bias table with the corner of the grid, here they have the last
    row, which therefore becomes a copy of row 0.
    """

    def stays(name: str) -> str:
        return "a MetaFormer has none for these classes and columns" if re.match(r"head\.|meta_", name) else ""

    mapped = Mapped(stays=stays)
    for name, array in file.arrays.items():
        if reason := buffer_reason(name):
            mapped.skipped[name] = reason
        elif re.match(r"head\b|head_|meta_.*head_", name):
            mapped.skipped[name] = "heads and metadata heads of a MetaFormer are not taken"
        elif name.endswith(".relative_position_bias_table") and array.ndim:
            mapped.put(name, np.concatenate([array[:-1], array[:1]]), name)
        else:
            mapped.put(name, array, name)
    mapped.notes.append(
        "A MetaFormer differs from mFormerV0: it downsamples at the start of stage_2 instead of stage_1, pads "
        "depthwise convolutions by 1 on all sides, and normalises only the class token by norm_1. "
        "model.compat='metafg' and conv_stages.stride_seqs of [1,1],[2,1,...] compute as it does."
    )
    return mapped


def unscale_squared(mapped: Mapped, heads_of: Callable[[str], int]) -> int:
    """Folds head_dim^-0.5 into the rows of q, for checkpoints that were trained with that scale applied twice.

    Args:
      heads_of: canonical name of a `qkv` parameter -> number of heads; 0 for what is none of the model's.

    Returns:
      The number of attention layers.
    """
    layers = 0
    for name, array in mapped.arrays.items():
        heads = heads_of(name) if re.search(r"\.attn\.qkv\.(weight|bias)$", name) else 0
        if heads and array.ndim and len(array) >= 3 * heads:  # another shape is found when it is fitted
            dim = len(array) // 3
            scale = np.float32((dim // heads) ** -0.5)
            mapped.arrays[name] = np.concatenate([array[:dim] * scale, array[dim:]])
            layers += name.endswith("weight")
    return layers
