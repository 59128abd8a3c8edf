"""What some tests need besides what `make` installs.

A test says so by `@pytest.mark.needs(NAME)`, and is skipped where it is missing; no test is skipped in another way.
`LINNAEUS_REQUIRE="torch nginx"` makes it a failure that one of these is missing: CI names what it has installed.
Tests that have not begun at the time `LINNAEUS_UNTIL` are left out: CI has to end on slow machines, too.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks import gpu_program

ROOT = Path(__file__).parents[1]
REQUIRE = "LINNAEUS_REQUIRE"
UNTIL = "LINNAEUS_UNTIL"  # seconds since 1970
ORDER = "LINNAEUS_ORDER"  # any text: decides which files come first where UNTIL is set


class Need(NamedTuple):
    """Attributes:
    present: whether it is there.
    missing: what a skipped test says.
    """

    present: Callable[[], object]
    missing: str


def program(*names: str) -> str | None:
    """Where the first of these programs lies that is on the path, or in the administrator's part of it."""
    path = os.environ.get("PATH", os.defpath) + os.pathsep + "/usr/sbin"
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


def chromium() -> str | None:
    return program("chromium", "chromium-browser", "google-chrome")


def published(variable: str, pattern: str) -> list[Path]:
    """Files below the directory that an environment variable names."""
    directory = os.environ.get(variable)
    return sorted(Path(directory).rglob(pattern)) if directory else []


NEEDS = {
    "cc": Need(lambda: program("cc"), "no C compiler"),
    "chromium": Need(chromium, "Chromium is not installed (apt-get install chromium)"),
    "git": Need(lambda: (ROOT / ".git").exists(), "these sources are not a git checkout"),
    "gpu-compiler": Need(lambda: not gpu_program.missing(), "XLA's compiler for GPUs: pip install '.[gpu-program]'"),
    "jq": Need(lambda: program("jq"), "jq is not installed (apt-get install jq)"),
    "linux": Need(lambda: sys.platform == "linux", "Linux with glibc"),
    "nginx": Need(lambda: program("nginx"), "nginx is not installed (apt-get install nginx-light)"),
    "onnx": Need(
        lambda: all(map(importlib.util.find_spec, ("jax2onnx", "onnxruntime"))),
        "jax2onnx is not installed (pip install '.[onnx]' && pip install --no-deps jax2onnx)",
    ),
    "pictures": Need(
        lambda: published("LINNAEUS_PICTURES", "*.jpg"),
        "LINNAEUS_PICTURES names no folder with the 504 pictures of the Grocery Store set",
    ),
    "rclone": Need(lambda: program("rclone"), "rclone is not installed (apt-get install rclone)"),
    "torch": Need(lambda: importlib.util.find_spec("torch"), "PyTorch is not installed (pip install torch)"),
    "weights": Need(
        lambda: published("LINNAEUS_WEIGHTS", "mobilenet_v2_*.tflite"),
        "LINNAEUS_WEIGHTS names no directory with mobilenet_v2_*.tflite",
    ),
}


def check_needs(item: pytest.Item) -> None:
    """Skips a test that lacks what it needs, or fails it where that is required; skips one that begins too late."""
    if time.time() > float(os.environ.get(UNTIL, "inf")):
        pytest.skip(f"{item.nodeid}: no time is left, see {UNTIL}")
    required = os.environ.get(REQUIRE, "").split()
    for name in (name for mark in item.iter_markers("needs") for name in mark.args):
        if not NEEDS[name].present():
            if name in required:
                pytest.fail(f"{NEEDS[name].missing}, and {REQUIRE} asks for it", pytrace=False)
            pytest.skip(NEEDS[name].missing)
