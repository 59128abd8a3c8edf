"""Initial weights of the tasks in the total loss, and the one rule for "one value, or one per task"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.mistakes import InputError

#: a task labelled more rarely than this is weighted as if it were labelled this often
MIN_DENSITY = 1e-3
STRATEGIES = ("inverse_density", "class_complexity")


def per_task(values: Any, tasks: Sequence[str], key: str) -> tuple[Any, ...]:
    """Spreads a configured value over the tasks.

    Args:
      values: a scalar or string (for all tasks), or a sequence of length 1 (for all) or T (in task order).
      tasks: T task names.
      key: config key, for the message.

    Raises:
      ValueError: another length.
    """
    if isinstance(values, str) or np.ndim(values) == 0:
        values = (values,)
    values = tuple(values)
    if len(values) == 1:
        return values * len(tasks)
    if len(values) != len(tasks):
        raise InputError(
            f"{key}={values!r} has {len(values)} entries for {len(tasks)} tasks ({', '.join(tasks)}); "
            "give one value for all tasks or one per task, in task order"
        )
    return values


def initial_task_weights(
    *,
    init_weights: Sequence[float],
    init_strategy: str,
    density: Sequence[float] | np.ndarray,
    num_classes: Sequence[int] | np.ndarray,
) -> NDArray[np.float32]:
    """The weights that training starts with; static weighting keeps them, GradNorm moves them.

    Args:
      init_weights: one per task in task order, used exactly as given; empty: the strategy decides.
      init_strategy: ``inverse_density``: 1 / density; ``class_complexity``: log(C) / log(max C) / density. Both are
        rescaled so that the weights sum to T.
      density: share of training rows with a known label, as a fraction in [0, 1], floored at 0.001.
      num_classes: C per task, counted as at least 2.

    Returns:
      float32 [T].
    """
    if len(init_weights):
        return np.asarray(init_weights, np.float32)
    weights = 1.0 / np.maximum(np.asarray(density, np.float64), MIN_DENSITY)
    if init_strategy == "class_complexity":
        complexity = np.log(np.maximum(np.asarray(num_classes, np.float64), 2.0))
        weights = weights * complexity / complexity.max()
    return (weights * weights.size / weights.sum()).astype(np.float32)
