"""The crash bundle: everything that one non-finite update was computed from, so that it can be repeated elsewhere.

A directory with `bundle.json` (config, update, versions), `batch_<process>.npz` (what the loader delivered) and `state`
(parameters, optimizer state and step from before the update; the random keys follow from seed and step).
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from linnaeus_jax import versions
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.files import (
    DamagedFileError,
    check_digests,
    make_directory,
    read_sealed,
    sealed,
    sync_tree,
    write_digests,
    write_json,
)


class BundleError(UserError):
    """A bundle that cannot be used; the message says which and why."""


def write(folder: Path, config: Mapping[str, Any], step: int, state: Any, batch: Mapping[str, Any]) -> Path:
    """Writes the bundle of the update of `step`, which was made or would be made from `state`.

    Every process takes part in saving the state; process 0 writes the rest, `bundle.json` last.

    Args:
      config: as `config.json` has it.
    """
    path = (folder / f"update_{step}").resolve()
    make_directory(path)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "state", state, force=True)
    np.savez(path / f"batch_{jax.process_index()}.npz", **batch)  # type: ignore[arg-type]
    if jax.process_index() == 0:
        write_digests(path, ("state", f"batch_{jax.process_index()}.npz"))
        sync_tree(path)  # its last file says that all of it is there
        about = {"update": step, "config": config, "versions": versions.versions()}
        write_json(path / "bundle.json", sealed(about))
    return path


def before_skipped(state: Any) -> Any:
    """The state from before an update that was skipped and gave `state`: its parameters are the same."""
    return state.replace(step=state.step - 1, skipped=state.skipped - 1)


def read_config(path: Path) -> tuple[dict[str, Any], int]:
    """Config, as `config.json` has it, and step of a bundle.

    Raises:
      BundleError: no complete bundle, or a damaged one.
    """
    try:
        bundle = read_sealed(path / "bundle.json")
        for name in ("state", "batch_0.npz"):
            if not (path / name).exists():
                raise DamagedFileError(f"{path / name} is missing")
            check_digests(path, name)
        step = bundle["update"]
        if not isinstance(step, int) or not 0 <= step < 2**31:
            raise ValueError(f"its update is {str(step)[:40]}")
        return dict(bundle["config"]), step
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{path} holds no complete crash bundle: {error}") from error


def read_state(path: Path, like: Any) -> Any:
    """The state from before the update; `like` gives shapes and placement.

    Raises:
      BundleError: the bundle holds no such state.
    """
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            state = checkpointer.restore(path.resolve() / "state", like)
        if not isinstance(state, type(like)):  # an empty directory is restored as it is
            raise ValueError("it lacks arrays")
        return state
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = " ".join(str(error).split())[:300]
        raise BundleError(f"{path / 'state'} holds no state of the model that {path} describes: {text}") from error


def read_batch(path: Path, like: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The batch of this process; `like` gives names, shapes and dtypes.

    Raises:
      BundleError: the bundle holds no such batch.
    """
    file = path / f"batch_{jax.process_index()}.npz"
    try:
        with np.load(file, allow_pickle=False) as arrays:
            batch = dict(arrays)
    except (OSError, ValueError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise BundleError(f"{file} is no batch: {error}") from error
    for name in {**like, **batch}:
        given, wanted = (
            f"{x.dtype}{list(x.shape)}" if x is not None else "none" for x in (batch.get(name), like.get(name))
        )
        if given != wanted:
            raise BundleError(f"{file}: {name!r} is {given}, but the config of the bundle makes it {wanted}")
    return batch
