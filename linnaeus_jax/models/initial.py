"""Initial values of parameters.

`TracedInit.evaluate` computes those of a whole model without compiling a program of its own for every shape, which
would take longer than the first updates. Of what was traced, only the keys are computed, one small operation at a time.
Random numbers are then drawn for the next power of four, of which the first ones are the same, and everything else is
done by numpy.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax import backend
from linnaeus_jax.compat.flax_parts import reserve
from linnaeus_jax.compat.jax_parts import ClosedJaxpr, without_first

Dtype = Any
Shape = Sequence[int]
Initializer = Callable[..., jax.Array]
_LEAST = 1024  # numbers that are drawn at once
STDDEV = 0.02  # of weights
#: how `weight` draws: N(0, 0.02²), as in the publications of ConvNeXt and ViT, or by the fan-in
WEIGHT_INITS = ("normal", "fan_in")


@dataclass(frozen=True)
class _Drawn:
    """How an initial value comes from what is drawn for it."""

    value: jax.Array  # as traced
    drawn: jax.Array | None  # as traced; float32 numbers, at least as many as are needed; None: nothing is drawn
    shape: Shape | None  # of the numbers that are needed
    finish: Callable[[Any], Any]  # of numbers in that shape


#: the values that were traced since `trace` began, by their id
_traced: contextvars.ContextVar[dict[int, _Drawn] | None] = contextvars.ContextVar("traced", default=None)
#: one of `WEIGHT_INITS`
_weight_init: contextvars.ContextVar[str] = contextvars.ContextVar("weight_init", default="normal")


@dataclass(frozen=True)
class TracedInit:
    """A function that makes initial values, as `trace` saw it.

    Attributes:
      init: the function.
      shapes: of what it returns, with dtypes.
    """

    init: Callable[[jax.Array], Any]
    shapes: Any
    _jaxpr: ClosedJaxpr  # returns the leaves, then what is drawn for them and leaves that are computed
    _finish: tuple[tuple[Shape | None, Callable[[Any], Any]] | None, ...]  # of each leaf, and of what shape of numbers

    def evaluate(self, key: jax.Array) -> Any:
        """`init(key)`, of which leaves that the initializers of this module returned are numpy arrays.

        Args:
          key: if traced, or if JAX draws parts of arrays otherwise than the whole, this is `init(key)`.
        """
        if isinstance(key, jax.core.Tracer) or not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
            return self.init(key)
        likes, tree = jax.tree.flatten(self.shapes)
        computed = iter(without_first(self._jaxpr, len(likes))(key))
        leaves = []
        for how, like in zip(self._finish, likes, strict=True):
            if how is None:
                leaves.append(next(computed))
            else:
                shape, finish = how
                numbers = None if shape is None else _first(np.asarray(next(computed)), shape)
                leaves.append(finish(numbers).astype(like.dtype))
        return jax.tree.unflatten(tree, leaves)


def trace(init: Callable[[jax.Array], Any]) -> TracedInit:
    """Traces a pure function of a key that returns a tree of arrays, such as the variables of a model."""
    finish: list[tuple[Shape | None, Callable[[Any], Any]] | None] = []

    def needed(key: jax.Array) -> tuple[Any, list[jax.Array]]:
        traced: dict[int, _Drawn] = {}
        token = _traced.set(traced)
        try:
            result = init(key)
        finally:
            _traced.reset(token)
        leaves = jax.tree.leaves(result)
        described = [traced.get(id(leaf)) for leaf in leaves]
        finish.extend(None if how is None else (how.shape, how.finish) for how in described)
        needs = [leaf if how is None else how.drawn for how, leaf in zip(described, leaves, strict=True)]
        return result, [x for x in needs if x is not None]

    jaxpr, (shapes, _) = jax.make_jaxpr(needed, return_shape=True)(jax.random.key(0))
    return TracedInit(init, shapes, jaxpr, tuple(finish))


def _first(numbers: Any, shape: Shape) -> Any:
    return numbers[: math.prod(shape)].reshape(shape)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _draw(key: jax.Array, kind: str, count: int) -> jax.Array:
    return {"normal": jax.random.normal, "uniform": jax.random.uniform}[kind](key, (count,))


def drawn(key: jax.Array, kind: str, shape: Shape, dtype: Dtype, finish: Callable[[Any], Any]) -> jax.Array:
    """`finish` of float32 numbers of `shape` of a kind, those that `jax.random` draws for it.

    Args:
      kind: "normal", or "uniform" in [0, 1).
      finish: computes with numpy arrays as with JAX's.
    """
    traced = _traced.get()
    if traced is None:
        return jnp.asarray(finish(_draw(key, kind, math.prod(shape)).reshape(shape)), dtype)
    count = max(_LEAST, math.prod(shape))  # 0 for a layer of metadata in a model without them
    numbers = _draw(key, kind, 4 ** math.ceil(math.log(count, 4)))
    value = jnp.asarray(finish(_first(numbers, shape)), dtype)
    traced[id(value)] = _Drawn(value, numbers, shape, finish)
    return value


def parameter(module: nn.Module, name: str, init: Initializer, shape: Shape, dtype: Dtype = jnp.float32) -> jax.Array:
    """The parameter of a module, as `module.param` makes and returns it.

    `Module.param` checks the shape by tracing `init` at every use, a tenth of the time that a step is traced. Here that
    is left to it only where there is no parameter yet, or none of this shape.

    Raises:
      ScopeParamNotFoundError, ScopeParamShapeError: the variables are not those of the module.
    """
    quick = backend.SHAPES_CHECKED_ONCE.allowed() and not module.is_initializing()
    value = module.get_variable("params", name) if quick else None
    if isinstance(value, jax.Array) and value.shape == tuple(shape) and reserve(module, name, "params"):
        return value
    return module.param(name, init, shape, dtype)


def constant(value: float) -> Initializer:
    """One value everywhere."""

    def init(key: jax.Array, shape: Shape, dtype: Dtype = jnp.float32) -> jax.Array:
        full = jnp.full(shape, value, dtype)
        if (traced := _traced.get()) is not None:
            traced[id(full)] = _Drawn(full, None, None, lambda _: np.full(shape, value))
        return full

    return init


zeros, ones = constant(0.0), constant(1.0)


def normal(stddev: float) -> Initializer:
    """N(0, stddev²)."""

    def init(key: jax.Array, shape: Shape, dtype: Dtype = jnp.float32) -> jax.Array:
        return drawn(key, "normal", shape, dtype, lambda numbers: numbers * np.float32(stddev))

    return init


def weight(key: jax.Array, shape: Shape, dtype: Dtype = jnp.float32) -> jax.Array:
    """N(0, 0.02²), or within `weights_by("fan_in")` N(0, 1 / fan-in), for kernels [..., in, out].

    Where the input has mean square 1, each output of the second then has, too (LeCun et al. 1998).
    """
    stddev = STDDEV if _weight_init.get() == "normal" else 1 / math.sqrt(max(1, math.prod(shape[:-1])))
    return normal(stddev)(key, shape, dtype)


@contextlib.contextmanager
def weights_by(kind: str) -> Iterator[None]:
    """Within it `weight` draws by one of `WEIGHT_INITS`."""
    token = _weight_init.set(kind)
    try:
        yield
    finally:
        _weight_init.reset(token)


def fan_out_normal(key: jax.Array, shape: Shape, dtype: Dtype = jnp.float32) -> jax.Array:
    """N(0, 2 / (k k out)) for kernels [k, k, in, out] (He et al. 2015)."""
    return normal(math.sqrt(2.0 / (math.prod(shape[:-2]) * shape[-1])))(key, shape, dtype)


def uniform(low: float, high: float) -> Initializer:
    """Uniform in [low, high)."""

    def init(key: jax.Array, shape: Shape, dtype: Dtype = jnp.float32) -> jax.Array:
        return drawn(key, "uniform", shape, dtype, lambda unit: unit * np.float32(high - low) + np.float32(low))

    return init
