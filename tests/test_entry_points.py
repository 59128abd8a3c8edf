"""Every program starts: `--help` in a process of its own, and clear one-line errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from linnaeus_jax import __main__ as overview
from tests.campaign.case import Ended
from tests.forks import MAIN, TOOLS, call

ROOT = Path(__file__).parents[1]
#: modules that programs use, and parts of programs
PARTS = {
    *("__init__", "common", "step_common", "other_commit", "compiled_traffic", "gpu_kernels"),
    *("inference_worker", "predicting_costs"),
}
BENCHMARKS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in PARTS)
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


def test_every_program_has_a_verb(capsys):
    programs = {program for program in PROGRAMS if program.startswith("linnaeus_jax")}
    assert set(overview.verbs().values()) == programs
    assert overview.main([]) == 0
    printed = capsys.readouterr().out
    shown = [verb for group in overview.GROUPS.values() for verb in group]
    assert re.findall(r"^  ([a-z-]+(?: [a-z-]+)?)  +\S", printed, re.M) == shown
    assert len({overview.verbs()[verb] for verb in shown}) == len(shown) == len(programs)
    assert all(len(line) <= 120 for line in printed.splitlines())
    assert overview.main(["debug"]) == 0
    assert capsys.readouterr().out == printed
    for given, meant in (
        ("trian", "train"),
        ("predcit", "predict"),
        ("--config=quickstart", "train"),
        ("debug evnts", "debug events"),
    ):
        assert overview.main([*given.split(), "x"]) == 2
        assert f"did you mean linnaeus {meant}?" in capsys.readouterr().err
    assert overview.main(["--version"]) == 0


def test_a_verb_is_its_program(start):
    """With its own name in the help, and the same errors and status."""
    help_of_verb = start("linnaeus_jax", "predict", "--help")
    assert help_of_verb.status == 0
    assert help_of_verb.out.startswith("usage: linnaeus predict ")
    options = start("linnaeus_jax.tools.predict", "--help").out.partition("positional arguments")[2]
    assert help_of_verb.out.endswith(options)
    for verb, program in (("train", "linnaeus_jax.main"), ("build_dataset", "linnaeus_jax.tools.build_dataset")):
        ended, same = start("linnaeus_jax", verb, "--confg=x"), start(program, "--confg=x")
        assert ended.status == same.status == 2
        assert ended.error.split("error:")[-1] == same.error.split("error:")[-1] != ""
    of_debug, alone = (start("linnaeus_jax", *verb, "--help") for verb in (("debug", "events"), ("events",)))
    assert of_debug.out.replace("debug events", "events").split() == alone.out.replace("debug events", "events").split()
    assert of_debug.out.startswith("usage: linnaeus debug events ")
    assert start("linnaeus_jax", "completion", "bash").out.count("linnaeus") > 1


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("linnaeus pre", ["predict"]),
        ("linnaeus predict --expl", ["--explain"]),
        ("linnaeus train --config.train.ep", ["--config.train.epochs"]),
        ("linnaeus deb", ["debug"]),
        ("linnaeus debug replay-", ["replay-metrics"]),
        ("linnaeus debug replay runs --grad", ["--gradients"]),
    ],
)
def test_completion(line, completed, tmp_path):
    """As the function that `linnaeus completion bash` prints asks for it."""
    answer = tmp_path / "answer"
    asked = {
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
    }
    call("linnaeus_jax", (), tmp_path, directory=ROOT, seconds=60, environment=asked)
    assert [word.strip() for word in answer.read_text().split("\n")] == completed


def test_every_program_that_is_named_exists():
    """In a message, a docstring or a document."""
    named = re.compile(r"-m (linnaeus_jax[a-z_.]*[a-z_])")
    files = [path for kind in ("linnaeus_jax/**/*.py", "configs/*.py", "docs/*.md", "*.md") for path in ROOT.glob(kind)]
    found = {name for path in files for name in named.findall(path.read_text())}
    started_by_the_server = "linnaeus_jax.inference.server.decoder_process"
    assert found <= {*PROGRAMS, "linnaeus_jax", started_by_the_server}
    printed = re.compile(r'[^.\w]program\("([^"]+)"')
    verbs = {verb for path in ROOT.glob("linnaeus_jax/**/*.py") for verb in printed.findall(path.read_text())}
    assert verbs
    assert verbs <= overview.verbs().keys()
