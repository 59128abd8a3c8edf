"""What module calls of a model saw: frames of absolute extremes, as one small array with a table of what is what.

A *frame* is one module call; its rows are the call's own parameters, positional inputs and outputs. Frames of a forward
pass are in the order in which calls return: children before parents, the model itself last. A *gradient frame* shows
the same call in the backward pass: gradients of the loss with respect to its parameters, inputs and outputs, in the
order in which the backward pass is done with the calls. `frame_recorder` makes them, `overflow` judges them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax


class Row(NamedTuple):
    """Absolute extremes of one value, or a note (`None`, `not a tensor`, `empty`) where it has none."""

    label: str
    absmin: float = 0.0
    absmax: float = 0.0
    has_nan: bool = False
    has_inf: bool = False
    note: str = ""


class Frame(NamedTuple):
    """One module call on the host: dotted name (empty for the model itself), class name, rows."""

    name: str
    class_name: str
    rows: tuple[Row, ...]
    backward: bool = False  # a gradient frame

    @property
    def bad(self) -> bool:
        """Whether any value of the call is not finite."""
        return any(row.has_nan or row.has_inf for row in self.rows)


class FrameSpec(NamedTuple):
    """The static part of a frame; every row is a label with its index in `Frames.rows`, or with a note."""

    name: str
    class_name: str
    rows: tuple[tuple[str, int | str], ...]
    backward: bool = False


class Frames(struct.PyTreeNode):
    """Frames of one forward pass; may be returned through jit and grad's aux, carried by scans and fetched like arrays.

    Attributes:
      rows: float32 [R, 4] (float64 where a value is): least and greatest magnitude, 1 where there is a NaN, 1 where
        there is an infinity. With a NaN both magnitudes are NaN.
      table: what the rows belong to.
    """

    rows: jax.Array
    table: tuple[FrameSpec, ...] = struct.field(pytree_node=False)

    def listing(self) -> list[Frame]:
        """The frames as host values; reads `rows` back if it is still on a device."""
        values = np.asarray(self.rows).tolist()

        def row(label: str, at: int | str) -> Row:
            if isinstance(at, str):
                return Row(label, note=at)
            low, high, nan, inf = values[at]
            return Row(label, low, high, nan > 0, inf > 0)

        return [
            Frame(spec.name, spec.class_name, tuple(row(*item) for item in spec.rows), spec.backward)
            for spec in self.table
        ]

    @property
    def bad(self) -> bool:
        """Whether any value is not finite; reads `rows` back if it is still on a device."""
        return bool(np.asarray(self.rows)[:, 2:].any())


def merge(a: Frames, b: Frames) -> Frames:
    """Frames of two passes of the same model taken together, e.g. of two micro-batches of one update.

    Magnitudes combine by minimum and maximum, NaN wins, the flags by or. Associative and commutative.

    Raises:
      ValueError: the passes did not call the same modules with the same kinds of values.
    """
    if a.table != b.table:
        raise ValueError(
            f"frames of different passes cannot be merged: {len(a.table)} and {len(b.table)} frames, or other rows; "
            "record both with the same model and arguments of the same kinds"
        )
    low = jnp.minimum(a.rows[:, :1], b.rows[:, :1])
    return a.replace(rows=jnp.concatenate([low, jnp.maximum(a.rows[:, 1:], b.rows[:, 1:])], axis=1))


def concatenate(a: Frames, b: Frames) -> Frames:
    """The frames of `a` followed by those of `b`."""
    shift = len(a.rows)
    later = (
        spec._replace(rows=tuple((label, at if isinstance(at, str) else at + shift) for label, at in spec.rows))
        for spec in b.table
    )
    return Frames(jnp.concatenate([a.rows, b.rows]), (*a.table, *later))


@jax.jit
def extremes(x: jax.Array) -> jax.Array:
    """[2, rows] of x [rows, n]: least magnitude, NaN where there is one, and greatest magnitude among the others."""
    dtype = x.dtype
    x = jnp.abs(x)
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if dtype == jnp.float16:
        # A fused computation may hold more range than the type, which rounds magnitudes from 65520 to infinity.
        x = jnp.where(x >= 65520, jnp.inf, x)
    known = jnp.where(jnp.isnan(x), jnp.zeros_like(x), x)
    start = (jnp.asarray(jnp.inf, x.dtype), jnp.asarray(0, x.dtype))
    # One pass for both: XLA on CPU runs this as fast as a copy, and two single reductions several times slower.
    return jnp.stack(lax.reduce((x, known), start, lambda p, q: (lax.min(p[0], q[0]), lax.max(p[1], q[1])), (1,)))


def by_rows(value: jax.Array) -> jax.Array:
    """The value as [n, ...]: by its first axis, or n = 1 where it has a single one.

    The batch axis is reduced only once, for all values together, so that a sharded batch costs a handful of
    collectives instead of one per row.
    """
    return value.reshape(value.shape[0] if value.ndim > 1 else 1, -1)


def measure(value: Any, *, batched: bool) -> jax.Array | str:
    """Extremes [2, n] of a value, or the note to show instead; `batched` keeps the first axis as n."""
    if value is None:
        return "None"
    if not isinstance(value, jax.Array | np.ndarray) or not jnp.issubdtype(value.dtype, jnp.number):
        return "not a tensor"
    if value.size == 0:
        return "empty"
    value = lax.stop_gradient(jnp.asarray(value))
    return extremes(by_rows(value) if batched else value.reshape(1, -1))


__all__ = ["Frame", "FrameSpec", "Frames", "Row", "by_rows", "concatenate", "extremes", "measure", "merge"]
