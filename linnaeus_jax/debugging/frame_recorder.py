"""Records the frames of a Linen model's passes inside one jit, without changing what the model computes.

The extremes are computed in the graph and leave it as one small array, so this works under jit, grad, `nn.remat`,
`nn.scan` and sharded batches, and nothing is read back until the caller asks. Gradients are seen by identity functions
around each call, whose own backward pass measures what comes by and hands it out as the "gradient" of an extra
argument, the taps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from linnaeus_jax.compat.flax_parts import declared_parameters, trace_levels, union_filters
from linnaeus_jax.compat.jax_parts import trace_state
from linnaeus_jax.debugging.frame_table import VARIABLE, Call, Path, pack, pack_gradients, stacks_of
from linnaeus_jax.debugging.frames import Frames, by_rows, extremes, measure
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models.names import canonical_name

#: variable collections of the recorder; `nn.scan` and `nn.vmap` must give them an axis, e.g. variable_axes={True: 0}
COLLECTION = "frames"
GRADIENTS = "frame_gradients"


class CotangentTaps(struct.PyTreeNode):
    """An argument of a loss function whose "gradient" is what the gradient frames show; see `FrameRecorder`.

    Attributes:
      values: zeros, float32 [3, n] (behind the axes of scans) for every input and output of every call.
      calls: what they belong to.
      stacks: layers of the scans around every module.
    """

    values: Any
    calls: tuple[Call, ...] = struct.field(pytree_node=False)
    stacks: tuple[tuple[Path, tuple[int, ...]], ...] = struct.field(pytree_node=False)

    def frames(self, param_grads: Mapping[str, Any]) -> Frames:
        """The gradient frames, if this is a gradient with respect to taps.

        Args:
          param_grads: gradients of the parameters from the same pass, shown as rows of the modules that own them.
        """
        return pack_gradients(self.calls, self.values, dict(self.stacks), param_grads)


class _ModuleInterceptor:
    """The interceptor of one pass: sows the extremes of every call and keeps their labels in order of return.

    Args:
      gradients: whether the calls are wrapped to see gradients: None, or True with taps among the variables, or False
        to make these taps.
    """

    def __init__(self, gradients: bool | None = None) -> None:
        self.calls: dict[tuple[Path, int], Call] = {}
        self.gradients = gradients
        self._declared: dict[Path, dict[str, None]] = {}  # own parameters in the order of their declaration
        self._depth = 0
        self._entered = 0

    def __call__(
        self, next_fun: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext
    ) -> Any:
        module, method = context.module, context.method_name
        self._entered += 1
        entered = self._entered
        watching = self.gradients is not None and method == "__call__"
        watch = self._tap(module) if watching else _CotangentTap(None)
        args = tuple(watch(value, f"input[{i}]") for i, value in enumerate(args)) if watching else args
        self._depth += 1
        try:
            out = next_fun(*args, **kwargs)
        finally:
            self._depth -= 1
        if watching:
            labels = (label for label, _ in _values((), out))
            out = _map_output(lambda value: watch(value, next(labels)), out)
            if self.gradients is False:
                module.sow(GRADIENTS, VARIABLE, tuple(watch.made))
        declared = self._declared.setdefault(module.path, {})
        declared.update(dict.fromkeys(declared_parameters(module)))
        # `apply(method=...)` makes another method of the model the whole pass.
        whole = self._depth == 0 and method != "setup" and not any(path == () for path, _ in self.calls)
        if method == "__call__" or whole:
            self._record(module, args, out, entered, tuple(watch.labels))
        return out

    def _tap(self, module: nn.Module) -> _CotangentTap:
        """What wraps the values of the next call of `module`."""
        if not self.gradients:
            return _CotangentTap(None)
        taps: Any = module.get_variable(GRADIENTS, VARIABLE)
        number = len(module.get_variable(COLLECTION, VARIABLE, ()))
        if taps is None or number >= len(taps):
            raise InputError(_held_back("gradient frames", module, GRADIENTS))
        return _CotangentTap(iter(taps[number]))

    def _record(
        self, module: nn.Module, args: tuple[Any, ...], out: Any, entered: int, watched: tuple[str, ...]
    ) -> None:
        _check_trace(module)
        names = [name for name in self._declared[module.path] if module.has_variable("params", name)]
        labels = [canonical_name((name,)) for name in names]
        labels = labels if len(set(labels)) == len(names) else names
        measured = [
            (label, measure(nn.meta.unbox(module.get_variable("params", name)), batched=False))
            for label, name in zip(labels, names)
        ]
        measured += [(label, measure(value, batched=True)) for label, value in _values(args, out)]
        index = len(module.get_variable(COLLECTION, VARIABLE, ()))
        # The scalar shows by its shape how many layers a scan stacks, also for a call without a measured row.
        value = (jnp.zeros(()), tuple(row for _, row in measured if not isinstance(row, str)))
        if not module.sow(COLLECTION, VARIABLE, value):
            raise InputError(_held_back("frames", module, COLLECTION))
        # Scans trace their body more than once; the last trace counts.
        rows = tuple((label, row if isinstance(row, str) else "") for label, row in measured)
        parameters = tuple(zip(labels, names))
        self.calls.pop((module.path, index), None)
        self.calls[module.path, index] = Call(
            module.path, index, type(module).__name__, rows, entered, parameters, watched
        )


class _CotangentTap:
    """Wraps the values of one call with its taps, one after the other; without taps it makes them."""

    def __init__(self, taps: Iterator[jax.Array] | None) -> None:
        self.labels: list[str] = []
        self.made: list[jax.Array] = []
        self._taps = taps

    def __call__(self, value: Any, label: str) -> Any:
        if not _has_gradient(value):
            return value
        self.labels.append(label)
        if self._taps is not None:
            return _watched(value, next(self._taps))
        self.made.append(jnp.zeros((3, len(by_rows(value)))))
        return value


def _held_back(what: str, module: nn.Module, collection: str) -> str:
    return (
        f"{what} of module {_named(module)} cannot leave the lifted transform around it; give the collection "
        f"{collection!r} an axis there, e.g. nn.scan(..., variable_axes={{'params': 0, {collection!r}: 0}}) or "
        f"nn.RNN(..., variable_axes={{{collection!r}: 0}}); nn.while_loop has no such axis, use nn.scan instead"
    )


def _named(module: nn.Module) -> str:
    return f"{'.'.join(module.path)!r} ({type(module).__name__})"


def _check_trace(module: nn.Module) -> None:
    """Refuses a call inside a plain JAX transform within the model, out of which nothing that is sown can come."""
    state = trace_state()
    if state is not None and any(level != state for level in trace_levels(module)):
        raise InputError(
            f"frames of module {_named(module)} cannot leave the jax transform around it (jax.checkpoint, "
            "jax.jit, jax.vmap, jax.lax.scan, ...); inside a model use Flax's form of it: nn.remat, nn.vmap, "
            "nn.scan, ... on the module that it hands to your function, and compile the whole step with jax.jit"
        )


@contextlib.contextmanager
def _branches_explained() -> Iterator[None]:
    """Says what is wrong where the branches of a condition leave different frames."""
    try:
        yield
    except TypeError as error:
        if not any(f"['{collection}']" in str(error) for collection in (COLLECTION, GRADIENTS)):
            raise
        raise InputError(
            "frames cannot leave an nn.cond or nn.switch whose branches call different modules; let every branch call "
            f"the same modules, or call all of them and choose among the results with jnp.where ({error})"
        ) from error


class FrameRecorder:
    """Runs a Linen model and returns the frames of the pass beside its result.

    Every `__call__` of a submodule is a frame. Scanned layers (`nn.scan`) become one frame per layer. Keyword inputs,
    values inside lists and dicts and non-parameter variables are not shown. Costs one read of every value; a model that
    is applied without the recorder is traced exactly as before.

    For the gradient frames, the loss takes taps as one more argument::

        taps = recorder.cotangent_taps(variables, images)

        def loss(params, taps):
            logits, frames = recorder.apply({"params": params}, images, taps=taps)
            return cross_entropy(logits), frames

        (grads, tapped), frames = jax.grad(loss, argnums=(0, 1), has_aux=True)(params, taps)
        frames = concatenate(frames, tapped.frames(grads))
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def apply(
        self,
        variables: Mapping[str, Any],
        *args: Any,
        mutable: Any = False,
        taps: CotangentTaps | None = None,
        **kwargs: Any,
    ) -> tuple[Any, Frames]:
        """As `model.apply`, with the frames of the pass.

        Args:
          variables, args, mutable, kwargs: those of `model.apply` (also `rngs`, `method`).
          taps: of `cotangent_taps` for the same model and shapes; only for differentiation.

        Returns:
          (what `model.apply` returns, frames). No gradient flows through the frames.

        Raises:
          ValueError: a lifted transform inside the model does not let the frames out, or `nn.jit` hides their calls.
        """
        given = variables if taps is None else {**variables, GRADIENTS: taps.values}
        listener = _ModuleInterceptor(None if taps is None else True)
        out, updates = self._intercepted(listener, given, *args, mutable=mutable, **kwargs)
        frames = pack(listener.calls, updates.pop(COLLECTION, {}))
        return (out if mutable is False else (out, updates)), frames

    def apply_for_taps(
        self, variables: Mapping[str, Any], *args: Any, mutable: Any = False, **kwargs: Any
    ) -> tuple[Any, CotangentTaps]:
        """As `apply`, with taps of zeros for the same call instead of the frames."""
        listener = _ModuleInterceptor(gradients=False)
        out, updates = self._intercepted(listener, variables, *args, mutable=mutable, **kwargs)
        calls, sown = tuple(listener.calls.values()), updates.pop(COLLECTION, {})
        taps = CotangentTaps(updates.pop(GRADIENTS, {}), calls, tuple(stacks_of(calls, sown).items()))
        return (out if mutable is False else (out, updates)), taps

    def _intercepted(
        self, listener: _ModuleInterceptor, variables: Mapping[str, Any], *args: Any, mutable: Any, **kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """(the model's result, what changed in its collections and in those of the recorder)."""
        own = COLLECTION if listener.gradients is not False else (COLLECTION, GRADIENTS)
        with nn.intercept_methods(listener), _branches_explained():
            out, updates = self.model.apply(variables, *args, mutable=union_filters(mutable, own), **kwargs)
        return out, dict(updates)

    def cotangent_taps(
        self, variables: Mapping[str, Any], *args: Any, mutable: Any = False, **kwargs: Any
    ) -> CotangentTaps:
        """Taps of zeros, from one abstract trace; arguments as for `apply`, arrays or their shapes.

        Raises:
          ValueError: as `apply`.
        """

        def taps(variables: Mapping[str, Any], args: tuple[Any, ...]) -> CotangentTaps:
            return self.apply_for_taps(variables, *args, mutable=mutable, **kwargs)[1]

        return zeros_of(jax.eval_shape(taps, variables, args))


def zeros_of(shapes: Any) -> Any:
    """Zeros like a tree of arrays or shapes."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def _has_gradient(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray) and jnp.issubdtype(value.dtype, jnp.floating) and value.size > 0


@jax.custom_vjp
def _watched(x: jax.Array, tap: jax.Array) -> jax.Array:
    """x; the gradient of `tap` [3, n] is the extremes of the gradient of x."""
    return x


def _watched_bwd(tap: jax.Array, grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    return grad, extremes(by_rows(grad)).astype(tap.dtype)


_watched.defvjp(lambda x, tap: (x, tap), _watched_bwd)


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


def _map_output(function: Callable[[Any], Any], out: Any) -> Any:
    """`out` with `function` applied to the values that `_values` lists, in their order."""

    def each(values: tuple[Any, ...], inner: Callable[[Any], Any]) -> Any:
        mapped = [inner(value) for value in values]
        return values._make(mapped) if hasattr(values, "_make") else tuple(mapped)

    if not isinstance(out, tuple):
        return function(out)
    return each(out, lambda value: each(value, function) if isinstance(value, tuple) else function(value))
