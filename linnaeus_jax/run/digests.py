"""Digests of a checkpoint, so that no damage is read as numbers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from orbax.checkpoint.path import atomicity

from linnaeus_jax.files import write_digests

#: items of a checkpoint, each a directory
ITEMS = ("meta", "state")


class PathWithDigests(atomicity.AtomicRenameTemporaryPath):
    """A checkpoint that is being written: the digests of its files are made in the background, before it is renamed and
    thereby counts as complete."""

    async def finalize(self) -> None:
        directory = Path(self.get())
        if all((directory / item).is_dir() for item in ITEMS):  # an item of a checkpoint is finalized in the same way
            await asyncio.to_thread(write_digests, directory, ITEMS)
        await super().finalize()
