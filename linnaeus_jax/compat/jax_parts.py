"""Parts of JAX below `jax.extend` and `jax.interpreters`, and private attributes of compiled functions."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import ensure_compile_time_eval
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun, jaxprs_in_params

try:
    from jax.extend.core import get_opaque_trace_state
    from jax.interpreters.partial_eval import dce_jaxpr
except ImportError:  # each function below says what it does then
    dce_jaxpr = get_opaque_trace_state = None  # type: ignore[assignment]

__all__ = [
    "ClosedJaxpr",
    "Jaxpr",
    "JaxprEqn",
    "Var",
    "compilations",
    "inlined",
    "jaxprs_in_params",
    "trace_state",
    "without_first",
]


def compilations(jitted: Callable[..., Any]) -> int:
    """How many programs a function of `jax.jit` holds, one for each shape of its arguments.

    Without `_cache_size`: 0, so that the heap keeps the fragments of evaluation's compilation, see `step/process`.
    """
    count = getattr(jitted, "_cache_size", None)
    return 0 if count is None else int(count())


def trace_state() -> Any:
    """What tells one trace of JAX from another, as Flax keeps it in `Scope.trace_level`.

    Without `get_opaque_trace_state`: None, and what a plain transform inside a model hides fails in Flax's words.
    """
    return None if get_opaque_trace_state is None else get_opaque_trace_state(convention="flax")


def without_first(closed: ClosedJaxpr, count: int) -> Callable[[Any], Sequence[Any]]:
    """A traced function of one argument that no longer makes its first `count` results.

    Without `dce_jaxpr`: it makes and drops them, operation by operation, which takes longer.
    """
    if dce_jaxpr is None:
        whole = jaxpr_as_fun(closed)
        return lambda argument: whole(argument)[count:]
    used = [place >= count for place in range(len(closed.out_avals))]
    jaxpr, (needed,) = dce_jaxpr(closed.jaxpr, used)
    rest = jaxpr_as_fun(ClosedJaxpr(jaxpr, closed.consts))
    return lambda argument: rest(argument) if needed else rest()


#: operation that calls a traced function as it is -> parameter that holds it; of others, such as loops, it is a part
_CALLS = {
    "jit": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}


def _told(value: Any) -> Hashable:
    """What tells a value from others: of a constant its content."""
    if isinstance(value, Tracer):
        return id(value)
    array = np.asarray(value)
    return array.shape, array.dtype.str, hashlib.sha256(array.tobytes()).digest()


def inlined(closed: ClosedJaxpr, replaced: Mapping[str, Callable[..., Any]]) -> Callable[..., list[Any]]:
    """What a traced function computes, without calls of functions in it, and some operations otherwise. What depends on
    no argument is computed at once, and what is the same operation of the same values once.

    Without a parameter of that name in a call: KeyError, and there is no export to ONNX with that version.

    Args:
      replaced: name of an operation of one result -> what takes its arguments, and its parameters by keyword; or of a
        function that is called -> what takes its arguments.
    """

    def evaluated(inner: ClosedJaxpr, arguments: Sequence[Any], done: dict[Hashable, Any]) -> list[Any]:
        jaxpr = inner.jaxpr
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*inner.consts, *arguments], strict=True))

        def value(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else values[atom]

        for eqn in jaxpr.eqns:
            given, name = [value(atom) for atom in eqn.invars], eqn.primitive.name
            called = str(eqn.params.get("name")) if name in _CALLS else name
            known = not any(isinstance(each, Tracer) for each in given)
            key = (name, str(eqn.params), *map(_told, given))  # which says not all of functions among the parameters
            if key in done and not known and not any(True for _ in jaxprs_in_params(eqn.params)):
                values.update(zip(eqn.outvars, done[key][0], strict=True))
                continue
            fixed = all(isinstance(size, int) for var in eqn.outvars for size in getattr(var.aval, "shape", ()))
            with ensure_compile_time_eval() if known and fixed else contextlib.nullcontext():
                if called in replaced:
                    results = [replaced[called](*given, **({} if name in _CALLS else eqn.params))]
                elif name in _CALLS:
                    results = evaluated(eqn.params[_CALLS[name]], given, done)
                else:
                    made = eqn.primitive.bind(*given, **eqn.params)
                    results = made if eqn.primitive.multiple_results else [made]
            done[key] = results, given  # which keeps their ids
            values.update(zip(eqn.outvars, results, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    return lambda *arguments: evaluated(closed, arguments, {})
