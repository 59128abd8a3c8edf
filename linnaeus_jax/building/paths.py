"""Paths that files of unknown origin name: they must stay below the folder that they belong to."""

from __future__ import annotations

import os
import re
from pathlib import Path

from linnaeus_jax.data.images import image_path

#: absolute, upwards, backslashes (folders on one system, letters on others), control characters
UNSAFE = re.compile(rb"^/|^[A-Za-z]:|(?:^|/)\.\.(?:/|$)|[\x00-\x1f\x7f\\]")


class UnsafePathError(ValueError):
    """A path that leads out of its folder; the message is the reason."""


class SafeFolder:
    """A folder, and the paths of files below it.

    Symbolic links are followed as far as they stay below the folder; the folder itself may be one.
    """

    def __init__(self, folder: Path) -> None:
        self.root = os.path.realpath(folder)
        self._checked: set[str] = set()

    def path(self, identifier: str, extension: str = "") -> str:
        """Path of the file of an identifier, see `data.images.image_path`.

        Raises:
          UnsafePathError: it is absolute, holds "..", a backslash or control characters, or a folder on the way, or
            the file itself, is a symbolic link that leads out.
        """
        if not identifier or UNSAFE.search(identifier.encode("utf-8", "surrogatepass")):
            raise UnsafePathError("empty" if not identifier else "leads out of the folder or holds control characters")
        path = image_path(self.root, identifier, extension)
        parent = os.path.dirname(path)
        if parent not in self._checked:
            self._check(parent)
            self._checked.add(parent)
        if os.path.islink(path):
            self._check(path)
        return path

    def _check(self, path: str) -> None:
        if os.path.commonpath([self.root, os.path.realpath(path)]) != self.root:
            raise UnsafePathError("a symbolic link leads out of the folder")
