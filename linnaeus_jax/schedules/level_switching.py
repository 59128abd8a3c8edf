"""The taxonomic level by which rows are grouped for mixing, epoch by epoch.

A switch given in updates takes effect at the first epoch that starts at or after it, a switch given in epochs at the
epoch of that 0-based index. As the updates of an epoch depend on the level alone, the whole run is known in advance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from linnaeus_jax.config.typed import Config

_NODE = "schedule.mixup"


def configured_levels(config: Config) -> tuple[str, ...]:
    """Ranks by which rows are grouped, in order of use: those of the configuration, else the finest."""
    return tuple(config.schedule.mixup.group_levels) or tuple(config.data.task_keys_h5[:1])


def level_switch_errors(
    group_levels: Sequence[str], level_switch_steps: Sequence[int], level_switch_epochs: Sequence[int]
) -> list[str]:
    """How lists of positive integers contradict each other; each text names key, value and fix."""
    errors = []
    if level_switch_steps and level_switch_epochs:
        errors.append(
            f"{_NODE}.level_switch_steps = {tuple(level_switch_steps)} and {_NODE}.level_switch_epochs = "
            f"{tuple(level_switch_epochs)} exclude each other; keep one of them"
        )
    for key, switches in (("level_switch_steps", level_switch_steps), ("level_switch_epochs", level_switch_epochs)):
        if not switches:
            continue
        path = f"{_NODE}.{key} = {tuple(switches)}"
        if len(switches) != len(group_levels) - 1:
            errors.append(
                f"{path} has {len(switches)} switches for {len(group_levels)} group levels {tuple(group_levels)}; "
                f"give one switch fewer than levels, or none to use the first level only"
            )
        if any(b <= a for a, b in pairwise(switches)):
            errors.append(f"{path} must rise strictly")
    return errors


def level_of_epoch(
    group_levels: Sequence[str],
    level_switch_steps: Sequence[int],
    level_switch_epochs: Sequence[int],
    epochs: int,
    length: Callable[[int, str], int],
) -> tuple[str, ...]:
    """Level of every epoch.

    Args:
      group_levels: ranks in order of use.
      level_switch_steps, level_switch_epochs: where the next rank begins, without `level_switch_errors`.
      epochs: length of the run.
      length: (epoch, its level) -> optimizer updates of that epoch.
    """
    levels: list[str] = []
    step = 0
    for epoch in range(epochs):
        passed = sum(switch <= step for switch in level_switch_steps)
        passed += sum(switch <= epoch for switch in level_switch_epochs)
        levels.append(group_levels[passed])
        step += length(epoch, levels[-1])
    return tuple(levels)
