"""One name for every parameter, the same in logs, filters, checkpoint listings and PyTorch files.

A canonical name is the dotted torch-style name, e.g. `stages.2.0.attn.qkv.weight`. The Flax path has the same parts;
only the weights' leaf names differ (`kernel`, `scale`), and the lists `stages` and `downsample_layers`, which are no
modules, are joined with the index that follows: ("stages.2", "0", "attn", "qkv", "kernel").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

Path = tuple[str, ...]

_LISTS = ("stages", "downsample_layers")
_NORM = re.compile(r"(^|\.)(norm\w*|final_norm)$|^(stem|cl_1_fc)\.1$|^meta_\w+_head_[12]\.2$")
_VECTORS = ("bias", "gamma", "freqs", "cls_token_1", "cls_token_2")
_STAGES = (
    ("stages.rope_freqs", re.compile(r"attn\.freqs$")),
    ("heads.classification_heads", re.compile(r"^head\.")),
    ("heads.meta_heads", re.compile(r"^meta_")),
    ("embeddings", re.compile(r"^cls_token")),
    ("aggregation", re.compile(r"^(cl_1_fc|aggregate|final_norm)\.")),
    ("stages.convnext_stages", re.compile(r"^(stem|stages\.[01]|downsample_layers\.[01])\.")),
    ("stages.rope_stages", re.compile(r"^(stages\.[23]|downsample_layers\.2)\.")),
    ("norm_layers", re.compile(r"^norm_[12]\.")),
)
STAGES = tuple(name for name, _ in _STAGES)


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


def flax_path(name: str) -> Path:
    """The Flax path of a canonical name.

    Raises:
      ValueError: the last part is none of the parameter names that the models use.
    """
    owner, _, leaf = name.rpartition(".")
    if leaf == "weight":
        leaf = "scale" if _NORM.search(owner) else "kernel"
    elif leaf not in _VECTORS:
        raise ValueError(f"parameter name {name!r} ends in {leaf!r}; known: weight, {', '.join(_VECTORS)}")
    parts = owner.split(".") if owner else []
    if parts and parts[0] in _LISTS:
        parts[:2] = [".".join(parts[:2])]
    return (*parts, leaf)


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
    """All parameters under their canonical names, as numpy arrays in torch's layout."""
    return {
        name: np.ascontiguousarray(to_torch_layout(path, np.asarray(leaf))) for name, path, leaf in named_leaves(params)
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
    wanted = {name: (path, leaf) for name, path, leaf in named_leaves(params_like)}
    problems = _some("missing", [name for name in wanted if name not in state])
    problems += _some("unexpected", [name for name in state if name not in wanted])
    values, misfits = {}, []
    for name, (path, leaf) in wanted.items():
        if name in state:
            values[path] = np.asarray(from_torch_layout(path, np.asarray(state[name])), dtype=leaf.dtype)
            if values[path].shape != leaf.shape:
                misfits.append(f"{name} {values[path].shape} instead of {leaf.shape}")
    problems += _some("wrong shape", misfits)
    if problems:
        raise ValueError("the state dict does not fit the model: " + "; ".join(problems))
    paths = [tuple(key.key for key in keys) for keys, _ in jax.tree_util.tree_flatten_with_path(params_like)[0]]
    return jax.tree.unflatten(jax.tree.structure(params_like), [values[path] for path in paths])


def _some(what: str, items: list[str]) -> list[str]:
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    return [f"{what}: {', '.join(items[:5])}{more}"] if items else []


def parameter_table(model: nn.Module, params: Mapping[str, Any]) -> list[ParameterInfo]:
    """Lists all parameters with the class names of their modules, found by one abstract trace of the model.

    Args:
      model: a built model with `img_size` and `in_chans`.
      params: its parameters or their shapes (the collection itself, without the key "params").
    """
    owners: dict[Path, str] = {}

    def note(next_fun: Any, args: Any, kwargs: Any, context: Any) -> Any:
        owners[context.module.path] = type(context.module).__name__
        return next_fun(*args, **kwargs)

    height, width = model.img_size
    image = jax.ShapeDtypeStruct((1, height, width, model.in_chans), jnp.float32)
    with nn.intercept_methods(note):
        jax.eval_shape(lambda key, image: model.init(key, image), jax.random.key(0), image)
    return [
        ParameterInfo(name, path, tuple(leaf.shape), owners[path[:-1]]) for name, path, leaf in named_leaves(params)
    ]


def stage_of(name: str) -> str:
    """The group, one of `STAGES`, of the parameter with a canonical name; every parameter has exactly one.

    Norms inside a stage belong to the stage; `norm_layers` are those between stages.

    Raises:
      ValueError: the name belongs to no group.
    """
    for stage, pattern in _STAGES:
        if pattern.search(name):
            return stage
    raise ValueError(f"parameter {name!r} belongs to none of the stages {', '.join(STAGES)}")


def num_layers(model: nn.Module) -> int:
    """Number of values of `layer_index`: the stem, every block, the heads."""
    return sum(model.block_depths) + 2


def layer_index(name: str, model: nn.Module) -> int:
    """Depth of a parameter for layer-wise learning-rate decay (Clark et al. 2020; Bao et al. 2022 for images).

    0 is the stem, 1 ... L the blocks in the order of computation, L + 1 the heads with the aggregation and the norms
    that feed them. What enters before a stage (downsampling, class token, metadata heads, `norm_1`) counts as its
    first block.

    Raises:
      ValueError: the name belongs to no layer of the model.
    """
    depths = model.block_depths
    first = [1 + sum(depths[:stage]) for stage in range(len(depths))]
    if block := re.match(r"stages\.(\d+)\.(\d+)\.", name):
        stage, position = int(block[1]), int(block[2])
        if stage < len(depths) and position < depths[stage]:
            return first[stage] + position
    elif name.startswith("stem."):
        return 0
    elif down := re.match(r"downsample_layers\.([012])\.", name):
        return first[int(down[1]) + 1]
    elif entry := re.match(r"cls_token_([12])$|meta_\w+_head_([12])\.", name):
        return first[int(entry[1] or entry[2]) + 1]
    elif name.startswith("norm_1."):
        return first[3]
    elif re.match(r"(norm_2|final_norm|cl_1_fc|aggregate|head)\.", name):
        return sum(depths) + 1
    raise ValueError(f"parameter {name!r} belongs to no layer of a model with {depths} blocks per stage")
