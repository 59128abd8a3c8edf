"""What every module call of a Linen model saw: absolute extremes of its weights, inputs and outputs, inside one jit.

A *frame* is one module call; its rows are the call's own parameters, positional inputs and outputs. Frames are in the
order in which calls return: children before parents, the model itself last. The extremes are computed in the graph and
leave it as one small array, so this works under jit, grad, `nn.remat`, `nn.scan` and sharded batches, and nothing
is read back until the caller asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.core.scope import union_filters
from jax import lax

from linnaeus_jax.models.names import canonical_name

#: variable collection of the recorder; `nn.scan` and `nn.vmap` must give it an axis, e.g. variable_axes={True: 0}
COLLECTION = "frames"
_VARIABLE = "__frame__"  # no module or parameter can have this name
#: a scanned module of this name is shown as its index alone: `stages.2.layer` as `stages.2.0`, `stages.2.1`, ...
_STACK = "layer"

Path = tuple[str, ...]


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

    @property
    def bad(self) -> bool:
        """Whether any value of the call is not finite."""
        return any(row.has_nan or row.has_inf for row in self.rows)


class FrameSpec(NamedTuple):
    """The static part of a frame; every row is a label with its index in `Frames.rows`, or with a note."""

    name: str
    class_name: str
    rows: tuple[tuple[str, int | str], ...]


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

        return [Frame(name, cls, tuple(row(*item) for item in rows)) for name, cls, rows in self.table]

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


@jax.jit
def _extremes(x: jax.Array) -> jax.Array:
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


def _measure(value: Any, *, batched: bool) -> jax.Array | str:
    """Extremes [2, n] of a value, or the note to show instead; `batched` keeps the first axis as n.

    The batch axis is reduced only once, for all values together, so that a sharded batch costs a handful of
    collectives instead of one per row.
    """
    if value is None:
        return "None"
    if not isinstance(value, jax.Array | np.ndarray) or not jnp.issubdtype(value.dtype, jnp.number):
        return "not a tensor"
    if value.size == 0:
        return "empty"
    rows = value.shape[0] if batched and value.ndim > 1 else 1
    return _extremes(lax.stop_gradient(jnp.asarray(value).reshape(rows, -1)))


def _values(args: tuple[Any, ...], out: Any) -> Iterator[tuple[str, Any]]:
    """Labels and values of positional inputs and of outputs; tuples are opened, those inside a returned tuple too."""
    for i, value in enumerate(args):
        yield f"input[{i}]", value
    if not isinstance(out, tuple):
        yield "output", out
        return
    for i, value in enumerate(out):
        if isinstance(value, tuple):
            yield from ((f"output[{i}][{j}]", inner) for j, inner in enumerate(value))
        else:
            yield f"output[{i}]", value


class _Call(NamedTuple):
    """Static part of one recorded call: where it was sown, and (label, note) of its rows, note "" where measured."""

    path: Path
    number: int
    class_name: str
    rows: tuple[tuple[str, str], ...]


class _Listener:
    """The interceptor of one pass: sows the extremes of every call and keeps their labels in order of return."""

    def __init__(self) -> None:
        self.calls: dict[tuple[Path, int], _Call] = {}
        self._declared: dict[Path, dict[str, None]] = {}  # own parameters in the order of their declaration
        self._depth = 0

    def __call__(
        self, next_fun: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext
    ) -> Any:
        module, method = context.module, context.method_name
        self._depth += 1
        try:
            out = next_fun(*args, **kwargs)
        finally:
            self._depth -= 1
        assert module.scope is not None  # bound while its method runs
        own = self._declared.setdefault(module.path, {})
        own.update((name, None) for name, kinds in module.scope.reservations.items() if "params" in kinds)
        # `apply(method=...)` makes another method of the model the whole pass.
        whole = self._depth == 0 and method != "setup" and not any(path == () for path, _ in self.calls)
        if method == "__call__" or whole:
            self._record(module, args, out)
        return out

    def _record(self, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        names = [name for name in self._declared[module.path] if module.has_variable("params", name)]
        labels = [canonical_name((name,)) for name in names]
        labels = labels if len(set(labels)) == len(names) else names
        found = [
            (label, _measure(nn.meta.unbox(module.get_variable("params", name)), batched=False))
            for label, name in zip(labels, names)
        ]
        found += [(label, _measure(value, batched=True)) for label, value in _values(args, out)]
        index = len(module.get_variable(COLLECTION, _VARIABLE, ()))
        # The scalar shows by its shape how many layers a scan stacks, also for a call without a measured row.
        value = (jnp.zeros(()), tuple(row for _, row in found if not isinstance(row, str)))
        if not module.sow(COLLECTION, _VARIABLE, value):
            raise ValueError(
                f"frames of module {'.'.join(module.path)!r} ({type(module).__name__}) cannot leave the lifted "
                f"transform around it; give the collection {COLLECTION!r} an axis there, e.g. nn.scan(..., "
                f"variable_axes={{'params': 0, {COLLECTION!r}: 0}})"
            )
        # Scans trace their body more than once; the last trace counts.
        rows = tuple((label, row if isinstance(row, str) else "") for label, row in found)
        self.calls.pop((module.path, index), None)
        self.calls[module.path, index] = _Call(module.path, index, type(module).__name__, rows)


class FrameRecorder:
    """Runs a Linen model and returns the frames of the pass beside its result.

    Every `__call__` of a submodule is a frame. Scanned layers (`nn.scan`) become one frame per layer. Keyword inputs,
    values inside lists and dicts and non-parameter variables are not shown. Costs one read of every value; a model that
    is applied without the recorder is traced exactly as before.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def apply(
        self, variables: Mapping[str, Any], *args: Any, mutable: Any = False, **kwargs: Any
    ) -> tuple[Any, Frames]:
        """As `model.apply`, with the frames of the pass.

        Args:
          variables, args, mutable, kwargs: those of `model.apply` (also `rngs`, `method`).

        Returns:
          (what `model.apply` returns, frames). No gradient flows through the frames.

        Raises:
          ValueError: a lifted transform inside the model does not let the frames out, or `nn.jit` hides their calls.
        """
        listener = _Listener()
        with nn.intercept_methods(listener):
            out, updates = self.model.apply(variables, *args, mutable=union_filters(mutable, COLLECTION), **kwargs)
        updates = dict(updates)
        frames = _pack(listener.calls, updates.pop(COLLECTION, {}))
        return (out if mutable is False else (out, updates)), frames

    def trace(self, variables: Mapping[str, Any], *args: Any, **kwargs: Any) -> tuple[FrameSpec, ...]:
        """The table of frames, from one abstract trace; arguments as for `apply`, arrays or their shapes."""
        return jax.eval_shape(lambda v, a: self.apply(v, *a, **kwargs)[1], variables, args).table


def _pack(calls: Mapping[tuple[Path, int], _Call], sown: Mapping[str, Any]) -> Frames:
    """One array of all rows and the table that says what they are.

    Raises:
      ValueError: a call was recorded without being traced in this pass.
    """
    unseen = _paths(sown) - {call.path for call in calls.values()}
    if unseen:
        names = ", ".join(sorted(".".join(path) for path in unseen)[:3])
        raise ValueError(
            f"calls of {names} were compiled earlier by nn.jit inside the model, so that their frames cannot be named; "
            "build the model without nn.jit and compile the whole step with jax.jit"
        )
    groups: dict[int, list[jax.Array]] = {}  # rows [m, 2, n] by n
    stacks: dict[Path, tuple[int, ...]] = {}
    at: dict[tuple[Path, int], list[tuple[int, int]]] = {}  # of each measured row: its n, position among those of n
    filled: dict[int, int] = {}
    for key, call in calls.items():
        stack, rows = _at(sown, call.path)[_VARIABLE][call.number]
        stacks[call.path] = stack.shape
        for row in rows:
            n = row.shape[-1]
            at.setdefault(key, []).append((n, filled.get(n, 0)))
            groups.setdefault(n, []).append(row.reshape(-1, 2, n))
            filled[n] = filled.get(n, 0) + groups[n][-1].shape[0]

    extremes, offset, first = [jnp.zeros((0, 2))], 0, {}
    for n, parts in groups.items():
        group = jnp.concatenate(parts)
        extremes.append(jnp.stack([group[:, 0].min(axis=-1), group[:, 1].max(axis=-1)], axis=1))
        first[n], offset = offset, offset + filled[n]
    low, high = jnp.concatenate(extremes).T
    nan = jnp.isnan(low)
    rows = jnp.stack([low, jnp.where(nan, low, high), nan.astype(low.dtype), jnp.isinf(high).astype(low.dtype)], axis=1)

    positions = {key: [first[n] + position for n, position in found] for key, found in at.items()}
    return Frames(rows, tuple(_specs(list(calls.values()), stacks, positions, ())))


def _paths(sown: Mapping[str, Any], path: Path = ()) -> set[Path]:
    """Paths of all modules that recorded a frame."""
    found = {path} if _VARIABLE in sown else set()
    return found.union(*(_paths(child, (*path, name)) for name, child in sown.items() if name != _VARIABLE))


def _at(tree: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    for name in path:
        tree = tree[name]
    return tree


def _specs(
    calls: Sequence[_Call],
    stacks: Mapping[Path, tuple[int, ...]],
    positions: Mapping[tuple[Path, int], list[int]],
    layers: tuple[int, ...],
) -> Iterator[FrameSpec]:
    """Frames of `calls`, those of a scan layer by layer; `layers` are the indices of the scans around them."""
    depth, i = len(layers), 0
    while i < len(calls):
        call = calls[i]
        stack = stacks[call.path]
        if len(stack) > depth:
            owner = _owner(call.path, stacks, depth)
            end = next(
                (j for j in range(i, len(calls)) if not _within(calls[j].path, owner, stacks, depth)), len(calls)
            )
            for layer in range(stack[depth]):
                yield from _specs(calls[i:end], stacks, positions, (*layers, layer))
            i = end
            continue
        layer = int(np.ravel_multi_index(layers, stack)) if stack else 0
        measured = iter(positions.get((call.path, call.number), ()))
        rows = tuple((label, note or next(measured) + layer) for label, note in call.rows)
        yield FrameSpec(_name(call.path, stacks, layers), call.class_name, rows)
        i += 1


def _owner(path: Path, stacks: Mapping[Path, tuple[int, ...]], depth: int) -> Path:
    """The outermost recorded module around (or at) `path` inside its scan number `depth`."""
    prefixes = (path[:k] for k in range(len(path) + 1))
    return next(prefix for prefix in prefixes if len(stacks.get(prefix, ())) > depth)


def _within(path: Path, owner: Path, stacks: Mapping[Path, tuple[int, ...]], depth: int) -> bool:
    return path[: len(owner)] == owner and len(stacks[path]) > depth


def _name(path: Path, stacks: Mapping[Path, tuple[int, ...]], layers: tuple[int, ...]) -> str:
    """Dotted name with the index of every scan after the name of the scanned module."""
    parts: list[str] = []
    done = 0
    for k in range(len(path) + 1):
        scans = max(done, len(stacks.get(path[:k], ())))
        if k > 0 and not (scans > done and path[k - 1] == _STACK):
            parts.append(path[k - 1])
        parts += [str(layer) for layer in layers[done:scans]]
        done = scans
    return ".".join(parts)


__all__ = ["COLLECTION", "Frame", "FrameRecorder", "FrameSpec", "Frames", "Row", "merge"]
