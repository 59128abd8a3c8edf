"""What a model has to be filled with: every parameter and every leaf of its state under its canonical name."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.names import Path, abstract_variables, from_torch_layout, named_leaves, to_torch_layout


class Target(NamedTuple):
    """One leaf: canonical name, its shape in PyTorch's layout, and the collection that holds it."""

    name: str
    shape: tuple[int, ...]
    collection: str

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def parameters(self) -> int:
        """Number of trainable values: 0 of a leaf of the state."""
        return self.size if self.collection == "params" else 0


def targets_of(model: ModelFamily) -> dict[str, Target]:
    """Canonical name -> leaf of `params` and of every other collection, found by one abstract trace.

    Raises:
      ValueError: a leaf of the state has the name of a parameter.
    """
    try:
        return dict(_traced(model))
    except TypeError:  # a field of a plugin's model cannot be hashed
        return _traced.__wrapped__(model)


@functools.lru_cache(maxsize=4)
def _traced(model: ModelFamily) -> dict[str, Target]:
    targets: dict[str, Target] = {}
    for collection, tree in abstract_variables(model).items():
        for name, path, leaf in named_leaves(tree):
            if name in targets:
                raise InputError(f"{collection} and {targets[name].collection} both hold {name}; rename one")
            targets[name] = Target(name, _torch_shape(path, leaf.shape), collection)
    return targets


def _torch_shape(path: Path, shape: tuple[int, ...]) -> tuple[int, ...]:
    return to_torch_layout(path, np.broadcast_to(np.float32(0), shape)).shape


def map_leaves(tree: Any, change: Callable[[str, np.ndarray], np.ndarray]) -> Any:
    """A tree of numpy arrays like `tree`, each leaf what `change(canonical name, leaf in PyTorch's layout)` gives."""
    leaves = []
    for name, path, leaf in named_leaves(tree):
        value = np.asarray(leaf)
        changed = from_torch_layout(path, np.asarray(change(name, to_torch_layout(path, value)), value.dtype))
        leaves.append(np.ascontiguousarray(changed).reshape(value.shape))
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)
