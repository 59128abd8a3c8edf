"""A run directory with checkpoints of random weights: what a run leaves, without running one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from linnaeus_jax.config.saved import plain
from linnaeus_jax.data.dataset import write_assets
from linnaeus_jax.files import RunDirectory, write_json
from linnaeus_jax.run.checkpoints import Checkpoints
from linnaeus_jax.run.experiment import build_experiment
from linnaeus_jax.run.host_state import HostState
from linnaeus_jax.run.resume import checkpoint_meta


def save_run(root: Path, config: ConfigDict, ranking: Mapping[int, float]) -> dict[int, Any]:
    """Writes a checkpoint for every step of `ranking`, which are all ranked; returns their states.

    Floating-point arrays are random, everything else is zero.
    """
    directory = RunDirectory(root)
    experiment = build_experiment(config, directory)
    write_json(directory.config_json, plain(config))
    write_assets(experiment.inputs.dataset, directory.assets, directory.metadata)
    host = HostState.of(experiment)
    host.ranking = {step: {"epoch": 0, "metric": metric} for step, metric in ranking.items()}
    states = {}
    with contextlib.closing(Checkpoints(directory.checkpoints)) as checkpoints:
        for step in ranking:
            states[step] = filled(experiment.abstract_state.arrays, step)
            checkpoints.save(step, states[step], checkpoint_meta(experiment, host, states[step], at_end=True))
        checkpoints.wait()
    return states


def filled(abstract: Any, seed: int) -> Any:
    """A tree of arrays of these shapes."""
    rng = np.random.default_rng(seed)

    def fill(leaf: Any) -> jax.Array:
        values = rng.normal(size=leaf.shape) if np.issubdtype(leaf.dtype, np.floating) else np.zeros(leaf.shape)
        return jax.device_put(values.astype(leaf.dtype), leaf.sharding)

    return jax.tree.map(fill, abstract)


def contents(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of a directory with time and content, to see that nothing was touched; but for compiled configs."""
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.parent.name != "__pycache__"
    }
