"""Composable filters that select model parameters by name, shape, layer, stage or pretrained origin.

A filter is described by a mapping with lower-case keys, the first of which is `type`:

* `dimension` {dimensions}: the number of axes is one of these.
* `convolutional` {name_patterns?, layer_types?}: four axes, and every given condition holds.
* `name` {patterns, match_type = contains | startswith | endswith | regex}: any pattern matches the name.
* `layer_type` {layer_types}: class name of the owning layer.
* `initialization`: absent from the pretrained checkpoint, or stored there with another shape.
* `stage_based` {stages}: the model's own grouping of its parameters.
* `and` / `or` {filters}, `not` {filter}, `all_except` {except}. An empty `and` selects all, an empty `or` none.

Names are canonical, torch-style and dotted ("stages.2.0.attn.qkv.weight"), whatever the parameter tree looks like.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from linnaeus_jax.mistakes import InputError


class Parameter(Protocol):
    """What filters and optimizers know of one parameter.

    `path` leads to the leaf in the parameter tree and `shape` is the leaf's shape, in which the last axis of a kernel
    is its output (dense `(in, out)`, convolution `(height, width, in, out)`). Layers stacked along a leading scan axis
    appear as consecutive parameters with one `path`, each with the shape of a single layer.
    """

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> tuple[str, ...]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def layer_type(self) -> str: ...


Filter = Callable[[Parameter], bool]

#: type -> (required keys, optional keys)
_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "dimension": (("dimensions",), ()),
    "convolutional": ((), ("name_patterns", "layer_types")),
    "name": (("patterns",), ("match_type",)),
    "layer_type": (("layer_types",), ()),
    "initialization": ((), ()),
    "stage_based": (("stages",), ()),
    "and": (("filters",), ()),
    "or": (("filters",), ()),
    "not": (("filter",), ()),
    "all_except": (("except",), ()),
}

#: keys that hold several things -> of what kind; filters are checked one by one
_ITEMS: dict[str, type] = {
    "dimensions": int,
    **dict.fromkeys(("name_patterns", "layer_types", "patterns", "stages"), str),
    "filters": object,
}

_NAME_MATCHERS: dict[str, Callable[[str, str], bool]] = {
    "contains": lambda name, pattern: pattern in name,
    "startswith": str.startswith,
    "endswith": str.endswith,
    "regex": lambda name, pattern: re.search(pattern, name) is not None,
}


def _choose(value: str, choices: Collection[str], key: str) -> str:
    chosen = str(value).lower()
    if chosen not in choices:
        nearest = difflib.get_close_matches(chosen, choices, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise InputError(f"{key} = {value!r} is unknown{hint}; choose one of {', '.join(choices)}")
    return chosen


def _checked(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The mapping as a dict with a known `type` and exactly the keys that this type takes; scalars become tuples."""
    if not hasattr(config, "items"):
        raise InputError(f"{key} = {config!r} must be a mapping with a 'type'")
    given = dict(config.items())
    if "type" not in given:
        raise InputError(f"{key} has no 'type'; set {key}.type to one of: {', '.join(_KEYS)}")
    given["type"] = _choose(given["type"], _KEYS, f"{key}.type")
    required, optional = _KEYS[given["type"]]
    for name in required:
        if name not in given:
            raise InputError(f"{key}.{name} is missing; a filter of type {given['type']!r} needs it")
    for name in given:
        if name not in ("type", *required, *optional):
            allowed = ", ".join((*required, *optional)) or "no further key"
            raise InputError(f"{key}.{name} has no meaning for type {given['type']!r}; it takes: {allowed}")
        if name in _ITEMS:
            given[name] = _items(given[name], _ITEMS[name], f"{key}.{name}")
    return given


def _items(value: Any, kind: type, key: str) -> tuple[Any, ...]:
    items = (value,) if isinstance(value, str | int) and kind is not object else value
    if not isinstance(items, tuple | list) or not all(isinstance(item, kind) for item in items):
        of = {int: "integers", str: "strings", object: "filters"}[kind]
        raise InputError(f"{key} = {value!r} must be a list of {of}")
    return tuple(items)


def parse_filter(
    config: Mapping[str, Any],
    key: str,
    *,
    checkpoint_shapes: Mapping[str, tuple[int, ...]] | None = None,
    stage_of: Callable[[str], str] | None = None,
) -> Filter:
    """Builds the predicate that a filter mapping describes.

    Args:
      config: the mapping (see the module's text); `type` and `match_type` are read without regard to case.
      key: where the mapping stands in the configuration; begins every error message.
      checkpoint_shapes: shape by canonical name of the loaded pretrained weights, in the layout of `Parameter.shape`;
        needed by `initialization`.
      stage_of: dotted stage of a canonical name (e.g. "stages.rope_stages"); needed by `stage_based`, which matches
        the whole of it or its last part.

    Returns:
      A pure function from a parameter to whether it is selected.

    Raises:
      ValueError: unknown type, missing or superfluous key, bad regular expression, or missing knowledge.
    """
    given = _checked(config, key)

    def nested(child: Mapping[str, Any], name: str) -> Filter:
        return parse_filter(child, f"{key}.{name}", checkpoint_shapes=checkpoint_shapes, stage_of=stage_of)

    match given["type"]:
        case "dimension":
            dimensions = frozenset(given["dimensions"])
            return lambda p: len(p.shape) in dimensions
        case "convolutional":
            patterns, layers = given.get("name_patterns"), given.get("layer_types")
            return lambda p: (
                len(p.shape) == 4
                and (not patterns or any(pattern in p.name for pattern in patterns))
                and (not layers or p.layer_type in layers)
            )
        case "name":
            return _name_filter(given, key)
        case "layer_type":
            layer_types = frozenset(given["layer_types"])
            return lambda p: p.layer_type in layer_types
        case "initialization":
            if checkpoint_shapes is None:
                raise InputError(
                    f"{key}.type = 'initialization' needs pretrained weights to compare with; none are loaded"
                )
            shapes = {name: tuple(shape) for name, shape in checkpoint_shapes.items()}
            return lambda p: shapes.get(p.name) != tuple(p.shape)
        case "stage_based":
            if stage_of is None:
                raise InputError(f"{key}.type = 'stage_based' needs a model that names its stages; this one does not")
            stages, find_stage = frozenset(given["stages"]), stage_of
            return lambda p: bool(stages & {find_stage(p.name), find_stage(p.name).rpartition(".")[2]})
        case "and":
            members = [nested(child, f"filters[{i}]") for i, child in enumerate(given["filters"])]
            return lambda p: all(member(p) for member in members)
        case "or":
            members = [nested(child, f"filters[{i}]") for i, child in enumerate(given["filters"])]
            return lambda p: any(member(p) for member in members)
        case _:  # not, all_except
            inverted = "filter" if given["type"] == "not" else "except"
            inner = nested(given[inverted], inverted)
            return lambda p: not inner(p)


def _name_filter(given: dict[str, Any], key: str) -> Filter:
    kind = _choose(given.get("match_type", "contains"), _NAME_MATCHERS, f"{key}.match_type")
    if kind == "regex":
        for pattern in given["patterns"]:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InputError(f"{key}.patterns: {pattern!r} is not a regular expression ({error})") from None
    matches, patterns = _NAME_MATCHERS[kind], tuple(given["patterns"])
    return lambda p: any(matches(p.name, pattern) for pattern in patterns)
