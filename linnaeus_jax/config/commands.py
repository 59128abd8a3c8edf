"""Commands that are printed to be typed: one way to write them, whatever is in the names."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import PurePath


def typed_command(*words: str | PurePath) -> str:
    """One line for the shell of this system, each word quoted where it must be.

    Args:
      words: the program and its arguments; a path that begins with a dash is written so that it is no option.
    """
    given = [f".{os.sep}{word}" if isinstance(word, PurePath) and str(word)[:1] == "-" else str(word) for word in words]
    return subprocess.list2cmdline(given) if os.name == "nt" else shlex.join(given)


def program(name: str, *words: str | PurePath) -> str:
    """The command of a program of this package, such as `main` or `tools.predict`, see `typed_command`."""
    return typed_command("python", "-m", f"linnaeus_jax.{name}", *words)
