"""A bundle of several runs: what they have in common is kept once, and computed once.

The variables of such a bundle are those of its first run, and under `OTHERS`, for each of the others, the leaves that
are not bit for bit the same, by their path. Where the runs were trained from one trunk of which blocks were frozen, the
compiler finds that the operations of these blocks are the same, and computes them once.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.section import nested
from linnaeus_jax.inference.bundle.bundle import Bundle
from linnaeus_jax.inference.bundle.fields import DEEPEST, MOST_RUNS, leaves
from linnaeus_jax.models.cost import forward_multiply_adds, multiply_adds_behind
from linnaeus_jax.weights.settings import DEFAULTS

OTHERS = "others"


def with_others(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The variables of several runs of one model as those of a bundle; of one run as they are."""
    first, *others = runs
    if not others:
        return dict(first)
    kept = {path: np.asarray(leaf) for path, leaf in flatten_dict(first).items()}
    own = [
        {path: leaf for path, leaf in flatten_dict(each).items() if np.asarray(leaf).tobytes() != kept[path].tobytes()}
        for each in others
    ]
    return {**first, OTHERS: own}


def each_run(variables: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The variables of every run by collection; leaves that they share are the same objects."""
    first = {name: tree for name, tree in variables.items() if name != OTHERS}
    flat = flatten_dict(first)
    return [first, *(unflatten_dict(flat | own) for own in variables.get(OTHERS, ()))]


def with_own_features(variables: Mapping[str, Any], modules: Sequence[str]) -> list[int]:
    """Places of the first run and of those whose features are not its own.

    Args:
      modules: outermost ones that come behind the features.
    """
    others = enumerate(variables.get(OTHERS, ()), start=1)
    return [0, *(place for place, own in others if not {path[1] for path in own} <= set(modules))]


def described(bundle: Bundle) -> list[tuple[str, str]]:
    """What people are told of a bundle of several runs: what it is, and its text."""
    own = bundle.variables[OTHERS]
    size = {path: np.size(leaf) for path, leaf in flatten_dict(bundle.variables).items() if path[0] == "params"}
    shared = sum(count for path, count in size.items() if not any(path in each for each in own))
    every = sum(size.values()) + sum(size.get(path, 0) for each in own for path in each)
    cost = 1 + sum(multiply_adds_behind(bundle.model, each) for each in own) / forward_multiply_adds(bundle.model)
    return [
        ("runs", f"{1 + len(own)}; the mean of their log-probabilities is answered"),
        ("parameters", f"{every:,}, of which the runs share {shared:,}"),
        ("cost", f"{cost:.2f} times the multiply-adds of one run for each picture"),
    ]


def bundle_of_members(members: Sequence[Bundle]) -> Bundle:
    """One bundle of several runs, not calibrated, which answers by the mean of their log-probabilities; one as it is.

    Args:
      members: `bundle_of_run` of each.

    Raises:
      UserError: they are of different models, classes or pictures, or two have the same weights.
    """
    first, *others = members
    if not others:
        return first
    if len(members) > MOST_RUNS:
        raise UserError(f"{len(members)} runs are too many for one bundle; give at most {MOST_RUNS}")
    wanted = _in_common(first)
    for other in others:
        found = _in_common(other)
        for key in {**wanted, **found}:
            if wanted.get(key) != found.get(key):
                raise UserError(
                    f"{key} is {wanted.get(key)} in {first.source}, but {found.get(key)} in {other.source}; a bundle "
                    "takes several runs that differ in their training alone, such as seeds"
                )
    for one, other in itertools.combinations(members, 2):
        if with_others([one.variables, other.variables])[OTHERS] == [{}]:
            raise UserError(f"{one.source} and {other.source} have the same weights; give each run once")
    facts = {key: value for key, value in first.facts.items() if key != "step"}
    facts["steps"] = [member.facts["step"] for member in members]
    return dataclasses.replace(first, variables=with_others([member.variables for member in members]), facts=facts)


def _in_common(bundle: Bundle) -> dict[str, Any]:
    """Key -> value of all that is the same for every run of a bundle."""
    said = {
        "model": {key: value for key, value in nested(bundle.settings).items() if key not in DEFAULTS},
        "image": dataclasses.asdict(bundle.preprocessing),
        "metadata": [[component.name, *component.columns] for component in bundle.encoder.components],
        "taxonomy": bundle.taxonomy.tree.to_json(),
        "classes": {task: ids.tolist() for task, ids in bundle.taxonomy.classes.items()},
        "weights": bundle.facts["weights"],
        "boxes": bundle.facts.get("boxes"),
    }
    return dict(leaves(said, "", DEEPEST))
