"""Checkpoints: asynchronous, atomic Orbax saves of the training state plus a JSON of everything on the host.

A checkpoint's key is the global step. `boundary_<step>.json` beside it says that the epoch boundary at that step was
finished after the save (validation, ranking, early stop, log) and holds the host state from after it; without the file
the end of that epoch is done again after a restart.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from linnaeus_jax.compat.orbax_parts import copy_small_arrays_whole, use_steady_clock
from linnaeus_jax.config.errors import RESUME, TrainingError, described
from linnaeus_jax.files import (
    DIGESTS,
    STEP,
    UNREADABLE_CHECKPOINTS,
    DamagedFileError,
    check_digests,
    check_step,
    make_directory,
    read_sealed,
    sealed,
    sync_tree,
    write_json,
)
from linnaeus_jax.reporting.metrics_log import revived, strict
from linnaeus_jax.run.checkpoint_trees import leaf_shapes, step_of, tree_difference
from linnaeus_jax.run.digests import PathWithDigests, syncing_before
from linnaeus_jax.run.read_errors import is_storage_error, with_retry
from linnaeus_jax.run.retention import Current, LatestN, PreservationPolicy, preserved
from linnaeus_jax.system import write_error

log = logging.getLogger("linnaeus_jax")

#: of the directory of one checkpoint, before `_<step>`
STEP_PREFIX = "ckpt_step"
#: what to do about a checkpoint of another run
OTHER_RUN = (
    "use another run directory (--workdir), or the data files and the configuration it was made with "
    "(config.json of the run)"
)


class CheckpointError(TrainingError):
    """A checkpoint that cannot be used; the message says which, why and what to do."""


class Checkpoints:
    """The checkpoints of one run directory.

    Args:
      policy: which of them a save or `retain` lets stay, by default all; may be replaced before the first save.
      read_only: for another run's checkpoints, which may just be saving one: nothing is written or tidied up.
      logs: directory that is on the disk before a checkpoint counts, since a run that goes on does not write again what
        came before it.
    """

    def __init__(
        self,
        directory: Path,
        policy: PreservationPolicy | None = None,
        *,
        read_only: bool = False,
        logs: Path | None = None,
    ) -> None:
        self.directory = directory.resolve()
        self.read_only = read_only
        self.logs = logs
        self.policy = LatestN() if policy is None else policy
        self._dropped: set[int] = set()
        self._without_step: set[int] = set()

    @functools.cached_property
    def _manager(self) -> ocp.CheckpointManager:
        """Made at the first use, so that a dry run leaves no directory behind."""
        use_steady_clock()
        copy_small_arrays_whole()
        if not self.read_only:
            make_directory(self.directory)
        return ocp.CheckpointManager(
            self.directory,
            item_handlers={"state": ocp.StandardCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()},
            options=ocp.CheckpointManagerOptions(
                step_prefix=STEP_PREFIX,
                cleanup_tmp_directories=not self.read_only,
                create=False,
                preservation_policy=Current(lambda: self.policy),
                temporary_path_class=PathWithDigests if self.logs is None else syncing_before(self._sync_logs),
            ),
        )

    def _sync_logs(self) -> None:
        if self.logs is not None:
            sync_tree(self.logs)

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        if not self.directory.is_dir():  # looking makes no directory
            return []
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: Any, meta: dict[str, Any]) -> None:
        """Copies the arrays to the host and writes in the background; then deletes what the policy lets go.

        Raises:
          CheckpointError: the previous background save failed (a full disk, for example), or this step exists already.
        """
        before = self.steps()
        items = {
            "state": ocp.args.StandardSave(state),
            "meta": ocp.args.JsonSave({**_with_host(meta, strict), DIGESTS: True}),
        }
        try:
            saved = self._manager.save(step, args=ocp.args.Composite(**items))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"saving checkpoint {step} in {self.directory} failed: {_reason(error)}") from error
        if not saved:
            raise CheckpointError(f"checkpoint {step} exists already in {self.directory}; remove it or use another run")
        self._dropped |= set(before) - set(self.steps())

    def wait(self) -> None:
        """Blocks until the background save is on disk, and raises what went wrong with it."""
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise CheckpointError(f"writing a checkpoint in {self.directory} failed: {_reason(error)}") from error

    def check(self) -> None:
        """Raises what went wrong with a background save, without blocking."""
        try:
            self._manager.check_for_errors()
        except Exception as error:
            raise CheckpointError(f"writing a checkpoint in {self.directory} failed: {_reason(error)}") from error

    def restore_newest(
        self,
        abstract_state: Any,
        as_stored: tuple[str, ...] = (),
        refusal: Callable[[int, dict[str, Any]], str | None] | None = None,
    ) -> tuple[int, Any, dict[str, Any]] | None:
        """(step, state, meta) of the newest readable checkpoint; None without any.

        Newer ones, which are damaged, are then set aside, see `quarantine`.

        Args:
          abstract_state: a state of `ShapeDtypeStruct`s with the shardings wanted.
          as_stored: fields of the state that are read whatever they are, for a caller that replaces them.
          refusal: why this run cannot go on from a checkpoint (step, meta), or None; asked before arrays are read.

        Raises:
          CheckpointError: the checkpoint belongs to another model or optimizer, the storage fails (nothing is then
            changed, since the files may be as they should be), or none of them can be read.
        """
        failures: dict[int, str] = {}
        for step in reversed(self.steps()):
            try:
                meta = with_retry(functools.partial(self.meta, step))
                if refusal is not None and (reason := refusal(step, meta)):
                    raise CheckpointError(f"checkpoint {step} in {self.directory} {reason}; {OTHER_RUN}")
                state = with_retry(functools.partial(self.restore, step, abstract_state, as_stored))
            except CheckpointError:
                raise
            except Exception as error:
                failures[step] = self.why_unreadable(step, error)
                continue
            for damaged, reason in failures.items():
                self.quarantine(damaged, reason)
            return step, state, meta
        if failures:
            texts = "; ".join(f"{step}: {reason}" for step, reason in failures.items())
            raise CheckpointError(
                f"no checkpoint in {self.directory} can be read ({texts}); restore it from a copy, or move the "
                "directory away to start anew"
            )
        return None

    def why_unreadable(self, step: int, error: Exception) -> str:
        """Why a checkpoint cannot be read; CheckpointError where that is the storage's fault."""
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        if is_storage_error(error):
            raise CheckpointError(
                f"checkpoint {step} in {self.directory} cannot be read now ({text}); nothing was changed: see to the "
                "storage and rerun the command to resume"
            ) from error
        return text

    def quarantine(self, step: int, reason: str) -> None:
        """Moves a damaged checkpoint with its boundary file to `UNREADABLE_CHECKPOINTS` beside this directory."""
        multihost = jax.process_count() > 1
        if multihost:
            multihost_utils.sync_global_devices(f"checkpoint {step} is damaged")  # nobody reads it any more
        target = (
            self.directory.parent / UNREADABLE_CHECKPOINTS / f"{self.path(step).name}.{time.strftime('%Y%m%d_%H%M%S')}"
        )
        log.warning("checkpoint %d cannot be read (%s): moved to %s, the one before it counts", step, reason, target)
        if jax.process_index() == 0:
            target.parent.mkdir(exist_ok=True)
            os.replace(self.path(step), target)
            if self.boundary_file(step).exists():
                os.replace(self.boundary_file(step), target / self.boundary_file(step).name)
            write_json(target / "reason.json", {"step": step, "reason": reason})
        if multihost:
            multihost_utils.sync_global_devices(f"checkpoint {step} is set aside")
        self._manager.reload()

    def restore(self, step: int, abstract_state: Any, as_stored: tuple[str, ...] = ()) -> Any:
        """State of one checkpoint; arguments as of `restore_newest`.

        Raises:
          DamagedFileError: a file is not what was written.
        """
        check_digests(self.path(step), "state", step)
        tree = self.stored_tree(step)
        if tree is None:
            raise ValueError("the array metadata is missing")
        sharding = jax.tree.leaves(abstract_state)[0].sharding
        for name in as_stored:
            shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree[name])
            abstract_state = abstract_state.replace(**{name: shapes})
        if difference := tree_difference(tree, abstract_state):
            where = f"checkpoint {step} in {self.directory}"
            raise CheckpointError(f"{where} belongs to another model or optimizer: {difference}; {OTHER_RUN}")
        return self._manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract_state)))[
            "state"
        ]

    def path(self, step: int) -> Path:
        """The directory of one checkpoint."""
        return self.directory / f"{STEP_PREFIX}_{step}"

    def shapes(self, step: int) -> dict[str, tuple[int, ...]]:
        """Name -> shape of the arrays of one checkpoint; empty where they cannot be told."""
        tree = self.stored_tree(step)
        return {} if tree is None else leaf_shapes(tree)

    def stored_tree(self, step: int) -> Any:
        """The state of one checkpoint with shapes and dtypes in place of arrays; None where they cannot be told."""
        stored = self._manager.item_metadata(step)["state"]
        return None if stored is None else stored.tree

    def meta(self, step: int) -> dict[str, Any]:
        """The host part of one checkpoint alone.

        Raises:
          DamagedFileError: a file is not what was written, or the checkpoint is that of another step.
        """
        with_step = check_digests(self.path(step), "meta", step)
        meta = self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]
        if not isinstance(meta, dict):
            raise DamagedFileError("the host part is no JSON object")
        if meta.pop(DIGESTS, False) and not (self.path(step) / DIGESTS).is_file():
            raise DamagedFileError(f"{DIGESTS} is missing")
        if not with_step:
            known = step_of(meta.get("host"))
            check_step(self.path(step), step, known)
            if known is None and step not in self._without_step:
                self._without_step.add(step)
                log.info("%s: an earlier version wrote it, without its step; its name counts", self.path(step))
        return _with_host(meta, revived)

    def newest_meta(self) -> dict[str, Any] | None:
        """The host part of the newest checkpoint whose host part can be read; None without any.

        Raises:
          CheckpointError: the storage fails.
        """
        if not self.directory.is_dir():
            return None
        for step in reversed(self.steps()):
            try:
                return with_retry(functools.partial(self.meta, step))
            except Exception as error:  # of damage: `restore_newest` reports it
                self.why_unreadable(step, error)
        return None

    def boundary_file(self, step: int) -> Path:
        return self.directory / f"boundary_{step}.json"

    def finish_boundary(self, step: int, host_state: dict[str, Any]) -> None:
        """Marks the boundary at `step` as done, with the host state from after it."""
        write_json(self.boundary_file(step), sealed({**strict(host_state), STEP: step}))

    def finished_boundary(self, step: int) -> dict[str, Any] | None:
        """The host state from after the boundary at `step`, if that boundary was finished.

        A damaged file does not count: the end of the epoch is then done again, from the state before it.
        """
        path = self.boundary_file(step)
        if not path.exists():
            return None
        try:
            state = read_sealed(path)
            known = step_of(state)
            check_step(path, step, state.pop(STEP, known))
            if not {"progress", "ranking"} <= set(state):
                raise DamagedFileError(f"{path} is damaged: it holds no state of a run")
            return {key: revived(each) for key, each in state.items()}
        except DamagedFileError as error:
            log.warning("%s; the end of that epoch counts as not finished", error)
            return None

    def unlink_boundaries(self) -> None:
        """Removes the boundary files whose checkpoint is gone; one process does it for all."""
        if jax.process_index() == 0:
            kept = {self.boundary_file(step) for step in self.steps()}
            for path in set(self.directory.glob("boundary_*.json")) - kept:
                path.unlink(missing_ok=True)

    def retain(self) -> list[int]:
        """Asks the policy once more, after the newest checkpoint was ranked; returns the steps deleted since last time.

        A save asks it before that, so at most what the newest checkpoint pushes out of the best is left to delete.
        """
        self.wait()
        steps = self.steps()
        for step in sorted(set(steps) - set(preserved(self.policy, steps))):
            self._dropped.add(step)
            self._manager.delete(step)
        self.unlink_boundaries()
        dropped, self._dropped = sorted(self._dropped), set()
        return dropped

    def close(self) -> None:
        """Ends the background threads. `wait` raises errors of a save; here they must not hide the error of a run."""
        if "_manager" in self.__dict__:
            try:
                self.__dict__.pop("_manager").close()
            except Exception as error:
                log.error("closing the checkpoints in %s failed: %s", self.directory, _reason(error))


def _with_host(meta: dict[str, Any], how: Callable[[Any], Any]) -> dict[str, Any]:
    """The host part of a checkpoint with its host state, which may hold NaN, as `how` writes or reads that."""
    return {**meta, "host": how(meta["host"])} if "host" in meta else meta


def _reason(error: Exception) -> str:
    """Why a save failed, in one line, and what to do."""
    if isinstance(error, TimeoutError) and error.errno is None:  # Orbax waited in vain, by a clock that nobody sets
        text = " ".join(str(error).split())
        return (
            f"it did not come to its end ({text}); if the storage or another process of the run hangs, see to it; "
            "rerun the command to resume from the newest checkpoint"
        )
    if (failed := write_error(error)) is not None:
        return f"{described(failed)}; {RESUME}"
    text = described(error) if isinstance(error, OSError) else " ".join(str(error).split())
    return f"{text}; see to the storage and rerun the command to resume from the newest checkpoint"
