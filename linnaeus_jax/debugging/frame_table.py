"""From recorded calls to frames: one array of all rows, and the table that says which belongs to which call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.debugging.frames import Frames, FrameSpec, extremes

#: name under which a module holds what was recorded of its calls; no module or parameter can have it
VARIABLE = "__frame__"
#: a scanned module of this name is shown as its index alone: `stages.2.layer` as `stages.2.0`, `stages.2.1`, ...
_STACK = "layer"

Path = tuple[str, ...]


class Call(NamedTuple):
    """Static part of one recorded call: where it was sown, and (label, note) of its rows, note "" where measured."""

    path: Path
    number: int
    class_name: str
    rows: tuple[tuple[str, str], ...]
    entered: int  # which call of the pass it was when it began
    parameters: tuple[tuple[str, str], ...]  # (label, name in the tree) of its own
    watched: tuple[str, ...]  # labels of the inputs and outputs that have a gradient


class _Rows:
    """Collects extremes [..., 3, n] and makes the rows of `Frames` of them."""

    def __init__(self) -> None:
        self._groups: dict[int, list[jax.Array]] = {}  # [m, 3, n] by n
        self._filled: dict[int, int] = {}
        self._added: list[tuple[int, int]] = []  # of every one: its n, its position among those of n

    def add(self, extremes: jax.Array) -> int:
        """Handle of the first of the rows that these are; the others follow it in C order."""
        n = extremes.shape[-1]
        first = self._filled.get(n, 0)
        self._groups.setdefault(n, []).append(extremes.reshape(-1, 3, n))
        self._filled[n] = first + self._groups[n][-1].shape[0]
        self._added.append((n, first))
        return len(self._added) - 1

    def finish(self) -> tuple[jax.Array, list[int]]:
        """(`Frames.rows`, where each handle's first row stands)."""
        rows, offset, first = [jnp.zeros((0, 3))], 0, {}
        for n, parts in self._groups.items():
            rows.append(jnp.concatenate(parts).max(axis=-1))
            first[n], offset = offset, offset + self._filled[n]
        return jnp.concatenate(rows), [first[n] + position for n, position in self._added]


def pack(calls: Mapping[tuple[Path, int], Call], sown: Mapping[str, Any]) -> Frames:
    """One array of all rows and the table that says what they are.

    Raises:
      ValueError: a call was recorded without being traced in this pass.
    """
    untraced = _paths(sown) - {call.path for call in calls.values()}
    if untraced:
        names = ", ".join(sorted(".".join(path) for path in untraced)[:3])
        raise ValueError(
            f"calls of {names} were compiled earlier by nn.jit inside the model, so that their frames cannot be named; "
            "build the model without nn.jit and compile the whole step with jax.jit"
        )
    rows_of_calls = _Rows()
    handles = {call: [rows_of_calls.add(row) for row in _sown(sown, call)[1]] for call in calls.values()}
    stacks = stacks_of(calls.values(), sown)
    rows, positions = rows_of_calls.finish()

    def spec(name: str, call: Call, layer: int) -> FrameSpec:
        measured = iter(handles[call])
        labels = ((label, note or positions[next(measured)] + layer) for label, note in call.rows)
        return FrameSpec(name, call.class_name, tuple(labels))

    return Frames(rows, tuple(spec(*item) for item in _listed(list(calls.values()), stacks)))


def pack_gradients(
    calls: Sequence[Call], values: Mapping[str, Any], stacks: Mapping[Path, tuple[int, ...]], param_grads: Any
) -> Frames:
    """As `pack`, of the gradients; the calls in reverse of the order in which they began.

    Args:
      values: extremes by module path and call.
      stacks: layers of the scans around every module.
      param_grads: gradients like the parameters.
    """
    rows_of_calls = _Rows()
    leaves = {
        tuple(key.key for key in path): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(nn.meta.unbox(param_grads))[0]
    }
    dotted = {".".join(path): path for path in leaves}
    calls = sorted(calls, key=lambda call: -call.entered)
    handles = {call: [rows_of_calls.add(slot) for slot in _sown(values, call)] for call in calls}
    shared: dict[tuple[Path, int], int] = {}  # a parameter's gradient is measured once

    def parameter(name: str, call: Call, tree_name: str, layer: int) -> int | None:
        path, stack = (*call.path, tree_name), stacks[call.path]
        if path not in leaves:  # scanned layers whose parameters the model keeps apart
            path, layer, stack = dotted.get(f"{name}.{tree_name}".lstrip("."), ()), 0, ()
        if path not in leaves or leaves[path].size == 0:
            return None
        if (path, layer) not in shared:
            leaf = leaves[path].reshape(*stack, -1)
            shared[path, layer] = rows_of_calls.add(extremes(leaf.reshape(-1, leaf.shape[-1])[layer][None]))
        return shared[path, layer]

    listed = []
    for name, call, layer in _listed(calls, stacks, backward=True):
        of_parameters = ((label, parameter(name, call, tree_name, layer)) for label, tree_name in call.parameters)
        rows = [(label, handle, 0) for label, handle in of_parameters if handle is not None]
        rows += [(label, handle, layer) for label, handle in zip(call.watched, handles[call], strict=True)]
        listed.append((name, call.class_name, rows))
    packed, positions = rows_of_calls.finish()
    return Frames(
        packed,
        tuple(
            FrameSpec(name, cls, tuple((f"grad {label}", positions[at] + layer) for label, at, layer in items), True)
            for name, cls, items in listed
            if items
        ),
    )


def _paths(sown: Mapping[str, Any], path: Path = ()) -> set[Path]:
    """Paths of all modules that recorded a frame."""
    here = {path} if VARIABLE in sown else set()
    return here.union(*(_paths(child, (*path, name)) for name, child in sown.items() if name != VARIABLE))


def _sown(collection: Mapping[str, Any], call: Call) -> Any:
    """What was recorded of one call."""
    for name in call.path:
        collection = collection[name]
    return collection[VARIABLE][call.number]


def stacks_of(calls: Iterable[Call], sown: Mapping[str, Any]) -> dict[Path, tuple[int, ...]]:
    """Layers of the scans around every module that was called."""
    return {call.path: _sown(sown, call)[0].shape for call in calls}


def _listed(
    calls: Sequence[Call],
    stacks: Mapping[Path, tuple[int, ...]],
    layers: tuple[int, ...] = (),
    *,
    backward: bool = False,
) -> Iterator[tuple[str, Call, int]]:
    """(name, call, which of its rows) of every frame; calls inside a scan are repeated layer by layer.

    Args:
      layers: indices of the scans around `calls`.
      backward: the last layer first.
    """
    depth, i = len(layers), 0
    while i < len(calls):
        call = calls[i]
        stack = stacks[call.path]
        if len(stack) > depth:
            owner = _owner(call.path, stacks, depth)
            end = next(
                (j for j in range(i, len(calls)) if not _within(calls[j].path, owner, stacks, depth)), len(calls)
            )
            order = range(stack[depth])
            for layer in reversed(order) if backward else order:
                yield from _listed(calls[i:end], stacks, (*layers, layer), backward=backward)
            i = end
            continue
        yield _name(call.path, stacks, layers), call, int(np.ravel_multi_index(layers, stack)) if stack else 0
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
