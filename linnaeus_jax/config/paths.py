"""Paths that people type: what lies there in place of a file, and which file was probably meant."""

from __future__ import annotations

import difflib
import os
import shlex
import stat
import subprocess
from pathlib import Path, PurePath

# ---- Commands that are printed to be typed: one way to write them, whatever is in the names


def typed_command(*words: str | PurePath) -> str:
    """One line for the shell of this system, each word quoted where it must be.

    Args:
      words: the program and its arguments; a path that begins with a dash is written so that it is no option.
    """
    given = [f".{os.sep}{word}" if isinstance(word, PurePath) and str(word)[:1] == "-" else str(word) for word in words]
    return subprocess.list2cmdline(given) if os.name == "nt" else shlex.join(given)


def program(verb: str, *words: str | PurePath) -> str:
    """The command of a verb, such as "train" or "debug replay", see `typed_command`."""
    return typed_command("linnaeus", *verb.split(), *words)


# ----------------------------------------------------------------------------------------------------------------------


_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe (FIFO)"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def other_than_file(path: Path) -> str:
    """What lies at a path in place of a regular file, as "a directory"; "" of a file, and where there is nothing.

    To read a pipe waits until somebody writes; so this is asked before a file is opened.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return ""
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "")


def nearest_file(path: Path) -> Path | None:
    """The file whose path differs least, part by part, from one where no file is; of a directory, one of its files
    with the same ending, or with that of a configuration."""
    found = Path(path.anchor)
    parts = path.parts[1:] if path.anchor else path.parts
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        step = found / part
        if not step.exists() or (last and not step.is_file() and not step.is_dir()):
            try:
                names = [name for name in os.listdir(found) if not last or Path(name).suffix == (path.suffix or ".py")]
            except OSError:
                return None
            near = difflib.get_close_matches(part, [name for name in names if name != part], n=1)
            if not near:
                return None
            step = found / near[0]
        found = step
    if found.is_dir():
        inside = sorted(file for file in found.iterdir() if file.suffix in (".py", ".yaml", ".yml") and file.is_file())
        return next((file for file in inside if file.stem == "config"), inside[0] if inside else None)
    return found if found.is_file() else None
