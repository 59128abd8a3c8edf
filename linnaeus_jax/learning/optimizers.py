"""Optimizers over parameter groups, layer-wise learning rates, gradient clipping and the parameter average.

Every optimizer here is linear in the learning rate, decoupled weight decay included. So the optax transform leaves the
learning rate and the sign out, and the step multiplies by the learning rate of each group: state and structure of the
optimizer do not depend on schedules, and the rate that is logged is the rate that was applied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import unflatten_dict
from ml_collections import ConfigDict

from linnaeus_jax.config.derived import STORED_GROUP
from linnaeus_jax.config.open_nodes import entry
from linnaeus_jax.learning.filters import Filter, Parameter, parse_filter
from linnaeus_jax.learning.joining import Joining, global_norm, worth_joining
from linnaeus_jax.learning.transforms import FROZEN, OPTIMIZERS, Path, build_transform, is_elementwise
from linnaeus_jax.mistakes import InputError

DEFAULT_GROUP = "default"
#: lower-case parts of names whose matrices are lookup tables or classifiers, not maps between hidden spaces
_NOT_HIDDEN = ("embed", "token", "table", "head", "classifier")


@dataclasses.dataclass(frozen=True)
class ParameterRow:
    """What happens to one parameter: a row of the dry-run table."""

    name: str
    shape: tuple[int, ...]
    group: str
    optimizer: str  # as registered, or "frozen"
    weight_decay: float
    lr_multiplier: float  # multiplier of the group times the layer factor


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """A gradient transformation with the grouping that the step and the reports need.

    Attributes:
      transform: optax transformation from gradients to what is subtracted per unit of learning rate; zeros for frozen
        parameters. Its state depends only on which optimizer a parameter has.
      factor: tree like the parameters; learning-rate factor of each leaf (layer-wise decay), a float, or float32
        `[layers, 1, ...]` for stacked layers.
      lr_multipliers: learning-rate multiplier of each trainable group, in configuration order. A multiplier of 0 is a
        learning rate, not a freeze: such parameters have gradients, norms and optimizer state like all others.
      rows: one row per parameter, in the given order.
      overlaps: one text per parameter that several groups asked for (the first got it).
      group_tree: tree like the parameters; group name of each leaf.
      ndim: tree like the parameters; axes of one layer's parameter: a leaf has as many more as scans stack it.
      joining: brings trees and states into the form that `joined` is for.
      joined: the same optimizer for joined leaves; what happens to an element is the same.
    """

    transform: optax.GradientTransformation
    factor: Any
    lr_multipliers: dict[str, float]
    rows: tuple[ParameterRow, ...]
    overlaps: tuple[str, ...]
    group_tree: Any
    ndim: Any
    joining: Joining
    joined: Optimizer | None = None

    def split_frozen(self, tree: Any) -> tuple[Any, Any]:
        """(what trains, what is frozen) of a tree like the parameters, each with None for the other."""
        trains = jax.tree.map(lambda group: group in self.lr_multipliers, self.group_tree)
        return (
            jax.tree.map(lambda train, part: part if train else None, trains, tree),
            jax.tree.map(lambda train, part: None if train else part, trains, tree),
        )

    def apply_learning_rates(self, updates: optax.Updates, lrs: Mapping[str, jax.typing.ArrayLike]) -> optax.Updates:
        """Applies rate and sign: `-lrs[group] * factor * updates`, for `optax.apply_updates`.

        Args:
          updates: tree from `transform.update`, may be None where frozen.
          lrs: learning rate (scalar) of every trainable group.

        Raises:
          ValueError: a trainable group has no learning rate.
        """
        missing = [group for group in self.lr_multipliers if group not in lrs]
        if missing:
            raise ValueError(f"no learning rate for the optimizer groups {missing}; got rates for {sorted(lrs)}")
        return jax.tree.map(
            lambda group, factor, update: (
                -1.0 * lrs[group] * factor * update if group in self.lr_multipliers else update
            ),
            self.group_tree,
            self.factor,
            updates,
        )


def join_frozen(trained: Any, frozen: Any) -> Any:
    """The whole tree that `Optimizer.split_frozen` parted; `trained` itself where `frozen` is None."""
    if frozen is None:
        return trained
    return jax.tree.map(lambda part, rest: rest if part is None else part, trained, frozen, is_leaf=lambda x: x is None)


@dataclasses.dataclass(frozen=True)
class _Group:
    name: str
    optimizer: str
    explicit: bool  # the group itself names its optimizer
    weight_decay: float
    lr_multiplier: float


def build_optimizer(
    settings: ConfigDict,
    parameters: Sequence[Parameter],
    *,
    layer_index: Callable[[str], int] | None = None,
    checkpoint_shapes: Mapping[str, tuple[int, ...]] | None = None,
    stage_of: Callable[[str], str] | None = None,
    trained: Collection[str] | None = None,
) -> Optimizer:
    """Assigns every parameter to one group and one optimizer, and builds the transformation.

    Groups are tried in configuration order and the first match wins; the rest is the group "default". Parameters with
    at most one axis and those named `*.bias` are never decayed. Muon takes matrices and convolution kernels; depthwise
    kernels, other shapes and, unless the group itself asks for Muon, embeddings, tokens, tables and heads get AdamW.

    Args:
      settings: the `optimizer` section of the configuration.
      parameters: all parameters of the model, stacked layers consecutively.
      layer_index: depth of a canonical name, 0 at the stem and largest at the heads; needed if `layer_decay` is not 1.
      checkpoint_shapes: see `parse_filter`.
      stage_of: see `parse_filter`.
      trained: names of the parameters that the loss depends on; the others are frozen, in the group "stored", whatever
        the groups say. None: all.

    Raises:
      ValueError: all problems of the section in one message: unknown optimizer, bad filter, filter without a match,
        group left empty by earlier ones, wrong number of betas.
    """
    groups, filters, errors = read_groups(settings, checkpoint_shapes=checkpoint_shapes, stage_of=stage_of)
    used = [parameter for parameter in parameters if trained is None or parameter.name in trained]
    assigned, overlaps = _assign(used, filters, errors)
    if len(used) < len(parameters):
        groups[STORED_GROUP] = _Group(STORED_GROUP, FROZEN, explicit=True, weight_decay=0.0, lr_multiplier=1.0)
        assigned = dict.fromkeys([parameter.name for parameter in parameters], STORED_GROUP) | assigned
    if settings.layer_decay != 1 and layer_index is None:
        errors.append(
            f"optimizer.layer_decay = {settings.layer_decay}: this model does not number its layers; set it to 1"
        )
    if errors:
        raise InputError("\n".join(errors))

    depth = {p.name: layer_index(p.name) if layer_index else 0 for p in parameters}
    deepest = max(depth.values(), default=0)
    rows, leaves = [], dict[Path, list[tuple[ParameterRow, float]]]()
    for parameter in parameters:
        group = groups[assigned[parameter.name]]
        factor = settings.layer_decay ** (deepest - depth[parameter.name])
        row = ParameterRow(
            name=parameter.name,
            shape=tuple(parameter.shape),
            group=group.name,
            optimizer=_optimizer_of(parameter, group),
            weight_decay=group.weight_decay if _is_decayed(parameter) and group.optimizer != FROZEN else 0.0,
            lr_multiplier=group.lr_multiplier * factor,
        )
        rows.append(row)
        leaves.setdefault(tuple(parameter.path), []).append((row, factor))
    kinds = {path: _agreed(path, members).optimizer for path, members in leaves.items()}
    if "lamb" in kinds.values() and any(len(members) > 1 for members in leaves.values()):
        raise InputError("optimizer 'lamb' scales every layer by its own norm and cannot be used with stacked layers")
    alike = {
        path: (kinds[path], row.group, row.weight_decay, factor)
        for path, [(row, factor), *others] in leaves.items()
        if not others and is_elementwise(kinds[path]) and worth_joining()
    }
    joining = Joining({path: members[0][0].shape for path, members in leaves.items()}, alike)
    paths = {path: held[0] for path, held in joining.paths().items()}

    def assembled(leaf_of: Mapping[Path, Path], joined: Optimizer | None) -> Optimizer:
        """For leaves at these paths, each treated as one of the parameters is."""
        members = {path: leaves[leaf] for path, leaf in leaf_of.items()}
        first = {path: row for path, [(row, _), *_] in members.items()}
        decay = {path: row.weight_decay for path, row in first.items()}
        ndim = {path: len(row.shape) for path, row in first.items()}
        labels = {path: kinds[leaf] for path, leaf in leaf_of.items()}
        transforms = {
            name: build_transform(name, settings, decay, ndim)
            for name in (*OPTIMIZERS, FROZEN)
            if name in labels.values()
        }
        return Optimizer(
            transform=optax.partition(transforms, unflatten_dict(labels)),
            factor=unflatten_dict({path: _factor(members[path], ndim[path]) for path in members}),
            lr_multipliers={
                g.name: g.lr_multiplier
                for g in groups.values()
                if g.optimizer != FROZEN and g.name in assigned.values()
            },
            rows=tuple(rows),
            overlaps=tuple(overlaps),
            group_tree=unflatten_dict({path: row.group for path, row in first.items()}),
            ndim=unflatten_dict(ndim),
            joining=joining,
            joined=joined,
        )

    return assembled({path: path for path in leaves}, assembled(paths, None))


def read_groups(
    settings: ConfigDict,
    *,
    checkpoint_shapes: Mapping[str, tuple[int, ...]] | None = None,
    stage_of: Callable[[str], str] | None = None,
) -> tuple[dict[str, _Group], dict[str, Filter], list[str]]:
    """Groups by name ("default" last), their filters, and everything that is wrong with either or their optimizers."""
    node = settings.parameter_groups
    # ConfigDict iterates over its keys alphabetically; only its fields keep the order of the configuration.
    order = [key for key in node._fields if key not in ("enabled", DEFAULT_GROUP)] if node.enabled else []
    groups, filters, errors = dict[str, _Group](), dict[str, Filter](), list[str]()
    for name in (*order, DEFAULT_GROUP):
        key = f"optimizer.parameter_groups.{name}"
        given = node[name] if node.enabled else entry("optimizer.parameter_groups")
        asked = given.optimizer or settings.name
        optimizer = asked if asked in OPTIMIZERS else asked.lower()
        try:
            if optimizer not in OPTIMIZERS:
                where = f"{key}.optimizer" if given.optimizer else "optimizer.name"
                raise InputError(f"{where} = {asked!r} is unknown; choose one of {', '.join(OPTIMIZERS)}")
            build_transform(optimizer, settings)
        except ValueError as error:
            errors.append(str(error))
        decay = settings.weight_decay if given.weight_decay is None else given.weight_decay
        frozen = given.get("frozen", False)
        groups[name] = _Group(
            name, FROZEN if frozen else optimizer, bool(given.optimizer), float(decay), float(given.lr_multiplier)
        )
        if name != DEFAULT_GROUP:
            try:
                filters[name] = parse_filter(
                    given.filter, f"{key}.filter", checkpoint_shapes=checkpoint_shapes, stage_of=stage_of
                )
            except ValueError as error:
                errors.append(str(error))
    return groups, filters, list(dict.fromkeys(errors))


def _assign(
    parameters: Sequence[Parameter], filters: Mapping[str, Filter], errors: list[str]
) -> tuple[dict[str, str], list[str]]:
    """Group of each parameter name and the overlaps; adds groups without parameters to `errors`."""
    assigned, overlaps = dict[str, str](), list[str]()
    match_counts = dict.fromkeys(filters, 0)
    for parameter in parameters:
        matches = [name for name, matches in filters.items() if matches(parameter)]
        for name in matches:
            match_counts[name] += 1
        assigned[parameter.name] = (*matches, DEFAULT_GROUP)[0]
        if len(matches) > 1:
            overlaps.append(f"{parameter.name} matches {', '.join(matches)}; {matches[0]} takes it")
    for name, count in match_counts.items():
        key = f"optimizer.parameter_groups.{name}"
        if not count:
            errors.append(f"{key}.filter matches none of the {len(parameters)} parameters; correct or remove it")
        elif name not in assigned.values():
            errors.append(f"{key} is empty: earlier groups take all of its {count} parameters; move it up or remove it")
    return assigned, overlaps


def _is_decayed(parameter: Parameter) -> bool:
    return len(parameter.shape) > 1 and not parameter.name.endswith(".bias")


def _optimizer_of(parameter: Parameter, group: _Group) -> str:
    if group.optimizer != "muon":
        return group.optimizer
    shape, name = parameter.shape, parameter.name.lower()
    is_matrix = len(shape) == 2 or (len(shape) == 4 and shape[2] > 1)  # one input per output channel: depthwise
    is_hidden = group.explicit or not any(part in name for part in _NOT_HIDDEN)
    return "muon" if is_matrix and is_hidden else "adamw"


def _agreed(path: Path, members: Sequence[tuple[ParameterRow, float]]) -> ParameterRow:
    first = members[0][0]
    for row, _ in members[1:]:
        if (row.group, row.optimizer, row.weight_decay) != (first.group, first.optimizer, first.weight_decay):
            raise InputError(
                f"{first.name} and {row.name} are layers of one stacked parameter ({'/'.join(path)}) but fall into the "
                f"groups {first.group!r} and {row.group!r}; do not stack layers, or put them into one group"
            )
    return first


def _factor(members: Sequence[tuple[ParameterRow, float]], ndim: int) -> float | np.ndarray:
    factors = [factor for _, factor in members]
    if len(set(factors)) == 1:
        return factors[0]
    return np.asarray(factors, np.float32).reshape(-1, *[1] * ndim)


def clip(
    grads: optax.Updates, mode: str, limit: float, *, params: optax.Params | None = None, ndim: Any = None
) -> tuple[optax.Updates, jax.Array]:
    """Clips gradients and returns their global norm from before clipping.

    Args:
      grads: tree of float gradients.
      mode: "norm": scale everything by min(1, limit / (norm + 1e-6)). "adaptive": limit each output unit's gradient
        to `limit` times the norm of its weights (Brock et al., 2021).
      limit: largest global norm, or largest ratio; <= 0 turns clipping off.
      params: tree of parameters; needed by "adaptive".
      ndim: tree of axes per layer, see `Optimizer`; "adaptive" takes every layer of a stacked leaf on its own. None:
        nothing is stacked.

    Returns:
      The clipped tree and the float32 scalar global L2 norm; a non-finite norm is passed on, not hidden.

    Raises:
      ValueError: unknown mode, or "adaptive" without `params`.
    """
    norm = global_norm(grads)
    if limit <= 0:
        return grads, norm
    if mode == "norm":
        factor = clip_factor(norm, limit)
        return jax.tree.map(lambda g: g * factor, grads), norm
    if mode == "adaptive":
        if params is None:
            raise ValueError("train.clip_mode = 'adaptive' compares gradients with weights: pass params")
        adaptive = optax.adaptive_grad_clip(limit)
        layers, weights = (_layers(tree, ndim) for tree in (grads, params))
        clipped, _ = adaptive.update(layers, adaptive.init(weights), weights)
        return jax.tree.map(
            lambda grad, found: jnp.stack(found).reshape(grad.shape) if isinstance(found, list) else found,
            grads,
            clipped,
        ), norm
    raise InputError(f"train.clip_mode = {mode!r} is unknown; choose norm or adaptive")


def clip_factor(norm: jax.Array, limit: float) -> jax.Array:
    """What gradients of that global norm are multiplied by, so that their norm is at most `limit`."""
    return jnp.minimum(1.0, limit / (norm + 1e-6))


def _layers(tree: Any, ndim: Any) -> Any:
    """`tree` with stacked leaves as lists of their layers."""
    if ndim is None:
        return tree

    def unstacked(axes: int, leaf: jax.Array | None) -> Any:
        if leaf is None or leaf.ndim == axes:
            return leaf
        return list(leaf.reshape(-1, *leaf.shape[leaf.ndim - axes :]))

    return jax.tree.map(unstacked, ndim, tree)


def ema_update(ema: optax.Params, params: optax.Params, decay: float, step: jax.typing.ArrayLike) -> optax.Params:
    """Moves the averaged parameters towards the current ones.

    The decay used is min(decay, (1 + step) / (10 + step)), so that the average follows the weights closely at first.

    Args:
      ema: tree of averages.
      params: tree of current parameters, same structure.
      decay: final weight of the old average, in [0, 1).
      step: number of updates before this one (int scalar, may be traced).
    """
    step = jnp.asarray(step, jnp.float32)
    return optax.incremental_update(params, ema, 1.0 - jnp.minimum(decay, (1.0 + step) / (10.0 + step)))
