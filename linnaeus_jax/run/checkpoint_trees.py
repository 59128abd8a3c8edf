"""What the arrays and the host part of a checkpoint are, compared with those of a run."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def step_of(host_state: Any) -> int | None:
    """The number of updates that the host part of a checkpoint tells; None where it tells none."""
    progress = host_state.get("progress") if isinstance(host_state, dict) else None
    known = progress.get("global_step") if isinstance(progress, dict) else None
    return known if isinstance(known, int) else None


def _leaves(tree: Any) -> dict[str, Any]:
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def leaf_shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Dotted name -> shape of every array of a state."""
    return {name: tuple(leaf.shape) for name, leaf in _leaves(tree).items()}


def tree_difference(stored: Any, abstract_state: Any) -> str | None:
    """The first leaf whose presence, shape or dtype differs, in words; None: they are alike."""
    have, want = _leaves(stored), _leaves(abstract_state)
    problems = [f"{name} is in the checkpoint but not in this run" for name in sorted(have.keys() - want.keys())]
    problems += [f"{name} is in this run but not in the checkpoint" for name in sorted(want.keys() - have.keys())]
    for name in sorted(have.keys() & want.keys()):
        old, new = have[name], want[name]
        if tuple(old.shape) != tuple(new.shape):
            problems.append(f"{name} has shape {tuple(old.shape)} in the checkpoint and {tuple(new.shape)} in this run")
        elif not jax.dtypes.issubdtype(new.dtype, jax.dtypes.extended) and np.dtype(old.dtype) != np.dtype(new.dtype):
            problems.append(f"{name} is {old.dtype} in the checkpoint and {new.dtype} in this run")
    if not problems:
        return None
    return problems[0] + (f" (and {len(problems) - 1} more differences)" if len(problems) > 1 else "")
