"""Configurations and schedules of the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import complete_open_nodes, get_config
from linnaeus_jax.config.typed import typed
from linnaeus_jax.schedules import ResolvedSchedule, resolve_all_schedule_params


def make_config(settings: Mapping[str, Any] | None = None) -> ConfigDict:
    """Default tree with dotted keys set, lists as tuples."""

    def frozen(value: Any) -> Any:
        return tuple(frozen(item) for item in value) if isinstance(value, list | tuple) else value

    config = get_config()
    with config.unlocked():
        for path, value in (settings or {}).items():
            *nodes, key = path.split(".")
            node = config
            for part in nodes:
                if part not in node:
                    node[part] = ConfigDict()
                node = node[part]
            node[key] = frozen(value)
    return complete_open_nodes(config)


def make_schedule(
    settings: Mapping[str, Any] | None = None, *, steps_per_epoch: int | Sequence[int] = 10, epochs: int | None = None
) -> ResolvedSchedule:
    """Schedule without accumulation."""
    settings = dict(settings or {})
    if epochs is not None:
        settings["train.epochs"] = epochs
    config = make_config(settings)
    return resolve_all_schedule_params(
        typed(config), steps_per_epoch=steps_per_epoch, dataset_size=1000, micro_batches_per_epoch=steps_per_epoch
    )
