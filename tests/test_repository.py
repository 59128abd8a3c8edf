"""What a clone holds: nothing of the sources is hidden from git, and every fixture has a reader."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("linnaeus_jax", "tests", "benchmarks", "configs", "docs")
CACHES = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}


def git(*arguments: str, stdin: str = "", codes: tuple[int, ...] = (0,)) -> list[str]:
    """The NUL-separated names that a git command prints; skips where the sources are no checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("these sources are not a git checkout")
    done = subprocess.run(["git", *arguments], cwd=ROOT, input=stdin, capture_output=True, text=True)
    assert done.returncode in codes, done.stderr
    return [name for name in done.stdout.split("\0") if name]


def tracked() -> list[str]:
    return git("ls-files", "-z", "--", *SOURCES)


def test_no_source_file_is_ignored():
    """Files on this disk that `git add` would pass over."""
    hidden = git("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--", *SOURCES)
    hidden = [name for name in hidden if not CACHES & set(Path(name).parts)]
    assert not hidden, f".gitignore hides {hidden[:5]}; anchor its patterns with a leading slash"


def test_no_pattern_of_gitignore_reaches_a_source_folder():
    """Files that do not exist yet: one in each folder, and in the folder of tests of each room of the package."""
    folders = {parent for name in tracked() for parent in Path(name).parents if parent.parts}
    folders |= {Path("tests", *folder.parts[1:]) for folder in folders if folder.parts[0] == "linnaeus_jax"}
    names = [*tracked(), *(f"{folder}/new_file.{end}" for folder in folders for end in ("py", "json", "npz", "h5"))]
    matched = git("check-ignore", "-z", "--no-index", "--stdin", stdin="\0".join(names), codes=(0, 1))
    assert not matched, f".gitignore matches {matched[:5]}; anchor its patterns with a leading slash"
