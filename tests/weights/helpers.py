"""Models, random weights and files for the tests of this subpackage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.tree import assign
from linnaeus_jax.models import ModelFamily, build_model
from linnaeus_jax.models.names import abstract_variables
from linnaeus_jax.weights.exporting import facts, torch_state, write_state

CLASSES = {"taxa_L10": [0, 11, 12, 13, 14, 15], "taxa_L20": [0, 21, 22, 23]}
COMPONENTS = (("TEMPORAL", 2), ("SPATIAL", 3))


def section(**keys: Any) -> Any:
    """A `model` section of the variant `tiny`; `keys` with __ for dots."""
    config = get_config()
    for key, value in {"variant": "tiny", **keys}.items():
        assign(config, ("model", *key.split("__")), value)
    return config.model


#: keys of an mFormerV1 as small as it can be
SMALL = {
    "convnext_stages__dims": (4, 8, 8, 16),
    "convnext_stages__depths": (1, 1),
    "rope_stages__depths": (2, 1),
    "rope_stages__num_heads": (2, 2),
}
#: the same of an mFormerV0
SMALL_V0 = {
    "type": "mFormerV0",
    "conv_stages__embed_dims": (4, 4),
    "conv_stages__out_channels": (4, 8),
    "attention_stages__dims": (8, 16),
    "attention_stages__depths": (2, 1),
    "attention_stages__num_heads": (2, 2),
}
#: parent of each class of the finer rank among those of the coarser
PARENTS = {"taxa_L10": [-1, 1, 1, 2, 3, -1]}


def heads(**kinds: str) -> dict[str, Any]:
    """Keys of the heads' types: task -> name."""
    return {f"classification__heads__{task}__type": kind for task, kind in kinds.items()}


def model_of(settings: Any, *, classes: Any = None, components: Any = COMPONENTS, size: int = 32, **more: Any) -> Any:
    """The model of a section; `classes` {task: ids}."""
    counts = {task: len(ids) for task, ids in (CLASSES if classes is None else classes).items()}
    model: ModelFamily = build_model(
        settings, components=components, num_classes=counts, img_size=size, **{"parents": PARENTS, **more}
    )
    return model


def trees(model: ModelFamily, seed: int = 0) -> tuple[Any, Any]:
    """Random parameters and model state, as numpy arrays; nothing is compiled."""
    rng = np.random.default_rng(seed)
    values = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), abstract_variables(model))
    return values.pop("params"), values


def assert_same(left: Any, right: Any) -> None:
    """Two pairs of trees hold the same bits."""
    jax.tree.map(np.testing.assert_array_equal, left, right)


def save_original(path: Path, model: ModelFamily, params: Any, state: Any, **changed: Any) -> Path:
    """A file as the original has it, without metadata; `changed` replaces arrays (None: leaves one out)."""
    arrays = torch_state(model, params, state) | changed
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}, path)
    return path


def save_export(
    path: Path, settings: Any, model: ModelFamily, params: Any, state: Any, classes: Any = None, **arguments: Any
) -> Path:
    """A file as this program writes it."""
    about = facts(model, settings.type, settings.variant, classes or CLASSES, weights="last", step=3)
    write_state(path, torch_state(model, params, state, **arguments), about)
    return path
