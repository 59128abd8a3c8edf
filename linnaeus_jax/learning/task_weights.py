"""Initial weights of the tasks in the total loss, and the one rule for "one value, or one per task"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

#: a task seen less often than this is weighted as if it were seen this often
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
        raise ValueError(
            f"{key}={values!r} has {len(values)} entries for {len(tasks)} tasks ({', '.join(tasks)}); "
            "give one value for all tasks or one per task, in task order"
        )
    return values


def initial_task_weights(
    tasks: Sequence[str],
    *,
    init_weights: Sequence[float] = (),
    init_strategy: str = "inverse_density",
    density: Sequence[float] | np.ndarray | None = None,
    num_classes: Sequence[int] | np.ndarray | None = None,
) -> np.ndarray:
    """The weights that training starts with; static weighting keeps them, GradNorm moves them.

    Args:
      tasks: T task names; every other sequence is in this order.
      init_weights: used exactly as given if not empty; otherwise the strategy decides.
      init_strategy: ``inverse_density``: 1 / density; ``class_complexity``: log(C) / log(max C) / density. Both are
        rescaled so that the weights sum to T.
      density: share of training rows with a known label, as a fraction in [0, 1], floored at 0.001.
      num_classes: C per task, counted as at least 2.

    Returns:
      float32 [T].

    Raises:
      ValueError: wrong lengths, values out of range or an unknown strategy.
    """
    if len(init_weights):
        weights = _vector("loss.grad_weighting.task.init_weights", init_weights, tasks)
        if not (np.all(np.isfinite(weights)) and np.all(weights >= 0.0) and weights.sum() > 0.0):
            raise ValueError(
                f"loss.grad_weighting.task.init_weights={tuple(init_weights)} must be finite, >= 0 and not all 0"
            )
        return weights.astype(np.float32)
    if init_strategy not in STRATEGIES:
        raise ValueError(
            f"loss.grad_weighting.task.init_strategy={init_strategy!r} is unknown; "
            f"choose one of {', '.join(STRATEGIES)}"
        )
    share = _vector("task label density", density, tasks)
    if not (np.all(share >= 0.0) and np.all(share <= 1.0)):
        raise ValueError(f"task label density {share.tolist()} must be fractions in [0, 1] (divide percentages by 100)")
    weights = 1.0 / np.maximum(share, MIN_DENSITY)
    if init_strategy == "class_complexity":
        complexity = np.log(np.maximum(_vector("number of classes", num_classes, tasks), 2.0))
        weights = weights * complexity / complexity.max()
    return (weights * len(tasks) / weights.sum()).astype(np.float32)


def _vector(name: str, values: Sequence[float] | np.ndarray | None, tasks: Sequence[str]) -> np.ndarray:
    vector = np.asarray(() if values is None else values, np.float64)
    if vector.shape != (len(tasks),):
        raise ValueError(f"{name} needs one value per task ({', '.join(tasks)}), got shape {vector.shape}")
    return vector
