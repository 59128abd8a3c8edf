"""What a run was made with."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from functools import cache
from pathlib import Path

import jax

import linnaeus_jax

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "h5py")


@cache
def versions() -> dict[str, str]:
    """Versions of the program and its libraries, the device, and the git commit where there is one."""
    result = {"linnaeus_jax": linnaeus_jax.__version__, "python": platform.python_version()}
    result |= {name: importlib.metadata.version(name) for name in PACKAGES}
    result["platform"] = platform.platform()
    result["device"] = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    result["git_sha"] = git_sha()
    return result


def git_sha() -> str:
    """Commit of the checkout that the package lies in, with `-dirty` for local changes; empty outside of one."""
    folder = Path(linnaeus_jax.__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", timeout=10, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""
