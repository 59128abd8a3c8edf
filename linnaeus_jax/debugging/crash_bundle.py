"""The crash bundle: everything that one non-finite update was computed from, so that it can be repeated elsewhere.

A directory with `bundle.json` (config, update, versions), `batch_<process>.npz` (what the loader delivered) and `state`
(parameters, optimizer state and step from before the update; the random keys follow from seed and step).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from ml_collections import ConfigDict

from linnaeus_jax import versions
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.saved import config_from_json, plain
from linnaeus_jax.files import DamagedFileError, check_digests, read_sealed, sealed, write_digests, write_json


class BundleError(UserError):
    """A bundle that cannot be used; the message says which and why."""


def write(folder: Path, config: ConfigDict, step: int, state: Any, batch: Mapping[str, Any]) -> Path:
    """Writes the bundle of the update of `step`, which was skipped and left its parameters in `state`.

    Every process takes part in saving the state; process 0 writes the rest, `bundle.json` last.
    """
    path = (folder / f"update_{step}").resolve()
    path.mkdir(parents=True, exist_ok=True)
    before = state.replace(step=state.step - 1, skipped=state.skipped - 1)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "state", before, force=True)
    np.savez(path / f"batch_{jax.process_index()}.npz", **batch)  # type: ignore[arg-type]
    if jax.process_index() == 0:
        write_digests(path, ("state", f"batch_{jax.process_index()}.npz"))
        about = {"update": step, "config": plain(config), "versions": versions.versions()}
        write_json(path / "bundle.json", sealed(about))
    return path


def read_config(path: Path) -> tuple[ConfigDict, int]:
    """Config and step of a bundle.

    Raises:
      BundleError: no complete bundle, or a damaged one.
    """
    try:
        bundle = read_sealed(path / "bundle.json")
        for name in ("state", "batch_0.npz"):
            if not (path / name).exists():
                raise DamagedFileError(f"{path / name} is missing")
            check_digests(path, name)
        return config_from_json(bundle["config"]), int(bundle["update"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{path} holds no complete crash bundle: {error}") from error


def read_state(path: Path, like: Any) -> Any:
    """The state from before the update; `like` gives shapes and placement."""
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path.resolve() / "state", like)


def read_batch(path: Path) -> dict[str, np.ndarray]:
    """The batch of this process."""
    with np.load(path / f"batch_{jax.process_index()}.npz") as arrays:
        return dict(arrays)
