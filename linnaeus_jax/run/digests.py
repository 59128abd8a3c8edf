"""The end of writing a checkpoint: digests, so that no damage is read as numbers, and syncing before it counts."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable

from linnaeus_jax.compat.orbax_parts import TemporaryPath
from linnaeus_jax.files import sync, sync_tree, write_digests

#: items of a checkpoint, each a directory
ITEMS = ("meta", "state")


class PathWithDigests(TemporaryPath):
    """A checkpoint that is being written.

    In the background, before it is renamed and thereby counts as complete: the digests of its files are made, and what
    it needs, every file and every directory in it are synced; after it, the directory that has its name. Orbax deletes
    older ones after that.
    """

    @staticmethod
    def before() -> None:
        """Syncs what a run needs besides the checkpoint to go on from it, see `syncing_before`."""

    async def finalize(self) -> None:
        directory, final = self.paths()
        if not all((directory / item).is_dir() for item in ITEMS):  # an item of a checkpoint, finished in the same way
            await self.finalize_by(None)
            return
        step = re.fullmatch(r".*_(\d+)", final.name)
        await asyncio.to_thread(write_digests, directory, ITEMS, None if step is None else int(step[1]))
        await self.finalize_by(lambda: asyncio.to_thread(self._onto_the_disk))

    def _onto_the_disk(self) -> None:
        unfinished, final = self.paths()
        self.before()
        sync_tree(unfinished)
        os.rename(unfinished, final)
        sync(final.parent)


def syncing_before(before: Callable[[], None]) -> type[PathWithDigests]:
    """`PathWithDigests` that calls `before` in the background, before a checkpoint gets its name."""
    return type(PathWithDigests.__name__, (PathWithDigests,), {"before": staticmethod(before)})
