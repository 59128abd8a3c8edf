"""Reading one checkpoint of a run and no other: for evaluation, bundles and exports."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp

from linnaeus_jax.files import check_digests
from linnaeus_jax.run.checkpoints import CheckpointError, Checkpoints
from linnaeus_jax.run.read_errors import with_retry

T = TypeVar("T")


def read_meta(checkpoints: Checkpoints, step: int) -> dict[str, Any]:
    """The host part of the checkpoint.

    Raises:
      CheckpointError: it cannot be read.
    """
    return _read(checkpoints, step, functools.partial(checkpoints.meta, step))


def restore_state(checkpoints: Checkpoints, step: int, abstract_state: Any, as_stored: tuple[str, ...] = ()) -> Any:
    """The state of the checkpoint; arguments as of `Checkpoints.restore`.

    Raises:
      CheckpointError: it cannot be read.
    """
    return _read(checkpoints, step, functools.partial(checkpoints.restore, step, abstract_state, as_stored))


def read_arrays(checkpoints: Checkpoints, step: int, fields: Sequence[str]) -> dict[str, Any]:
    """Some fields of the state, as trees of numpy arrays; a field without arrays is {} or None.

    Raises:
      CheckpointError: they cannot be read.
    """

    def read() -> dict[str, Any]:
        path = checkpoints.path(step)
        check_digests(path, "state", step)
        stored = checkpoints.stored_tree(step)
        wanted = {name: stored[name] for name in fields if jax.tree.leaves(stored[name])}
        args = ocp.args.PyTreeRestore(
            item=wanted,
            restore_args=jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted),
            partial_restore=True,
        )
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            arrays = reader.restore(path / "state", args=args)
        return {name: arrays.get(name, stored[name]) for name in fields}

    return _read(checkpoints, step, read)


def _read(checkpoints: Checkpoints, step: int, read: Callable[[], T]) -> T:
    try:
        return with_retry(read)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged file may raise anything
        text = checkpoints.why_unreadable(step, error)
        raise CheckpointError(
            f"checkpoint {step} in {checkpoints.directory} cannot be read ({text}); choose another"
        ) from error
