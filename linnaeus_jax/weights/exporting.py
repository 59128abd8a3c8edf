"""Weights of this program under the names, shapes and layouts of the original's PyTorch models."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from linnaeus_jax import __version__
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.heads import HeadSpec
from linnaeus_jax.models.hierarchy import Parents
from linnaeus_jax.models.mformer_v0 import MFormerV0
from linnaeus_jax.models.names import params_to_torch
from linnaeus_jax.models.relative import relative_position_index
from linnaeus_jax.weights.bias_tables import grid_of
from linnaeus_jax.weights.files import write_state

__all__ = ["facts", "torch_state", "write_state"]

#: hierarchical head of the original -> how it calls its list of the levels' affine maps
LEVEL_LISTS = {"ConditionalClassifier": "level_classifiers", "HierarchicalSoftmax": "task_classifiers"}


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
        if name.endswith(".relative_position_bias_table"):
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


def facts(
    model: ModelFamily,
    model_type: str,
    variant: str,
    classes: Mapping[str, Sequence[int]],
    *,
    weights: str,
    step: int,
) -> dict[str, Any]:
    """What a file says about its weights, as JSON types.

    Args:
      model_type, variant: `model.type` and `model.variant`.
      classes: task -> taxon id of each class, 0 for null.
      weights: "ema" or "last".
    """
    return {
        "version": __version__,
        "model": model_type,
        "variant": variant,
        "img_size": list(model.img_size),
        "components": [[name, columns] for name, columns in model.components],
        "tasks": [spec.task for spec in model.head_specs],
        "classes": {task: [int(taxon) for taxon in ids] for task, ids in classes.items()},
        "head types": {spec.task: spec.type for spec in model.head_specs},
        "weights": weights,
        "step": int(step),
    }
