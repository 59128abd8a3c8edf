"""What the tests of both families do with golden numbers of whole models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.models.names import params_from_torch, params_to_torch


def shapes(model: Any) -> Any:
    """Shapes and dtypes of a model's variables by collection."""
    image = jax.ShapeDtypeStruct((1, *model.img_size, 3), jnp.float32)
    return jax.eval_shape(model.init, jax.random.key(0), image)


def count(tree: Any) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def golden_variables(golden: Mapping[str, np.ndarray], model: Any) -> dict[str, Any]:
    """The golden weights and running statistics by collection."""
    state = {name.removeprefix("param/"): value for name, value in golden.items() if name.startswith("param/")}
    moments = {name for name in state if name.rpartition(".")[2].startswith("running_")}
    parts = {"params": state.keys() - moments, "batch_stats": moments}
    variables = {
        collection: params_from_torch({name: state[name] for name in parts[collection]}, like)
        for collection, like in shapes(model).items()
    }
    return dict(jax.device_put(variables))  # jnp.asarray compiles a program for every shape


def golden_inputs(golden: Mapping[str, np.ndarray]) -> tuple[jax.Array, jax.Array]:
    images, meta = jax.device_put((golden["in/images"].transpose(0, 2, 3, 1), golden["in/meta"]))
    return images, meta


def cosine_loss(logits: Mapping[str, jax.Array]) -> jax.Array:
    """The golden gradients' loss: every logit weighted by a cosine of its position."""
    return sum(
        (
            jnp.sum(x * jnp.cos(jnp.arange(x.size, dtype=jnp.float32) + i).reshape(x.shape))
            for i, x in enumerate(logits.values())
        ),
        start=jnp.float32(0),
    )


def value_and_grad(model: Any, variables: Any, inputs: tuple, *, mutable: Any = False, **kwargs: Any) -> Any:
    """((loss, (logits, changed collections)), gradients) of one compiled call."""
    rest = {name: value for name, value in variables.items() if name != "params"}

    def loss(params: Any, rest: Any, inputs: tuple) -> Any:
        out = model.apply({"params": params, **rest}, *inputs, mutable=mutable, **kwargs)
        logits, changed = out if mutable else (out, {})
        return cosine_loss(logits), (logits, changed)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(variables["params"], rest, inputs)


def watched(apply: Any) -> dict[str, tuple[Any, Any]]:
    """(First input, output) of every module call by path, from `apply()`, which may be traced."""
    seen: dict[str, tuple[Any, Any]] = {}

    def watch(next_fun: Any, args: Any, kwargs: Any, context: Any) -> Any:
        out = next_fun(*args, **kwargs)
        if context.method_name == "__call__":
            seen[".".join(context.module.path)] = (args[0] if args else None, out)
        return out

    with nn.intercept_methods(watch):
        apply()
    return seen


def check_gradient_norms(
    grads: Any, order: Sequence[str], expected: np.ndarray, *, tolerance: float, zero: frozenset[str]
) -> dict[str, np.ndarray]:
    """Compares the norm of every gradient; those in `zero` are 0 in exact arithmetic. Returns the gradients by name."""
    named = params_to_torch(grads)
    assert set(named) == set(order)
    for name, norm in zip(order, expected):
        difference = abs(np.linalg.norm(named[name]) - norm)
        assert difference <= (1e-5 if name in zero else tolerance * (norm + 1e-3)), name
    return named
