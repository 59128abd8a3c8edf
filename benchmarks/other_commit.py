"""Another commit beside the working tree: its files in a temporary worktree, its programs in child processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parents[1]
BASELINE = "574d9d1"  # what the documented ratios are relative to


def here() -> str:
    """The commit of the working tree, short; with `-dirty` where programs differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(HERE), *arguments], capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "linnaeus_jax", "benchmarks/*.py")
    return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


@contextlib.contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """The files of a commit in a directory that exists inside the `with` alone.

    Raises:
      SystemExit: git does not know the commit.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "checkout"
        made = subprocess.run(
            ["git", "-C", str(HERE), "worktree", "add", "--detach", str(path), commit], capture_output=True, text=True
        )
        if made.returncode:
            raise SystemExit(f"git cannot check out {commit!r}, so there is nothing to compare with: {made.stderr}")
        try:
            yield path
        finally:
            subprocess.run(["git", "-C", str(HERE), "worktree", "remove", "--force", str(path)], check=True)


def environment(package: Path, **env: str) -> dict[str, str]:
    """Variables with which a child process finds the packages of a checkout first."""
    paths = [str(package), os.environ.get("PYTHONPATH")]  # what is found there stays, behind the package
    return {**os.environ, **env, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def start(
    program: str,
    arguments: Sequence[str],
    package: Path = HERE,
    env: dict[str, str] | None = None,
    python: str = sys.executable,
) -> subprocess.Popen[str]:
    """Starts `benchmarks/<program>.py` of the working tree with the packages of the checkout `package`."""
    return subprocess.Popen(
        # -P: the directory of the program is no place to import from
        [python, "-P", str(HERE / "benchmarks" / f"{program}.py"), *arguments],
        env=environment(package, **(env or {})),
        cwd=package,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def output(program: str, arguments: Sequence[str], package: Path = HERE) -> str:
    """What a program started like that prints.

    Raises:
      SystemExit: it failed; its own messages stand above.
    """
    child = start(program, arguments, package)
    printed, _ = child.communicate()
    if child.returncode:
        raise SystemExit(f"benchmarks/{program}.py failed with the packages of {package}")
    return printed
