"""The commands of a page of docs/, typed as they stand there, and what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: stands for any number of lines
ANYTHING = "..."
_FENCE = re.compile(r"^```[a-z]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """One line behind "$ ", and the lines below it."""

    line: str
    output: str


def blocks(page: Path) -> list[str]:
    """The fenced blocks of a page."""
    return _FENCE.findall(page.read_text())


def commands(page: Path) -> Iterator[Command]:
    """The commands with output, in order."""
    for block in blocks(page):
        if block.startswith("$ "):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                line, _, output = part.partition("\n")
                yield Command(line, output)


def run(line: str, folder: Path) -> str:
    """What a command prints, with this Python first in the path; AssertionError where it fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COLUMNS": "100", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


def matches(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed, spaces at line ends apart."""
    parts = [re.escape(line.rstrip()) + r"\n" for line in shown.strip("\n").splitlines()]
    pattern = "".join(r"(?:.*\n)*?" if part == re.escape(ANYTHING) + r"\n" else part for part in parts)
    text = "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())
    return re.fullmatch(pattern, text) is not None


def updated(page: Path, folder: Path) -> str:
    """The page with what its commands print in place of what it shows; a block with "..." stays as it is."""
    text = page.read_text()
    for command in list(commands(page)):
        printed = run(command.line, folder)
        if ANYTHING not in command.output.splitlines():
            lines = "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())
            text = text.replace(f"$ {command.line}\n{command.output}", f"$ {command.line}\n{lines}", 1)
    return text
