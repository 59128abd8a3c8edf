"""A published ConvNeXt (Liu et al. 2022) and a published RoPE-ViT (Heo et al. 2024) as one mFormerV1.

Their names -> the model's: the stem and stages 0 and 1 with all downsampling come from the ConvNeXt, stage 2 from the
first blocks of the ViT. The layer scales of the ViT are folded into the rows of `attn.proj` and `mlp.fc2`, because the
rotary blocks have none. Files under the names of timm (Wightman 2019) are read as those of the authors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.registry import WEIGHT_FORMATS
from linnaeus_jax.weights.files import StateFile
from linnaeus_jax.weights.formats.base import Given, Mapped, Targets, WeightFormat, architecture_of
from linnaeus_jax.weights.formats.convnext import by_authors_names

#: containers of the files, in the order in which they are looked for
CONVNEXT_CONTAINERS = ("model", "state_dict_ema")
ROPEVIT_CONTAINERS = ("model", "state_dict")
#: parts of the model that neither file has
STAYS = re.compile(r"stages\.[3-9]\.|head\.|meta_|cls_token_2$|norm_[12]\.|cl_1_fc\.|aggregate\.|final_norm\.")
#: parts of the files that have no place in the model
UNUSED = "unused"
UNUSED_CONVNEXT = re.compile(rf"stages\.[23]\.|norm\.|classifier\.|pre_logits\.|{UNUSED}")
UNUSED_ROPEVIT = re.compile(r"patch_embed\.|pos_embed|freqs_t_[xy]$|norm\.|fc_norm\.|head\.|head_dist\.|dist_token")
#: the frequencies of a RoPE-ViT, of its authors and in timm
FREQS = ("freqs", "rope.freqs")
#: those of the model; its blocks from the file turn by these, so no initial ones may take their place
OF_FREQS = re.compile(r"stages\.2\.\d+\.attn\.freqs")
#: layer scale of a block of the ViT -> the layer whose rows it multiplies
SCALED = {"gamma_1": "attn.proj", "gamma_2": "mlp.fc2"}


@WEIGHT_FORMATS.register("stitched_convnext_ropevit")
class StitchedFormat(WeightFormat):
    """See the module."""

    files: ClassVar = {"pretrained_convnext": CONVNEXT_CONTAINERS, "pretrained_ropevit": ROPEVIT_CONTAINERS}
    signs: ClassVar = {
        "ConvNeXt": re.compile(r"downsample_layers\.0\.0\.weight|stages\.0\.blocks\.0\.conv_dw\.weight"),
        "ViT": re.compile(r"blocks\.0\.attn\.qkv\.weight"),
    }
    family: ClassVar = "mFormerV1"
    by_name: ClassVar = True
    hint: ClassVar = "for a ConvNeXt with a RoPE-ViT use model.pretrained_source = 'stitched_convnext_ropevit'"

    def map(self, files: Sequence[StateFile], model: ModelFamily, targets: Targets, given: Given) -> Mapped:
        """See `WeightFormat.map`."""
        convnext, ropevit = files
        return stitched(convnext, ropevit, targets)


def stitched(convnext: StateFile, ropevit: StateFile, targets: Targets) -> Mapped:
    """The arrays of both files under the model's names; names in messages begin with `convnext/` or `ropevit/`.

    Raises:
      UserError: a file is not what it should be, e.g. the two are exchanged.
    """
    for file, key, wanted in (
        (convnext, "model.pretrained_convnext", "ConvNeXt"),
        (ropevit, "model.pretrained_ropevit", "ViT"),
    ):
        found = architecture_of(file.arrays)
        if found != wanted:
            looks = f"looks like {found}" if found else f"does not look like a {wanted}"
            raise UserError(f"{key} = {str(file.path)!r} {looks}; a {wanted} is needed there")
    depth = len({name.split(".")[2] for name in targets if name.startswith("stages.2.")})
    blocks = len({name.split(".")[1] for name in ropevit.arrays if name.startswith("blocks.")})

    def stays(name: str) -> str:
        if STAYS.match(name):
            return "neither file has it"
        block = re.match(r"stages\.2\.(\d+)\.", name)
        return f"the RoPE-ViT has {blocks} blocks" if block and int(block[1]) >= blocks else ""

    mapped = Mapped(stays=stays, needed=OF_FREQS)
    _check_freqs(ropevit, targets)
    _convnext(convnext, mapped)
    _ropevit(ropevit, mapped, targets, depth)
    mapped.notes.append(
        "The norms of a RoPE-ViT were trained with epsilon 1e-6, here it is 1e-5; its layer scales are folded into "
        "attn.proj and mlp.fc2."
    )
    return mapped


def _convnext(file: StateFile, mapped: Mapped) -> None:
    for given, ours, array in by_authors_names(file.arrays):
        source, origin = given if ours is None else ours or UNUSED, f"convnext/{given}"
        down = re.fullmatch(r"downsample_layers\.(\d)\.([01])\.(weight|bias)", source)
        if down and down[1] == "0":
            mapped.put(f"stem.{down[2]}.{down[3]}", array, origin)
        elif down:
            part = ("norm", "conv")[int(down[2])]
            mapped.put(f"downsample_layers.{int(down[1]) - 1}.{part}.{down[3]}", array, origin)
        elif re.match(r"stages\.[01]\.", source):
            mapped.put(source, array, origin)
        elif UNUSED_CONVNEXT.match(source):
            mapped.skipped[origin] = "beyond what is taken from a ConvNeXt"
        else:
            mapped.put(origin, array, origin)  # unknown


def _table_of(array: np.ndarray) -> np.ndarray:
    """Frequencies [2, blocks, heads, d / 2], as timm has them, as [2, blocks, heads * d / 2]."""
    return array.reshape(*array.shape[:2], -1) if array.ndim == 4 and array.size else array


def _check_freqs(file: StateFile, targets: Targets) -> None:
    """Raises UserError where the model learns frequencies and the blocks of the file were trained with others."""
    if any(OF_FREQS.fullmatch(name) for name in targets) and not any(name in file.arrays for name in FREQS):
        raise UserError(
            f"model.pretrained_ropevit = {str(file.path)!r} holds no learned rotary frequencies "
            f"({' or '.join(FREQS)}), and its blocks are of no use with random ones; give one of the kind mixed, "
            "or for one of the kind axial set model.rope_stages.rope_mixed=False and rope_theta (100 at its authors)"
        )


def _ropevit(file: StateFile, mapped: Mapped, targets: Targets, depth: int) -> None:
    for source, array in file.arrays.items():
        origin = f"ropevit/{source}"
        block = re.fullmatch(r"blocks\.(\d+)\.(.+)", source)
        if source == "cls_token":
            mapped.put("cls_token_1", array, origin)
            if targets["cls_token_2"].shape == array.shape:
                mapped.put("cls_token_2", array, origin)
        elif source in FREQS:
            _freqs(array, mapped, targets, depth, origin)
        elif block and int(block[1]) >= depth:
            mapped.skipped[origin] = f"stage 2 of the model has {depth} blocks"
        elif block and block[2] in SCALED:
            mapped.skipped[origin] = "folded into the layer before it"
        elif block:
            layer = re.fullmatch(r"(attn\.proj|mlp\.fc2)\.(weight|bias)", block[2])
            scale = next((gamma for gamma, scaled in SCALED.items() if layer and scaled == layer[1]), "")
            gamma = file.arrays.get(f"blocks.{block[1]}.{scale}")
            if gamma is not None and gamma.shape == array.shape[:1]:
                array = array * gamma.reshape(-1, *(1,) * (array.ndim - 1))
            mapped.put(f"stages.2.{block[1]}.{block[2]}", array, origin)
        elif UNUSED_ROPEVIT.match(source):
            mapped.skipped[origin] = "beyond what is taken from a RoPE-ViT"
        else:
            mapped.put(origin, array, origin)  # unknown


def _freqs(array: np.ndarray, mapped: Mapped, targets: Targets, depth: int, origin: str) -> None:
    """The one table [2, blocks, heads * d / 2] as one [2, heads, d / 2] for each block."""
    wanted = [name for name in targets if OF_FREQS.fullmatch(name)]
    if not wanted:
        mapped.skipped[origin] = "the model has axial rotary positions (model.rope_stages.rope_mixed)"
        return
    _, heads, pairs = targets[wanted[0]].shape
    array = _table_of(array)
    if array.ndim == 3:
        for block in range(min(depth, array.shape[1])):
            table = array[:, block]
            fits = table.shape == (2, heads * pairs)
            mapped.put(f"stages.2.{block}.attn.freqs", table.reshape(2, heads, pairs) if fits else table, origin)
    else:
        mapped.put(origin, array, origin)
