"""What module calls of a model saw: frames of absolute extremes, as one small array with a table of what is what.

A *frame* is one module call; its rows are the call's own parameters, positional inputs and outputs. Frames of a forward
pass are in the order in which calls return: children before parents, the model itself last. A *gradient frame* shows
the same call in the backward pass: gradients of the loss with respect to its parameters, inputs and outputs, in the
order in which the backward pass is done with the calls. `frame_recorder` makes them, `overflow` judges them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from linnaeus_jax.mistakes import InputError


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
      rows: float32 [R, 3] (float64 where a value is): of each row what `extremes` gives; any number of passes may be
        stacked on leading axes.
      table: what the rows belong to.
    """

    rows: jax.Array
    table: tuple[FrameSpec, ...] = struct.field(pytree_node=False)

    def listing(self) -> list[Frame]:
        """The frames as host values; reads `rows` back if it is still on a device."""
        values = self.host().tolist()

        def row(label: str, at: int | str) -> Row:
            if isinstance(at, str):
                return Row(label, note=at)
            low, high, nan = values[at]
            return Row(label, math.nan if nan else -low, math.nan if nan else high, nan > 0, math.isinf(high))

        return [
            Frame(spec.name, spec.class_name, tuple(row(*item) for item in spec.rows), spec.backward)
            for spec in self.table
        ]

    @property
    def bad(self) -> bool:
        """Whether any value is not finite; reads `rows` back if it is still on a device."""
        _, high, nan = self.host().T
        return bool(np.isinf(high).any() or nan.any())

    @property
    def count(self) -> int:
        """R, the rows of one pass."""
        return 1 + max((at for spec in self.table for _, at in spec.rows if not isinstance(at, str)), default=-1)

    def host(self) -> np.ndarray:
        """float32 [R, 3] of all passes that `rows` holds, taken together as by `merge`; waits for them.

        Passes may be stacked on any number of leading axes (`jax.vmap`, `jax.pmap`, outputs of a scan), laid one after
        the other, or differ between devices that should hold the same (`jax.shard_map`): every device is read.

        Raises:
          ValueError: `rows` cannot be that of this table.
        """
        count, copies = self.count, [self.rows]
        if isinstance(self.rows, jax.Array) and self.rows.is_fully_replicated:
            copies = [shard.data for shard in self.rows.addressable_shards]
        if self.rows.shape[-1:] != (3,) or self.rows.size % (3 * count or 1):
            raise InputError(f"frames with {count} rows cannot have the values {self.rows.shape}")
        passes = [np.asarray(copy).reshape(-1, count, 3) for copy in copies] if count else []
        return np.concatenate(passes).max(axis=0) if passes else np.zeros((0, 3), np.float32)


def merge(a: Frames, b: Frames) -> Frames:
    """Frames of two passes of the same model taken together, e.g. of two micro-batches of one update.

    Raises:
      ValueError: the passes did not call the same modules with the same kinds of values.
    """
    _require_single(a, b)
    if a.table != b.table:
        raise InputError(
            f"frames of different passes cannot be merged: {len(a.table)} and {len(b.table)} frames, or other rows; "
            "record both with the same model and arguments of the same kinds"
        )
    return a.replace(rows=jnp.maximum(a.rows, b.rows))


def concatenate(a: Frames, b: Frames) -> Frames:
    """The frames of `a` followed by those of `b`.

    Raises:
      ValueError: the frames are of several passes; concatenate those of each.
    """
    _require_single(a, b)
    shift = len(a.rows)
    later = (
        spec._replace(rows=tuple((label, at if isinstance(at, str) else at + shift) for label, at in spec.rows))
        for spec in b.table
    )
    return Frames(jnp.concatenate([a.rows, b.rows]), (*a.table, *later))


def _require_single(*frames: Frames) -> None:
    for each in frames:
        if each.rows.ndim != 2 or len(each.rows) != each.count:
            raise InputError(
                f"frames with {each.count} rows hold the values {each.rows.shape} of several passes; call this "
                "inside the vmap, scan or shard_map, on the frames of one pass"
            )


@jax.jit
def extremes(x: jax.Array) -> jax.Array:
    """[3, n] of x [n, k]: least magnitude, negated, and greatest magnitude of the numbers that are no NaN; 1 for a NaN.

    So several values are taken together by their maximum, which no NaN enters: in a minimum or maximum of numbers XLA
    may lose it, depending on how the reduction is compiled.
    """
    magnitude = jnp.abs(x).astype(jnp.promote_types(x.dtype, jnp.float32))
    if x.dtype == jnp.float16:  # a fused computation may hold more range than the type, which rounds from 65520 on
        magnitude = jnp.where(magnitude >= 65520, jnp.inf, magnitude)
    nan = jnp.isnan(magnitude)
    values = jnp.where(nan, -jnp.inf, -magnitude), jnp.where(nan, 0, magnitude), nan.astype(magnitude.dtype)
    start = tuple(jnp.asarray(low, magnitude.dtype) for low in (-np.inf, 0, 0))
    # One pass for all: XLA on CPU runs this as fast as a copy, and single reductions several times slower.
    return jnp.stack(lax.reduce(values, start, lambda p, q: tuple(map(lax.max, p, q)), (1,)))


def by_rows(value: jax.Array) -> jax.Array:
    """The value as [n, ...]: by its first axis, or n = 1 where it has a single one.

    The batch axis is reduced only once, for all values together, so that a sharded batch costs a handful of
    collectives instead of one per row.
    """
    return value.reshape(value.shape[0] if value.ndim > 1 else 1, -1)


def measure(value: Any, *, batched: bool) -> jax.Array | str:
    """Extremes [3, n] of a value, or the note to show instead; `batched` keeps the first axis as n."""
    if value is None:
        return "None"
    if not isinstance(value, jax.Array | np.ndarray) or not jnp.issubdtype(value.dtype, jnp.number):
        return "not a tensor"
    if value.size == 0:
        return "empty"
    value = lax.stop_gradient(jnp.asarray(value))
    return extremes(by_rows(value) if batched else value.reshape(1, -1))
