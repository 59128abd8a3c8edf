"""Class weights from the class counts of the training split, against long tails. Applied once, in the task loss."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.learning.mixing import interpolate
from linnaeus_jax.learning.task_weights import per_task
from linnaeus_jax.mistakes import InputError

METHODS = ("none", "smoothing", "capping", "exponential", "logarithmic")
_KEY = "loss.grad_weighting.class_weights"


def class_weights(
    counts: Sequence[int] | np.ndarray,
    method: str = "none",
    *,
    smoothing_factor: float = 0.1,
    cap: float = 20.0,
    base: float = 2.0,
    log_base: float = 10.0,
    normalize: bool = False,
    task: str = "task",
    class_name: Callable[[int], str] = "class {}".format,
) -> NDArray[np.float32]:
    """Weights of the classes of one task. With n = samples of the class and N = samples in all:

    * ``none``: 1
    * ``smoothing``: N / (n + smoothing_factor)
    * ``capping``: min(N / n, cap); min(1, cap) for n = 0
    * ``exponential``: base ** (N / n); 1 for n = 0
    * ``logarithmic``: 1 / (1 + log_b(max(n/N, 1e-9) (b - 1) + 1)), b = log_base; 1 for n = 0

    Args:
      counts: int [C], null class included; no samples at all gives ones.
      method: one of `METHODS`.
      normalize: rescale so that the mean weight over the training samples is 1.
      task, class_name: the task's name, and what messages call a class.

    Returns:
      float32 [C].

    Raises:
      ValueError: a weight beyond float32 (``exponential`` on rare classes).
    """
    count = np.asarray(counts, np.float64)
    total = count.sum()
    if method == "none" or total == 0:
        return np.ones(count.size, np.float32)
    occurs = count > 0
    rarity = np.where(occurs, total / np.where(occurs, count, 1.0), 1.0)
    if method == "smoothing":
        weight = total / (count + smoothing_factor)
    elif method == "capping":
        weight = np.minimum(rarity, cap)
    elif method == "exponential":
        weight = np.exp(np.minimum(np.where(occurs, rarity * np.log(base), 0.0), 700.0))
    else:
        scaled = np.log(np.maximum(count / total, 1e-9) * (log_base - 1.0) + 1.0) / np.log(log_base)
        weight = np.where(occurs, 1.0 / (1.0 + scaled), 1.0)
    if weight.max() > np.finfo(np.float32).max:
        worst = int(weight.argmax())
        fix = {"smoothing": "raise {}.smoothing_factor", "capping": "lower {}.cap"}.get(method, "lower {}.base")
        raise InputError(
            f"{_KEY}.method={method!r} ({task}): {class_name(worst)} with {count[worst]:.0f} of {total:.0f} samples "
            f"gets a weight beyond float32; {fix.format(_KEY)} or use another method"
        )
    if normalize:
        weight = weight * total / np.sum(count * weight)
    return weight.astype(np.float32)


def task_class_weights(
    counts: Mapping[str, np.ndarray],
    *,
    method: str | Sequence[str] = ("none",),
    smoothing_factor: float | Sequence[float] = (0.1,),
    cap: float | Sequence[float] = (20.0,),
    base: float | Sequence[float] = (2.0,),
    log_base: float | Sequence[float] = (10.0,),
    normalize: bool = False,
    class_name: Callable[[str, int], str] | None = None,
) -> dict[str, np.ndarray]:
    """`class_weights` of every task of `counts` (task -> int [C], in task order); settings are one or one per task.

    Args:
      class_name: (task, class) -> what messages call the class.

    Raises:
      ValueError: a setting has another length than 1 or T, or as `class_weights`.
    """
    tasks = tuple(counts)
    methods = per_task(method, tasks, f"{_KEY}.method")
    settings = {"smoothing_factor": smoothing_factor, "cap": cap, "base": base, "log_base": log_base}
    spread = {name: per_task(value, tasks, f"{_KEY}.{name}") for name, value in settings.items()}
    return {
        task: class_weights(
            counts[task],
            methods[i],
            normalize=normalize,
            task=task,
            class_name="class {}".format if class_name is None else functools.partial(class_name, task),
            **{name: spread[name][i] for name in spread},
        )
        for i, task in enumerate(tasks)
    }


def mixture_weight(
    weights: jax.Array | np.ndarray,
    label: jax.Array,
    partner_label: jax.Array | None = None,
    lam: jax.Array | None = None,
) -> jax.Array:
    """``lam * weights[label] + (1 - lam) * weights[partner_label]``; `weights` [C], the rest [B]."""
    return interpolate(jnp.asarray(weights).__getitem__, label, partner_label, lam)
