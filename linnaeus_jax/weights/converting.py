"""What was imported for one model as a file of its own, which `model.pretrained` takes without PyTorch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.weights.coverage import INITIAL, OTHER_SHAPE
from linnaeus_jax.weights.exporting import facts, own_settings
from linnaeus_jax.weights.files import IMAGE
from linnaeus_jax.weights.importing import HEAD, Import


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
