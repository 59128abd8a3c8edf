"""Files of this program and of the original: a full model under canonical names, read and written.

The original, Polli Linnaeus, keeps buffers beside the parameters, and a copy of all levels in every hierarchical head.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.tree import frozen
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.heads import HeadSpec
from linnaeus_jax.models.hierarchy import Parents
from linnaeus_jax.models.joined import FAMILY as JOINED
from linnaeus_jax.models.mformer_v0 import MFormerV0
from linnaeus_jax.models.names import params_to_torch
from linnaeus_jax.models.relative import relative_position_index
from linnaeus_jax.registry import WEIGHT_FORMATS
from linnaeus_jax.weights.bias_tables import TABLE, grid_of
from linnaeus_jax.weights.files import IMAGE, SETTINGS, StateFile
from linnaeus_jax.weights.formats.base import DEFAULT_FORMAT, Given, Mapped, Targets, WeightFormat

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
#: hierarchical head of the original -> how it calls its list of the levels' affine maps
LEVEL_LISTS = {"ConditionalClassifier": "level_classifiers", "HierarchicalSoftmax": "task_classifiers"}


@WEIGHT_FORMATS.register(DEFAULT_FORMAT)
class LinnaeusFormat(WeightFormat):
    """A full model: an export or a run of this program, or a checkpoint of the original."""

    signs: ClassVar = {
        "mFormerV0": re.compile(r"stage_3\.0\.attn\.relative_position_bias_table"),
        "mFormerV1": re.compile(r"stages\.2\.0\.attn\.qkv\.weight"),
    }
    heads: ClassVar = True

    def setting_errors(self, given: Mapping[str, Any], family: str) -> list[str]:
        """See `WeightFormat.setting_errors`."""
        return [] if family == "mFormerV1" else super().setting_errors(given, family)

    def settings(self, file: StateFile) -> dict[str, Any]:
        """See `WeightFormat.settings`; a file of several trunks says which."""
        if file.facts.get("model") != JOINED:
            return {}
        trunks = file.facts.get(SETTINGS, {}).get("trunks")
        own = {} if trunks is None else {"trunks": frozen(trunks)}
        return {"type": JOINED, "variant": file.facts.get("variant", ""), **own}

    def preprocessing(self, file: StateFile) -> Preprocessing | None:
        """See `WeightFormat.preprocessing`; runs, bundles and exports say it."""
        fields = file.facts.get(IMAGE)
        try:
            return None if fields is None else Preprocessing.from_json(fields)
        except (TypeError, ValueError) as error:
            raise UserError(f"{file.path} says of its pictures {fields!r:.200}: {error}; export it again") from error

    def map_file(self, file: StateFile, model: ModelFamily, targets: Targets, given: Given) -> Mapped:
        """See `WeightFormat.map_file`."""
        mapped = full(file)
        mapped.original = file.facts.get("original", not file.facts)
        if given["pretrained_attn_scale"] == "squared":
            if file.facts:
                raise UserError(
                    f"model.pretrained_attn_scale = 'squared', but {file.path} comes from this program, which applies "
                    "the scale once; use 'standard'"
                )
            heads: Sequence[int] = getattr(model, "num_heads")  # noqa: B009  # of mFormerV1, see `setting_errors`
            of_stage = {"2": heads[0], "3": heads[1]}
            layers = unscale_squared(mapped, lambda name: of_stage.get(name.split(".")[1], 0))
            mapped.notes.append(
                f"pretrained_attn_scale: the second scale is folded into q of {layers} attention layers."
            )
        drop_unused_norm(mapped, model)
        mapped.remarks += _remarks(model, file, mapped.original)
        return mapped


def _remarks(model: ModelFamily, file: StateFile, original: bool) -> Iterator[str]:
    """What to know about these weights in this model."""
    if original and getattr(model, "rope_mode", "") == "rotary":
        yield (
            "Checkpoints of the original were trained with model.rope_stages.rope_mode = 'cos_only'; this one goes on "
            "with 'rotary'."
        )
    theirs = file.facts.get("head types", {})
    for spec in model.head_specs:
        if theirs.get(spec.task, spec.type) != spec.type:
            yield f"The head of {spec.task} was trained as {theirs[spec.task]} and goes on as {spec.type}."


def drop_unused_norm(mapped: Mapped, model: ModelFamily) -> None:
    """Leaves out the final norm that only the original's mFormerV0 has with model.only_last_cls."""
    if isinstance(model, MFormerV0) and model.only_last_cls:
        for name in [name for name in mapped.arrays if name.startswith("norm.")]:
            mapped.drop(name, "with model.only_last_cls nothing passes through it")


def full(file: StateFile) -> Mapped:
    """The arrays of a full model under canonical names.

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


# ---- the way back


def torch_state(
    model: ModelFamily,
    params: Mapping[str, Any],
    model_state: Mapping[str, Any],
    step: int = 0,
    parents: Mapping[str, Parents] | None = None,
) -> dict[str, np.ndarray]:
    """Everything that the original's own model would load strictly, as numpy arrays in PyTorch's layout.

    Beside parameters and running statistics these are buffers: `num_batches_tracked` and `relative_position_index`
    (int64), and for hierarchical heads a copy of all levels in each of them, with the 0/1 matrices [parents, children]
    between neighbouring ranks.

    Args:
      params, model_state: trees of the model; `model_state` has collections by name.
      step: updates made, which is what `num_batches_tracked` says.
      parents: task -> parent's index in the next task of each class, -1 for none; tasks that are left out have the
        parents of their head, if it has any.
    """
    arrays = params_to_torch(params)
    for tree in model_state.values():
        arrays |= params_to_torch(tree)
    tracked = [name.removesuffix("running_mean") for name in arrays if name.endswith(".running_mean")]
    arrays |= {f"{module}num_batches_tracked": np.asarray(step, np.int64) for module in tracked}
    arrays |= _position_indices(model, arrays)
    if isinstance(model, MFormerV0) and model.only_last_cls:  # the original has the norm, but nothing passes through it
        arrays |= {"norm.weight": np.ones(model.dims[1], np.float32), "norm.bias": np.zeros(model.dims[1], np.float32)}
    given: dict[str, Parents] = {spec.task: spec.parents for spec in model.head_specs if spec.parents}
    given |= parents or {}
    return _with_copied_heads(arrays, model.head_specs, given)


def _position_indices(model: ModelFamily, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The buffer beside every bias table."""
    indices = {}
    for name, table in arrays.items():
        if name.endswith(TABLE):
            grid = grid_of(len(table), model, model.img_size)
            assert grid is not None, f"{name} of {len(table)} rows belongs to no grid"
            index = relative_position_index(grid, 1 + len(model.components))
            indices[name.replace("_bias_table", "_index")] = index.astype(np.int64)
    return indices


def _with_copied_heads(
    arrays: dict[str, np.ndarray], specs: Sequence[HeadSpec], parents: Mapping[str, Parents]
) -> dict[str, np.ndarray]:
    """Hierarchical heads under the original's names: all levels in every one of them."""
    result = dict(arrays)
    if not any(spec.type in LEVEL_LISTS for spec in specs):
        return result
    matrices = {}
    for fine, coarse in itertools.pairwise(specs):
        if fine.task in parents:
            of = np.asarray(parents[fine.task])
            matrix = np.zeros((coarse.num_classes, fine.num_classes), np.float32)
            matrix[of[of >= 0], np.flatnonzero(of >= 0)] = 1
            matrices[f"hmatrix_{coarse.task}_{fine.task}"] = matrix
    for owner in specs:
        if owner.type not in LEVEL_LISTS:
            continue
        for level in specs:
            for leaf in ("weight", "bias"):
                name = f"head.{level.task}.fc.{leaf}"
                if name in arrays:
                    result[f"head.{owner.task}.{LEVEL_LISTS[owner.type]}.{level.task}.{leaf}"] = arrays[name]
                if level.task == owner.task:
                    result.pop(name, None)
        result |= {f"head.{owner.task}.{name}": matrix for name, matrix in matrices.items()}
    return result
