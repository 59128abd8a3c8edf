"""Small leaves of a parameter tree joined into vectors, so that equal work on hundreds of them is one operation.

A model has hundreds of biases, norms and small kernels. What an optimizer does to each is the same few element-wise
operations: XLA compiles them once for a vector of all, where it would compile them once per leaf. Leaves of
`JOINED_BELOW` elements or more stay as they are, since copying them would cost memory traffic and save little. On a GPU
all leaves do, see `worth_joining`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.experimental.layout import Layout, with_layout_constraint

from linnaeus_jax import backend

#: elements from which a leaf is never joined; smaller ones are never split over devices either
JOINED_BELOW = 2**16
_ROW = 512  # elements of a leaf that are reduced at once

Path = tuple[str, ...]


@dataclass(frozen=True)
class _Part:
    """A leaf within its vector."""

    path: Path
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def worth_joining() -> bool:
    """Whether the optimizer's programs become smaller by it.

    On a GPU not: the update of a leaf, of its moments and of its average are one kernel, where cutting the leaf from
    joined vectors takes one for each of them. Where it is read again later a copy is made besides.
    """
    return backend.target() != "gpu"


def global_norm(tree: Any) -> jax.Array:
    """L2 norm of all leaves, float32 []; those that are not joined but small are one vector for it."""
    leaves = jax.tree.leaves(tree)
    if not worth_joining():
        small = [leaf.reshape(-1) for leaf in leaves if leaf.size < JOINED_BELOW]
        if len(small) > 1:  # the barrier, or each of several sums would look for its numbers in all of them
            large = [leaf for leaf in leaves if leaf.size >= JOINED_BELOW]
            leaves = [jax.lax.optimization_barrier(jnp.concatenate(small)), *large]
    result: jax.Array = optax.tree.norm(leaves)
    return result


def as_stored(grads: Any) -> Any:
    """On a GPU gradients in the order of memory that parameters have, None where frozen; elsewhere as they are.

    A convolution or a reduction over devices leaves a gradient in an order of its own. XLA would compute the update in
    that order and copy three results, parameter and moments. A kernel that changes the order cannot write over what it
    reads: of convolutions, that of the gradient is one of its own.
    """
    if backend.target() != "gpu":
        return grads

    def stored(x: jax.Array) -> jax.Array:
        same = with_layout_constraint(x, Layout(tuple(range(x.ndim))))
        return jax.lax.optimization_barrier(same) if x.ndim > 2 else same

    return jax.tree.map(stored, grads)


class Joining:
    """Brings trees of nested dicts like the parameters into the joined form and back.

    The joined form is `{"joined": {"0": vector, ...}, "single": the tree without the joined leaves}`, without the part
    that nothing is in. In place of a whole leaf a tree may hold None (frozen) or `optax.MaskedNode` (of another
    optimizer); a vector whose leaves do so is left out or masked with them.

    Args:
      shapes: of every leaf, by path.
      keys: leaves with the same key may be joined, those without a key stay single.
    """

    def __init__(self, shapes: Mapping[Path, tuple[int, ...]], keys: Mapping[Path, Hashable]) -> None:
        vectors: dict[Hashable, list[_Part]] = {}
        for path, shape in shapes.items():
            if path in keys and math.prod(shape) < JOINED_BELOW:
                vectors.setdefault(keys[path], []).append(_Part(path, tuple(shape)))
        self._vectors = {str(i): parts for i, parts in enumerate(v for v in vectors.values() if len(v) > 1)}
        joined = {part.path for parts in self._vectors.values() for part in parts}
        self._single = [path for path in shapes if path not in joined]
        self._top = {path[0] for path in shapes}

    def paths(self) -> dict[Path, tuple[Path, ...]]:
        """Path in the joined form -> paths of the leaves that it holds."""
        vectors = {("joined", name): tuple(part.path for part in parts) for name, parts in self._vectors.items()}
        return vectors | {("single", *path): (path,) for path in self._single}

    def join(self, tree: Any) -> Any:
        """The joined form of a tree like the parameters; None of None."""
        if tree is None:
            return None
        leaf_of = flatten_dict(tree)
        form: dict[Path, Any] = {("single", *path): leaf_of[path] for path in self._single}
        for name, parts in self._vectors.items():
            leaves = [leaf_of[part.path] for part in parts]
            kept = leaves[0] is not None and not isinstance(leaves[0], optax.MaskedNode)
            form["joined", name] = jnp.concatenate([leaf.reshape(-1) for leaf in leaves]) if kept else leaves[0]
        return unflatten_dict(form)

    def split(self, joined: Any) -> Any:
        """The tree whose joined form is given; None of None."""
        if joined is None:
            return None
        form = flatten_dict(joined)
        leaves = {path: form["single", *path] for path in self._single}
        for name, parts in self._vectors.items():
            vector = form["joined", name]
            if vector is None or isinstance(vector, optax.MaskedNode):
                leaves |= {part.path: vector for part in parts}
            else:
                values = jax.lax.split(vector, [part.size for part in parts])
                leaves |= {part.path: value.reshape(part.shape) for part, value in zip(parts, values, strict=True)}
        return unflatten_dict(leaves)

    def join_state(self, state: Any) -> Any:
        """An optimizer state with every tree like the parameters in the joined form."""
        return self._mapped(self.join, state, self._top)

    def split_state(self, state: Any) -> Any:
        """The opposite of `join_state`."""
        return self._mapped(self.split, state, {path[0] for path in self.paths()})

    @staticmethod
    def _mapped(change: Any, state: Any, keys: set[str]) -> Any:
        def is_tree(node: Any) -> bool:
            return isinstance(node, dict) and set(node) == keys

        return jax.tree.map(lambda node: change(node) if is_tree(node) else node, state, is_leaf=is_tree)


# ---- reductions of every leaf


def leaf_sizes(leaves: Sequence[jax.Array]) -> dict[str, jax.Array]:
    """What there is to know of the sizes |x| of the elements of every leaf.

    Args:
      leaves: L arrays of floats, of any shapes.

    Returns:
      float32 [L] each: `sum`, `squares` (sum of squares), `max` and `min`; the greatest is NaN where any element is.
    """
    if not leaves:
        return dict.fromkeys(("sum", "squares", "max", "min"), jnp.zeros(0))
    small = [i for i, leaf in enumerate(leaves) if leaf.size < JOINED_BELOW]
    large = [i for i, leaf in enumerate(leaves) if leaf.size >= JOINED_BELOW]
    found = [jnp.stack(values) for values in zip(*(_of_large(leaves[i]) for i in large), strict=True)]
    if small:
        rows = _rows([leaves[i] for i in small])
        found = [jnp.concatenate(pair) for pair in zip(rows, found)] if large else list(rows)
    order = np.argsort([*small, *large])
    total, squares, greatest, least = (values[order] for values in found)
    floats = (jax.lax.bitcast_convert_type(bits, jnp.float32) for bits in (greatest, least))
    return {"sum": total, "squares": squares} | dict(zip(("max", "min"), floats))


def _of_large(leaf: jax.Array) -> tuple[jax.Array, ...]:
    """`_reduced` of all elements, of rows first: a sum of 10⁵ terms one after the other loses a digit."""
    return _combined(_reduced(leaf.reshape(-1, math.gcd(leaf.size, 4096))), None)


def _rows(leaves: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """`_reduced` of small leaves: of rows of `_ROW` elements, then of the rows of each leaf."""
    sizes = np.array([leaf.size for leaf in leaves])
    offsets = np.cumsum(sizes) - sizes
    counts = -(-sizes // _ROW)
    leaf_of_row = np.repeat(np.arange(len(leaves)), counts)
    row_of_leaf = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    start = offsets[leaf_of_row] + row_of_leaf * _ROW
    valid = np.minimum(sizes[leaf_of_row] - row_of_leaf * _ROW, _ROW)

    vector = jnp.concatenate([leaf.astype(jnp.float32).reshape(-1) for leaf in leaves])
    place = jnp.arange(_ROW)
    elements = vector[jnp.minimum(jnp.asarray(start)[:, None] + place[None], vector.size - 1)]
    of_rows = _reduced(elements, place[None] < jnp.asarray(valid)[:, None])
    first = np.cumsum(counts) - counts
    member = np.arange(counts.max())[None] < counts[:, None]
    index = np.where(member, first[:, None] + np.arange(counts.max())[None], 0)
    return _combined(tuple(values[index] for values in of_rows), jnp.asarray(member))


_FROM = (np.float32(0), np.float32(0), np.int32(0), np.int32(np.iinfo(np.int32).max))


def _reduced(x: jax.Array, member: jax.Array | None = None) -> tuple[jax.Array, ...]:
    """Over the last axis: sum, sum of squares, and the greatest and least bits of |x|, of the elements of `member`."""
    size = jnp.abs(x.astype(jnp.float32))
    bits = jax.lax.bitcast_convert_type(size, jnp.int32)  # XLA on CPU may lose a NaN among floats
    return _combined((size, size * size, bits, bits), member)


def _combined(values: tuple[jax.Array, ...], member: jax.Array | None) -> tuple[jax.Array, ...]:
    if member is not None:
        values = tuple(jnp.where(member, x, start) for x, start in zip(values, _FROM))

    def combine(left: tuple[jax.Array, ...], right: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return (
            left[0] + right[0],
            left[1] + right[1],
            jnp.maximum(left[2], right[2]),
            jnp.minimum(left[3], right[3]),
        )

    return tuple(jax.lax.reduce(values, _FROM, combine, (values[0].ndim - 1,)))
