"""Initial values of parameters.

`evaluate` computes those of a whole model without compiling a program of its own for every shape, which would take
longer than the first updates. The model is traced once; of what was traced, only the keys are computed, one small
operation at a time. Random numbers are then drawn for the next power of four, of which the first ones are the same, and
everything else is done by numpy.
"""

from __future__ import annotations

import contextvars
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import partial_eval

Dtype = Any
Shape = Sequence[int]
Initializer = Callable[..., jax.Array]
_LEAST = 1024  # numbers that are drawn at once


@dataclass(frozen=True)
class _Drawn:
    """How an initial value comes from what is drawn for it."""

    value: jax.Array  # as traced
    drawn: jax.Array | None  # as traced; float32 numbers, at least as many as the value has; None: nothing is drawn
    finish: Callable[[Any], Any]  # of numbers in the shape of the value


#: the values that were traced since `evaluate` began, by their id
_traced: contextvars.ContextVar[dict[int, _Drawn] | None] = contextvars.ContextVar("traced", default=None)


def evaluate(init: Callable[[jax.Array], Any], key: jax.Array) -> Any:
    """`init(key)`, of which leaves that the initializers of this module returned are numpy arrays.

    Args:
      init: pure; returns a tree of arrays, such as the variables of a model.
      key: if traced, or if JAX draws parts of arrays otherwise than the whole, this is `init(key)`.
    """
    if isinstance(key, jax.core.Tracer) or not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        return init(key)
    described: list[_Drawn | None] = []

    def needed(key: jax.Array) -> tuple[Any, list[jax.Array]]:
        traced: dict[int, _Drawn] = {}
        token = _traced.set(traced)
        try:
            result = init(key)
        finally:
            _traced.reset(token)
        leaves = jax.tree.leaves(result)
        described.extend(traced.get(id(leaf)) for leaf in leaves)
        drawn = [leaf if how is None else how.drawn for how, leaf in zip(described, leaves, strict=True)]
        return result, [x for x in drawn if x is not None]

    closed, (shapes, wanted) = jax.make_jaxpr(needed, return_shape=True)(key)
    likes, tree = jax.tree.flatten(shapes)
    jaxpr, (key_is_used,) = partial_eval.dce_jaxpr(closed.jaxpr, [False] * len(likes) + [True] * len(wanted))
    compute = jaxpr_as_fun(ClosedJaxpr(jaxpr, closed.consts))
    computed = iter(compute(key) if key_is_used else compute())
    leaves = []
    for how, like in zip(described, likes, strict=True):
        if how is None:
            leaves.append(next(computed))
        else:
            numbers = None if how.drawn is None else _first(np.asarray(next(computed)), like.shape)
            leaves.append(how.finish(numbers).astype(like.dtype))
    return jax.tree.unflatten(tree, leaves)


def _first(numbers: Any, shape: Shape) -> Any:
    return numbers[: math.prod(shape)].reshape(shape)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _draw(key: jax.Array, kind: str, count: int) -> jax.Array:
    return {"normal": jax.random.normal, "uniform": jax.random.uniform}[kind](key, (count,))


def _value(key: jax.Array, kind: str, shape: Shape, dtype: Dtype, finish: Callable[[Any], Any]) -> jax.Array:
    """The value, made from float32 numbers of `shape` of a kind: those that `jax.random` draws for it."""
    traced = _traced.get()
    if traced is None:
        numbers = _draw(key, kind, math.prod(shape)).reshape(shape)
        return jnp.asarray(finish(numbers), dtype)
    drawn = _draw(key, kind, max(_LEAST, 4 ** math.ceil(math.log(math.prod(shape), 4))))
    value = jnp.asarray(finish(_first(drawn, shape)), dtype)
    traced[id(value)] = _Drawn(value, drawn, finish)
    return value


def constant(value: float) -> Initializer:
    """One value everywhere."""

    def init(key: jax.Array, shape: Shape, dtype: Dtype = jnp.float32) -> jax.Array:
        full = jnp.full(shape, value, dtype)
        if (traced := _traced.get()) is not None:
            traced[id(full)] = _Drawn(full, None, lambda _: np.full(shape, value))
        return full

    return init


zeros, ones = constant(0.0), constant(1.0)


def normal(stddev: float) -> Initializer:
    """N(0, stddev²)."""

    def init(key: jax.Array, shape: Shape, dtype: Dtype = jnp.float32) -> jax.Array:
        return _value(key, "normal", shape, dtype, lambda numbers: numbers * np.float32(stddev))

    return init


def fan_out_normal(key: jax.Array, shape: Shape, dtype: Dtype = jnp.float32) -> jax.Array:
    """N(0, 2 / (k k out)) for kernels [k, k, in, out] (He et al. 2015)."""
    return normal(math.sqrt(2.0 / (math.prod(shape[:-2]) * shape[-1])))(key, shape, dtype)


def uniform(low: float, high: float) -> Initializer:
    """Uniform in [low, high)."""

    def init(key: jax.Array, shape: Shape, dtype: Dtype = jnp.float32) -> jax.Array:
        return _value(key, "uniform", shape, dtype, lambda unit: unit * np.float32(high - low) + np.float32(low))

    return init
