"""What a model costs, from abstract traces alone: parameters, multiply-adds of a forward pass, kept activations.

Nothing is compiled and no array is made, so the largest model takes seconds on any machine. A multiply-add counts as
one; convolutions and matrix products are counted, elementwise work and normalisation are not, as in published tables.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.compat.jax_parts import Jaxpr, JaxprEqn, Var, inlined, jaxprs_in_params
from linnaeus_jax.models.family import RNG_STREAMS, ModelFamily
from linnaeus_jax.models.names import abstract_variables, parameter_table

#: fields of a family that choose among implementations of equal numbers -> the one whose equations are counted: sums
#: of shifted slices and fused attention kernels show no convolution and no product
COUNTED_FORM = {"depthwise_impl": "lax", "attn_impl": "xla"}


def parameters_by_stage(model: ModelFamily) -> dict[str, int]:
    """Number of parameters in each group of `model.stage_of`, in the order of the parameter tree.

    Raises:
      ValueError: a parameter that belongs to no group.
    """
    counts: dict[str, int] = {}
    for parameter in parameter_table(model):
        stage = model.stage_of(parameter.name)
        counts[stage] = counts.get(stage, 0) + int(np.prod(parameter.shape))
    return counts


def forward_multiply_adds(model: ModelFamily) -> int:
    """Multiply-adds of one picture's way through the model in evaluation, with all its metadata and heads."""
    model = _counted(model)
    return multiply_adds(jax.make_jaxpr(model.apply)(abstract_variables(model), *_inputs(model, 1)).jaxpr)


def multiply_adds_behind(model: ModelFamily, paths: Collection[tuple[str, ...]]) -> int:
    """Those of `forward_multiply_adds` that depend on some variables, at these paths from the collection on."""
    model = _counted(model)
    variables = abstract_variables(model)
    closed = jax.make_jaxpr(model.apply)(variables, *_inputs(model, 1))
    jaxpr = jax.make_jaxpr(inlined(closed, {}))(*closed.in_avals).jaxpr
    leaves = jax.tree_util.tree_leaves_with_path(variables)
    reached = {var for var, (path, _) in zip(jaxpr.invars, leaves) if tuple(key.key for key in path) in paths}
    count = 0
    for equation in jaxpr.eqns:
        if any(isinstance(value, Var) and value in reached for value in equation.invars):
            reached.update(equation.outvars)
            count += _equation(equation)
    return count


def multiply_adds(jaxpr: Jaxpr) -> int:
    """Multiply-adds of all convolutions and matrix products of a traced function, at any depth.

    The body of a scan counts as often as it runs, of a conditional the dearest branch, and of what has a form of its
    own for some platforms the common one: the others may multiply to save something else.

    Raises:
      ValueError: a loop of unknown length holds any.
    """
    return sum(_equation(equation) for equation in jaxpr.eqns)


def _equation(equation: JaxprEqn) -> int:
    kind, params = equation.primitive.name, equation.params
    inputs: list[Any] = [value.aval for value in equation.invars]
    outputs: list[Any] = [value.aval for value in equation.outvars]
    if kind == "dot_general":
        (contracted, _), (shared, _) = params["dimension_numbers"]
        if min(len(x.shape) for x in inputs) == len(contracted) + len(shared):
            return 0  # by a vector: a weighted sum, as norms of narrow numbers take it
        return int(outputs[0].size * np.prod([inputs[0].shape[axis] for axis in contracted]))
    if kind == "conv_general_dilated":
        features = params["dimension_numbers"].rhs_spec[0]
        return int(outputs[0].size * inputs[1].size // inputs[1].shape[features])
    inner = [multiply_adds(jaxpr) for jaxpr in jaxprs_in_params(params)]
    if kind == "while" and any(inner):
        raise ValueError("a loop of unknown length holds products; scan over a known length to have them counted")
    if kind == "cond":
        platforms = params.get("branches_platforms")
        return inner[platforms.index(None)] if platforms and None in platforms else max(inner)
    return sum(inner) * (params["length"] if kind == "scan" else 1)


def activation_bytes(model: ModelFamily) -> int:
    """Bytes per picture that the forward pass of training keeps for the backward pass.

    They are what the transposed trace needs beside the parameters, counted once each; what one more picture adds.
    `model.remat` and `model.dtype` count. The compiler may keep less (it recomputes what is cheap); the temporary
    values of a single layer come on top, once and not for every layer.
    """
    model = _counted(model)
    return _kept_bytes(model, 2) - _kept_bytes(model, 1)


def _kept_bytes(model: ModelFamily, batch: int) -> int:
    def backward(variables: Any, image: jax.Array, meta: jax.Array, keys: Any) -> Any:
        state = dict(variables)
        params = state.pop("params")

        def forward(params: Any) -> Any:
            return model.apply({"params": params, **state}, image, meta, train=True, rngs=keys, mutable=list(state))

        return jax.vjp(forward, params, has_aux=True)[1]  # its leaves are what is kept

    keys = dict.fromkeys(RNG_STREAMS, _key())
    jaxpr = jax.make_jaxpr(backward)(abstract_variables(model), *_inputs(model, batch), keys).jaxpr
    kept: dict[int, Any] = {id(value): value.aval for value in jaxpr.outvars if isinstance(value, Var)}
    return sum(aval.size * aval.dtype.itemsize for aval in kept.values())


def _counted(model: ModelFamily) -> ModelFamily:
    fields = model.__dataclass_fields__
    forms: dict[str, Any] = {name: form for name, form in COUNTED_FORM.items() if name in fields}
    return model.clone(**forms)


def _key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


def _inputs(model: ModelFamily, batch: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    image, meta = (batch, *model.img_size, 3), (batch, model.meta_dim)
    return jax.ShapeDtypeStruct(image, jnp.float32), jax.ShapeDtypeStruct(meta, jnp.float32)
