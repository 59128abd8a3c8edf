"""The end of writing a checkpoint: digests, so that no damage is read as numbers, and syncing before it counts."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path

from orbax.checkpoint.path import atomicity

from linnaeus_jax.files import sync, sync_tree, write_digests

#: items of a checkpoint, each a directory
ITEMS = ("meta", "state")


class _OntoTheDisk:
    """How a finished checkpoint gets its name; Orbax asks a snapshot for it where there is one, as its last act."""

    def __init__(self, unfinished: Path, final: Path, before: Callable[[], None]) -> None:
        self.unfinished, self.final, self.before = unfinished, final, before

    async def replace_source(self) -> None:
        await asyncio.to_thread(self._replace)

    def _replace(self) -> None:
        self.before()
        sync_tree(self.unfinished)
        os.rename(self.unfinished, self.final)
        sync(self.final.parent)


class PathWithDigests(atomicity.AtomicRenameTemporaryPath):
    """A checkpoint that is being written.

    In the background, before it is renamed and thereby counts as complete: the digests of its files are made, and what
    it needs, every file and every directory in it are synced; after it, the directory that has its name. Orbax deletes
    older ones after that.
    """

    @staticmethod
    def before() -> None:
        """Syncs what a run needs besides the checkpoint to go on from it, see `syncing_before`."""

    async def finalize(self) -> None:
        directory, final = Path(self.get()), Path(self.get_final())
        if all((directory / item).is_dir() for item in ITEMS):  # an item of a checkpoint is finalized in the same way
            step = re.fullmatch(r".*_(\d+)", final.name)
            await asyncio.to_thread(write_digests, directory, ITEMS, None if step is None else int(step[1]))
            self._snapshot = _OntoTheDisk(directory, final, self.before)
        await super().finalize()


def syncing_before(before: Callable[[], None]) -> type[PathWithDigests]:
    """`PathWithDigests` that calls `before` in the background, before a checkpoint gets its name."""
    return type(PathWithDigests.__name__, (PathWithDigests,), {"before": staticmethod(before)})
