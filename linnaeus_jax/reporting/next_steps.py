"""What can be done next with a run, as commands with its paths."""

from __future__ import annotations

import shlex
from pathlib import Path


def next_steps(run: Path, pictures: Path | None = None, made_by: str = "") -> str:
    """Lines for a terminal: the report, a bundle, predictions, the server.

    Args:
      run: the run directory.
      pictures: a folder of pictures; None: a placeholder stands for it, which is said.
      made_by: the command that makes these pictures.
    """
    made = _quoted(run.with_name(f"{run.name}_bundle") if run.name not in ("", "..") else Path("bundle"))
    folder = "PICTURES" if pictures is None else shlex.quote(str(pictures))
    commands = {
        f"python -m linnaeus_jax.tools.bundle {_quoted(run)} {made}": "the model, with what it needs to be used",
        f"python -m linnaeus_jax.tools.predict {made} {folder}": "" if pictures else "PICTURES: a folder of pictures",
        f"python -m linnaeus_jax.tools.serve {made}": "a page, to drop pictures on",
    }
    if made_by:
        commands = {made_by: "pictures to try it with"} | commands
    width = max(map(len, commands))
    notes = [f"  # {note}" if note else "" for note in commands.values()]
    return "\n".join(
        ["next:", *(f"  {line:<{width}}{note}".rstrip() for line, note in zip(commands, notes, strict=True))]
    )


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
