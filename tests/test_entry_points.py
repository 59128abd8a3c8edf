"""Every program starts: `--help` in a process of its own, and clear one-line errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = sorted(path.stem for path in (ROOT / "linnaeus_jax" / "tools").glob("*.py") if path.stem != "__init__")
BENCHMARKS = sorted(
    path.stem
    for path in (ROOT / "benchmarks").glob("*.py")
    if path.stem not in ("__init__", "common", "step_common", "other_commit", "compiled_traffic")
)
PROGRAMS = ["linnaeus_jax.main", *(f"linnaeus_jax.tools.{t}" for t in TOOLS), *(f"benchmarks.{b}" for b in BENCHMARKS)]


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_help(program):
    done = start(program, "--help")
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower() or "--config" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config=configs/quickstart.py", "--config.train.epoch=3"], ["train.epoch", "train.epochs"]),
        (["--config=configs/quickstart.py", "--config.train.epochs=many"], ["train.epochs", "many"]),
        (["--config=configs/quickstar.py"], ["quickstar.py", "quickstart.py"]),
        (["--cfg", "x.yaml", "--opts", "DEBUG.LOSS.TAXONOMY_SMOOTHING", "true"], ["--config"]),
    ],
)
def test_wrong_command_line_is_one_clear_message(arguments, words):
    done = start("linnaeus_jax.main", *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_every_program_that_is_named_exists():
    """In a message, a docstring or a document."""
    named = re.compile(r"-m (linnaeus_jax[a-z_.]*[a-z_])")
    files = [path for kind in ("linnaeus_jax/**/*.py", "configs/*.py", "docs/*.md", "*.md") for path in ROOT.glob(kind)]
    found = {name for path in files for name in named.findall(path.read_text())}
    assert found <= set(PROGRAMS)
