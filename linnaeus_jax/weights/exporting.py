"""Weights of this program as files for others: `torch_state` gives the arrays, `facts` what the file says of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from linnaeus_jax import __version__
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.keys import value_of
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.joined import SHARED, Joined, can_be_joined
from linnaeus_jax.registry import MODELS
from linnaeus_jax.weights.coverage import INITIAL, OTHER_SHAPE
from linnaeus_jax.weights.files import IMAGE, SETTINGS, read_state, write_state
from linnaeus_jax.weights.formats.base import format_of
from linnaeus_jax.weights.formats.linnaeus import torch_state
from linnaeus_jax.weights.importing import HEAD, Import
from linnaeus_jax.weights.locating import located

__all__ = ["facts", "own_settings", "restored_state", "torch_state", "write_state"]


def restored_state(
    model: ModelFamily, model_type: str, arrays: Mapping[str, np.ndarray], like: str
) -> dict[str, np.ndarray]:
    """The arrays of a model under the names and in the shapes of its source; heads and metadata have none there.

    Args:
      arrays: canonical name -> array in PyTorch's layout.
      like: a file of the source, a path or a name as `model.pretrained` takes it.

    Raises:
      UserError: the file cannot be had, or is of another family.
    """
    file = read_state(located(like, "--like"))
    kind = format_of(file)
    found = kind.restored(file, model, arrays) if kind.family in ("", model_type) else {}
    if not found or file.facts:
        raise UserError(
            f"--like: {file.path} is no file of a source of a {model_type}; give one that the run began with"
        )
    return found


def own_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of its trunk beside `facts`: {"settings": {key within the `model` section: value}}.

    So the trunk can stand beside others, and one that is made of several can be built again. {}: nothing but family and
    variant decides what the trunk computes, or it cannot stand beside others.
    """
    family = MODELS.entries.get(settings["type"])
    if family is None or not (can_be_joined(family) or issubclass(family, Joined)):
        return {}
    keys = [key for key in family.keys.values() if key not in ("drop_rate", *SHARED)]
    found = {key: value_of(settings, key) for key in keys}
    found = {key: value for key, value in found.items() if value is not None and value not in ((), [])}
    return {SETTINGS: found} if found else {}


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


# ---- What was imported for one model as a file of its own, which `model.pretrained` takes without PyTorch


def converted(
    done: Import, model: ModelFamily, settings: Mapping[str, Any], pictures: Preprocessing | None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays under canonical names, and what the file says of them; nothing of the initial values is among them.

    Of a head that took some rows by taxon id, these rows alone are kept. Leaves that nothing was imported for are named
    in the facts, so that a strict import knows why they are missing.

    Args:
      settings: the `model` section that the import was made with.
      pictures: how those were prepared that the source was made with; None: it says nothing of them.
    """
    arrays, classes, tasks = dict[str, np.ndarray](), dict[str, list[int]](), []
    for name, array in done.arrays.items():
        head, mask = HEAD.fullmatch(name), done.rows.get(name)
        arrays[name] = array if mask is None else array[mask]
        if head and head["task"] not in tasks:
            tasks.append(head["task"])
            if ids := done.classes.get(head["task"]):
                classes[head["task"]] = ids if mask is None else [taxon for taxon, on in zip(ids, mask) if on]
    left = [row.name for row in done.coverage.of(INITIAL, OTHER_SHAPE)]
    about = facts(model, settings["type"], settings["variant"], classes, weights="imported", step=0)
    about |= own_settings(settings) | ({} if pictures is None else {IMAGE: dataclasses.asdict(pictures)})
    del about["head types"]  # those of the config, which the weights need not have been trained with
    about |= {
        "tasks": [task for task in about["tasks"] if task in tasks],
        "from": [file._asdict() for file in done.files],
        "left_at_initial": left,
        "notes": list(done.notes),
        "original": done.original,
    }
    return arrays, about
