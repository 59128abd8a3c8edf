"""W&B: where it keeps files outside of the run's directory."""

from __future__ import annotations

import contextlib

import wandb


def outside_directories() -> list[tuple[str, str]]:
    """(environment variable, directory) of what W&B keeps in the home directory: files of tables, and its cache.

    Without `wandb.env`'s names: none, and W&B says itself where it cannot write.
    """
    with contextlib.suppress(AttributeError):
        env = wandb.env
        return [(env.DATA_DIR, str(env.get_data_dir())), (env.CACHE_DIR, str(env.get_cache_dir()))]
    return []
