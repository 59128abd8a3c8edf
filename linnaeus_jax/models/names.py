"""One name for every parameter, the same in logs, filters, checkpoint listings and PyTorch files.

A canonical name is the dotted torch-style name, e.g. `stages.2.0.attn.qkv.weight`. The Flax path has the same parts;
only the weights' leaf names differ (`kernel`, `scale`), and a torch list that is no module is joined with the index
that follows: ("stages.2", "0", "attn", "qkv", "kernel"). A family chooses the names by naming its modules.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from linnaeus_jax.mistakes import InputError, shortened
from linnaeus_jax.models import initial
from linnaeus_jax.models.family import ModelFamily

Path = tuple[str, ...]
#: of what is stored of a picture, as in `data/stored_inputs.py`
STORED_DTYPE = jnp.float16


class ParameterInfo(NamedTuple):
    """One parameter: canonical name, Flax path, shape in Flax layout and the class name of the module that owns it."""

    name: str
    path: Path
    shape: tuple[int, ...]
    layer_type: str


def canonical_name(path: Path) -> str:
    """The canonical name of the parameter at a Flax path, e.g. of ("stem", "0", "kernel") `stem.0.weight`."""
    leaf = "weight" if path[-1] in ("kernel", "scale") else path[-1]
    return ".".join((*path[:-1], leaf))


def named_leaves(params: Mapping[str, Any]) -> Iterator[tuple[str, Path, Any]]:
    """Yields (canonical name, Flax path, leaf) of a nested parameter dict, in tree order."""
    for keys, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        path = tuple(key.key for key in keys)
        yield canonical_name(path), path, leaf


def _torch_axes(path: Path, ndim: int) -> tuple[int, ...] | None:
    """Axes that bring a Flax kernel (..., in, out) into torch's layout (out, in, ...); None: nothing to do."""
    return (ndim - 1, ndim - 2, *range(ndim - 2)) if path[-1] == "kernel" and ndim >= 2 else None


def to_torch_layout(path: Path, value: np.ndarray) -> np.ndarray:
    """Linear (in, out) -> (out, in), convolution HWIO -> OIHW; all other parameters are the same in both."""
    axes = _torch_axes(path, value.ndim)
    return value if axes is None else np.transpose(value, axes)


def from_torch_layout(path: Path, value: np.ndarray) -> np.ndarray:
    """The inverse of `to_torch_layout`."""
    axes = _torch_axes(path, value.ndim)
    return value if axes is None else np.transpose(value, np.argsort(axes))


def params_to_torch(params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The leaves of one collection under their canonical names, as contiguous numpy arrays in torch's layout."""
    return {
        name: np.asarray(to_torch_layout(path, np.asarray(leaf)), order="C")
        for name, path, leaf in named_leaves(params)
    }


def params_from_torch(state: Mapping[str, np.ndarray], params_like: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters from a state dict in torch's names and layout.

    Args:
      state: canonical name -> array.
      params_like: parameters, or their shapes and dtypes, of the model that receives them.

    Returns:
      A nested dict like `params_like` of numpy arrays with its dtypes.

    Raises:
      ValueError: names are missing or unexpected, or shapes differ; the message lists up to five of each.
    """
    leaves = {name: (path, leaf) for name, path, leaf in named_leaves(params_like)}
    problems = _some("missing", [name for name in leaves if name not in state])
    problems += _some("unexpected", [name for name in state if name not in leaves])
    values, wrong_shapes = [], []
    for name, (path, leaf) in leaves.items():
        if name in state:
            values.append(np.asarray(from_torch_layout(path, np.asarray(state[name])), dtype=leaf.dtype))
            if values[-1].shape != leaf.shape:
                wrong_shapes.append(f"{name} {values[-1].shape} instead of {leaf.shape}")
    problems += _some("wrong shape", wrong_shapes)
    if problems:
        raise InputError("the state dict does not fit the model: " + "; ".join(problems))
    return jax.tree.unflatten(jax.tree.structure(params_like), values)


def _some(what: str, items: list[str]) -> list[str]:
    return [f"{what}: {shortened(items, 5)}"] if items else []


@functools.lru_cache(maxsize=8)
def _traced(model: ModelFamily) -> tuple[initial.TracedInit, dict[Path, str]]:
    """How a model's variables begin, and the class names of its modules, by one abstract trace."""
    owners: dict[Path, str] = {}

    def note(next_fun: Any, args: Any, kwargs: Any, context: Any) -> Any:
        owners[context.module.path] = type(context.module).__name__
        return next_fun(*args, **kwargs)

    def init(key: jax.Array) -> dict[str, Any]:
        with initial.weights_by(model.weight_init):
            return dict(model.init(key, jnp.zeros((1, *model.img_size, 3)), jnp.zeros((1, model.meta_dim))))

    with nn.intercept_methods(note):
        return initial.trace(init), owners


def entered(model: ModelFamily, block: int) -> jax.ShapeDtypeStruct:
    """What is stored of a picture that enters a block, `STORED_DTYPE` [1, ...]; see `ModelFamily.forward_prefix`."""
    image = jnp.zeros((1, *model.img_size, 3))
    made = jax.eval_shape(lambda v: model.apply(v, image, block, method="forward_prefix"), abstract_variables(model))
    return jax.ShapeDtypeStruct(made.shape, STORED_DTYPE)


def trained_from(model: ModelFamily, block: int) -> frozenset[str]:
    """Canonical names of the parameters that a model uses behind `ModelFamily.forward_prefix`."""

    def init(key: jax.Array, x: jax.Array) -> Any:
        return model.init(key, x, jnp.zeros((1, model.meta_dim)), block=block)["params"]

    used = jax.eval_shape(init, jax.random.key(0), entered(model, block))
    return frozenset(name for name, _, _ in named_leaves(used))


def initial_variables(model: ModelFamily, key: jax.Array) -> dict[str, Any]:
    """A model's variables by collection, as a run begins with them; see `TracedInit.evaluate`."""
    return dict(_traced(model)[0].evaluate(key))


def abstract_variables(model: ModelFamily) -> dict[str, Any]:
    """Shapes and dtypes of a model's variables by collection."""
    return dict(_traced(model)[0].shapes)


def parameter_table(model: ModelFamily) -> list[ParameterInfo]:
    """Lists all parameters with the class names of their modules, found by one abstract trace of the model.

    Raises:
      ValueError: a module has a `kernel` and a `scale`, which share the canonical name `weight`.
    """
    traced, owners = _traced(model)
    table = [
        ParameterInfo(name, path, tuple(leaf.shape), owners[path[:-1]])
        for name, path, leaf in named_leaves(traced.shapes["params"])
    ]
    paths = {row.name: row.path for row in table}
    for row in table:
        if paths[row.name] != row.path:
            raise InputError(f"parameters {row.path} and {paths[row.name]} are both called {row.name}; rename one")
    return table
