"""What follows from the tables of a tree, as the golden files state it."""

from __future__ import annotations

import numpy as np


def distances(tree, task):
    """float32 [C, C]: edges between two classes by way of their lowest common ancestor, inf without one."""
    table = tree.anc[task]
    distance = np.full((len(table), len(table)), np.inf, np.float32)
    for depth in range(table.shape[1] - 1, -1, -1):
        ancestor = table[:, depth]
        distance[(ancestor[:, None] == ancestor[None, :]) & (ancestor >= 0)[:, None]] = 2 * depth
    return distance


def roots(tree):
    """(position of the task, class) of the classes without a parent, null classes too."""
    return [(t, int(c)) for t, task in enumerate(tree.task_keys) for c in np.flatnonzero(tree.parent[task] < 0)]


def leaves(tree):
    """(position of the task, class) of the classes without children, null classes too."""
    return [
        (t, int(c))
        for t, task in enumerate(tree.task_keys)
        for c in np.setdiff1d(np.arange(tree.num_classes[task]), tree.parent[tree.task_keys[t - 1]] if t else [])
    ]
