"""The optimizer of a configuration: which group, optimizer, decay and learning-rate factor each parameter has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

import numpy as np
import optax
from flax.traverse_util import unflatten_dict

from linnaeus_jax.config.derived import STORED_GROUP
from linnaeus_jax.config.open_nodes import entry
from linnaeus_jax.config.typed import OptimizerConfig
from linnaeus_jax.learning.buckets import LeafBuckets, worth_gathering
from linnaeus_jax.learning.filters import Filter, Parameter, parse_filter
from linnaeus_jax.learning.transforms import FROZEN, OPTIMIZERS, Path, build_transform, is_elementwise
from linnaeus_jax.learning.update import Optimizer, ParameterRow
from linnaeus_jax.mistakes import InputError

DEFAULT_GROUP = "default"
#: lower-case parts of names whose matrices are lookup tables or classifiers, not maps between hidden spaces
_NOT_HIDDEN = ("embed", "token", "table", "head", "classifier")


@dataclasses.dataclass(frozen=True)
class _Group:
    name: str
    optimizer: str
    explicit: bool  # the group itself names its optimizer
    weight_decay: float
    lr_multiplier: float


def build_optimizer(
    settings: OptimizerConfig,
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
    assigned, overlaps = _assign(parameters, trained, groups, filters, errors)
    if settings.layer_decay != 1 and layer_index is None:
        errors.append(
            f"optimizer.layer_decay = {settings.layer_decay}: this model does not number its layers; set it to 1"
        )
    if errors:
        raise InputError("\n".join(errors))
    factors = _layer_factors(parameters, settings.layer_decay, layer_index)
    rows = [_row(p, groups[assigned[p.name]], factor) for p, factor in zip(parameters, factors, strict=True)]
    leaves = dict[Path, list[tuple[ParameterRow, float]]]()
    for parameter, row, factor in zip(parameters, rows, factors, strict=True):
        leaves.setdefault(tuple(parameter.path), []).append((row, factor))
    first = {path: _agreed(path, members) for path, members in leaves.items()}
    ndim = {path: len(row.shape) for path, row in first.items()}
    return Optimizer(
        transform=_transform(settings, first, stacked=any(len(members) > 1 for members in leaves.values())),
        factor=unflatten_dict({path: _factor(members, ndim[path]) for path, members in leaves.items()}),
        lr_multipliers={
            g.name: g.lr_multiplier for g in groups.values() if g.optimizer != FROZEN and g.name in assigned.values()
        },
        rows=tuple(rows),
        overlaps=tuple(overlaps),
        group_tree=unflatten_dict({path: row.group for path, row in first.items()}),
        ndim=unflatten_dict(ndim),
        buckets=LeafBuckets({path: row.shape for path, row in first.items()}, _treatment(leaves)),
    )


def _layer_factors(
    parameters: Sequence[Parameter], decay: float, layer_index: Callable[[str], int] | None
) -> list[float]:
    """Factor of every parameter's learning rate by its depth: 1 at the heads, `decay` less with each layer."""
    depth = [layer_index(parameter.name) if layer_index else 0 for parameter in parameters]
    deepest = max(depth)
    return [decay ** (deepest - each) for each in depth]


def _row(parameter: Parameter, group: _Group, factor: float) -> ParameterRow:
    return ParameterRow(
        name=parameter.name,
        shape=tuple(parameter.shape),
        group=group.name,
        optimizer=_optimizer_of(parameter, group),
        weight_decay=group.weight_decay if _is_decayed(parameter) and group.optimizer != FROZEN else 0.0,
        lr_multiplier=group.lr_multiplier * factor,
    )


def _transform(
    settings: OptimizerConfig, first: Mapping[Path, ParameterRow], *, stacked: bool
) -> optax.GradientTransformation:
    """The transform of each optimizer over its leaves.

    Args:
      first: path of a leaf -> its parameter, or the first one of a stack.
      stacked: whether any leaf stacks layers.
    """
    kinds = {path: row.optimizer for path, row in first.items()}
    if stacked and "lamb" in kinds.values():
        raise InputError("optimizer 'lamb' scales every layer by its own norm and cannot be used with stacked layers")
    decay = {path: row.weight_decay for path, row in first.items()}
    ndim = {path: len(row.shape) for path, row in first.items()}
    names = [name for name in (*OPTIMIZERS, FROZEN) if name in kinds.values()]
    transforms = {name: build_transform(name, settings, decay, ndim) for name in names}
    return optax.partition(transforms, unflatten_dict(kinds))


def _treatment(leaves: Mapping[Path, Sequence[tuple[ParameterRow, float]]]) -> dict[Path, Hashable]:
    """What happens to the elements of a leaf, of the leaves that may be gathered; the same for all of a bucket."""
    if not worth_gathering():
        return {}
    return {
        path: (row.optimizer, row.group, row.weight_decay, factor)
        for path, [(row, factor), *others] in leaves.items()
        if not others and is_elementwise(row.optimizer)
    }


def read_groups(
    settings: OptimizerConfig,
    *,
    checkpoint_shapes: Mapping[str, tuple[int, ...]] | None = None,
    stage_of: Callable[[str], str] | None = None,
) -> tuple[dict[str, _Group], dict[str, Filter], list[str]]:
    """Groups by name ("default" last), their filters, and everything that is wrong with either or their optimizers."""
    node = settings.parameter_groups
    order = [key for key in node if key not in ("enabled", DEFAULT_GROUP)] if node.enabled else []
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
    parameters: Sequence[Parameter],
    trained: Collection[str] | None,
    groups: dict[str, _Group],
    filters: Mapping[str, Filter],
    errors: list[str],
) -> tuple[dict[str, str], list[str]]:
    """Group of each parameter name and the overlaps.

    Adds the group "stored" to `groups` where parameters are not in `trained`, groups without parameters to `errors`.
    """
    used = [parameter for parameter in parameters if trained is None or parameter.name in trained]
    assigned, overlaps = dict[str, str](), list[str]()
    match_counts = dict.fromkeys(filters, 0)
    for parameter in used:
        matches = [name for name, matches in filters.items() if matches(parameter)]
        for name in matches:
            match_counts[name] += 1
        assigned[parameter.name] = (*matches, DEFAULT_GROUP)[0]
        if len(matches) > 1:
            overlaps.append(f"{parameter.name} matches {', '.join(matches)}; {matches[0]} takes it")
    for name, count in match_counts.items():
        key = f"optimizer.parameter_groups.{name}"
        if not count:
            errors.append(f"{key}.filter matches none of the {len(used)} parameters; correct or remove it")
        elif name not in assigned.values():
            errors.append(f"{key} is empty: earlier groups take all of its {count} parameters; move it up or remove it")
    if len(used) < len(parameters):
        groups[STORED_GROUP] = _Group(STORED_GROUP, FROZEN, explicit=True, weight_decay=0.0, lr_multiplier=1.0)
        assigned = dict.fromkeys([parameter.name for parameter in parameters], STORED_GROUP) | assigned
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
