"""Every program starts: `--help` in a process of its own, and clear one-line errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from linnaeus_jax import __main__ as overview
from tests.campaign.case import Ended
from tests.forks import MAIN, TOOLS, call

ROOT = Path(__file__).parents[1]
BENCHMARKS = sorted(
    path.stem
    for path in (ROOT / "benchmarks").glob("*.py")
    if path.stem not in ("__init__", "common", "step_common", "other_commit", "compiled_traffic")
)
PROGRAMS = [MAIN, *TOOLS, *(f"benchmarks.{b}" for b in BENCHMARKS)]


@pytest.fixture
def start(tmp_path):
    def start(program: str, *arguments: str) -> Ended:
        return call(program, arguments, tmp_path, directory=ROOT, seconds=120)

    return start


@pytest.mark.parametrize("program", PROGRAMS)
def test_help(start, program):
    done = start(program, "--help")
    assert done.status == 0, done.error
    assert "usage" in done.out.lower() or "--config" in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config=configs/quickstart.py", "--config.train.epoch=3"], ["train.epoch", "train.epochs"]),
        (["--config=configs/quickstart.py", "--config.train.epochs=many"], ["train.epochs", "many"]),
        (["--config=configs/quickstar.py"], ["quickstar.py", "quickstart.py"]),
        (["--cfg", "x.yaml", "--opts", "DEBUG.LOSS.TAXONOMY_SMOOTHING", "true"], ["--config"]),
    ],
)
def test_wrong_command_line_is_one_clear_message(start, arguments, words):
    done = start("linnaeus_jax.main", *arguments)
    assert done.status == 2
    assert "Traceback" not in done.error
    for word in words:
        assert word in done.error


def test_the_package_itself_lists_the_programs(capsys):
    assert overview.main([]) == 0
    printed = capsys.readouterr().out
    assert set(re.findall(r"^  (linnaeus_jax\S+)  +\S", printed, re.M)) == {
        program for program in PROGRAMS if program.startswith("linnaeus_jax")
    }
    for given, meant in (("train", "linnaeus_jax.main"), ("predcit", "linnaeus_jax.tools.predict")):
        assert overview.main([given, "x"]) == 2
        assert f"did you mean python -m {meant}?" in capsys.readouterr().err
    assert overview.main(["--config=quickstart"]) == 2
    assert "python -m linnaeus_jax.main?" in capsys.readouterr().err
    assert overview.main(["--version"]) == 0


def test_every_program_that_is_named_exists():
    """In a message, a docstring or a document."""
    named = re.compile(r"-m (linnaeus_jax[a-z_.]*[a-z_])")
    files = [path for kind in ("linnaeus_jax/**/*.py", "configs/*.py", "docs/*.md", "*.md") for path in ROOT.glob(kind)]
    found = {name for path in files for name in named.findall(path.read_text())}
    started_by_the_server = "linnaeus_jax.inference.decoder_process"
    assert found <= {*PROGRAMS, "linnaeus_jax", started_by_the_server}
