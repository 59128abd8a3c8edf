"""Small leaves of a parameter tree gathered in vectors, so that equal work on hundreds of them is one operation.

A model has hundreds of biases, norms and small kernels. What an optimizer does to each is the same few element-wise
operations: XLA compiles them once for a vector of all, where it would compile them once per leaf. Leaves of
`GATHERED_BELOW` elements or more stay as they are, since copying them would cost memory traffic and save little. On a
GPU all leaves do, see `worth_gathering`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.experimental.layout import Layout, with_layout_constraint

from linnaeus_jax import backend

#: elements from which a leaf is never gathered; smaller ones are never split over devices either
GATHERED_BELOW = 2**16

Path = tuple[str, ...]


def worth_gathering() -> bool:
    """Whether the optimizer's programs become smaller by it.

    On a GPU not: the update of a leaf, of its moments and of its average are one kernel, where cutting the leaf from a
    vector takes one for each of them. Where it is read again later a copy is made besides.
    """
    return backend.GATHERED_LEAVES.here()


def global_norm(tree: Any) -> jax.Array:
    """L2 norm of all leaves, float32 []; those that are not gathered but small are one vector for it."""
    leaves = jax.tree.leaves(tree)
    if backend.NORM_OF_ONE_VECTOR.here():
        small = [leaf.reshape(-1) for leaf in leaves if leaf.size < GATHERED_BELOW]
        if len(small) > 1:  # the barrier, or each of several sums would look for its numbers in all of them
            large = [leaf for leaf in leaves if leaf.size >= GATHERED_BELOW]
            leaves = [jax.lax.optimization_barrier(jnp.concatenate(small)), *large]
    result: jax.Array = optax.tree.norm(leaves)
    return result


def as_stored(grads: Any) -> Any:
    """On a GPU gradients in the order of memory that parameters have, None where frozen; elsewhere as they are.

    A convolution or a reduction over devices leaves a gradient in an order of its own. XLA would compute the update in
    that order and copy three results, parameter and moments. A kernel that changes the order cannot write over what it
    reads: of convolutions, that of the gradient is one of its own.
    """
    if not backend.GRADIENTS_AS_STORED.here():
        return grads

    def stored(x: jax.Array) -> jax.Array:
        same = with_layout_constraint(x, Layout(tuple(range(x.ndim))))
        return jax.lax.optimization_barrier(same) if x.ndim > 2 else same

    return jax.tree.map(stored, grads)


class _Member(NamedTuple):
    """A leaf of a bucket."""

    path: Path
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class LeafBuckets:
    """Buckets of small leaves of trees of nested dicts like the parameters.

    In a gathered tree the first leaf of a bucket is the vector of all its elements, and the others are None. So what is
    said of leaves by path, such as which optimizer they have, holds for gathered trees as well. In place of a whole
    leaf a tree may have None (frozen) or `optax.MaskedNode` (of another optimizer); its bucket then stays as it is.

    Args:
      shapes: of every leaf, by path.
      keys: leaves with the same key may be in one bucket, those without a key are in none.
    """

    def __init__(self, shapes: Mapping[Path, tuple[int, ...]], keys: Mapping[Path, Hashable]) -> None:
        buckets: dict[Hashable, list[_Member]] = {}
        for path, shape in shapes.items():
            if path in keys and math.prod(shape) < GATHERED_BELOW:
                buckets.setdefault(keys[path], []).append(_Member(path, tuple(shape)))
        self._buckets = [members for members in buckets.values() if len(members) > 1]
        self._top = {path[0] for path in shapes}

    def paths(self) -> list[tuple[Path, ...]]:
        """Paths of the leaves of every bucket."""
        return [tuple(member.path for member in members) for members in self._buckets]

    def gather(self, tree: Any) -> Any:
        """The gathered form of a tree like the parameters; None of None."""
        return self._changed(tree, self._gather)

    def scatter(self, gathered: Any) -> Any:
        """The tree whose gathered form is given; None of None."""
        return self._changed(gathered, self._scatter)

    def leaves(self, gathered: Any) -> list[jax.Array]:
        """The arrays of a gathered tree, the vectors first."""
        leaf_of = flatten_dict(gathered)
        vectors = [leaf_of.pop(members[0].path) for members in self._buckets]
        return jax.tree.leaves([vectors, unflatten_dict(leaf_of)])

    def gather_state(self, state: Any) -> Any:
        """An optimizer state with every tree like the parameters in gathered form."""
        return self._in_state(self.gather, state)

    def scatter_state(self, state: Any) -> Any:
        """The opposite of `gather_state`."""
        return self._in_state(self.scatter, state)

    @staticmethod
    def _gather(members: list[_Member], leaf_of: dict[Path, Any]) -> None:
        vector = jnp.concatenate([leaf_of[member.path].reshape(-1) for member in members])
        leaf_of |= {member.path: None for member in members} | {members[0].path: vector}

    @staticmethod
    def _scatter(members: list[_Member], leaf_of: dict[Path, Any]) -> None:
        values = jax.lax.split(leaf_of[members[0].path], [member.size for member in members])
        leaf_of |= {member.path: value.reshape(member.shape) for member, value in zip(members, values, strict=True)}

    def _changed(self, tree: Any, change: Callable[[list[_Member], dict[Path, Any]], None]) -> Any:
        if tree is None:
            return None
        leaf_of = flatten_dict(tree)
        for members in self._buckets:
            first = leaf_of[members[0].path]
            if first is not None and not isinstance(first, optax.MaskedNode):
                change(members, leaf_of)
        return unflatten_dict(leaf_of)

    def _in_state(self, change: Callable[[Any], Any], state: Any) -> Any:
        """`change` of every dict in a state with the outermost names of the parameters; the rest is counts."""

        def is_tree(node: Any) -> bool:
            return isinstance(node, dict) and set(node) == self._top

        return jax.tree.map(lambda node: change(node) if is_tree(node) else node, state, is_leaf=is_tree)
