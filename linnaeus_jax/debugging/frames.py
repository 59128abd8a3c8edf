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
      rows: float32 [R, 4] (float64 where a value is): least and greatest magnitude, 1 where there is a NaN, 1 where
        there is an infinity. With a NaN both magnitudes are NaN.
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
            low, high, nan, inf = values[at]
            return Row(label, low, high, nan > 0, inf > 0)

        return [
            Frame(spec.name, spec.class_name, tuple(row(*item) for item in spec.rows), spec.backward)
            for spec in self.table
        ]

    @property
    def bad(self) -> bool:
        """Whether any value is not finite; reads `rows` back if it is still on a device."""
        return bool(self.host()[:, 2:].any())

    @property
    def count(self) -> int:
        """R, the rows of one pass."""
        return 1 + max((at for spec in self.table for _, at in spec.rows if not isinstance(at, str)), default=-1)

    def host(self) -> np.ndarray:
        """float32 [R, 4] of all passes that `rows` holds, taken together as by `merge`; waits for them.

        Passes may be stacked on any number of leading axes (`jax.vmap`, `jax.pmap`, outputs of a scan), laid one after
        the other, or differ between devices that should hold the same (`jax.shard_map`): every device is read.

        Raises:
          ValueError: `rows` cannot be that of this table.
        """
        count = self.count
        shards = self.rows.addressable_shards if isinstance(self.rows, jax.Array) else ()
        parts = [np.asarray(shard.data) for shard in shards]
        if not parts or any(part.size % (4 * count or 1) or part.shape[-1:] != (4,) for part in parts):
            parts = [np.asarray(self.rows)]  # a pass is spread over devices
        if any(part.shape[-1:] != (4,) or part.size % (4 * count or 1) for part in parts):
            raise InputError(f"frames with {count} rows cannot have the values {self.rows.shape}")
        if count == 0:
            return np.zeros((0, 4), np.float32)
        passes = np.concatenate([part.reshape(-1, count, 4) for part in parts])
        return np.concatenate([passes[..., :1].min(axis=0), passes[..., 1:].max(axis=0)], axis=-1)


def merge(a: Frames, b: Frames) -> Frames:
    """Frames of two passes of the same model taken together, e.g. of two micro-batches of one update.

    Magnitudes combine by minimum and maximum, NaN wins, the flags by or. Associative and commutative.

    Raises:
      ValueError: the passes did not call the same modules with the same kinds of values.
    """
    _require_single(a, b)
    if a.table != b.table:
        raise InputError(
            f"frames of different passes cannot be merged: {len(a.table)} and {len(b.table)} frames, or other rows; "
            "record both with the same model and arguments of the same kinds"
        )
    both = jnp.stack([a.rows[:, :2], b.rows[:, :2]])[..., None]
    low, high = over_axis(both, 0)[..., 0].T
    flags = jnp.maximum(a.rows[:, 2:], b.rows[:, 2:])
    rows = jnp.stack([low, jnp.where(flags[:, 0] > 0, low, high), *flags.T], axis=1)
    return a.replace(rows=rows)


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


def magnitude_bits(x: jax.Array) -> jax.Array:
    """Bit patterns of |x|: integers in the order of the magnitudes, infinity above all numbers, every NaN -1.

    Minima and maxima are taken of these, because XLA on CPU may lose a NaN in a minimum of floating-point numbers
    (which operand wins depends on how the reduction was compiled).

    Args:
      x: float32 or float64 (anything else is taken as float32).
    """
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    integer = jnp.int64 if dtype == jnp.float64 else jnp.int32
    bits = lax.bitcast_convert_type(jnp.abs(x).astype(dtype), integer)
    infinity = np.asarray(np.inf, dtype).view(integer)
    if x.dtype == jnp.float16:
        # A fused computation may hold more range than the type, which rounds magnitudes from 65520 to infinity.
        bits = jnp.where((bits >= np.float32(65520).view(np.int32)) & (bits <= infinity), infinity, bits)
    return jnp.where(bits > infinity, jnp.asarray(-1, integer), bits)


def from_bits(bits: jax.Array) -> jax.Array:
    """The magnitudes of `magnitude_bits`."""
    return lax.bitcast_convert_type(bits, jnp.float64 if bits.dtype == jnp.int64 else jnp.float32)


@jax.jit
def extremes(x: jax.Array) -> jax.Array:
    """[2, rows] of x [rows, n]: least magnitude, NaN where there is one, and greatest magnitude among the others."""
    bits = magnitude_bits(x)
    start = (jnp.asarray(jnp.iinfo(bits.dtype).max, bits.dtype), jnp.asarray(-1, bits.dtype))
    # One pass for both: XLA on CPU runs this as fast as a copy, and two single reductions several times slower.
    least, greatest = lax.reduce((bits, bits), start, lambda p, q: (lax.min(p[0], q[0]), lax.max(p[1], q[1])), (1,))
    return from_bits(jnp.stack([least, greatest]))


def over_axis(extremes: jax.Array, axis: int) -> jax.Array:
    """`extremes` [..., 2, n] of several values taken together, along one of the axes before the last two, or -1."""
    bits = magnitude_bits(extremes)
    low, high = bits[..., 0, :], bits[..., 1, :]
    return from_bits(jnp.stack([low.min(axis=axis), high.max(axis=axis)], axis=-1 if axis == -1 else -2))


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
