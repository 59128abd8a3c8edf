"""Digests of the files of a checkpoint, so that no damage is read as numbers.

`digests.json` in the directory of a checkpoint holds the SHA-256 of every file of its items. It is written in the
background, before the directory gets the name under which it counts as complete.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

from orbax.checkpoint.path import atomicity

DIGESTS = "digests.json"
#: items of a checkpoint, each a directory
ITEMS = ("meta", "state")


class DamagedError(ValueError):
    """A file is not what was written."""


class PathWithDigests(atomicity.AtomicRenameTemporaryPath):
    """A checkpoint that is being written; its digests are made before it is renamed."""

    async def finalize(self) -> None:
        directory = Path(self.get())
        if all((directory / item).is_dir() for item in ITEMS):  # an item of a checkpoint is finalized in the same way
            await asyncio.to_thread(write_digests, directory)
        await super().finalize()


def write_digests(directory: Path) -> None:
    """Writes `digests.json` of the items in a directory."""
    files = sorted(file for item in ITEMS for file in (directory / item).rglob("*") if file.is_file())
    digests = {file.relative_to(directory).as_posix(): _sha256(file) for file in files}
    (directory / DIGESTS).write_text(json.dumps(digests, indent=1) + "\n")


def check_digests(directory: Path, item: str) -> None:
    """Checks the files of one item; nothing where the checkpoint has no digests, as those of earlier versions.

    Raises:
      DamagedError: a file is missing or another than was written, or the digests are no JSON.
      OSError: a file cannot be read.
    """
    path = directory / DIGESTS
    if not path.is_file():
        return
    try:
        digests: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise DamagedError(f"{DIGESTS} is damaged ({error})") from error
    for name, digest in digests.items():
        if name.partition("/")[0] == item:
            file = directory / name
            if not file.is_file():
                raise DamagedError(f"{name} is missing")
            if _sha256(file) != digest:
                raise DamagedError(f"{name} is damaged: its SHA-256 is not the one written with the checkpoint")


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with the digest of what it holds, see `unsealed`."""
    return {**value, "sha256": _of_json(value)}


def unsealed(text: str) -> dict[str, Any]:
    """What was sealed; an object without a digest, as earlier versions wrote it, is returned as it is.

    Raises:
      DamagedError: the text is no JSON object, or not what was sealed.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DamagedError(f"no JSON ({error})") from error
    if not isinstance(value, dict):
        raise DamagedError("no JSON object")
    digest = value.pop("sha256", None)
    if digest not in (None, _of_json(value)):
        raise DamagedError("its SHA-256 is not that of its content")
    return value


def _of_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
